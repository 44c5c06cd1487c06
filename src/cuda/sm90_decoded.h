/* ---- Hopper GEMM: operands that are decoded ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/choice.h"
#include "core/quantised.h"
#include "cuda/sm90_kernels.h"
#include "cuda/decoded.h"

/* Hopper has no instruction for MXFP8, MXFP4 and NVFP4. But a value times its scale of 8 bits is a number of BF16, so
 * such an operand is decoded into workspace, where the kernels of BF16 read it; cuda/dequantize.h has the kernel
 * for that. NVFP4's scale of a group, of F32, goes through alpha. Weights of a forward product, and of a dgrad that has
 * them transposed, are decoded by the kernel that multiplies them, in registers, where TMA can load their codes:
 * cuda/sm90_weights.h. */

TEGROUP_IMPL_STATIC int tegroup_impl_sm90_decodes(const tegroup_problem *p) { return tegroup_impl_scales_values(p); }

/* FP8 with scales of F32 it multiplies as it is (cuda/sm90_fp8_kernels.h). */
TEGROUP_IMPL_STATIC int tegroup_impl_sm90_multiplies_fp8(const tegroup_problem *p) {
    return tegroup_impl_quantised(p) && !tegroup_impl_sm90_decodes(p);
}

/* Rows of an average group up to which weights are decoded in registers, by the bits of a code: where both ways took as
 * long on an H200 (docs/lab/decoded.md, "Weights in registers"). */
#define TEGROUP_IMPL_SM90_HELD_ROWS(bits) ((bits) == 8 ? 1024 : 2560)
#define TEGROUP_IMPL_SM90_CODES_BYTES 16 /* rows of codes begin at multiples of them, for TMA */

/* The codes of E4M3 and E2M1 as bytes, which TMA loads. */
TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_sm90_bytes(const tegroup_tensor *t) {
    const int each = 8 / tegroup_impl_bits(t->dtype);
    tegroup_tensor bytes = *t;
    bytes.dtype = TEGROUP_DTYPE_F8E4M3;
    bytes.scaling = TEGROUP_SCALING_NONE;
    bytes.shape.cols /= each;
    bytes.ld /= each;
    bytes.group_stride /= each;
    return bytes;
}

/* With -rdc=true no warp gets registers of another (setmaxnreg is ignored), and kernels that hold weights have too few
 * to be assembled. They are left out then. */
#if defined(__CUDACC_RDC__)
#define TEGROUP_IMPL_SM90_HOLDS_WEIGHTS 0
#else
#define TEGROUP_IMPL_SM90_HOLDS_WEIGHTS 1
#endif

/* Whether a product holds its weights: decodes them in registers. It is a forward product, or a dgrad by the transposed
 * copy of the weights, whose results have two bytes and are added to nothing but a bias, since its tiles are flipped,
 * and whose groups are not so long that decoding once is faster, for which codes must be in order. The plan keeps the
 * answer, as a call has no workspace to decode into but its plan's. */
TEGROUP_IMPL_STATIC int tegroup_impl_sm90_holds_weights(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    const tegroup_tensor b = tegroup_impl_held(desc, p);
    const int64_t unit = TEGROUP_IMPL_SM90_CODES_BYTES * 8 / tegroup_impl_bits(b.dtype),
                  ld = tegroup_impl_holds_turned(p) ? b.ld : p->ldb;
    tegroup_problem unbiased = *p;
    unbiased.bias = TEGROUP_DTYPE_UNSET;
    return TEGROUP_IMPL_SM90_HOLDS_WEIGHTS && tegroup_impl_can_hold(p, &b, TEGROUP_IMPL_SM90_K)
           && tegroup_impl_sm90_can_flip(&unbiased) && ld % unit == 0 && b.group_stride % unit == 0
           && (b.code_order == TEGROUP_CODES_INTERLEAVED
               || tegroup_impl_expected_rows(desc, p)
                      <= tegroup_impl_mul(TEGROUP_IMPL_SM90_HELD_ROWS(tegroup_impl_bits(b.dtype)), p->groups));
}

/* Whether a plan does so: the kernels for it are numbered behind the others. */
TEGROUP_IMPL_STATIC int tegroup_impl_sm90_plans_weights(const tegroup_plan *plan) {
    return tegroup_impl_sm90_decodes(&plan->problem)
           && plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] >= (uint64_t)TEGROUP_IMPL_SM90_KERNEL_COUNT;
}
/* Which operands a plan decodes into workspace: bit 0 stands for A, bit 1 for B. */
TEGROUP_IMPL_STATIC uint32_t tegroup_impl_sm90_decoded(const tegroup_plan *plan) {
    const uint32_t held = tegroup_impl_sm90_plans_weights(plan) ? 1u << TEGROUP_IMPL_B : 0u;
    return tegroup_impl_sm90_decodes(&plan->problem) ? tegroup_impl_quantised_operands(&plan->problem) & ~held : 0;
}

/* Notes how many rows the buffers of decoded operands have. */
TEGROUP_IMPL_STATIC void tegroup_impl_sm90_plan_decoded(const tegroup_gemm_desc *desc, tegroup_plan *plan) {
    const uint32_t held = tegroup_impl_sm90_holds_weights(desc, &plan->problem) ? 1u << TEGROUP_IMPL_B : 0u;
    if (tegroup_impl_sm90_decodes(&plan->problem))
        tegroup_impl_plan_decoded(desc, tegroup_impl_quantised_operands(&plan->problem) & ~held, plan);
}

/* TB/s at which codes are read and BF16 is written, and what it takes to begin with an operand, seen on an H200
 * (docs/lab/decoded.md, "The kernel that decodes"). */
#define TEGROUP_IMPL_SM90_DECODE_TB 3.6
#define TEGROUP_IMPL_SM90_DECODE_US 10.0

/* Predicted time in us to decode: all groups are taken to have rows. */
TEGROUP_IMPL_STATIC double tegroup_impl_sm90_decode_us(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    const tegroup_tensor *operands[2] = {&desc->a, &desc->b};
    double us = 0;
    int i;
    for (i = 0; i < 2; i++) {
        const tegroup_tensor *t = operands[i];
        const double rows = tegroup_impl_ragged(&t->shape) ? (double)tegroup_impl_expected_rows(desc, p)
                                                           : (double)t->shape.groups * (double)t->shape.rows;
        if (tegroup_impl_scaled_by_8_bits(t->scaling)
            && !(i == TEGROUP_IMPL_B && tegroup_impl_sm90_holds_weights(desc, p)))
            us += rows * (double)t->shape.cols * (2 + tegroup_impl_bits(t->dtype) / 8.0)
                      / (TEGROUP_IMPL_SM90_DECODE_TB * 1e6)
                  + TEGROUP_IMPL_SM90_DECODE_US;
    }
    return us;
}

/* Time in us of a product that decodes its weights in registers: by a rate of operations in TFLOP/s, one of codes in
 * TB/s, both by the bits of a code and their order, and what it takes to begin. All are fitted to the H200's times in
 * docs/lab/decoded.md, "What a call costs" and "Interleaved codes": within a sixth of products that have about eight
 * rows a group, or hundreds; those of 64 rows take up to 1.45 times as long. */
#define TEGROUP_IMPL_SM90_HELD_TFLOPS(bits, interleaved)                                                               \
    ((bits) == 8 ? ((interleaved) ? 610.0 : 560.0) : ((interleaved) ? 720.0 : 650.0))
#define TEGROUP_IMPL_SM90_HELD_TB(bits, interleaved)                                                                   \
    ((bits) == 8 ? ((interleaved) ? 3.4 : 2.9) : ((interleaved) ? 2.4 : 1.8))
#define TEGROUP_IMPL_SM90_HELD_US 12.0
TEGROUP_IMPL_STATIC double tegroup_impl_sm90_held_us(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    const int bits = tegroup_impl_bits(p->b), interleaved = p->code_order[TEGROUP_IMPL_B] != TEGROUP_CODES_IN_ORDER;
    const double weight = (double)p->n * (double)p->k,
                 math = 2e-6 * (double)tegroup_impl_expected_rows(desc, p) * weight
                        / TEGROUP_IMPL_SM90_HELD_TFLOPS(bits, interleaved),
                 memory = 1e-6 * p->groups * weight * bits / 8 / TEGROUP_IMPL_SM90_HELD_TB(bits, interleaved);
    return cbrt(math * math * math + memory * memory * memory) + TEGROUP_IMPL_SM90_HELD_US;
}
