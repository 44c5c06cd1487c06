/* ---- Functions ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "core/tile_types.h"
#include "core/validation_types.h"
#include "core/scale_convert_types.h"
#include "core/code_convert_types.h"
#include "core/activation_types.h"
#include "layer/quantize_types.h"
#include "layer/linear_types.h"
#include "layer/mlp_types.h"
#include "layer/chain_types.h"
#include "moe/routing_types.h"
#include "moe/layer_types.h"
#include "ep/ep_types.h"
#include "base/linkage.h"

/* Every function is safe to call from several threads at once on different memory (and streams and events of a
 * descriptor). Those that return a status write nothing when it is not TEGROUP_OK, except *error, which may be NULL,
 * a chain's `refused`, and what tegroup_gemm_once and a tegroup_moe_desc say of theirs; where CUDA, cuBLAS or a chain's
 * USER op fails on the way, what ran before it has run. A descriptor, plan or place for a result that is NULL is
 * ERROR_NULL_ARGUMENT; a target may be NULL, which is this machine, and a stream, which is the default stream and which
 * what runs in host memory ignores. Nothing here allocates or keeps a pointer. */

/* Names, versions and sizes of types. Never NULL: an unknown value gives "?". */
TEGROUP_API int32_t     tegroup_version(void);                            /* TEGROUP_VERSION of the code that runs */
TEGROUP_API const char *tegroup_status_name(tegroup_status status);       /* "ERROR_SHAPE" */
TEGROUP_API const char *tegroup_status_string(tegroup_status status);     /* "dimensions disagree" */
TEGROUP_API const char *tegroup_dtype_name(tegroup_dtype dtype);          /* "BF16" */
TEGROUP_API int32_t     tegroup_dtype_bits(tegroup_dtype dtype);          /* 16; 0 for an unknown type */
TEGROUP_API const char *tegroup_op_name(tegroup_op op);                   /* "forward" */
TEGROUP_API const char *tegroup_backend_name(tegroup_backend backend);    /* "cublaslt_grouped" */

/* Text for people, into the caller's buffer, always terminated when size > 0. Each returns the length that the whole
 * text has, as snprintf does; buffer may be NULL when size is 0. Of NULL the text is "ok" for an error and else "?". */
TEGROUP_API int tegroup_error_text(const tegroup_error *error, char *buffer, size_t size);       /* one line */
TEGROUP_API int tegroup_verdict_text(const tegroup_verdict *verdict, char *buffer, size_t size); /* one line */
TEGROUP_API int tegroup_layout_text(const tegroup_layout *layout, char *buffer, size_t size);    /* a line an item */
TEGROUP_API int tegroup_skew_text(const tegroup_skew *skew, char *buffer, size_t size);          /* one line */

/* Constructors: the common case in a line. They check nothing (whoever takes the struct does), keep nothing, and what
 * they return may be edited before it is used: another encoding, an ld, a list instead of data. data may be const here;
 * a call writes it only where its tensor is an output.
 *   sizes     COUNTS [groups] of I32 or I64 in `space`: the rows of each group
 *   shape     ragged rows: a buffer of `rows` rows, of which each of the groups owns some
 *   tensor    ragged rows of `cols` columns in one buffer: shape's groups, rows, sizes and snapshot
 *   uniform   [groups, rows, cols] in one buffer: weights
 *   matrix    [rows, cols] without gaps between rows */
TEGROUP_API tegroup_sizes  tegroup_sizes_of(const void *counts, tegroup_dtype dtype, tegroup_space space);
TEGROUP_API tegroup_shape  tegroup_shape_of(int32_t groups, int64_t rows, int64_t cols, tegroup_sizes sizes);
TEGROUP_API tegroup_tensor tegroup_tensor_of(tegroup_shape shape, int64_t cols, tegroup_dtype dtype, const void *data);
TEGROUP_API tegroup_tensor tegroup_tensor_uniform(int32_t groups, int64_t rows, int64_t cols, tegroup_dtype dtype,
    const void *data);
TEGROUP_API tegroup_matrix tegroup_matrix_of(const void *data, int64_t rows, int64_t cols, tegroup_dtype dtype);
#if defined(__GNUC__) && __GNUC__ >= 11 && !defined(__clang__) && !defined(__CUDACC__)
/* These keep the address, and read nothing there. Untold, gcc warns of memory that a call is yet to write. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wredundant-decls"
extern __typeof__(tegroup_tensor_of) tegroup_tensor_of __attribute__((access(none, 4)));
extern __typeof__(tegroup_tensor_uniform) tegroup_tensor_uniform __attribute__((access(none, 5)));
extern __typeof__(tegroup_matrix_of) tegroup_matrix_of __attribute__((access(none, 1)));
#pragma GCC diagnostic pop
#endif

/* Scaling modes: the row of facts (NULL for an unknown mode), the extent of one group's scales, and the place of a
 * scale. rows and cols are the data's; columnwise is 0 or 1, see tegroup_scaling. Returns ERROR_NULL_ARGUMENT,
 * ERROR_VALUE (mode, negative extents), ERROR_OVERFLOW. */
TEGROUP_API const tegroup_scaling_facts *tegroup_scaling_info(tegroup_scaling scaling);
TEGROUP_API_STATUS tegroup_scale_shape(tegroup_scaling scaling, int32_t columnwise,
    int64_t rows, int64_t cols, tegroup_scale_extent *extent, tegroup_error *error);
/* Index, in scales, of the scale of outer index `outer` (row; columnwise: column) and inner block `inner`. Arguments
 * are not checked: outer < extent.outer, inner < extent.inner. */
TEGROUP_API int64_t tegroup_scale_index(tegroup_scaling scaling, const tegroup_scale_extent *extent,
    int64_t outer, int64_t inner);

/* The bytes of a tensor's buffers, from its fields alone: neither pointers nor a snapshot are looked at. The items are
 * always data, scale_inv, columnwise_data, columnwise_scale_inv and global_scale_inv, of 0 bytes where the scaling has
 * none or `copies` leaves it out. Of ragged rows it is the most that any sizes take, and some do take it (with
 * col_sizes as if every group had shape.cols columns): it is enough for every snapshot that fits. Of a list it is what
 * each of its buffers needs. More groups, rows or columns never need less. Returns ERROR_NULL_ARGUMENT, ERROR_UNSET,
 * ERROR_VALUE, ERROR_COMBINATION (columnwise without a scaling), ERROR_OVERFLOW, and what is wrong with the tensor's
 * other fields. */
TEGROUP_API_STATUS tegroup_tensor_layout(const tegroup_tensor *tensor, tegroup_copies copies, tegroup_layout *layout,
    tegroup_error *error);

/* One number as a code of a type: F32, F16, BF16, F8E4M3, F8E5M2, F4E2M1 or F8E8M0, in the low bits of `code`; those
 * above are not looked at. Decoding is exact. Encoding rounds to nearest, ties to even; what is too large gives
 * infinity in F16 and BF16 and the largest finite value in narrower types, as infinity does there; NaN stays NaN, or is
 * 6 in F4E2M1. F8E8M0 drops the sign and takes ties up. Any other type gives NaN, and 0. */
TEGROUP_API float    tegroup_decode(tegroup_dtype dtype, uint32_t code);
TEGROUP_API uint32_t tegroup_encode(tegroup_dtype dtype, float x);

/* A block quantised by hand: a rule, its amax (from 0, one value after another), its scale, and each value's code.
 *   of       the rule of a preset, to be edited at will; method UNSET for an unknown preset
 *   amax     amax with one value more; amax is not negative
 *   global   TWO_LEVEL: `global` of a group whose amax is given; the tensor's global_scale_inv is 1 / it
 *   block    the scale of a block, for values of type `data`, as a code of type `scale`: F32; F8E8M0 where the rule
 *            gives powers of two; F8E4M3 by TWO_LEVEL. The sign of amax is dropped. `global` is read by TWO_LEVEL
 *            (1: it has none) and GIVEN (the multiplier). Returns ERROR_NULL_ARGUMENT, ERROR_UNSET, ERROR_VALUE,
 *            ERROR_COMBINATION, ERROR_DTYPE.
 *   code     of the value x of such a block, as tegroup_encode makes it
 * No pointer may be NULL but error's; amax and code check nothing. */
TEGROUP_API tegroup_scale_rule tegroup_scale_rule_of(tegroup_scale_preset preset);
TEGROUP_API float tegroup_scale_amax(const tegroup_scale_rule *rule, float amax, float x);
TEGROUP_API float tegroup_scale_global(float amax);
TEGROUP_API_STATUS tegroup_scale_block(const tegroup_scale_rule *rule, tegroup_dtype data, tegroup_dtype scale,
    float amax, float global, tegroup_block_scale *block, tegroup_error *error);
TEGROUP_API uint32_t tegroup_scaled_code(tegroup_dtype data, const tegroup_block_scale *block, float x);

/* Snapshot: its layout for a shape (its groups and whether it has col_sizes or elements, nothing else), and a view
 * of one in host memory (all NULL when snapshot is NULL). Returns ERROR_NULL_ARGUMENT, ERROR_VALUE. */
TEGROUP_API_STATUS tegroup_snapshot_layout(const tegroup_shape *shape, tegroup_layout *layout, tegroup_error *error);
TEGROUP_API tegroup_snapshot_view tegroup_snapshot_read(const void *snapshot);

/* Turn sizes into a snapshot. A size in host memory that lies is an error that names its group, of several one of them
 * (ERROR_VALUE, ERROR_CAPACITY, ERROR_OVERLAP), unless desc.clamp is set; those in device memory are clamped, and
 * the snapshot's status says so. Sizes in host memory (tegroup_sizes.data_space) for a snapshot in device memory are
 * read before the call returns; more than TEGROUP_HOST_SIZES_MAX_BYTES of them are ERROR_UNSUPPORTED, and while stream
 * is capturing they are ERROR_COMBINATION without desc.host_sizes_final. */
TEGROUP_API_STATUS tegroup_prepare(const tegroup_prepare_desc *desc, struct CUstream_st *stream, tegroup_error *error);

/* The same for a shape: its sizes become a snapshot in `snapshot`, of tegroup_snapshot_layout's bytes, in row_sizes'
 * space; on success shape->snapshot points there, and every tensor made from the shape from then on has it. Errors are
 * those of tegroup_prepare, which is the one to call where host sizes are final in a captured graph. */
TEGROUP_API_STATUS tegroup_shape_prepare(tegroup_shape *shape, void *snapshot, size_t snapshot_bytes,
    struct CUstream_st *stream, tegroup_error *error);

/* The tiles of tile_m by tile_n of a product's results, for a kernel of the caller's own, which takes them by
 * tegroup_tile_take or tegroup_tile_find. rows: the shape of the ragged buffers, with row_sizes and the snapshot's
 * address, which need not be prepared yet and is not read; all groups have as many columns. FORWARD, DGRAD: each
 * group's result has its rows and n columns, and m is 0; WGRAD: m rows and n columns, over as many rows as the group
 * has. A group without rows has no tile in a FORWARD or DGRAD, one that is skipped none in a WGRAD. Any tile goes, even
 * larger than the matrices. Returns ERROR_NULL_ARGUMENT, ERROR_UNSET, ERROR_VALUE, ERROR_COMBINATION, ERROR_ALIGNMENT,
 * ERROR_UNSUPPORTED (col_sizes or elements, more than 2^31 - 1 tiles a group). */
TEGROUP_API_STATUS tegroup_tiles_of(tegroup_op op, const tegroup_shape *rows, int64_t m, int64_t n, int32_t tile_m,
    int32_t tile_n, tegroup_tiles *tiles, tegroup_error *error);

/* The tables that dispatch reads, for printing and for documentation. They are static: nobody frees them. count: out,
 * how many rows there are; NULL = not wanted. */
TEGROUP_API const tegroup_backend_rule *tegroup_backend_rules(int32_t *count);
TEGROUP_API const tegroup_quirk        *tegroup_quirks(int32_t *count);

/* Check a GEMM descriptor without its data pointers and resolve its defaults. */
TEGROUP_API_STATUS tegroup_gemm_problem(const tegroup_gemm_desc *desc, tegroup_problem *problem, tegroup_error *error);

/* What every backend says of a problem on a machine; target NULL = this one. Writes TEGROUP_BACKEND_COUNT - 1
 * verdicts, in order of preference. Fails only as tegroup_gemm_problem does, for a target of another struct_size or
 * with a number below 0, or without verdicts. */
TEGROUP_API_STATUS tegroup_explain(const tegroup_gemm_desc *desc, const tegroup_target *target,
    tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1], tegroup_error *error);

/* Choose: the backend that tegroup_explain marks as chosen, its workspace and its numerics_id. When none can, the
 * status and the error are those of the backend asked for, or with AUTO of the most preferred one for that memory
 * space. The cuBLASLt backends ask the library's heuristic, for tens of microseconds or more; CUBLASLT_GROUPED,
 * where groups are small and may be uneven, up to four times, for what tegroup_plan_tune may then try. */
TEGROUP_API_STATUS tegroup_plan_make(const tegroup_gemm_desc *desc, const tegroup_target *target,
    tegroup_plan *plan, tegroup_error *error);

/* What each byte of a plan's workspace is for, in the order in which it is carved. Returns ERROR_NULL_ARGUMENT,
 * ERROR_STRUCT_SIZE, ERROR_PLAN. */
TEGROUP_API_STATUS tegroup_plan_layout(const tegroup_plan *plan, tegroup_layout *layout, tegroup_error *error);

/* Everything that tegroup_gemm checks before it starts, and nothing else. */
TEGROUP_API_STATUS tegroup_gemm_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc, tegroup_error *error);

/* Run. stream: where GPU work is enqueued (NULL = the default stream); ignored by the CPU backend, which is done on
 * return. */
TEGROUP_API_STATUS tegroup_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);

/* Prepare, plan and run in one call, for a product that runs once or seldom. Planning is host work in each call (the
 * driver is asked about device and kernels, the cuBLASLt backends' library for an algorithm), and a snapshot is made in
 * each: where a product runs often, or a routing has several, a plan and a snapshot made once are for all calls of
 * tegroup_gemm. The bits are the same.
 *   sizes      a.shape.row_sizes, and the same ones, field by field, in every ragged operand, with shape.snapshot NULL.
 *              Their space is desc.space, and their data_space may be HOST. All groups have the same columns
 *   workspace  options.workspace holds the snapshot and what the plan asks for. tegroup_gemm_once_layout says how much,
 *              and reads no pointers to data
 * Sizes in device memory that lie are clamped to the smallest buffer, those in host memory are an error. Good for
 * capture, with options.host_sizes_final where sizes are on the host. CUBLASLT_LOOP is not for it: that backend reads
 * its snapshot on the host. Errors are those of tegroup_plan_make, tegroup_gemm and, with a's shape for its shape,
 * tegroup_prepare; what they refuse has written nothing but into the workspace. */
TEGROUP_API_STATUS tegroup_gemm_once_layout(const tegroup_gemm_desc *desc, tegroup_layout *layout,
    tegroup_error *error);
TEGROUP_API_STATUS tegroup_gemm_once(const tegroup_gemm_desc *desc, struct CUstream_st *stream, tegroup_error *error);

/* Time the algorithms among which a plan can choose (those that cuBLASLt offers, of CUBLASLT_GROUPED for larger
 * groups than the mean, too; sm90's tiles; the other backends have one) and keep the fastest. Beside a rival it tells
 * whether quantising pays: what the product takes with its quantize, and what the rival takes. The only call that
 * waits: for `stream`, which must not be capturing. Returns ERROR_VALUE where desc->overwrite is not 1; else as
 * tegroup_gemm. */
TEGROUP_API_STATUS tegroup_plan_tune(tegroup_plan *plan, const tegroup_tune_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);

/* A plan's choice of algorithm as plain bytes, good for the same problem on the same kind of device with the same
 * versions of tegroup and cuBLASLt. Loading plans anew for desc, whose backend must be AUTO or the saved one, and
 * takes the saved choice if it is offered again (SM90 offers others where expected_rows, or what else decides it, has
 * weights decoded elsewhere; PORTABLE's plan then does that, and may need another workspace: docs/formats.md): no
 * address is ever taken from the bytes. size: TEGROUP_SAVED_PLAN_BYTES at least to save, ERROR_WORKSPACE else, and just
 * so many to load. Bytes that cannot serve are ERROR_PLAN, and where the saved backend cannot run desc here, that is
 * what tegroup_plan_make says. They may lie anywhere in host memory, at any address. */
TEGROUP_API_STATUS tegroup_plan_save(const tegroup_plan *plan, void *bytes, size_t size, tegroup_error *error);
TEGROUP_API_STATUS tegroup_plan_load(const tegroup_gemm_desc *desc, const void *bytes, size_t size,
    tegroup_plan *plan, tegroup_error *error);

/* Look through a grouped tensor: its snapshot's sizes, NaN and infinity in its rows, and of a quantised one wrong
 * scales. What is found is data, written to the record; only a call that cannot be made is an error. */
TEGROUP_API_STATUS tegroup_validate(const tegroup_validate_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);

/* Store the scales of a tensor in another layout, see tegroup_scale_convert_desc. Everything is checked before anything
 * is written. */
TEGROUP_API_STATUS tegroup_scale_convert(const tegroup_scale_convert_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);

/* Store the codes of weights in another order, see tegroup_code_convert_desc. Everything is checked before anything is
 * written. */
TEGROUP_API_STATUS tegroup_code_convert(const tegroup_code_convert_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);

/* Workspaces of the operations below that need one, on the GPU alone: of a descriptor the sizes are read, no
 * pointers but whether a loss is wanted. Returns ERROR_NULL_ARGUMENT, ERROR_STRUCT_SIZE, ERROR_UNSET,
 * ERROR_VALUE, ERROR_OVERFLOW, and for a router's scheme what tegroup_router returns for it. */
TEGROUP_API_STATUS tegroup_router_layout(const tegroup_router_desc *desc, tegroup_layout *layout, tegroup_error *error);
TEGROUP_API_STATUS tegroup_permutation_layout(const tegroup_permutation_desc *desc, tegroup_layout *layout,
    tegroup_error *error);

/* The grouped linear layer, see tegroup_linear_desc. plan_make plans every product whose output is there; target
 * NULL = this machine. The calls run as tegroup_gemm does: stream NULL = the default stream, no allocation, no
 * waiting, good for capture, nothing written on error. wgrad may come at any later time, on another stream that the
 * caller has made wait for the buffers that it reads. Errors are those of tegroup_plan_make and tegroup_gemm, in the
 * names of tegroup_linear_desc; a call whose output is absent is ERROR_UNSET, and ERROR_PLAN where it was when the
 * plan was made. */
TEGROUP_API_STATUS tegroup_linear_plan_make(const tegroup_linear_desc *desc, const tegroup_target *target,
    tegroup_linear_plan *plan, tegroup_error *error);
TEGROUP_API_STATUS tegroup_linear_forward(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_linear_dgrad(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_linear_wgrad(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);

/* The product that one of these calls runs, to put to tegroup_explain or, with the layer plan's own plan of it, to
 * tegroup_plan_tune. */
TEGROUP_API_STATUS tegroup_linear_gemm(const tegroup_linear_desc *desc, tegroup_op op,
    tegroup_gemm_desc *gemm, tegroup_error *error);

/* The grouped MLP, see tegroup_mlp_desc: as the grouped linear layer, with two of them and an activation between.
 * Everything is checked before anything is written; in the calls that are one stream's kernels in order, no copy and
 * no memset. fusion REQUIRED is UNSUPPORTED where the backend's products have no activation, or gradient of one, in
 * their epilogue. */
TEGROUP_API_STATUS tegroup_mlp_plan_make(const tegroup_mlp_desc *desc, const tegroup_target *target,
    tegroup_mlp_plan *plan, tegroup_error *error);
TEGROUP_API_STATUS tegroup_mlp_forward(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_mlp_dgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_mlp_wgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);

/* What each byte of a plan's workspace, or of what the caller saves, is for. Returns ERROR_NULL_ARGUMENT, ERROR_UNSET,
 * ERROR_VALUE, ERROR_STRUCT_SIZE, ERROR_PLAN. */
TEGROUP_API_STATUS tegroup_mlp_layout(const tegroup_mlp_plan *plan, tegroup_mlp_memory memory,
    tegroup_layout *layout, tegroup_error *error);

/* The product that one of these calls runs for fc1, fc2 or fc1_up, to put to tegroup_explain or, with plan->fc1 and
 * its like, to tegroup_plan_tune (not where the plan fused the product: its kernel has one tile). plan NULL: what
 * lies in the workspace has no address. */
TEGROUP_API_STATUS tegroup_mlp_gemm(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
    tegroup_mlp_layer layer, tegroup_op op, tegroup_gemm_desc *gemm, tegroup_error *error);

/* A chain of ops, see tegroup_chain_desc: planned once, then run forward and, with grad_output, backward, on one
 * stream and good for capture as far as a USER op is. explain says which ops run as a grouped MLP, and of every
 * other activation why not; it writes desc->op_count verdicts. Everything is checked before anything runs, but for
 * what a USER op itself refuses. Errors are in the words of the op that *desc->refused names, its tensors those of
 * tegroup_linear_desc, tegroup_mlp_desc or tegroup_activation_desc; those of arguments and of the chain begin so. */
TEGROUP_API_STATUS tegroup_chain_plan_make(const tegroup_chain_desc *desc, const tegroup_target *target,
    tegroup_chain_plan *plan, tegroup_error *error);
TEGROUP_API_STATUS tegroup_chain_layout(const tegroup_chain_plan *plan, tegroup_chain_memory memory,
    tegroup_layout *layout, tegroup_error *error);
TEGROUP_API_STATUS tegroup_chain_explain(const tegroup_chain_desc *desc,
    tegroup_chain_verdict verdicts[TEGROUP_CHAIN_MAX_OPS], tegroup_error *error);
TEGROUP_API_STATUS tegroup_chain_forward(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_chain_backward(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);

/* A whole MoE layer, see tegroup_moe_desc: planned once, then run forward and, with grad_output, backward, in calls
 * that are one stream's kernels in order. Errors of the experts are in the words of tegroup_mlp_desc, those of the
 * router in tegroup_router_desc's. The layout says what each byte of a memory is for, without a GPU. dgrad may run once
 * after a forward: it turns preactivation into its gradient. */
TEGROUP_API_STATUS tegroup_moe_plan_make(const tegroup_moe_desc *desc, const tegroup_target *target,
    tegroup_moe_plan *plan, tegroup_error *error);
TEGROUP_API_STATUS tegroup_moe_layout(const tegroup_moe_plan *plan, tegroup_moe_memory memory,
    tegroup_layout *layout, tegroup_error *error);
TEGROUP_API_STATUS tegroup_moe_forward(const tegroup_moe_plan *plan, const tegroup_moe_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_moe_dgrad(const tegroup_moe_plan *plan, const tegroup_moe_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_moe_wgrad(const tegroup_moe_plan *plan, const tegroup_moe_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);

/* Operations around the GEMM; each struct says what it computes, of what shapes and in which memory. On a GPU they are
 * kernels of the stream in order, wait for nothing and may be captured; on the CPU they are done on return. Everything
 * is checked before anything is written. docs/errors.md has each status with its cause and remedy. */
TEGROUP_API_STATUS tegroup_activation_forward(const tegroup_activation_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_activation_backward(const tegroup_activation_backward_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_quantize(const tegroup_quantize_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);
TEGROUP_API_STATUS tegroup_dequantize(const tegroup_dequantize_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);
TEGROUP_API_STATUS tegroup_count(const tegroup_count_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_router(const tegroup_router_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_router_backward(const tegroup_router_backward_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_permutation_make(const tegroup_permutation_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_export(const tegroup_export_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_skew_report(const tegroup_skew_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);
TEGROUP_API_STATUS tegroup_permute(const tegroup_permute_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_combine(const tegroup_combine_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_combine_backward(const tegroup_combine_backward_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_ep_sizes(const tegroup_ep_sizes_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);
TEGROUP_API_STATUS tegroup_ep_dispatch(const tegroup_ep_dispatch_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);
TEGROUP_API_STATUS tegroup_ep_expand(const tegroup_ep_links_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);
TEGROUP_API_STATUS tegroup_ep_reduce(const tegroup_ep_links_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);
TEGROUP_API_STATUS tegroup_ep_combine(const tegroup_ep_combine_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);
