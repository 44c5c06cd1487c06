/* ---- What a plan chooses ---- */

#pragma once
#include "base/version.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "core/field_names.h"

/* The choice that a plan made among equals: cuBLASLt's algorithm, the tile of sm90. All zero where a backend has one
 * candidate. */
typedef struct tegroup_impl_choice {
    uint64_t words[8];
} tegroup_impl_choice;

/* What a plan can choose from, each once. */
typedef struct tegroup_impl_choices {
    tegroup_impl_choice list[TEGROUP_TUNE_CANDIDATES];
    int32_t count;
} tegroup_impl_choices;

TEGROUP_IMPL_STATIC void tegroup_impl_choices_add(tegroup_impl_choices *choices, const tegroup_impl_choice *choice) {
    int32_t i;
    for (i = 0; i < choices->count; i++)
        if (memcmp(&choices->list[i], choice, sizeof *choice) == 0) return;
    if (choices->count < TEGROUP_TUNE_CANDIDATES) choices->list[choices->count++] = *choice;
}

/* plan.algorithm of the bundled backends: the kernel's address in this unit, its threads, shared memory and blocks; an
 * address that stands for the type of its functor, or 0, in whose place a call's copy of the plan has the address of
 * the functor itself. SM90 has the driver's function that makes tensor maps besides, how many of the last groups have
 * narrow tiles alone, the kernel's number in its table, and the rows of all groups that it was told to expect;
 * PORTABLE has 1 for the number where weights are decoded in registers, else 0. Both have the rows of the buffers of
 * operands that are decoded into workspace. */
enum {
    TEGROUP_IMPL_PLANNED_KERNEL,
    TEGROUP_IMPL_PLANNED_THREADS,
    TEGROUP_IMPL_PLANNED_SHARED,
    TEGROUP_IMPL_PLANNED_BLOCKS,
    TEGROUP_IMPL_PLANNED_FUNCTOR,
    TEGROUP_IMPL_PLANNED_ENCODE,
    TEGROUP_IMPL_PLANNED_NARROWS,
    TEGROUP_IMPL_PLANNED_ROW,
    TEGROUP_IMPL_PLANNED_DECODED_A,
    TEGROUP_IMPL_PLANNED_DECODED_B,
    TEGROUP_IMPL_PLANNED_EXPECTED
};

/* What a backend says of the tile that it takes. */
typedef struct tegroup_impl_forecast {
    const char *why; /* NULL: it says nothing */
    double us;       /* predicted time of a call; 0: not predicted */
    double quantised_us, bf16_us; /* as in the verdict */
} tegroup_impl_forecast;

/* Rows of all groups together that a plan is made for. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_expected_rows(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    if (desc->options.expected_rows > 0) return desc->options.expected_rows;
    return p->rows_space[TEGROUP_IMPL_A] ? p->rows : tegroup_impl_mul(p->rows, p->groups);
}
