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

/* Operands of FP8 with scales of F32 that have been decoded to BF16 (cuda/decode.h), where their codes are exact, are
 * multiplied by the kernel of BF16, whose sums over a block of k are multiplied by the scales and added up as in
 * cuda/portable_formats.h, in the same order: results have the same bits. */

/* The scales of a block of k: a thread has that of a line of an operand. A step of the walk along k stays in a block,
 * as these have multiples of 64. */
struct tegroup_impl_portable_factors {
    static constexpr bool PROMOTE = true;
    static constexpr int LINES = 128, K = TEGROUP_IMPL_PORTABLE_TILE_K;
    const tegroup_impl_gpu_codes *codes; /* of the thread's operand, in shared memory */
    float *shared;                       /* [2][LINES] */
    tegroup_impl_gpu_line_scales mine;
    const float *next; /* the scale to be loaded next, if those of the line are F32 at strides; else NULL */
    int64_t stride;    /* from one block's to the next's; 0 if the line has one, beside blocks of the other operand */
    int32_t done, within; /* steps of the tile that are over; steps of a block, a power of two, less one */
    uint32_t code;        /* the thread's scale, of the block that is being summed */
    bool one_column;      /* all columns of the tile have one scale */

    __device__ __forceinline__ void open(const tegroup_impl_gpu_codes (&both)[2], float (&factors)[2][LINES]) {
        int64_t block = TEGROUP_IMPL_BLOCK_OF_ALL;
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (both[i].of.facts) block = tegroup_impl_min(block, tegroup_impl_gpu_codes_k_block(both[i]));
        one_column = !both[1].of.facts || tegroup_impl_gpu_codes_line_block(both[1]) >= LINES;
        codes = &both[threadIdx.x / LINES];
        shared = &factors[0][0];
        done = 0;
        within = (int32_t)tegroup_impl_min(block / K - 1, INT32_MAX);
        mine.open(*codes, (int32_t)threadIdx.x % LINES);
        const tegroup_impl_scaled &of = codes->of;
        next = mine.there && mine.strided && of.scale_dtype == TEGROUP_DTYPE_F32 && !of.grid.packed
                   ? (const float *)of.scales + mine.from
                   : NULL;
        stride = of.facts && of.grid.block_inner <= block ? of.grid.inner_stride : 0;
        load();
    }
    __device__ __forceinline__ void load() {
        if (next) {
            code = __float_as_uint(__ldg(next));
            next += stride;
        } else
            code = mine.there ? tegroup_impl_load_code(codes->of.scale_dtype, codes->of.scales,
                                                       mine.index(*codes, (int64_t)done * K))
                              : 0u;
    }
    /* Before a step, of which `left` are left, itself included. Between its loads and its end all threads meet. Where
     * it has a block of its own, they must meet here, too: the factors before may still be read. */
    __device__ __forceinline__ void before(int32_t left) {
        if ((done & within) != within && left > 1) return;
        if ((done & within) == 0 && done > 0) __syncthreads();
        shared[threadIdx.x] = codes->of.facts ? tegroup_impl_f32_of_code(codes->of.scale_dtype, code) : 1.0f;
    }
    /* After it: whether sums are promoted now. The next block's scale is loaded while that is done. */
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
    tegroup_impl_portable_block<true, OP, 128, 128, 2, 4, 3, false, tegroup_impl_portable_factors>;

/* The operands as they are quantised, whose scales are read. */
typedef struct tegroup_impl_portable_scaled {
    tegroup_tensor a, b;
    tegroup_impl_gpu_formats formats;
} tegroup_impl_portable_scaled;

template <int OP>
static __global__ void __launch_bounds__(tegroup_impl_portable_promoted_block<OP>::THREADS)
    tegroup_impl_portable_promoted_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                          const __grid_constant__ tegroup_impl_portable_scaled scaled) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    typedef tegroup_impl_portable_promoted_block<OP> block_type;
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    unsigned char *const ring = tegroup_impl_memory + (128 - tegroup_impl_shared(tegroup_impl_memory) % 128) % 128;
    __shared__ tegroup_impl_gpu_walk<block_type::TILE_M, block_type::TILE_N, true> walk;
    __shared__ tegroup_impl_gpu_tile tile;
    __shared__ tegroup_impl_gpu_codes codes[2];
    __shared__ float factors[2][tegroup_impl_portable_factors::LINES];
    block_type block(ring);
    if (threadIdx.x < 2) tegroup_impl_gpu_codes_begin(scaled.formats, (int)threadIdx.x, &codes[threadIdx.x]);
    if (threadIdx.x < 32) walk.begin(call);
    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads(); /* nobody reads the last tile's shared memory any more */
        if (threadIdx.x < 32) tegroup_impl_formats_find(call, scaled.a, scaled.b, t, walk, &tile, codes);
        __syncthreads();
        if (!tile.valid) break;
        const tegroup_impl_gpu_tile here = tile; /* in registers, which this kernel has */
        block.open(here, tegroup_impl_as_is());
        if (here.k > 0) block.factors.open(codes, factors);
        block.multiply(here);
        block.finish(call.desc, tile, ring, tegroup_impl_as_is());
    }
#endif
}

/* desc: as the caller made it; decoded: with operands of BF16. */
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
