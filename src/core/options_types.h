/* ---- Options ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/cublaslt_types.h"

/* The type in which products are summed, and whether their order is fixed. */
typedef enum tegroup_compute {
    TEGROUP_COMPUTE_F32      = 0, /* a row's bits do not depend on the rows that come with it */
    TEGROUP_COMPUTE_F64      = 1, /* likewise; required for F64 operands; with narrower ones it is an oracle */
    TEGROUP_COMPUTE_F32_FAST = 2, /* F32 in whatever order is fastest, by the same bound: a row's bits may depend on how
                                     many rows its group has, the type of the weights and the instruction set, but
                                     repeat. Today: FORWARD on the CPU of groups of up to 4 rows (weights of F32: 3),
                                     k contiguous in the weights, compiled by gcc (from 9 on) or clang for x86-64 or
                                     AArch64; all else is as F32 */
    TEGROUP_COMPUTE_FAST_ACCUM = 3 /* FP8's tensor cores keep sums of all of k, in some 14 bits, where F32 takes them
                                     over every 128 of k: errors may be 33 * 2^-13 of the sum of magnitudes for each
                                     32 of k, and are 2^-9 or so for 128. A row's bits do not depend on its company.
                                     Today: FORWARD and DGRAD on SM90 of FP8 whose scales are for all of k (TENSOR,
                                     ROW); all else is as F32 */
} tegroup_compute;

typedef enum tegroup_backend {
    TEGROUP_BACKEND_AUTO             = 0,
    TEGROUP_BACKEND_SM90             = 1, /* bundled: TMA + wgmma, Hopper                  */
    TEGROUP_BACKEND_CUBLASLT_GROUPED = 2, /* cuBLASLt's grouped matmul, sizes on the device */
    TEGROUP_BACKEND_PORTABLE         = 3, /* bundled: cp.async + mma.sync, SM80 and later  */
    TEGROUP_BACKEND_CUBLASLT_LOOP    = 4, /* one cublasLtMatmul a group, sizes on the host */
    TEGROUP_BACKEND_CPU              = 5, /* any machine, every operation; the oracle      */
    TEGROUP_BACKEND_COUNT
} tegroup_backend;

/* What every planned descriptor has; all zero is the default. A layer hands it on to each of its products. The plan
 * reads all but the workspace, streams and events. A call has its own workspace, streams, events, check_level,
 * cublaslt, host_sizes_final and, for activations, threads. Backend, sm_limit, products' threads and hints are taken
 * from the plan: a call's must be in their range and mean nothing else. All others that the plan's backend reads must
 * be as planned. */
typedef struct tegroup_options {
    tegroup_compute     compute;       /* the type of the sums */
    tegroup_backend     backend;       /* AUTO, or the one to use or be told why not */
    tegroup_check_level check_level;   /* how much a call checks */
    int32_t             threads;       /* CPU: threads to use at most; 0 = all that OpenMP gives, 1 without OpenMP */
    int32_t             sm_limit;      /* GPU: multiprocessors that a product uses at most; 0 = all. Tails and bias
                                          gradients are small kernels of their own, and not limited */
    int32_t             data_alignment_bytes; /* the caller's word that data of a, b, c, d will lie at multiples of
                                                 so many bytes, and groups at shape.offsets, too: 0 = as the backend
                                                 needs, and for offsets nothing, or a power of two up to
                                                 TEGROUP_ALIGNMENT. Below 16, SM90 and CUBLASLT_GROUPED are not
                                                 taken. CUBLASLT_GROUPED may find a faster algorithm for it, with a
                                                 numerics_id of its own, and refuses other addresses then; not for
                                                 lists */
    int64_t             expected_rows; /* hint: rows in all groups together; 0 = capacity. Speed only, but cuBLASLt's
                                          algorithm, and so its numerics_id, may follow it, and whether SM90 decodes
                                          weights in workspace or in registers (docs/formats.md) */
    int64_t             expected_rows_max; /* hint: rows of the largest group; 0 = unknown: SM90 takes groups to be
                                              as uneven as routers make them, PORTABLE to be even. Speed only: of
                                              CUBLASLT_GROUPED's algorithms those that tegroup_plan_tune has to try
                                              may follow it */
    uint64_t            ignore_quirks; /* bit q set: take quirk q's risk (see tegroup_quirks) */
    void               *workspace;     /* TEGROUP_ALIGNMENT-aligned, in `space`; may be NULL when no bytes are
                                          needed. Contents are garbage before and after. One call at a time may use
                                          it: a wgrad that may run beside other calls needs its own */
    size_t              workspace_bytes; /* >= what the plan asks for */
    size_t              cublas_workspace_bytes; /* part of the workspace that cuBLASLt gets; 0 = 32 MiB, its
                                                   documented advice for Hopper and later */
    struct cublasLtContext *cublaslt;  /* cuBLASLt backends: the caller's handle, of cublasLtCreate, for the plan and
                                          for each call; NULL: they are refused */
    const tegroup_cublaslt_functions *cublaslt_functions; /* NULL = those of the cuBLASLt that the process has loaded */
    struct CUstream_st *const *streams; /* [stream_count] host list for CUBLASLT_LOOP to fork onto; NULL = none.
                                           These and the events are as the workspace: for one call at a time */
    struct CUevent_st  *const *events; /* [stream_count + 1] host list, for the fork and the joins */
    int32_t             stream_count;
    int32_t             host_sizes_final; /* 1: the caller's word that group sizes on the host stay as they are, so
                                             that CUBLASLT_LOOP may be captured: a graph keeps the sizes of its
                                             capture */
} tegroup_options;
