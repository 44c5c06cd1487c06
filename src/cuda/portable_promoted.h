/* ---- Portable GEMM: products whose sums are promoted ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/convert.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/quantised.h"
#include "cuda/portable_decoded.h"
#include "cuda/functor.h"
#include "cuda/call.h"
#include "cuda/codes.h"
#include "cuda/portable_tiles.h"
#include "cuda/portable.h"
#include "cuda/portable_formats.h"
#include "cuda/portable_weights.h"

/* Operands of FP8 with scales of F32 are decoded to BF16, where their codes are exact, before the product
 * (cuda/decode.h) or, as weights of short groups, in its registers (cuda/portable_weights.h), and multiplied as BF16
 * is. Sums over a block of k are multiplied by the scales and added up as in cuda/portable_formats.h, in the same
 * order: results have the same bits. */

/* The scales of a block of k. A thread of a block of THREADS has those of one line of an operand, or of one line of
 * each. A step of the walk along k stays in a block, as these have multiples of 64. */
template <int THREADS> struct tegroup_impl_portable_factors {
    static constexpr bool PROMOTE = true;
    static constexpr int LINES = 128, EACH = 2 * LINES / THREADS, K = TEGROUP_IMPL_PORTABLE_TILE_K;
    struct line {
        const tegroup_impl_gpu_codes *codes; /* of its operand, in shared memory */
        tegroup_impl_gpu_line_scales scales;
        const float *next; /* the scale to be loaded next, if those of the line are F32 at strides; else NULL */
        int64_t stride; /* from one block's to the next's; 0 if the line has one, beside blocks of the other operand */
        uint32_t code;  /* the scale of the block that is being summed */
    };
    line mine[EACH];
    float *shared;        /* [2][LINES] */
    int32_t done, within; /* steps of the tile that are over; steps of a block, a power of two, less one */
    bool one_column;      /* all columns of the tile have one scale */

    __device__ __forceinline__ void open(const tegroup_impl_gpu_codes (&both)[2], float (&factors)[2][LINES]) {
        int64_t block = TEGROUP_IMPL_BLOCK_OF_ALL;
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (both[i].of.facts) block = tegroup_impl_min(block, tegroup_impl_gpu_codes_k_block(both[i]));
        one_column = !both[1].of.facts || tegroup_impl_gpu_codes_line_block(both[1]) >= LINES;
        shared = &factors[0][0];
        done = 0;
        within = (int32_t)tegroup_impl_min(block / K - 1, INT32_MAX);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            line &my = mine[i];
            my.codes = &both[slot(i) / LINES];
            my.scales.open(*my.codes, slot(i) % LINES);
            const tegroup_impl_scaled &of = my.codes->of;
            my.next = my.scales.there && my.scales.strided && of.scale_dtype == TEGROUP_DTYPE_F32 && !of.grid.packed
                          ? (const float *)of.scales + my.scales.from
                          : NULL;
            my.stride = of.facts && of.grid.block_inner <= block ? of.grid.inner_stride : 0;
        }
        load();
    }
    static __device__ __forceinline__ int32_t slot(int i) { return (int32_t)threadIdx.x + i * THREADS; }
    __device__ __forceinline__ void load() {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            line &my = mine[i];
            if (my.next) {
                my.code = __float_as_uint(__ldg(my.next));
                my.next += my.stride;
            } else {
                const tegroup_impl_scaled &of = my.codes->of;
                my.code = my.scales.there ? tegroup_impl_load_code(of.scale_dtype, of.scales,
                                                                   my.scales.index(*my.codes, (int64_t)done * K))
                                          : 0u;
            }
        }
    }
    /* Before a step, of which `left` are left, itself included. Between its loads and its end all threads meet. Where
     * it has a block of its own, they must meet here, too: the factors before may still be read. */
    __device__ __forceinline__ void before(int32_t left) {
        if ((done & within) != within && left > 1) return;
        if ((done & within) == 0 && done > 0) __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const tegroup_impl_scaled &of = mine[i].codes->of;
            shared[slot(i)] = of.facts ? tegroup_impl_f32_of_code(of.scale_dtype, mine[i].code) : 1.0f;
        }
    }
    /* After it: whether sums are promoted now. The next block's scales are loaded while that is done. */
    __device__ __forceinline__ bool after(int32_t left) {
        const bool ends = (done++ & within) == within || left == 1;
        if (ends && left > 1) load();
        return ends;
    }
    __device__ __forceinline__ float row(int line) const { return shared[line]; }
    __device__ __forceinline__ float column(int line) const { return shared[LINES + line]; }
};

template <int OP>
using tegroup_impl_portable_promoted_block =
    tegroup_impl_portable_block<true, OP, 128, 128, 2, 4, 3, false, tegroup_impl_portable_factors<256>>;
typedef tegroup_impl_portable_weights_block<8, false, tegroup_impl_portable_factors<128>>
    tegroup_impl_portable_promoted_weights_block;

/* The operands as they are quantised, whose scales are read. */
typedef struct tegroup_impl_portable_scaled {
    tegroup_tensor a, b;
    tegroup_impl_gpu_formats formats;
} tegroup_impl_portable_scaled;

/* What a block does; call: of what has been decoded before the product. */
template <typename BLOCK>
static __device__ __forceinline__ void tegroup_impl_portable_promoted_work(const tegroup_impl_gpu_call &call,
                                                                           const tegroup_impl_portable_scaled &scaled) {
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    unsigned char *const ring = tegroup_impl_memory + (128 - tegroup_impl_shared(tegroup_impl_memory) % 128) % 128;
    __shared__ tegroup_impl_gpu_walk<BLOCK::TILE_M, BLOCK::TILE_N, true> walk;
    __shared__ tegroup_impl_gpu_tile tile;
    __shared__ tegroup_impl_gpu_codes codes[2];
    __shared__ float factors[2][decltype(BLOCK::factors)::LINES];
    BLOCK block(ring);
    if (threadIdx.x < 2) tegroup_impl_gpu_codes_begin(scaled.formats, (int)threadIdx.x, &codes[threadIdx.x]);
    if (threadIdx.x < 32) walk.begin(call);
    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads(); /* nobody reads the last tile's shared memory any more */
        tegroup_impl_formats_find(call, scaled.a, scaled.b, t, walk, tile, codes);
        if (!tile.valid) break;
        const tegroup_impl_gpu_tile here = tile; /* in registers, which these kernels have */
        block.open(here, codes[1]);              /* where weights are that the block decodes */
        if (here.k > 0) block.factors.open(codes, factors);
        block.multiply(here);
        block.finish(call.desc, tile, ring, tegroup_impl_as_is());
    }
}

template <int OP>
static __global__ void __launch_bounds__(tegroup_impl_portable_promoted_block<OP>::THREADS)
    tegroup_impl_portable_promoted_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                          const __grid_constant__ tegroup_impl_portable_scaled scaled) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    tegroup_impl_portable_promoted_work<tegroup_impl_portable_promoted_block<OP>>(call, scaled);
#endif
}

/* Three blocks a multiprocessor: two leave too few bytes on their way, and four have too few registers. */
static __global__ void __launch_bounds__(tegroup_impl_portable_promoted_weights_block::THREADS, 3)
    tegroup_impl_portable_promoted_weights_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                                  const __grid_constant__ tegroup_impl_portable_scaled scaled) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    tegroup_impl_portable_promoted_work<tegroup_impl_portable_promoted_weights_block>(call, scaled);
#endif
}

/* desc: as the caller made it; decoded: with operands of BF16, but for weights that the kernel decodes. */
static inline tegroup_status tegroup_impl_portable_promoted_gemm(const tegroup_plan *plan,
                                                                 const tegroup_gemm_desc *desc,
                                                                 const tegroup_gemm_desc *decoded,
                                                                 struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_gpu_call call = tegroup_impl_gpu_call_of(decoded);
    tegroup_impl_portable_scaled scaled;
    void *arguments[2] = {&call, &scaled};
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    memset(&scaled, 0, sizeof scaled);
    scaled.a = tegroup_impl_as_read(desc, TEGROUP_IMPL_A);
    scaled.b = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    scaled.formats = tegroup_impl_gpu_formats_of(desc);
    TEGROUP_IMPL_TRY(tegroup_impl_launch_planned(plan, arguments, stream, error));
    return tegroup_impl_cuda_rest(&call, stream, error);
}
