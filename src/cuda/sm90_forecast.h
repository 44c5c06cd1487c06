/* ---- Hopper GEMM: whether BF16 would be faster ---- */

#pragma once
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/choice.h"
#include "core/quantised.h"
#include "cuda/sm90_decoded.h"

/* What a product takes in a training step: the time of its operations and that of its bytes, which overlap in part. The
 * rates are fitted to the products of bench_step.cu on an H100 and an H200 (docs/lab/fp8.md, "A training step"). */
typedef struct tegroup_impl_sm90_rates {
    double tflops; /* of a long sum */
    double end;    /* the end of a tile: terms of its sum that would take as long */
    double norm;   /* p of (math^p + memory^p)^(1/p): 1 adds both, and the larger p is the more they overlap */
} tegroup_impl_sm90_rates;

/* TB/s, of the same steps: a product's bytes, on an H200 and on an H100; rows that are read in BF16 while copies of
 * them are written, and while a rowwise copy alone is, which those of activations make slower than the rates of
 * docs/lab/quantise.md. */
#define TEGROUP_IMPL_SM90_STEP_TB      3.6
#define TEGROUP_IMPL_SM90_STEP_TB_H100 2.7
#define TEGROUP_IMPL_SM90_QUANTISE_TB  1.7
#define TEGROUP_IMPL_SM90_ROWWISE_TB   2.1

#define TEGROUP_IMPL_SM90_BITS      6016 /* width of an H200's memory bus, as its driver tells it */
#define TEGROUP_IMPL_SM90_BITS_H100 5120 /* and of an H100 SXM's */

/* How slow memory is beside the tensor cores: 1 of an H100 SXM, 0 of an H200, which were measured, and between them in
 * proportion to the width of their buses. (Other memory of such a width may be slower: an H100 NVL's.) */
TEGROUP_IMPL_STATIC double tegroup_impl_sm90_slowness(const tegroup_target *target) {
    const double bits = target->memory_bits > 0 ? target->memory_bits : TEGROUP_IMPL_SM90_BITS_H100;
    return fmin(1, fmax(0, (TEGROUP_IMPL_SM90_BITS - bits) / (TEGROUP_IMPL_SM90_BITS - TEGROUP_IMPL_SM90_BITS_H100)));
}

/* In us. bits: of an element of a and of b. rates: of BF16, of FP8; of forward and dgrad, of wgrad. */
TEGROUP_IMPL_STATIC double tegroup_impl_sm90_product_us(const tegroup_problem *p, double rows, double slowness,
                                                        int bits) {
    static const tegroup_impl_sm90_rates rates[2][2] = {{{700, 0, 3}, {690, 0, 3}}, {{1058, 316, 3}, {730, 213, 2}}};
    const int wgrad = p->op == TEGROUP_OP_WGRAD, forward = p->op == TEGROUP_OP_FORWARD;
    const tegroup_impl_sm90_rates *rate = &rates[bits == 8][wgrad];
    const double n = (double)p->n, k = (double)p->k, matrices = (double)p->groups * n * k, each = bits / 8.0,
                 result = tegroup_impl_bits(p->d) / 8.0 * (p->accumulate ? 2 : 1),
                 terms = wgrad ? rows / (double)tegroup_impl_max(1, p->groups) : forward ? k : n,
                 bytes = wgrad ? rows * (n + k) * each + matrices * result
                               : rows * (forward ? k : n) * each + matrices * each + rows * (forward ? n : k) * result,
                 math = 2e-6 * rows * n * k / rate->tflops * (1 + rate->end / fmax(1, terms)),
                 tb = TEGROUP_IMPL_SM90_STEP_TB
                      - slowness * (TEGROUP_IMPL_SM90_STEP_TB - TEGROUP_IMPL_SM90_STEP_TB_H100),
                 memory = 1e-6 * bytes / tb;
    return pow(pow(math, rate->norm) + pow(memory, rate->norm), 1 / rate->norm);
}

/* The time to quantise what changes from step to step, ragged rows, in the copy that is read. */
TEGROUP_IMPL_STATIC double tegroup_impl_sm90_quantise_us(const tegroup_gemm_desc *desc, double rows) {
    const tegroup_tensor *operands[2] = {&desc->a, &desc->b};
    double us = 0;
    int i;
    for (i = 0; i < 2; i++)
        if (operands[i]->scaling != TEGROUP_SCALING_NONE && tegroup_impl_ragged(&operands[i]->shape))
            us += 1e-6 * rows * (double)operands[i]->shape.cols * (2 + tegroup_impl_bits(operands[i]->dtype) / 8.0)
                  / (tegroup_impl_keeps_values(operands[i]) ? TEGROUP_IMPL_SM90_ROWWISE_TB
                                                            : TEGROUP_IMPL_SM90_QUANTISE_TB);
    return us;
}

/* Compares a quantised product with the same in BF16. */
TEGROUP_IMPL_STATIC void tegroup_impl_sm90_compare(const tegroup_gemm_desc *desc, const tegroup_problem *p,
                                                   double slowness, tegroup_impl_forecast *forecast) {
    const double rows = (double)tegroup_impl_expected_rows(desc, p);
    if (!tegroup_impl_quantised(p)) return;
    forecast->bf16_us = tegroup_impl_sm90_product_us(p, rows, slowness, 16);
    forecast->quantised_us =
        tegroup_impl_sm90_quantise_us(desc, rows)
        + (tegroup_impl_sm90_holds_weights(desc, p)
               ? tegroup_impl_sm90_held_us(desc, p) + tegroup_impl_sm90_decode_us(desc, p)
           : tegroup_impl_sm90_decodes(p) ? forecast->bf16_us + tegroup_impl_sm90_decode_us(desc, p)
                                          : tegroup_impl_sm90_product_us(p, rows, slowness, 8));
}
