/* ---- Hopper's instructions ---- */

#pragma once
#include "base/version.h"
#include "base/build.h"

/* mbarriers, TMA and wgmma as PTX ISA 8.0 and later describe them (sections 9.7.13.15, 9.7.9.27 and 9.7.15). They
 * assemble for sm_90a only; TEGROUP_IMPL_HOPPER is 1 in the compiler pass for that architecture. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TEGROUP_IMPL_HOPPER 1
#else
#define TEGROUP_IMPL_HOPPER 0
#endif

#include <cuda.h> /* CUtensorMap; only types of the driver's header are used, nothing of it is linked */

template <bool FIRST, typename A, typename B> struct tegroup_impl_if { typedef A type; };
template <typename A, typename B> struct tegroup_impl_if<false, A, B> { typedef B type; };

#if TEGROUP_IMPL_HOPPER
/* ---- barriers in shared memory ---- */

static __device__ __forceinline__ void tegroup_impl_barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
static __device__ __forceinline__ void tegroup_impl_barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
static __device__ __forceinline__ void tegroup_impl_barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/* Waits until the phase of this parity completes. */
static __device__ __forceinline__ void tegroup_impl_barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{.reg .pred over;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@!over bra again;}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* The same on the barrier of block BLOCK of the cluster that has the place of this block's. It says that wgmma has read
 * a stage, so it need not release what threads have written. */
template <int BLOCK> static __device__ __forceinline__ void tegroup_impl_barrier_arrive_at(uint32_t barrier) {
    asm volatile("{.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(barrier),
                 "n"(BLOCK)
                 : "memory");
}
/* Synchronizes all threads of a cluster, and has them see its initialized barriers. */
static __device__ __forceinline__ void tegroup_impl_cluster_sync(void) {
    __syncwarp();
    asm volatile("fence.mbarrier_init.release.cluster;\n"
                 "barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
/* Synchronizes the 128 threads of a warpgroup. Barrier 0 is the one of __syncthreads. */
static __device__ __forceinline__ void tegroup_impl_warpgroup_sync(int barrier) {
    asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}

/* ---- copies ---- */

/* Loads a box of a tensor into shared memory and counts its bytes on the mbarrier `barrier`. anywhere: the tensor map
 * has two more dimensions, with strides of 16 and of 2^35 bytes, by which the box is shifted `origin` bytes, modulo
 * 2^64. */
static __device__ __forceinline__ void tegroup_impl_tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                                             int32_t x, int32_t y, int32_t z, bool anywhere,
                                                             uint64_t origin) {
    if (anywhere)
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"((int32_t)(origin >> 4 & 0x7fffffff)),
                     "r"((int32_t)(origin >> 35))
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                     : "memory");
}
/* The same into each of the two blocks of a cluster, at the same place, and counted on the barrier of each. */
static __device__ __forceinline__ void tegroup_impl_tma_load_twice(uint32_t to, const CUtensorMap *map,
                                                                   uint32_t barrier, int32_t x, int32_t y, int32_t z,
                                                                   bool anywhere, uint64_t origin) {
    const uint16_t both = 3;
    if (anywhere)
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"((int32_t)(origin >> 4 & 0x7fffffff)),
                     "r"((int32_t)(origin >> 35)), "h"(both)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(both)
                     : "memory");
}
/* Loads a multiple of 16 bytes, from a multiple of 16, into shared memory, and counts them on an mbarrier. */
static __device__ __forceinline__ void tegroup_impl_bulk_load(uint32_t to, const void *from, uint32_t bytes,
                                                              uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* Lets this thread load by a map in global memory that an earlier kernel wrote. */
static __device__ __forceinline__ void tegroup_impl_tma_map_acquire(const CUtensorMap *map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}
/* Stores a box from shared memory. adds: L2 adds the box to the FP32 values in memory instead, with the same results as
 * FADD, subnormals, infinities and NaN included. */
static __device__ __forceinline__ void tegroup_impl_tma_store(const CUtensorMap *map, uint32_t from, int32_t x,
                                                              int32_t y, int32_t z, bool anywhere, uint64_t origin,
                                                              bool adds = false, bool passes = false) {
#define TEGROUP_IMPL_STORE(copy, how)                                                                                  \
    if (anywhere)                                                                                                      \
        asm volatile(                                                                                                  \
            copy ".tensor.5d.global.shared::cta" how ".tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),  \
            "r"(from), "r"(x), "r"(y), "r"(z), "r"((int32_t)(origin >> 4 & 0x7fffffff)), "r"((int32_t)(origin >> 35))  \
            : "memory");                                                                                               \
    else                                                                                                               \
        asm volatile(copy ".tensor.3d.global.shared::cta" how ".tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), \
                     "r"(from), "r"(x), "r"(y), "r"(z)                                                                 \
                     : "memory")
    if (adds) {
        TEGROUP_IMPL_STORE("cp.reduce.async.bulk", ".add");
    } else if (passes && !anywhere) {
        uint64_t policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4}], "
                     "[%1], %5;" ::"l"(map),
                     "r"(from), "r"(x), "r"(y), "r"(z), "l"(policy)
                     : "memory");
    } else {
        TEGROUP_IMPL_STORE("cp.async.bulk", "");
    }
#undef TEGROUP_IMPL_STORE
}
/* Closes a bulk group: all stores that this thread issued since the last one. */
static __device__ __forceinline__ void tegroup_impl_tma_store_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Waits until at most PENDING of this thread's bulk groups still read shared memory. */
template <int PENDING> static __device__ __forceinline__ void tegroup_impl_tma_store_wait(void) {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
/* Makes this thread's ordinary stores to shared memory visible to TMA and wgmma. */
static __device__ __forceinline__ void tegroup_impl_async_fence(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int REGISTERS> static __device__ __forceinline__ void tegroup_impl_registers_take(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> static __device__ __forceinline__ void tegroup_impl_registers_give(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* Stores and loads four 8x8 matrices of two-byte elements, held in registers as wgmma's accumulators are, as rows of 16
 * bytes in shared memory. TURNED: transposed. */
template <bool TURNED>
static __device__ __forceinline__ void tegroup_impl_stmatrix(uint32_t to, const uint32_t (&r)[4]) {
    if (TURNED)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]),
                     "r"(r[1]), "r"(r[2]), "r"(r[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]),
                     "r"(r[1]), "r"(r[2]), "r"(r[3])
                     : "memory");
}
static __device__ __forceinline__ void tegroup_impl_ldmatrix_rows(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* ---- wgmma ---- */

/* The wgmma descriptor of an operand in shared memory: rows of 128 bytes with TMA's 128-byte swizzle, which permutes a
 * row's 16-byte chunks by XOR with the row's number. A "line" here and in names such as A_LINES is an index of wgmma's
 * M or N dimension. leading: bytes from one block of 64 lines to the next if the operand is contiguous along its lines
 * (MN-major); not read if it is contiguous along k. Offsets, in units of 16 bytes, are added to all 64 bits: with the
 * constant upper half kept apart ptxas moves it into place before each wgmma. */
static __device__ __forceinline__ uint64_t tegroup_impl_wgmma_tile(uint32_t address, uint32_t leading) {
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32
           | (uint64_t)1 << 62;
}
static __device__ __forceinline__ void tegroup_impl_wgmma_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void tegroup_impl_wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING> static __device__ __forceinline__ void tegroup_impl_wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/* Keeps the compiler from moving accesses to the sums across this point. */
template <int COUNT> static __device__ __forceinline__ void tegroup_impl_wgmma_keep(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

/* sum[64 x N] (+)= A[64 x 16] B[16 x N], both operands in shared memory; add is 0 to overwrite the sum. A_LINES and
 * B_LINES are 1 for an operand that is contiguous along its lines, 0 along k. Each n8 block of the sum lies in
 * registers as an accumulator of mma.sync does. */
/* clang-format off */
#define TEGROUP_IMPL_F4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define TEGROUP_IMPL_F32(i)                                                                                    \
    TEGROUP_IMPL_F4(i), TEGROUP_IMPL_F4(i + 4), TEGROUP_IMPL_F4(i + 8), TEGROUP_IMPL_F4(i + 12),               \
    TEGROUP_IMPL_F4(i + 16), TEGROUP_IMPL_F4(i + 20), TEGROUP_IMPL_F4(i + 24), TEGROUP_IMPL_F4(i + 28)
#define TEGROUP_IMPL_F16(i)                                                                                    \
    TEGROUP_IMPL_F4(i), TEGROUP_IMPL_F4(i + 4), TEGROUP_IMPL_F4(i + 8), TEGROUP_IMPL_F4(i + 12)
#define TEGROUP_IMPL_TEN(t)                                                                                    \
    "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define TEGROUP_IMPL_SIXTY                                                                                     \
    TEGROUP_IMPL_TEN() ", " TEGROUP_IMPL_TEN(1) ", " TEGROUP_IMPL_TEN(2) ", "                                  \
    TEGROUP_IMPL_TEN(3) ", " TEGROUP_IMPL_TEN(4) ", " TEGROUP_IMPL_TEN(5)
#define TEGROUP_IMPL_NINETY                                                                                    \
    TEGROUP_IMPL_SIXTY ", " TEGROUP_IMPL_TEN(6) ", " TEGROUP_IMPL_TEN(7) ", " TEGROUP_IMPL_TEN(8)
#define TEGROUP_IMPL_THIRTY TEGROUP_IMPL_TEN() ", " TEGROUP_IMPL_TEN(1) ", " TEGROUP_IMPL_TEN(2)
#define TEGROUP_IMPL_SUMS_16 TEGROUP_IMPL_TEN() ", %10, %11, %12, %13, %14, %15"
#define TEGROUP_IMPL_SUMS_32 TEGROUP_IMPL_THIRTY ", %30, %31"
#define TEGROUP_IMPL_SUMS_48                                                                                   \
    TEGROUP_IMPL_THIRTY ", " TEGROUP_IMPL_TEN(3) ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TEGROUP_IMPL_SUMS_64 TEGROUP_IMPL_SIXTY ", %60, %61, %62, %63"
#define TEGROUP_IMPL_SUMS_80 TEGROUP_IMPL_SIXTY ", " TEGROUP_IMPL_TEN(6) ", " TEGROUP_IMPL_TEN(7)
#define TEGROUP_IMPL_SUMS_96 TEGROUP_IMPL_NINETY ", %90, %91, %92, %93, %94, %95"
#define TEGROUP_IMPL_SUMS_112                                                                                  \
    TEGROUP_IMPL_NINETY ", " TEGROUP_IMPL_TEN(9) ", " TEGROUP_IMPL_TEN(10) ", %110, %111"
#define TEGROUP_IMPL_SUMS_128                                                                                  \
    TEGROUP_IMPL_NINETY ", " TEGROUP_IMPL_TEN(9) ", " TEGROUP_IMPL_TEN(10) ", " TEGROUP_IMPL_TEN(11)           \
    ", %120, %121, %122, %123, %124, %125, %126, %127"
/* `sums` are operands 0 to n / 2 - 1; a, b, plus and the two orders are the five operands after them. */
#define TEGROUP_IMPL_WGMMA(n, type, sums, a, b, plus, orders, ...)                                             \
    asm volatile("{.reg .pred plus; setp.ne.b32 plus, %" plus ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" sums "}, %" a ", %" b     \
                 ", plus, 1, 1, %" orders ";}\n"                                                               \
                 : __VA_ARGS__ : "l"(first), "l"(second), "r"(add), "n"(A_LINES), "n"(B_LINES))
#define TEGROUP_IMPL_WGMMA_OF(n, sums, a, b, plus, orders, ...)                                                \
    template <> struct tegroup_impl_wgmma<n> {                                                                 \
        template <bool BF16, int A_LINES, int B_LINES>                                                         \
        static __device__ __forceinline__ void multiply(float (&d)[n / 2], uint64_t first, uint64_t second, int add) { \
            if (BF16) TEGROUP_IMPL_WGMMA(n, "bf16", sums, a, b, plus, orders, __VA_ARGS__);                    \
            else TEGROUP_IMPL_WGMMA(n, "f16", sums, a, b, plus, orders, __VA_ARGS__);                          \
        }                                                                                                      \
    };

/* The same for A[64 x 32] B[32 x N] of FP8, both contiguous along k. A_E5M2, B_E5M2: that operand is of E5M2, else of
 * E4M3. (The instruction keeps about 14 bits of its sum: DeepSeek-V3 technical report, section 3.3.2.) */
#define TEGROUP_IMPL_WGMMA_FP8(n, types, sums, a, b, plus, ...)                                                \
    asm volatile("{.reg .pred plus; setp.ne.b32 plus, %" plus ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." types " {" sums "}, %" a ", %" b             \
                 ", plus, 1, 1;}\n"                                                                            \
                 : __VA_ARGS__ : "l"(first), "l"(second), "r"(add))
#define TEGROUP_IMPL_WGMMA_FP8_OF(n, sums, a, b, plus, ...)                                                    \
    template <> struct tegroup_impl_wgmma_fp8<n> {                                                             \
        template <bool A_E5M2, bool B_E5M2>                                                                    \
        static __device__ __forceinline__ void multiply(float (&d)[n / 2], uint64_t first, uint64_t second, int add) { \
            if (A_E5M2 && B_E5M2) TEGROUP_IMPL_WGMMA_FP8(n, "e5m2.e5m2", sums, a, b, plus, __VA_ARGS__);       \
            else if (A_E5M2) TEGROUP_IMPL_WGMMA_FP8(n, "e5m2.e4m3", sums, a, b, plus, __VA_ARGS__);            \
            else if (B_E5M2) TEGROUP_IMPL_WGMMA_FP8(n, "e4m3.e5m2", sums, a, b, plus, __VA_ARGS__);            \
            else TEGROUP_IMPL_WGMMA_FP8(n, "e4m3.e4m3", sums, a, b, plus, __VA_ARGS__);                        \
        }                                                                                                      \
    };

/* The same for A[64 x 16] B[16 x N] of BF16 with A in registers, as wgmma lays it out: of each thread two neighbours in
 * k of a line and of the one eight below, and likewise eight of k further on. They must not change until the product is
 * waited for. */
#define TEGROUP_IMPL_WGMMA_HELD_OF(n, sums, a0, a1, a2, a3, b, plus, ...)                                      \
    template <> struct tegroup_impl_wgmma_held<n> {                                                            \
        static __device__ __forceinline__ void multiply(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t second, \
                                                        int add) {                                             \
            asm volatile("{.reg .pred plus; setp.ne.b32 plus, %" plus ", 0;\n"                                 \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" sums "}, {%" a0 ", %" a1 \
                         ", %" a2 ", %" a3 "}, %" b ", plus, 1, 1, 0;}\n"                                     \
                         : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(second), "r"(add));   \
        }                                                                                                      \
    };

template <int N> struct tegroup_impl_wgmma;
template <int N> struct tegroup_impl_wgmma_fp8;
template <int N> struct tegroup_impl_wgmma_held;
TEGROUP_IMPL_WGMMA_OF(256, TEGROUP_IMPL_SUMS_128, "128", "129", "130", "131, %132",
                      TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F32(64), TEGROUP_IMPL_F32(96))
TEGROUP_IMPL_WGMMA_OF(192, TEGROUP_IMPL_SUMS_96, "96", "97", "98", "99, %100",
                      TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F32(64))
TEGROUP_IMPL_WGMMA_OF(160, TEGROUP_IMPL_SUMS_80, "80", "81", "82", "83, %84",
                      TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F16(64))
TEGROUP_IMPL_WGMMA_OF(128, TEGROUP_IMPL_SUMS_64, "64", "65", "66", "67, %68",
                      TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32))
TEGROUP_IMPL_WGMMA_OF(96, TEGROUP_IMPL_SUMS_48, "48", "49", "50", "51, %52",
                      TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F16(32))
TEGROUP_IMPL_WGMMA_OF(64, TEGROUP_IMPL_SUMS_32, "32", "33", "34", "35, %36", TEGROUP_IMPL_F32(0))
#if TEGROUP_IMPL_FP8_KERNELS
TEGROUP_IMPL_WGMMA_FP8_OF(192, TEGROUP_IMPL_SUMS_96, "96", "97", "98",
                          TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F32(64))
TEGROUP_IMPL_WGMMA_FP8_OF(128, TEGROUP_IMPL_SUMS_64, "64", "65", "66", TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32))
TEGROUP_IMPL_WGMMA_HELD_OF(256, TEGROUP_IMPL_SUMS_128, "128", "129", "130", "131", "132", "133",
                           TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F32(64), TEGROUP_IMPL_F32(96))
TEGROUP_IMPL_WGMMA_HELD_OF(224, TEGROUP_IMPL_SUMS_112, "112", "113", "114", "115", "116", "117",
                           TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F32(64), TEGROUP_IMPL_F16(96))
TEGROUP_IMPL_WGMMA_HELD_OF(192, TEGROUP_IMPL_SUMS_96, "96", "97", "98", "99", "100", "101",
                           TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F32(64))
TEGROUP_IMPL_WGMMA_HELD_OF(160, TEGROUP_IMPL_SUMS_80, "80", "81", "82", "83", "84", "85",
                           TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F16(64))
TEGROUP_IMPL_WGMMA_HELD_OF(128, TEGROUP_IMPL_SUMS_64, "64", "65", "66", "67", "68", "69",
                           TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32))
TEGROUP_IMPL_WGMMA_HELD_OF(96, TEGROUP_IMPL_SUMS_48, "48", "49", "50", "51", "52", "53",
                           TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F16(32))
TEGROUP_IMPL_WGMMA_HELD_OF(64, TEGROUP_IMPL_SUMS_32, "32", "33", "34", "35", "36", "37", TEGROUP_IMPL_F32(0))
TEGROUP_IMPL_WGMMA_HELD_OF(32, TEGROUP_IMPL_SUMS_16, "16", "17", "18", "19", "20", "21", TEGROUP_IMPL_F16(0))
#endif
/* clang-format on */

/* The types of wgmma's operands, as a template argument. K: of one instruction, 32 bytes. */
template <bool BF16> struct tegroup_impl_wgmma_halves {
    static constexpr int K = 16;
    template <int N, int A_LINES, int B_LINES>
    static __device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t first, uint64_t second, int add) {
        tegroup_impl_wgmma<N>::template multiply<BF16, A_LINES, B_LINES>(d, first, second, add);
    }
};
#if TEGROUP_IMPL_FP8_KERNELS
template <bool A_E5M2, bool B_E5M2> struct tegroup_impl_wgmma_eights {
    static constexpr int K = 32;
    template <int N, int, int>
    static __device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t first, uint64_t second, int add) {
        tegroup_impl_wgmma_fp8<N>::template multiply<A_E5M2, B_E5M2>(d, first, second, add);
    }
};
#endif
#undef TEGROUP_IMPL_WGMMA_HELD_OF
#undef TEGROUP_IMPL_WGMMA_FP8_OF
#undef TEGROUP_IMPL_WGMMA_FP8
#undef TEGROUP_IMPL_WGMMA_OF
#undef TEGROUP_IMPL_WGMMA
#undef TEGROUP_IMPL_SUMS_16
#undef TEGROUP_IMPL_SUMS_32
#undef TEGROUP_IMPL_SUMS_48
#undef TEGROUP_IMPL_SUMS_64
#undef TEGROUP_IMPL_SUMS_80
#undef TEGROUP_IMPL_SUMS_96
#undef TEGROUP_IMPL_SUMS_112
#undef TEGROUP_IMPL_SUMS_128
#undef TEGROUP_IMPL_NINETY
#undef TEGROUP_IMPL_SIXTY
#undef TEGROUP_IMPL_THIRTY
#undef TEGROUP_IMPL_TEN
#undef TEGROUP_IMPL_F16
#undef TEGROUP_IMPL_F32
#undef TEGROUP_IMPL_F4
#endif
