/* Every rule of every checker, broken one at a time: the status, the field, what was expected and what came, and that not a
 * byte was written. tests/compile/world.h holds a good call of every function; a line below spoils one thing in it. */
#define TEGROUP_EXTERN
#include "tegroup.h"
#include "../compile/world.h"
#include "test.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>

static world         good, w, before;
static tegroup_error error;
static int           provoked[TEGROUP_STATUS_COUNT];

static void spoil_nothing(void) {
    static int made;
    if (!made) {
        tegroup_status status = world_make(&w, &error);
        if (status != TEGROUP_OK) {
            printf("the good calls: %s: %s %s\n", tegroup_status_name(status), error.field, error.rule);
            exit(1);
        }
        memcpy(&good, &w, sizeof w);
        made = 1;
    }
    memcpy(&w, &good, sizeof w);
}

/* The calls, by name. */
#define call_prepare(e)             tegroup_prepare(&w.prepare, NULL, e)
#define call_irregular(e)           tegroup_prepare(&w.irregular, NULL, e)
#define call_problem(e)             tegroup_gemm_problem(&w.forward, &w.problem, e)
#define call_problem_dgrad(e)       tegroup_gemm_problem(&w.dgrad, &w.problem, e)
#define call_problem_wgrad(e)       tegroup_gemm_problem(&w.wgrad, &w.problem, e)
#define call_explain(e)             tegroup_explain(&w.forward, &w.target, w.verdicts, e)
#define call_plan(e)                tegroup_plan_make(&w.forward, NULL, &w.plan, e)
#define call_plan_dgrad(e)          tegroup_plan_make(&w.dgrad, NULL, &w.plan, e)
#define call_plan_target(e)         tegroup_plan_make(&w.dgrad, &w.target, &w.plan, e)
#define call_check(e)               tegroup_gemm_check(&w.forward_plan, &w.forward, e)
#define call_forward(e)             tegroup_gemm(&w.forward_plan, &w.forward, NULL, e)
#define call_dgrad(e)               tegroup_gemm(&w.dgrad_plan, &w.dgrad, NULL, e)
#define call_wgrad(e)               tegroup_gemm(&w.wgrad_plan, &w.wgrad, NULL, e)
#define call_linear_plan(e)         tegroup_linear_plan_make(&w.linear, NULL, &w.linear_plan_out, e)
#define call_linear_plan_target(e)  tegroup_linear_plan_make(&w.linear, &w.target, &w.linear_plan_out, e)
#define call_linear_gemm(e)         tegroup_linear_gemm(&w.linear, TEGROUP_OP_WGRAD, &w.gemm, e)
#define call_linear_forward(e)      tegroup_linear_forward(&w.linear_plan, &w.linear, NULL, e)
#define call_linear_dgrad(e)        tegroup_linear_dgrad(&w.linear_plan, &w.linear, NULL, e)
#define call_linear_wgrad(e)        tegroup_linear_wgrad(&w.linear_plan, &w.linear, NULL, e)
#define call_mlp_plan(e)            tegroup_mlp_plan_make(&w.mlp, NULL, &w.mlp_plan_out, e)
#define call_mlp_gemm(e)            tegroup_mlp_gemm(&w.mlp_plan, &w.mlp, TEGROUP_MLP_FC2, TEGROUP_OP_DGRAD, &w.gemm, e)
#define call_mlp_forward(e)         tegroup_mlp_forward(&w.mlp_plan, &w.mlp, NULL, e)
#define call_mlp_dgrad(e)           tegroup_mlp_dgrad(&w.mlp_plan, &w.mlp, NULL, e)
#define call_mlp_wgrad(e)           tegroup_mlp_wgrad(&w.mlp_plan, &w.mlp, NULL, e)
#define call_tune(e)                tegroup_plan_tune(&w.forward_plan, &w.tune, NULL, e)
#define call_save(e)                tegroup_plan_save(&w.forward_plan, w.saved, sizeof w.saved, e)
#define call_load(e)                tegroup_plan_load(&w.forward, w.saved, sizeof w.saved, &w.plan, e)
#define call_activation(e)          tegroup_activation_forward(&w.activation, NULL, e)
#define call_activation_backward(e) tegroup_activation_backward(&w.activation_backward, NULL, e)
#define call_count(e)               tegroup_count(&w.count, NULL, e)
#define call_count_slots(e)         tegroup_count(&w.count_slots, NULL, e)
#define call_export(e)              tegroup_export(&w.exports, NULL, e)
#define call_skew(e)                tegroup_skew_report(&w.skew, NULL, e)
#define call_router(e)              tegroup_router(&w.router, NULL, e)
#define call_router_backward(e)     tegroup_router_backward(&w.router_backward, NULL, e)
#define call_permutation(e)         tegroup_permutation_make(&w.permutation, NULL, e)
#define call_permute(e)             tegroup_permute(&w.permute, NULL, e)
#define call_combine(e)             tegroup_combine(&w.combine, NULL, e)
#define call_combine_backward(e)    tegroup_combine_backward(&w.combine_backward, NULL, e)
#define call_ep_sizes(e)            tegroup_ep_sizes(&w.ep_sizes, NULL, e)
#define call_ep_dispatch(e)         tegroup_ep_dispatch(&w.ep_dispatch, NULL, e)
#define call_ep_expand(e)           tegroup_ep_expand(&w.ep_expand, NULL, e)
#define call_ep_reduce(e)           tegroup_ep_reduce(&w.ep_reduce, NULL, e)
#define call_ep_combine(e)          tegroup_ep_combine(&w.ep_combine, NULL, e)
#define call_validate(e)            tegroup_validate(&w.validate, NULL, e)
#define call_scale_convert(e)       tegroup_scale_convert(&w.scale_convert, NULL, e)
#define call_code_convert(e)        tegroup_code_convert(&w.code_convert, NULL, e)
#define call_quantize(e)            tegroup_quantize(&w.quantize, NULL, e)
#define call_dequantize(e)          tegroup_dequantize(&w.dequantize, NULL, e)
#define call_tensor_layout(e)       tegroup_tensor_layout(&w.scale_convert.from, TEGROUP_COPIES_BOTH, &w.layout, e)
#define call_router_layout(e)       tegroup_router_layout(&w.router, &w.layout, e)
#define call_permutation_layout(e)  tegroup_permutation_layout(&w.permutation, &w.layout, e)

#define call_replanned(e)           replanned(&w.forward, e)
#define call_fewer_rows(e)          fewer_rows(e)
#define call_replanned_dgrad(e)     replanned(&w.dgrad, e)
#define call_replanned_wgrad(e)     replanned(&w.wgrad, e)
#define call_replanned_linear_dgrad(e) replanned_linear(tegroup_linear_dgrad, e)
#define call_replanned_linear_wgrad(e) replanned_linear(tegroup_linear_wgrad, e)
#define call_replanned_mlp_forward(e)  replanned_mlp(tegroup_mlp_forward, e)
#define call_replanned_mlp_dgrad(e)    replanned_mlp(tegroup_mlp_dgrad, e)
#define call_replanned_mlp_wgrad(e)    replanned_mlp(tegroup_mlp_wgrad, e)
#define call_other_plan(e)          tegroup_gemm(&w.forward_plan, &w.dgrad, NULL, e)

/* A new plan for what the descriptor has become, then all that a run checks. */
static tegroup_status replanned(const tegroup_gemm_desc *desc, tegroup_error *e) {
    tegroup_plan   plan;
    tegroup_status status = tegroup_plan_make(desc, NULL, &plan, e);
    return status != TEGROUP_OK ? status : tegroup_gemm_check(&plan, desc, e);
}

/* ... for one that has a row less in each operand of activations. */
static tegroup_status fewer_rows(tegroup_error *e) {
    tegroup_gemm_desc desc = w.forward;
    tegroup_plan      plan;
    tegroup_status    status = tegroup_plan_make(&desc, NULL, &plan, e);
    desc.a.shape.rows--, desc.c.shape.rows--, desc.d.shape.rows--;
    return status != TEGROUP_OK ? status : tegroup_gemm_check(&plan, &desc, e);
}

/* ... and for what a layer's has become, then the call. */
static tegroup_status replanned_linear(tegroup_status (*call)(const tegroup_linear_plan *, const tegroup_linear_desc *, struct CUstream_st *, tegroup_error *),
                                       tegroup_error *e) {
    tegroup_linear_plan plan;
    tegroup_status      status = tegroup_linear_plan_make(&w.linear, NULL, &plan, e);
    return status != TEGROUP_OK ? status : call(&plan, &w.linear, NULL, e);
}
static tegroup_status replanned_mlp(tegroup_status (*call)(const tegroup_mlp_plan *, const tegroup_mlp_desc *, struct CUstream_st *, tegroup_error *),
                                    tegroup_error *e) {
    tegroup_mlp_plan plan;
    tegroup_status   status = tegroup_mlp_plan_make(&w.mlp, NULL, &plan, e);
    return status != TEGROUP_OK ? status : call(&plan, &w.mlp, NULL, e);
}

static const uint32_t FLOATS = 1u << TEGROUP_DTYPE_F64 | 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_F16 | 1u << TEGROUP_DTYPE_BF16,
                      REALS = 1u << TEGROUP_DTYPE_F64 | 1u << TEGROUP_DTYPE_F32, F32 = 1u << TEGROUP_DTYPE_F32,
                      I32 = 1u << TEGROUP_DTYPE_I32, I64 = 1u << TEGROUP_DTYPE_I64, INTEGERS = 1u << TEGROUP_DTYPE_I32 | 1u << TEGROUP_DTYPE_I64,
                      BYTES = 1u << TEGROUP_DTYPE_F8E4M3 | 1u << TEGROUP_DTYPE_F8E5M2 | 1u << TEGROUP_DTYPE_F8E8M0 | 1u << TEGROUP_DTYPE_I32 | 1u << TEGROUP_DTYPE_I64;

/* A double as errors hold it. */
static int64_t real(double x) {
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* One bad call, with and without somewhere to put the error. */
#define BAD_CALL(call, with_error, without_error, what, status_name, field_name, expected_number, got_number)                      \
    do {                                                                                                                            \
        tegroup_status status_, silent_;                                                                                            \
        int64_t        expected_ = (int64_t)(expected_number), got_ = (int64_t)(got_number);                                       \
        memcpy(&before, &w, sizeof w);                                                                                              \
        memset(&error, 0xA5, sizeof error);                                                                                         \
        silent_ = without_error;                                                                                                    \
        status_ = silent_ == TEGROUP_OK ? silent_ : with_error;                                                                                                     \
        if (!as_told(call, what, status_, silent_, TEGROUP_ERROR_##status_name, field_name, expected_, got_)) {                     \
            printf("%s:%d: wanted %s %s (expected %lld, got %lld)\n", __FILE__, __LINE__, #status_name, field_name,                 \
                   (long long)expected_, (long long)got_);                                                                          \
            test_failed = 1;                                                                                     \
        }                                                                                                                           \
    } while (0)

/* BAD: spoil the world by a statement, make a call. NOT: a call whose arguments are bad themselves; e is the error. */
#define BAD(call, spoil, status, field, expected, got)                                                                              \
    do {                                                                                                                            \
        spoil_nothing();                                                                                                            \
        spoil;                                                                                                                      \
        BAD_CALL(#call, call_##call(&error), call_##call(NULL), #spoil, status, field, expected, got);                              \
    } while (0)
#define NOT(function, arguments, status, field, expected, got)                                                                      \
    do {                                                                                                                            \
        spoil_nothing();                                                                                                            \
        BAD_CALL(#function, tegroup_##function(arguments, &error), tegroup_##function(arguments, NULL), #arguments, status, field,  \
                 expected, got);                                                                                                    \
    } while (0)
#define AND , /* between the arguments in NOT */

/* A rule of types names them. */
static int names_a_type(const char *text, int64_t got) {
    char end[32];
    snprintf(end, sizeof end, ", got %s)", tegroup_dtype_name((tegroup_dtype)got));
    return strlen(text) > strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

static int as_told(const char *call, const char *what, tegroup_status status, tegroup_status silent, tegroup_status wanted,
                   const char *field, int64_t expected, int64_t got) {
    char   text[1024];
    size_t changed = 0;
    int    told;

    if (memcmp(&w, &before, sizeof w) == 0) changed = sizeof w;
    while (changed < sizeof w && ((unsigned char *)&w)[changed] == ((unsigned char *)&before)[changed]) changed++;
    if (status != wanted || silent != wanted || error.status != wanted) {
        printf("%s with %s: %s\n", call, what, status == TEGROUP_OK ? "accepted" : tegroup_status_name(status));
        if (status != TEGROUP_OK && error.status == status) printf("    %s %s\n", error.field, error.rule);
        return 0;
    }
    tegroup_error_text(&error, text, sizeof text);
    told = error.native == 0 && error.within == NULL && strcmp(error.field, field) == 0 && error.rule != NULL && strlen(error.rule) > 3 && error.expected == expected &&
           error.got == got && (wanted != TEGROUP_ERROR_DTYPE || names_a_type(text, got)) && strstr(text, error.field) && strstr(text, error.rule) && strstr(text, tegroup_status_string(status));
    if (!told) printf("%s with %s: %s\n", call, what, text);
    if (changed < sizeof w) printf("%s with %s: byte %lu was written\n", call, what, (unsigned long)changed);
    provoked[status] += told && changed == sizeof w;
    return told && changed == sizeof w;
}

#define GOOD(call) ASSERT_TRUE(call_##call(&error) == TEGROUP_OK)
#define ADDRESSABLE ((uint64_t)PTRDIFF_MAX < (uint64_t)INT64_MAX ? (int64_t)PTRDIFF_MAX : INT64_MAX - 1)
#define SHIFT(pointer, bytes) (pointer = (void *)((char *)(uintptr_t)(const void *)(pointer) + (bytes)))

/* Numbers are told as what they are. */
TEST(status, readings) {
    const struct {
        tegroup_reading reading;
        int64_t         expected, got;
        const char     *text;
    } cases[] = {
        {TEGROUP_READING_NUMBER, 4, -1, "(expected 4, got -1)"},
        {TEGROUP_READING_DTYPE, TEGROUP_DTYPE_F64, TEGROUP_DTYPE_UNSET, "(expected F64, got UNSET)"},
        {TEGROUP_READING_DTYPE, TEGROUP_DTYPE_I64, 11, "(expected I64, got 11)"},
        {TEGROUP_READING_DTYPE, TEGROUP_DTYPE_BF16, -3, "(expected BF16, got -3)"},
        {TEGROUP_READING_DTYPES, 1 << TEGROUP_DTYPE_I32, TEGROUP_DTYPE_F32, "(expected I32, got F32)"},
        {TEGROUP_READING_DTYPES, 1 << TEGROUP_DTYPE_I32 | 1 << TEGROUP_DTYPE_I64, TEGROUP_DTYPE_F32, "(expected I32 or I64, got F32)"},
        {TEGROUP_READING_DTYPES, 0x7FE, 0, "(expected F64, F32, F16, BF16, F8E4M3, F8E5M2, F4E2M1, F8E8M0, I32 or I64, got UNSET)"},
        {TEGROUP_READING_DTYPE, TEGROUP_DTYPE_UNSET, TEGROUP_DTYPE_F32, "(expected UNSET, got F32)"},
        {TEGROUP_READING_REAL, real(0), real(-2.5), "(expected 0, got -2.5)"},
        {TEGROUP_READING_REAL, real(3.4028234663852886e38), real((double)INFINITY), "(expected 3.40282346638529e+38, got inf)"},
        {TEGROUP_READING_REAL, real(0.1), real(0.1 + 1e-15), "(expected 0.1, got 0.100000000000001)"},
        {TEGROUP_READING_SCALING, TEGROUP_SCALING_NONE, TEGROUP_SCALING_NVFP4, "(expected none, got nvfp4)"},
        {TEGROUP_READING_SCALINGS, 0x7FF, 11,
         "(expected none, tensor, row, 1x128, 128x128, mxfp8, nvfp4, mxfp4, 32x32, mxfp8-32x32 or nvfp4-16x16, got 11)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tegroup_error e = {TEGROUP_ERROR_DTYPE, 0, "field", "rule", cases[i].expected, cases[i].got, cases[i].reading, NULL};
        tegroup_verdict v = {TEGROUP_BACKEND_SM90, 0, TEGROUP_ERROR_UNSUPPORTED, "field", "rule", cases[i].expected, cases[i].got,
                             cases[i].reading, -1, 0, 0, 0, 0, 0, NULL, 0, 0, 0};
        char text[256], wanted[256];
        snprintf(wanted, sizeof wanted, "a data type is not allowed here: field rule %s", cases[i].text);
        ASSERT_EQ(tegroup_error_text(&e, text, sizeof text), (int)strlen(wanted));
        ASSERT_STREQ(text, wanted);
        e.within = "experts";
        snprintf(wanted, sizeof wanted, "a data type is not allowed here: experts.field rule %s", cases[i].text);
        ASSERT_EQ(tegroup_error_text(&e, text, sizeof text), (int)strlen(wanted));
        ASSERT_STREQ(text, wanted);
        snprintf(wanted, sizeof wanted, "sm90             refused: field rule %s", cases[i].text);
        ASSERT_EQ(tegroup_verdict_text(&v, text, sizeof text), (int)strlen(wanted));
        ASSERT_STREQ(text, wanted);
    }
}

/* The good calls are good; otherwise nothing below means anything. */
TEST(status, good_calls) {
    spoil_nothing();
    GOOD(prepare);
    GOOD(irregular);
    GOOD(problem);
    GOOD(problem_dgrad);
    GOOD(problem_wgrad);
    GOOD(explain);
    GOOD(plan);
    GOOD(plan_dgrad);
    GOOD(check);
    GOOD(forward);
    GOOD(dgrad);
    GOOD(wgrad);
    GOOD(linear_plan);
    GOOD(linear_gemm);
    GOOD(linear_forward);
    GOOD(linear_dgrad);
    GOOD(linear_wgrad);
    GOOD(mlp_plan);
    GOOD(mlp_gemm);
    GOOD(mlp_forward);
    GOOD(mlp_dgrad);
    GOOD(mlp_wgrad);
    GOOD(tune);
    GOOD(save);
    GOOD(load);
    GOOD(activation);
    GOOD(activation_backward);
    GOOD(count);
    GOOD(count_slots);
    GOOD(export);
    GOOD(skew);
    GOOD(router);
    GOOD(router_backward);
    GOOD(permutation);
    GOOD(permute);
    GOOD(combine);
    GOOD(combine_backward);
    GOOD(ep_sizes);
    GOOD(ep_dispatch);
    GOOD(ep_expand);
    GOOD(ep_reduce);
    GOOD(ep_combine);
    GOOD(validate);
    GOOD(scale_convert);
    GOOD(code_convert);
    GOOD(quantize);
    GOOD(dequantize);
    GOOD(tensor_layout);
}

TEST(status, null_arguments) {
    NOT(prepare, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(gemm_problem, NULL AND &w.problem, NULL_ARGUMENT, "desc", 1, 0);
    NOT(gemm_problem, &w.forward AND NULL, NULL_ARGUMENT, "problem", 1, 0);
    NOT(explain, NULL AND NULL AND w.verdicts, NULL_ARGUMENT, "desc", 1, 0);
    NOT(explain, &w.forward AND NULL AND NULL, NULL_ARGUMENT, "verdicts", 1, 0);
    NOT(plan_make, NULL AND NULL AND &w.plan, NULL_ARGUMENT, "desc", 1, 0);
    NOT(plan_make, &w.forward AND NULL AND NULL, NULL_ARGUMENT, "plan", 1, 0);
    NOT(gemm_check, NULL AND &w.forward, NULL_ARGUMENT, "plan", 1, 0);
    NOT(gemm_check, &w.forward_plan AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(gemm, NULL AND &w.forward AND NULL, NULL_ARGUMENT, "plan", 1, 0);
    NOT(gemm, &w.forward_plan AND NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(activation_forward, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(activation_backward, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(count, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(export, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(skew_report, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(router, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(router_backward, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(permutation_make, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(permute, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(combine, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(combine_backward, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(ep_sizes, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(ep_dispatch, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(ep_expand, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(ep_reduce, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(ep_combine, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(validate, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(scale_convert, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(code_convert, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(quantize, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(dequantize, NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(tensor_layout, NULL AND TEGROUP_COPIES_BOTH AND &w.layout, NULL_ARGUMENT, "tensor", 1, 0);
    NOT(tensor_layout, &w.scale_convert.from AND TEGROUP_COPIES_BOTH AND NULL, NULL_ARGUMENT, "layout", 1, 0);
}

/* A struct of an older version is shorter: the call does, byte for byte, what it does for one of today whose other fields are 0, and
 * reads none of those. */
static int alike(const tegroup_error *x, const tegroup_error *y) {
    return x->status == y->status && x->field == y->field && x->rule == y->rule && x->expected == y->expected && x->got == y->got;
}
#define OLDER(call, desc)                                                                                                           \
    do {                                                                                                                            \
        for (size_t cut_ = 16; cut_ < sizeof w.desc; cut_ += 8) {                                                                   \
            tegroup_error  error_[2];                                                                                               \
            tegroup_status status_[2];                                                                                              \
            memset(error_, 0, sizeof error_);                                                                                       \
            for (int older_ = 0; older_ < 2; older_++) {                                                                            \
                if (older_) memcpy(&before, &w, sizeof w);                                                                          \
                spoil_nothing();                                                                                                    \
                memset((char *)&w.desc + cut_, older_ ? 0xA5 : 0, sizeof w.desc - cut_);                                            \
                if (older_) w.desc.struct_size = cut_;                                                                              \
                status_[older_] = call_##call(&error_[older_]);                                                                     \
                memcpy(&w.desc, &good.desc, sizeof w.desc);                                                                         \
            }                                                                                                                       \
            ASSERT_EQ(status_[0], status_[1]);                                                                                      \
            ASSERT_TRUE(alike(&error_[0], &error_[1]));                                                                             \
            ASSERT_EQ(0, memcmp(&before, &w, sizeof w));                                                                            \
        }                                                                                                                           \
        spoil_nothing();                                                                                                            \
    } while (0)

TEST(status, older_structs) {
    spoil_nothing();
    OLDER(prepare, prepare);
    OLDER(irregular, irregular);
    OLDER(problem, forward);
    OLDER(explain, forward);
    OLDER(explain, target);
    OLDER(plan, forward);
    OLDER(plan_target, target);
    OLDER(check, forward);
    OLDER(forward, forward);
    OLDER(dgrad, dgrad);
    OLDER(wgrad, wgrad);
    OLDER(tune, tune);
    OLDER(tune, forward);
    OLDER(load, forward);
    OLDER(linear_plan, linear);
    OLDER(linear_gemm, linear);
    OLDER(linear_forward, linear);
    OLDER(linear_dgrad, linear);
    OLDER(linear_wgrad, linear);
    OLDER(mlp_plan, mlp);
    OLDER(mlp_gemm, mlp);
    OLDER(mlp_forward, mlp);
    OLDER(mlp_dgrad, mlp);
    OLDER(mlp_wgrad, mlp);
    OLDER(activation, activation);
    OLDER(activation_backward, activation_backward);
    OLDER(count, count);
    OLDER(count_slots, count_slots);
    OLDER(export, exports);
    OLDER(skew, skew);
    OLDER(router, router);
    OLDER(router_layout, router);
    OLDER(router_backward, router_backward);
    OLDER(permutation, permutation);
    OLDER(permutation_layout, permutation);
    OLDER(permute, permute);
    OLDER(combine, combine);
    OLDER(combine_backward, combine_backward);
    OLDER(ep_sizes, ep_sizes);
    OLDER(ep_dispatch, ep_dispatch);
    OLDER(ep_expand, ep_expand);
    OLDER(ep_reduce, ep_reduce);
    OLDER(ep_combine, ep_combine);
    OLDER(validate, validate);
    OLDER(scale_convert, scale_convert);
    OLDER(code_convert, code_convert);
    OLDER(quantize, quantize);
    OLDER(dequantize, dequantize);
}

/* struct_size comes first in every descriptor; a wrong one, and all zeros, is noticed before anything else is read. */
#define STRUCT_SIZE(call, type, desc)                                                                                               \
    ASSERT_EQ((size_t)0, offsetof(type, struct_size));                                                                              \
    BAD(call, w.desc.struct_size--, STRUCT_SIZE, "struct_size", sizeof(type), sizeof(type) - 1);                                    \
    BAD(call, w.desc.struct_size++, STRUCT_SIZE, "struct_size", sizeof(type), sizeof(type) + 1);                                    \
    BAD(call, w.desc.struct_size += 8, STRUCT_SIZE, "struct_size", sizeof(type), sizeof(type) + 8);                                 \
    BAD(call, w.desc.struct_size = 8, STRUCT_SIZE, "struct_size", sizeof(type), 8);                                                 \
    BAD(call, memset(&w.desc, 0, sizeof w.desc), STRUCT_SIZE, "struct_size", sizeof(type), 0)
/* ... and with struct_size set, zero in a required enum is what is missed next. */
#define UNSET(call, desc, field) \
    BAD(call, memset(&w.desc, 0, sizeof w.desc); w.desc.struct_size = sizeof w.desc, UNSET, field, 1, 0)
#define SPACE(call, desc)                                                                                                           \
    BAD(call, w.desc.space = TEGROUP_SPACE_UNSET, UNSET, "space", TEGROUP_SPACE_HOST, 0);                                           \
    BAD(call, w.desc.space = (tegroup_space)3, VALUE, "space", TEGROUP_SPACE_DEVICE, 3);                                            \
    BAD(call, w.desc.space = (tegroup_space)-1, VALUE, "space", TEGROUP_SPACE_DEVICE, -1)

TEST(status, struct_size) {
    STRUCT_SIZE(prepare, tegroup_prepare_desc, prepare);
    STRUCT_SIZE(problem, tegroup_gemm_desc, forward);
    STRUCT_SIZE(explain, tegroup_gemm_desc, forward);
    STRUCT_SIZE(plan, tegroup_gemm_desc, forward);
    STRUCT_SIZE(check, tegroup_gemm_desc, forward);
    STRUCT_SIZE(forward, tegroup_gemm_desc, forward);
    STRUCT_SIZE(activation, tegroup_activation_desc, activation);
    STRUCT_SIZE(activation_backward, tegroup_activation_backward_desc, activation_backward);
    STRUCT_SIZE(count, tegroup_count_desc, count);
    STRUCT_SIZE(export, tegroup_export_desc, exports);
    STRUCT_SIZE(skew, tegroup_skew_desc, skew);
    STRUCT_SIZE(router, tegroup_router_desc, router);
    STRUCT_SIZE(router_backward, tegroup_router_backward_desc, router_backward);
    STRUCT_SIZE(permutation, tegroup_permutation_desc, permutation);
    STRUCT_SIZE(permute, tegroup_permute_desc, permute);
    STRUCT_SIZE(combine, tegroup_combine_desc, combine);
    STRUCT_SIZE(combine_backward, tegroup_combine_backward_desc, combine_backward);
    STRUCT_SIZE(ep_sizes, tegroup_ep_sizes_desc, ep_sizes);
    STRUCT_SIZE(ep_dispatch, tegroup_ep_dispatch_desc, ep_dispatch);
    STRUCT_SIZE(ep_expand, tegroup_ep_links_desc, ep_expand);
    STRUCT_SIZE(ep_reduce, tegroup_ep_links_desc, ep_reduce);
    STRUCT_SIZE(ep_combine, tegroup_ep_combine_desc, ep_combine);
    STRUCT_SIZE(validate, tegroup_validate_desc, validate);
    STRUCT_SIZE(scale_convert, tegroup_scale_convert_desc, scale_convert);
    STRUCT_SIZE(code_convert, tegroup_code_convert_desc, code_convert);
    STRUCT_SIZE(quantize, tegroup_quantize_desc, quantize);
    STRUCT_SIZE(dequantize, tegroup_dequantize_desc, dequantize);
    STRUCT_SIZE(router_layout, tegroup_router_desc, router);
    STRUCT_SIZE(permutation_layout, tegroup_permutation_desc, permutation);
    ASSERT_EQ((size_t)0, offsetof(tegroup_target, struct_size));
    ASSERT_EQ((size_t)0, offsetof(tegroup_plan, struct_size));
    BAD(explain, w.target.struct_size--, STRUCT_SIZE, "target.struct_size", sizeof(tegroup_target), sizeof(tegroup_target) - 1);
    BAD(plan_target, w.target.struct_size = 0, STRUCT_SIZE, "target.struct_size", sizeof(tegroup_target), 0);
    BAD(forward, w.forward_plan.struct_size--, STRUCT_SIZE, "plan.struct_size", sizeof(tegroup_plan), sizeof(tegroup_plan) - 1);
}

TEST(status, zero_is_unset) {
    UNSET(prepare, prepare, "space");
    UNSET(problem, forward, "space");
    UNSET(plan, forward, "space");
    UNSET(activation, activation, "space");
    UNSET(activation_backward, activation_backward, "space");
    UNSET(count, count, "space");
    UNSET(export, exports, "space");
    UNSET(skew, skew, "space");
    UNSET(router, router, "space");
    UNSET(router_backward, router_backward, "space");
    UNSET(permutation, permutation, "space");
    UNSET(permute, permute, "space");
    UNSET(combine, combine, "space");
    UNSET(combine_backward, combine_backward, "space");
    UNSET(ep_sizes, ep_sizes, "space");
    UNSET(ep_dispatch, ep_dispatch, "space");
    UNSET(ep_expand, ep_expand, "space");
    UNSET(ep_reduce, ep_reduce, "space");
    UNSET(ep_combine, ep_combine, "space");
    UNSET(validate, validate, "space");
    UNSET(scale_convert, scale_convert, "space");
    UNSET(code_convert, code_convert, "space");
    UNSET(quantize, quantize, "space");
    UNSET(dequantize, dequantize, "space");
    UNSET(router_layout, router, "space");
    UNSET(permutation_layout, permutation, "space");
    SPACE(prepare, prepare);
    SPACE(problem, forward);
    SPACE(activation, activation);
    SPACE(activation_backward, activation_backward);
    SPACE(count, count);
    SPACE(export, exports);
    SPACE(skew, skew);
    SPACE(router, router);
    SPACE(router_backward, router_backward);
    SPACE(permutation, permutation);
    SPACE(permute, permute);
    SPACE(combine, combine);
    SPACE(combine_backward, combine_backward);
    SPACE(ep_sizes, ep_sizes);
    SPACE(ep_dispatch, ep_dispatch);
    SPACE(ep_expand, ep_expand);
    SPACE(ep_reduce, ep_reduce);
    SPACE(ep_combine, ep_combine);
    SPACE(validate, validate);
    SPACE(scale_convert, scale_convert);
    SPACE(code_convert, code_convert);
    SPACE(quantize, quantize);
    SPACE(dequantize, dequantize);
    SPACE(router_layout, router);
    SPACE(permutation_layout, permutation);
}

/* Zero means the default: spelt out, it is the very same problem. */
TEST(status, zero_is_default) {
    tegroup_problem   zeros;
    tegroup_gemm_desc *x = &w.dgrad;
    spoil_nothing();
    GOOD(problem_dgrad);
    zeros = w.problem;
    x->a.ld = N;
    x->b.ld = x->d.ld = K;
    x->b.group_stride = N * K;
    x->alpha.dtype = x->beta.dtype = TEGROUP_DTYPE_F32;
    GOOD(problem_dgrad);
    ASSERT_EQ(0, memcmp(&zeros, &w.problem, sizeof zeros));
    GOOD(dgrad);
    ASSERT_TRUE(w.problem.compute == TEGROUP_COMPUTE_F32 && w.problem.tail == TEGROUP_TAIL_KEEP && w.dgrad_plan.backend == TEGROUP_BACKEND_CPU);
}

TEST(status, layouts) {
    tegroup_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.groups = -1;
    NOT(snapshot_layout, NULL AND &w.layout, NULL_ARGUMENT, "shape", 1, 0);
    NOT(snapshot_layout, &w.prepare.shape AND NULL, NULL_ARGUMENT, "layout", 1, 0);
    NOT(snapshot_layout, &shape AND &w.layout, VALUE, "shape.groups", TEGROUP_MAX_GROUPS, -1);
    shape.groups = TEGROUP_MAX_GROUPS + 1;
    NOT(snapshot_layout, &shape AND &w.layout, VALUE, "shape.groups", TEGROUP_MAX_GROUPS, TEGROUP_MAX_GROUPS + 1);
}

TEST(status, scale_shape) {
    NOT(scale_shape, TEGROUP_SCALING_ROW AND 0 AND 1 AND 1 AND NULL, NULL_ARGUMENT, "extent", 1, 0);
    NOT(scale_shape, TEGROUP_SCALING_COUNT AND 0 AND 1 AND 1 AND &w.extent, VALUE, "scaling", TEGROUP_SCALING_COUNT - 1, TEGROUP_SCALING_COUNT);
    NOT(scale_shape, (tegroup_scaling)-1 AND 0 AND 1 AND 1 AND &w.extent, VALUE, "scaling", TEGROUP_SCALING_COUNT - 1, -1);
    NOT(scale_shape, TEGROUP_SCALING_ROW AND 2 AND 1 AND 1 AND &w.extent, VALUE, "columnwise", 1, 2);
    NOT(scale_shape, TEGROUP_SCALING_ROW AND -1 AND 1 AND 1 AND &w.extent, VALUE, "columnwise", 1, -1);
    NOT(scale_shape, TEGROUP_SCALING_ROW AND 0 AND -1 AND 1 AND &w.extent, VALUE, "rows", 0, -1);
    NOT(scale_shape, TEGROUP_SCALING_ROW AND 0 AND 1 AND INT64_MIN AND &w.extent, VALUE, "cols", 0, INT64_MIN);
    NOT(scale_shape, TEGROUP_SCALING_ROW AND 0 AND INT64_MAX / 4 + 1 AND 1 AND &w.extent, OVERFLOW, "rows", ADDRESSABLE, INT64_MAX);
    NOT(scale_shape, TEGROUP_SCALING_ROW AND 1 AND 1 AND INT64_MAX AND &w.extent, OVERFLOW, "rows", ADDRESSABLE, INT64_MAX);
    NOT(scale_shape, TEGROUP_SCALING_MXFP8 AND 0 AND INT64_MAX AND 1 AND &w.extent, OVERFLOW, "rows", ADDRESSABLE, INT64_MAX);
    NOT(scale_shape, TEGROUP_SCALING_NVFP4 AND 1 AND INT64_MAX AND INT64_MAX AND &w.extent, OVERFLOW, "rows", ADDRESSABLE, INT64_MAX);
}

/* A field that must lie in a range: one below and one above. */
#define RANGE(call, lvalue, field, type, low, high)                                                                                 \
    BAD(call, lvalue = (type)((low) - 1), VALUE, field, high, (int64_t)(low) - 1);                                                  \
    BAD(call, lvalue = (type)((high) + 1), VALUE, field, high, (type)((high) + 1))
/* Room for lists of addresses, and a tensor as a list in that space, before it has any memory. */
static void *lists[3][EXPERTS];
static void listed(tegroup_tensor *t, tegroup_space space) {
    t->data = NULL;
    t->pointers_space = space;
}
#define LISTED(t, space_) listed(&(t), TEGROUP_SPACE_##space_)
#define NOT_NEGATIVE(call, lvalue, field) BAD(call, lvalue = -1, VALUE, field, 0, -1)
#define ALIGNED(call, pointer, field, alignment) BAD(call, SHIFT(pointer, 1), ALIGNMENT, field, alignment, 1)

/* A call for a snapshot on the device, and one of so many sizes on the host; no byte of what they point to is looked at. */
enum { I32_ = TEGROUP_DTYPE_I32, I64_ = TEGROUP_DTYPE_I64 };
static void on_device(tegroup_prepare_desc *p) {
    p->space = p->shape.row_sizes.space = TEGROUP_SPACE_DEVICE;
    if (p->shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET) p->shape.col_sizes.space = TEGROUP_SPACE_DEVICE;
}
static void sent(tegroup_prepare_desc *p, int32_t groups, int dtype) {
    static int64_t there[TEGROUP_MAX_GROUPS + 1];
    on_device(p);
    p->shape.groups = groups;
    p->shape.row_sizes.data = there;
    p->shape.row_sizes.dtype = (tegroup_dtype)dtype;
    p->shape.row_sizes.data_space = TEGROUP_SPACE_HOST;
    p->snapshot = (void *)(uintptr_t)4096;
    p->snapshot_bytes = 1 << 20;
    if (p->shape.col_sizes.encoding == TEGROUP_ENCODING_UNSET) return;
    p->shape.col_sizes.data = p->shape.offsets = there;
    p->shape.col_sizes.dtype = (tegroup_dtype)dtype;
    p->shape.col_sizes.data_space = TEGROUP_SPACE_HOST;
}

TEST(status, prepare) {
    tegroup_prepare_desc *p = &w.prepare, *q = &w.irregular;
    tegroup_layout        layout;
    RANGE(prepare, p->shape.groups, "shape.groups", int32_t, 0, TEGROUP_MAX_GROUPS);
    RANGE(prepare, p->shape.rows, "shape.rows", int64_t, 0, TEGROUP_MAX_ROWS);
    RANGE(prepare, p->shape.cols, "shape.cols", int64_t, 0, TEGROUP_MAX_COLS);
    NOT_NEGATIVE(prepare, p->threads, "threads");
    BAD(prepare, p->threads = INT32_MIN, VALUE, "threads", 0, INT32_MIN);
    BAD(prepare, p->shape.row_sizes.encoding = TEGROUP_ENCODING_UNSET, UNSET, "shape.row_sizes.encoding", TEGROUP_ENCODING_COUNTS, 0);
    BAD(prepare, p->shape.row_sizes.encoding = (tegroup_encoding)4, VALUE, "shape.row_sizes.encoding", TEGROUP_ENCODING_ENDS, 4);
    BAD(prepare, p->shape.row_sizes.dtype = TEGROUP_DTYPE_UNSET, UNSET, "shape.row_sizes.dtype", I32 | I64, 0);
    BAD(prepare, p->shape.row_sizes.dtype = TEGROUP_DTYPE_F64, DTYPE, "shape.row_sizes.dtype", I32 | I64, TEGROUP_DTYPE_F64);
    BAD(prepare, p->shape.row_sizes.dtype = TEGROUP_DTYPE_COUNT, VALUE, "shape.row_sizes.dtype", TEGROUP_DTYPE_COUNT - 1, TEGROUP_DTYPE_COUNT);
    BAD(prepare, p->shape.row_sizes.space = TEGROUP_SPACE_UNSET, UNSET, "shape.row_sizes.space", TEGROUP_SPACE_HOST, 0);
    BAD(prepare, p->shape.row_sizes.space = TEGROUP_SPACE_DEVICE, COMBINATION, "shape.row_sizes.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(prepare, p->shape.row_sizes.data = NULL, NULL_ARGUMENT, "shape.row_sizes.data", 1, 0);
    ALIGNED(prepare, p->shape.row_sizes.data, "shape.row_sizes.data", 8);
    BAD(prepare, SHIFT(p->shape.row_sizes.data, 2); p->shape.row_sizes.dtype = TEGROUP_DTYPE_I32, ALIGNMENT, "shape.row_sizes.data", 4, 2);
    BAD(prepare, p->shape.row_sizes.starts = (char *)w.starts + 4, ALIGNMENT, "shape.row_sizes.starts", 8, 4);
    RANGE(prepare, p->shape.row_sizes.alignment, "shape.row_sizes.alignment", int64_t, 0, TEGROUP_MAX_ROWS);
    RANGE(prepare, p->shape.row_sizes.stride, "shape.row_sizes.stride", int64_t, 0, TEGROUP_MAX_ROWS);
    BAD(prepare, p->shape.row_sizes.starts = w.starts; p->shape.row_sizes.encoding = TEGROUP_ENCODING_ENDS, COMBINATION,
        "shape.row_sizes.starts", TEGROUP_ENCODING_COUNTS, TEGROUP_ENCODING_ENDS);
    BAD(prepare, p->shape.row_sizes.stride = 8; p->shape.row_sizes.encoding = TEGROUP_ENCODING_OFFSETS, COMBINATION,
        "shape.row_sizes.stride", TEGROUP_ENCODING_COUNTS, TEGROUP_ENCODING_OFFSETS);
    BAD(prepare, p->shape.row_sizes.alignment = 8; p->shape.row_sizes.encoding = TEGROUP_ENCODING_OFFSETS, COMBINATION, "shape.row_sizes.alignment", 1, 8);
    BAD(prepare, p->shape.row_sizes.starts = w.starts; p->shape.row_sizes.stride = 8, COMBINATION, "shape.row_sizes.stride", 0, 8);
    BAD(prepare, p->shape.row_sizes.starts = w.starts; p->shape.row_sizes.alignment = 8, COMBINATION, "shape.row_sizes.alignment", 1, 8);
    BAD(prepare, p->shape.row_sizes.stride = 8; p->shape.row_sizes.alignment = 4, COMBINATION, "shape.row_sizes.alignment", 1, 4);
    BAD(irregular, q->shape.col_sizes.dtype = TEGROUP_DTYPE_UNSET, UNSET, "shape.col_sizes.dtype", I32 | I64, 0);
    BAD(irregular, q->shape.col_sizes.dtype = TEGROUP_DTYPE_BF16, DTYPE, "shape.col_sizes.dtype", I32 | I64, TEGROUP_DTYPE_BF16);
    BAD(irregular, q->shape.col_sizes.space = TEGROUP_SPACE_UNSET, UNSET, "shape.col_sizes.space", TEGROUP_SPACE_HOST, 0);
    BAD(irregular, q->shape.col_sizes.space = TEGROUP_SPACE_DEVICE, COMBINATION, "shape.col_sizes.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(irregular, q->shape.col_sizes.data = NULL, NULL_ARGUMENT, "shape.col_sizes.data", 1, 0);
    ALIGNED(irregular, q->shape.col_sizes.data, "shape.col_sizes.data", 8);
    BAD(irregular, q->shape.col_sizes.encoding = (tegroup_encoding)4, VALUE, "shape.col_sizes.encoding", TEGROUP_ENCODING_ENDS, 4);
    BAD(irregular, q->shape.col_sizes.encoding = TEGROUP_ENCODING_ENDS, COMBINATION, "shape.col_sizes.encoding", TEGROUP_ENCODING_COUNTS, TEGROUP_ENCODING_ENDS);
    BAD(irregular, q->shape.col_sizes.starts = w.starts, COMBINATION, "shape.col_sizes.starts", 0, 1);
    BAD(irregular, q->shape.col_sizes.stride = 8, COMBINATION, "shape.col_sizes.stride", 0, 8);
    BAD(irregular, q->shape.col_sizes.alignment = 8, COMBINATION, "shape.col_sizes.alignment", 1, 8);
    NOT_NEGATIVE(irregular, q->shape.elements, "shape.elements");
    BAD(irregular, q->shape.elements = 0, VALUE, "shape.elements", 1, 0);
    ALIGNED(irregular, q->shape.offsets, "shape.offsets", 8);
    BAD(irregular, q->ld = K - 1, LAYOUT, "ld", K, K - 1);
    BAD(irregular, q->ld = -1, LAYOUT, "ld", K, -1);
    BAD(irregular, q->ld = TEGROUP_MAX_COLS + 1, VALUE, "ld", TEGROUP_MAX_COLS, TEGROUP_MAX_COLS + 1);

    spoil_nothing();
    ASSERT_TRUE(TEGROUP_OK == tegroup_snapshot_layout(&w.irregular.shape, &layout, NULL));
    BAD(irregular, q->snapshot = NULL, NULL_ARGUMENT, "snapshot", 1, 0);
    ALIGNED(irregular, q->snapshot, "snapshot", TEGROUP_ALIGNMENT);
    BAD(irregular, SHIFT(q->snapshot, 128), ALIGNMENT, "snapshot", TEGROUP_ALIGNMENT, 128);
    BAD(irregular, q->snapshot_bytes = layout.total_bytes - 1, WORKSPACE, "snapshot_bytes", layout.total_bytes, layout.total_bytes - 1);
    BAD(irregular, q->snapshot_bytes = 0, WORKSPACE, "snapshot_bytes", layout.total_bytes, 0);
    BAD(irregular, q->shape.row_sizes.data = w.snapshot_out + layout.total_bytes - 8, OVERLAP, "snapshot", 0, 1);
    BAD(irregular, q->shape.col_sizes.data = w.snapshot_out, OVERLAP, "snapshot", 0, 1);
    BAD(irregular, q->shape.offsets = (const int64_t *)(w.snapshot_out + 512), OVERLAP, "snapshot", 0, 1);
    BAD(prepare, p->shape.row_sizes.starts = w.snapshot_out + 1024, OVERLAP, "snapshot", 0, 1);
    BAD(prepare, p->shape.row_sizes.data = w.snapshot_out - 8 * (EXPERTS - 1), OVERLAP, "snapshot", 0, 1);
    BAD(prepare, p->shape.row_sizes.data = w.snapshot_out - 8 * EXPERTS; p->shape.row_sizes.encoding = TEGROUP_ENCODING_OFFSETS, OVERLAP, "snapshot", 0, 1);
    BAD(prepare, p->space = TEGROUP_SPACE_DEVICE; p->shape.row_sizes.space = TEGROUP_SPACE_DEVICE, NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);

    /* Sizes on the host for a snapshot on the device: as many as a kernel's parameters hold, which this build has no kernel for. */
    RANGE(prepare, p->host_sizes_final, "host_sizes_final", int32_t, 0, 1);
    BAD(prepare, p->shape.row_sizes.data_space = TEGROUP_SPACE_DEVICE, COMBINATION, "shape.row_sizes.data_space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(irregular, q->shape.row_sizes.data_space = TEGROUP_SPACE_DEVICE, COMBINATION, "shape.row_sizes.data_space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(irregular, q->shape.col_sizes.data_space = TEGROUP_SPACE_DEVICE, COMBINATION, "shape.col_sizes.data_space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(irregular, on_device(q); q->shape.row_sizes.data_space = TEGROUP_SPACE_HOST, COMBINATION, "shape.col_sizes.data_space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(irregular, on_device(q); q->shape.col_sizes.data_space = TEGROUP_SPACE_HOST, COMBINATION, "shape.col_sizes.data_space", TEGROUP_SPACE_DEVICE, TEGROUP_SPACE_HOST);
    BAD(irregular, on_device(q), NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(irregular, sent(q, EXPERTS, I64_), NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(irregular, sent(q, 3584 / 24, I64_), NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE); /* rows, columns, offsets */
    BAD(irregular, sent(q, 3584 / 24 + 1, I64_), UNSUPPORTED, "shape.row_sizes.data_space", 3584, 24 * (3584 / 24 + 1));
    BAD(irregular, sent(q, 3584 / 16 + 1, I32_), UNSUPPORTED, "shape.row_sizes.data_space", 3584, 8 * 225 + 2 * 4 * 226);
    BAD(prepare, sent(p, 448, I64_), NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(prepare, sent(p, 449, I64_), UNSUPPORTED, "shape.row_sizes.data_space", 3584, 8 * 449);
    BAD(prepare, sent(p, 896, I32_), NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(prepare, sent(p, 897, I32_), UNSUPPORTED, "shape.row_sizes.data_space", 3584, 8 * 449);
    BAD(prepare, sent(p, 448, I64_); p->shape.row_sizes.encoding = TEGROUP_ENCODING_OFFSETS, UNSUPPORTED, "shape.row_sizes.data_space", 3584, 8 * 449);
    BAD(prepare, sent(p, 225, I64_); p->shape.row_sizes.starts = w.starts, UNSUPPORTED, "shape.row_sizes.data_space", 3584, 16 * 225);
    BAD(prepare, sent(p, 4096, I64_); p->shape.row_sizes.data_space = TEGROUP_SPACE_UNSET, NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);

    /* Just enough is enough. */
    spoil_nothing();
    w.irregular.snapshot_bytes = layout.total_bytes;
    GOOD(irregular);
    /* Groups that begin at any row lie at multiples of 1, which may be said. */
    spoil_nothing();
    p->shape.row_sizes.starts = w.starts;
    p->shape.row_sizes.alignment = 1;
    GOOD(prepare);
    /* Sizes that end where the snapshot begins are apart from it. */
    spoil_nothing();
    p->shape.row_sizes.data = memcpy(w.snapshot_out - sizeof w.counts, w.counts, sizeof w.counts);
    GOOD(prepare);
    /* The largest distance of rows may be said of any. */
    spoil_nothing();
    p->ld = TEGROUP_MAX_COLS;
    GOOD(prepare);
    /* No groups have no sizes. */
    for (int encoding = TEGROUP_ENCODING_COUNTS; encoding <= TEGROUP_ENCODING_ENDS; encoding++) {
        spoil_nothing();
        p->shape.groups = 0;
        p->shape.row_sizes.data = NULL;
        p->shape.row_sizes.encoding = (tegroup_encoding)encoding;
        GOOD(prepare);
    }
}

/* Sizes in host memory that lie, each in its way: which array, which bound, which group. */
static void counts_are(int64_t a, int64_t b, int64_t c, int64_t d) {
    int64_t counts[EXPERTS] = {a, b, c, d};
    memcpy(w.counts, counts, sizeof counts);
}
static void col_counts_are(int64_t a, int64_t b, int64_t c, int64_t d) {
    int64_t counts[EXPERTS] = {a, b, c, d};
    memcpy(w.col_counts, counts, sizeof counts);
}

TEST(status, prepare_lies) {
    tegroup_prepare_desc *p = &w.prepare, *q = &w.irregular;
    const char           *rows = "shape.row_sizes.data";
    RANGE(prepare, p->clamp, "clamp", int32_t, 0, 1);
    RANGE(prepare, p->check_level, "check_level", tegroup_check_level, 0, TEGROUP_CHECK_DEEP);
    BAD(prepare, w.counts[1] = -2, VALUE, rows, -1, 1);
    BAD(prepare, w.counts[3] = INT64_MIN, VALUE, rows, -1, 3);
    BAD(prepare, w.counts[2] = ROWS + 1, CAPACITY, rows, ROWS, 2);
    BAD(prepare, w.counts[0] = INT64_MAX; w.counts[1] = -7, CAPACITY, rows, ROWS, 0);
    BAD(prepare, p->shape.row_sizes.stride = 2; counts_are(1, 3, 1, 3), OVERLAP, rows, 2, 1);
    BAD(prepare, p->shape.row_sizes.starts = w.starts; w.starts[2] = -1, VALUE, "shape.row_sizes.starts", 0, 2);
    BAD(prepare, p->shape.row_sizes.starts = w.starts; w.starts[3] = w.starts[1], OVERLAP, "shape.row_sizes.starts", -1, 1);
    BAD(prepare, p->shape.row_sizes.encoding = TEGROUP_ENCODING_ENDS; counts_are(3, 5, 4, 6), VALUE, rows, 0, 2);
    BAD(prepare, p->shape.row_sizes.encoding = TEGROUP_ENCODING_ENDS; counts_are(3, 5, 5, ROWS + 1), CAPACITY, rows, ROWS, 3);
    BAD(prepare, p->shape.row_sizes.encoding = TEGROUP_ENCODING_OFFSETS; p->shape.row_sizes.data = w.offsets; w.offsets[0] = 1; p->shape.groups = 3, VALUE, rows, 0, 0);
    BAD(irregular, w.col_counts[3] = K + 1, VALUE, "shape.col_sizes.data", K, 3);
    BAD(irregular, w.col_counts[2] = -1, VALUE, "shape.col_sizes.data", K, 2);
    BAD(irregular, col_counts_are(1, 1, 1, 1); w.offsets[1] = ROWS * K, CAPACITY, "shape.offsets", ROWS * K, 1);
    BAD(irregular, col_counts_are(1, 1, 1, 1); w.offsets[2] = -1, CAPACITY, "shape.offsets", ROWS * K, 2);
    BAD(irregular, col_counts_are(1, 1, 1, 1); w.offsets[3] = w.offsets[1], OVERLAP, "shape.offsets", -1, 1);
    BAD(irregular, col_counts_are(2, 1, 1, 1); q->shape.offsets = NULL; q->shape.elements = 1, CAPACITY, "shape.elements", 1, 0);

    /* an exact fit is none, and clamped none is refused */
    spoil_nothing();
    counts_are(ROWS - 3, -1, 0, 3);
    GOOD(prepare);
    spoil_nothing();
    counts_are(ROWS, 1, -5, 1);
    w.prepare.clamp = 1;
    GOOD(prepare);
    ASSERT_EQ(tegroup_snapshot_read(w.snapshot_out).header->status, (uint32_t)(TEGROUP_SNAPSHOT_CAPACITY + TEGROUP_SNAPSHOT_NEGATIVE));
}

/* Every rule of one tensor, for each operand of the three products. `cols` is what its good ld stands for. */
#define TENSOR(call, t, name, cols_)                                                                                                \
    RANGE(call, t.shape.groups, name ".shape.groups", int32_t, 0, TEGROUP_MAX_GROUPS);                                              \
    RANGE(call, t.shape.rows, name ".shape.rows", int64_t, 0, TEGROUP_MAX_ROWS);                                                    \
    RANGE(call, t.shape.cols, name ".shape.cols", int64_t, 0, TEGROUP_MAX_COLS);                                                    \
    RANGE(call, t.scaling, name ".scaling", tegroup_scaling, 0, TEGROUP_SCALING_COUNT - 1);                                         \
    RANGE(call, t.pointers_space, name ".pointers_space", tegroup_space, 0, TEGROUP_SPACE_DEVICE);                                  \
    BAD(call, t.pointers = lists[0]; t.data = NULL, UNSET, name ".pointers_space", TEGROUP_SPACE_HOST, 0);                          \
    BAD(call, t.pointers = lists[0], UNSET, name ".pointers_space", TEGROUP_SPACE_HOST, 0);                                         \
    BAD(call, t.pointers = lists[0]; t.pointers_space = TEGROUP_SPACE_HOST, COMBINATION, name ".data", 0, 1);                       \
    BAD(call, t.pointers_space = TEGROUP_SPACE_DEVICE, COMBINATION, name ".data", 0, 1);                                            \
    NOT_NEGATIVE(call, t.shape.elements, name ".shape.elements");                                                                   \
    BAD(call, t.dtype = TEGROUP_DTYPE_COUNT, VALUE, name ".dtype", TEGROUP_DTYPE_COUNT - 1, TEGROUP_DTYPE_COUNT);                   \
    BAD(call, t.dtype = TEGROUP_DTYPE_F8E4M3, DTYPE, name ".dtype", floats, TEGROUP_DTYPE_F8E4M3);                                  \
    BAD(call, t.scaling = TEGROUP_SCALING_MXFP8, DTYPE, name ".dtype", fp8, TEGROUP_DTYPE_F32);                                     \
    BAD(call, t.scale_dtype = TEGROUP_DTYPE_F32, COMBINATION, name ".scale_dtype", 0, TEGROUP_DTYPE_F32);                           \
    NOT_NEGATIVE(call, t.scale_outer_stride, name ".scale_outer_stride");                                                           \
    NOT_NEGATIVE(call, t.scale_inner_stride, name ".scale_inner_stride");                                                           \
    BAD(call, t.scale_outer_stride = t.scale_inner_stride = 1, COMBINATION, name ".scale_outer_stride", 0, 1);                      \
    BAD(call, t.scale_outer_stride = 1, COMBINATION, name ".scale_inner_stride", 1, 0);                                             \
    NOT_NEGATIVE(call, t.scale_parts, name ".scale_parts");                                                                         \
    BAD(call, t.scale_parts = 2, COMBINATION, name ".scale_parts", 0, 2);                                                           \
    BAD(call, t.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED, COMBINATION, name ".columnwise_order", 0, 1);                     \
    BAD(call, t.code_order = TEGROUP_CODES_INTERLEAVED, COMBINATION, name ".code_order", 0, 1);                                     \
    BAD(call, t.global_scale_inv = w.x, COMBINATION, name ".global_scale_inv", 0, 1);                                               \
    BAD(call, t.ld = cols_ - 1, LAYOUT, name ".ld", cols_, cols_ - 1);                                                              \
    BAD(call, t.ld = -1, LAYOUT, name ".ld", cols_, -1);                                                                            \
    BAD(call, t.ld = TEGROUP_MAX_COLS + 1, VALUE, name ".ld", TEGROUP_MAX_COLS, TEGROUP_MAX_COLS + 1)
#define RAGGED(call, t, name)                                                                                                       \
    BAD(call, t.shape.row_sizes.encoding = (tegroup_encoding)4, VALUE, name ".shape.row_sizes.encoding", TEGROUP_ENCODING_ENDS, 4); \
    BAD(call, t.shape.row_sizes.space = TEGROUP_SPACE_UNSET, UNSET, name ".shape.row_sizes.space", TEGROUP_SPACE_HOST, 0);          \
    BAD(call, t.shape.row_sizes.space = (tegroup_space)3, VALUE, name ".shape.row_sizes.space", TEGROUP_SPACE_DEVICE, 3);           \
    BAD(call, t.shape.col_sizes.encoding = TEGROUP_ENCODING_OFFSETS, COMBINATION, name ".shape.col_sizes.encoding",                 \
        TEGROUP_ENCODING_COUNTS, TEGROUP_ENCODING_OFFSETS);                                                                         \
    BAD(call, t.group_stride = 1000, COMBINATION, name ".group_stride", 0, 1000);                                                   \
    BAD(call, LISTED(t, HOST); t.shape.elements = 7, COMBINATION, name ".shape.elements", 0, 7);                                    \
    BAD(call, LISTED(t, DEVICE); t.shape.offsets = w.offsets, COMBINATION, name ".shape.offsets", 0, 1);                            \
    BAD(call, t.shape.col_sizes.encoding = TEGROUP_ENCODING_COUNTS; t.shape.row_sizes.space = TEGROUP_SPACE_DEVICE, VALUE,          \
        name ".shape.elements", 1, 0);                                                                                              \
    BAD(call, t.shape.rows = TEGROUP_MAX_ROWS; t.ld = TEGROUP_MAX_COLS, OVERFLOW, name ".ld", ADDRESSABLE, INT64_MAX);              \
    BAD(call, t.shape.elements = INT64_MAX, OVERFLOW, name ".shape.elements", ADDRESSABLE / 4, INT64_MAX)
#define UNIFORM(call, t, name, rows_, cols_)                                                                                        \
    BAD(call, t.group_stride = rows_ * cols_ - 1, LAYOUT, name ".group_stride", rows_ * cols_, rows_ * cols_ - 1);                  \
    BAD(call, t.group_stride = -1, LAYOUT, name ".group_stride", rows_ * cols_, -1);                                                \
    BAD(call, t.ld = cols_ + 2; t.group_stride = rows_ * cols_, LAYOUT, name ".group_stride", rows_ * (cols_ + 2), rows_ * cols_);  \
    BAD(call, t.group_stride = INT64_MAX, OVERFLOW, name ".group_stride", ADDRESSABLE, INT64_MAX);                                  \
    BAD(call, t.shape.offsets = w.slot_of_row, COMBINATION, name ".shape.row_sizes.encoding", TEGROUP_ENCODING_COUNTS, 0);           \
    BAD(call, t.shape.row_sizes.data = w.slot_of_row, UNSET, name ".shape.row_sizes.encoding", TEGROUP_ENCODING_COUNTS, 0);    \
    BAD(call, t.shape.snapshot = w.snapshot, UNSET, name ".shape.row_sizes.encoding", TEGROUP_ENCODING_COUNTS, 0);             \
    BAD(call, t.shape.elements = 1000, COMBINATION, name ".shape.row_sizes.encoding", TEGROUP_ENCODING_COUNTS, 0)

TEST(status, tensors) {
    const uint32_t floats = tegroup_scaling_info(TEGROUP_SCALING_NONE)->data_dtypes, fp8 = tegroup_scaling_info(TEGROUP_SCALING_MXFP8)->data_dtypes;
    TENSOR(problem, w.forward.a, "a", K);
    RAGGED(problem, w.forward.a, "a");
    TENSOR(problem, w.forward.b, "b", K);
    UNIFORM(problem, w.forward.b, "b", N, K);
    TENSOR(problem, w.forward.c, "c", N);
    RAGGED(problem, w.forward.c, "c");
    TENSOR(problem, w.forward.d, "d", N);
    RAGGED(problem, w.forward.d, "d");
    TENSOR(problem, w.forward.bias, "bias", N);
    UNIFORM(problem, w.forward.bias, "bias", 1, N);
    BAD(problem, w.forward.a.shape.offsets = w.offsets, VALUE, "a.shape.elements", 1, 0);
    TENSOR(problem_wgrad, w.wgrad.a, "a", N);
    RAGGED(problem_wgrad, w.wgrad.a, "a");
    TENSOR(problem_wgrad, w.wgrad.b, "b", K);
    RAGGED(problem_wgrad, w.wgrad.b, "b");
    TENSOR(problem_wgrad, w.wgrad.d, "d", K);
    UNIFORM(problem_wgrad, w.wgrad.d, "d", N, K);
    BAD(problem, w.forward.a.dtype = TEGROUP_DTYPE_UNSET, UNSET, "a.dtype", FLOATS, 0);
    /* each of a list's buffers must be addressable with rows as far apart as the widest group has columns */
    BAD(problem_wgrad, LISTED(w.wgrad.a, HOST); w.wgrad.a.shape.col_sizes.encoding = TEGROUP_ENCODING_COUNTS;
        w.wgrad.a.shape.rows = TEGROUP_MAX_ROWS;
        w.wgrad.a.shape.cols = TEGROUP_MAX_COLS, OVERFLOW, "a.shape.rows", ADDRESSABLE, INT64_MAX);
    /* ... and columns that the device knows need a bound where there are rows */
    spoil_nothing();
    w.forward.a.shape.col_sizes = w.forward.a.shape.row_sizes;
    w.forward.a.shape.row_sizes.space = w.forward.a.shape.col_sizes.space = TEGROUP_SPACE_DEVICE;
    w.forward.a.shape.rows = w.forward.c.shape.rows = w.forward.d.shape.rows = 0;
    GOOD(problem);
    /* what has memory, and is not said to be there, is refused when the plan is made */
    BAD(plan, w.forward.b.pointers = lists[0], UNSET, "b.pointers_space", TEGROUP_SPACE_HOST, 0);
    BAD(plan, w.forward.b.pointers_space = TEGROUP_SPACE_HOST, COMBINATION, "b.data", 0, 1);
    BAD(linear_plan, w.linear.main_grad.pointers = lists[0], UNSET, "main_grad.pointers_space", TEGROUP_SPACE_HOST, 0);
    BAD(linear_plan, w.linear.weight.pointers_space = TEGROUP_SPACE_HOST, COMBINATION, "weight.data", 0, 1);
    BAD(mlp_plan, w.mlp.fc2.weight.pointers = lists[0], UNSET, "fc2.weight.pointers_space", TEGROUP_SPACE_HOST, 0);
    BAD(mlp_plan, w.mlp.fc1.bias_grad.pointers_space = TEGROUP_SPACE_DEVICE, COMBINATION, "fc1.bias_grad.data", 0, 1);
    BAD(plan, w.forward.bias.dtype = TEGROUP_DTYPE_UNSET; w.forward.row_scale_dtype = TEGROUP_DTYPE_UNSET; w.forward.row_scale = NULL, UNSET, "bias.dtype", FLOATS, 0);
    BAD(plan_dgrad, w.dgrad.c.pointers = lists[0], UNSET, "c.dtype", FLOATS, 0);
    BAD(plan_dgrad, w.dgrad.alpha.data = w.alpha, UNSET, "alpha.space", TEGROUP_SPACE_HOST, 0);
    BAD(plan_dgrad, w.dgrad.beta.data = w.beta, UNSET, "beta.space", TEGROUP_SPACE_HOST, 0);
    BAD(plan_dgrad, w.dgrad.row_scale = w.row_scale, UNSET, "row_scale_dtype", TEGROUP_DTYPE_F32, 0);
    BAD(problem, w.forward.b.dtype = TEGROUP_DTYPE_UNSET, UNSET, "b.dtype", FLOATS, 0);
    BAD(problem, w.forward.d.dtype = TEGROUP_DTYPE_UNSET, UNSET, "d.dtype", FLOATS, 0);
}

TEST(status, gemm_options) {
    tegroup_gemm_desc *f = &w.forward;
    BAD(problem, f->op = TEGROUP_OP_UNSET, UNSET, "op", TEGROUP_OP_FORWARD, 0);
    BAD(problem, f->op = (tegroup_op)4, VALUE, "op", TEGROUP_OP_WGRAD, 4);
    RANGE(problem, f->tail, "tail", tegroup_tail, 0, TEGROUP_TAIL_POISON);
    RANGE(problem, f->options.compute, "options.compute", tegroup_compute, 0, TEGROUP_COMPUTE_FAST_ACCUM);
    RANGE(problem, f->options.backend, "options.backend", tegroup_backend, 0, TEGROUP_BACKEND_COUNT - 1);
    RANGE(problem, f->options.check_level, "options.check_level", tegroup_check_level, 0, TEGROUP_CHECK_DEEP);
    RANGE(problem, f->accumulate, "accumulate", int32_t, 0, 1);
    RANGE(problem, f->alpha.space, "alpha.space", tegroup_space, 0, TEGROUP_SPACE_DEVICE);
    RANGE(problem, f->beta.space, "beta.space", tegroup_space, 0, TEGROUP_SPACE_DEVICE);
    RANGE(problem, f->alpha.stride, "alpha.stride", int32_t, 0, 1);
    RANGE(problem, f->beta.stride, "beta.stride", int32_t, 0, 1);
    NOT_NEGATIVE(problem, f->options.expected_rows, "options.expected_rows");
    NOT_NEGATIVE(problem, f->options.expected_rows_max, "options.expected_rows_max");
    NOT_NEGATIVE(problem, f->options.sm_limit, "options.sm_limit");
    NOT_NEGATIVE(problem, f->options.threads, "options.threads");
    BAD(problem, f->options.data_alignment_bytes = -16, VALUE, "options.data_alignment_bytes", TEGROUP_ALIGNMENT, -16);
    BAD(problem, f->options.data_alignment_bytes = 48, VALUE, "options.data_alignment_bytes", TEGROUP_ALIGNMENT, 48);
    BAD(problem, f->options.data_alignment_bytes = 512, VALUE, "options.data_alignment_bytes", TEGROUP_ALIGNMENT, 512);
    NOT_NEGATIVE(problem, f->options.stream_count, "options.stream_count");
    BAD(problem, f->alpha.dtype = TEGROUP_DTYPE_F16, DTYPE, "alpha.dtype", REALS, TEGROUP_DTYPE_F16);
    BAD(problem, f->beta.dtype = TEGROUP_DTYPE_I32, DTYPE, "beta.dtype", REALS, TEGROUP_DTYPE_I32);
}

/* Every group alike. */
static void uniform(tegroup_tensor *tensor) {
    memset(&tensor->shape.row_sizes, 0, sizeof tensor->shape.row_sizes);
    tensor->shape.snapshot = NULL;
}
/* Operands whose groups have the same rows by their shape. */
#define ALIKE(x, y, z) (uniform(&x), uniform(&y), uniform(&z))

TEST(status, gemm_shapes) {
    tegroup_gemm_desc *f = &w.forward, *x = &w.dgrad, *g = &w.wgrad;
    BAD(problem, f->b.shape.groups++, SHAPE, "b.shape.groups", EXPERTS, EXPERTS + 1);
    BAD(problem, f->c.shape.groups--, SHAPE, "c.shape.groups", EXPERTS, EXPERTS - 1);
    BAD(problem, f->d.shape.groups++, SHAPE, "d.shape.groups", EXPERTS, EXPERTS + 1);
    BAD(problem, f->bias.shape.groups--, SHAPE, "bias.shape.groups", EXPERTS, EXPERTS - 1);
    BAD(problem, f->b.shape.cols++, SHAPE, "b.shape.cols", K, K + 1);
    BAD(problem, f->b.shape.rows--, SHAPE, "d.shape.cols", N - 1, N);
    BAD(problem, f->d.shape.cols++, SHAPE, "d.shape.cols", N, N + 1);
    BAD(problem, ALIKE(f->a, f->c, f->d); f->d.shape.rows--, SHAPE, "d.shape.rows", ROWS, ROWS - 1);
    BAD(problem, f->c.shape.cols--, SHAPE, "c.shape.cols", N, N - 1);
    BAD(problem, ALIKE(f->a, f->c, f->d); f->c.shape.rows++, SHAPE, "c.shape.rows", ROWS, ROWS + 1);
    BAD(problem, f->bias.shape.cols++, SHAPE, "bias.shape.cols", N, N + 1);
    BAD(problem, f->bias.shape.rows = 2, SHAPE, "bias.shape.rows", 1, 2);
    BAD(problem_dgrad, x->b.shape.rows++, SHAPE, "b.shape.rows", N, N + 1);
    BAD(problem_dgrad, x->d.shape.cols--, SHAPE, "d.shape.cols", K, K - 1);
    BAD(problem_dgrad, ALIKE(x->a, x->d, x->d); x->d.shape.rows++, SHAPE, "d.shape.rows", ROWS, ROWS + 1);
    BAD(problem_dgrad, x->d.shape.groups--, SHAPE, "d.shape.groups", EXPERTS, EXPERTS - 1);
    BAD(problem_wgrad, ALIKE(g->a, g->b, g->b); g->b.shape.rows--, SHAPE, "b.shape.rows", ROWS, ROWS - 1);
    BAD(problem_wgrad, g->d.shape.rows++, SHAPE, "d.shape.rows", N, N + 1);
    BAD(problem_wgrad, g->d.shape.cols++, SHAPE, "d.shape.cols", K, K + 1);
    BAD(problem_wgrad, g->bias.shape.cols = K, SHAPE, "bias.shape.cols", N, K);
    BAD(problem_wgrad, g->bias_of_b = 1, SHAPE, "bias.shape.cols", K, N);
    ASSERT_STREQ("must equal k, the columns of d", error.rule);
    BAD(problem_dgrad, x->bias = w.wgrad.bias, SHAPE, "bias.shape.cols", K, N);
    BAD(problem_wgrad, g->b.shape.groups--, SHAPE, "b.shape.groups", EXPERTS, EXPERTS - 1);
}

TEST(status, gemm_dtypes) {
    tegroup_gemm_desc *f = &w.forward;
    BAD(problem, f->b.dtype = TEGROUP_DTYPE_F64, DTYPE, "b.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    ASSERT_STREQ("must equal a.dtype (FP8: either kind; F32 goes with weights of F16 and BF16, too)", error.rule);
    BAD(problem, f->a.dtype = TEGROUP_DTYPE_BF16, DTYPE, "b.dtype", TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F32);
    BAD(problem, f->a.dtype = TEGROUP_DTYPE_BF16; f->b.dtype = TEGROUP_DTYPE_F16, DTYPE, "b.dtype", TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16);
    BAD(problem, f->a.dtype = TEGROUP_DTYPE_F64; f->b.dtype = TEGROUP_DTYPE_F16, DTYPE, "b.dtype", TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F16);
    BAD(problem_dgrad, w.dgrad.a.dtype = TEGROUP_DTYPE_F16, DTYPE, "b.dtype", TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32);
    BAD(problem_wgrad, w.wgrad.b.dtype = TEGROUP_DTYPE_BF16, DTYPE, "b.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    BAD(problem_wgrad, w.wgrad.a.dtype = TEGROUP_DTYPE_F16, DTYPE, "b.dtype", TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32);
    BAD(problem, f->c.dtype = TEGROUP_DTYPE_F16, DTYPE, "c.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F16);
    BAD(problem, f->d.dtype = TEGROUP_DTYPE_BF16, DTYPE, "c.dtype", TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F32);
    BAD(problem, f->d.dtype = TEGROUP_DTYPE_F64, DTYPE, "d.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    BAD(problem, f->bias.dtype = TEGROUP_DTYPE_F64, DTYPE, "bias.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    BAD(problem, f->a.dtype = TEGROUP_DTYPE_F64; f->b.dtype = TEGROUP_DTYPE_F64, DTYPE, "a.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    BAD(problem, f->bias.dtype = TEGROUP_DTYPE_F8E4M3; f->bias.scaling = TEGROUP_SCALING_TENSOR, DTYPE, "bias.dtype", FLOATS, TEGROUP_DTYPE_F8E4M3);
    BAD(problem, f->row_scale_dtype = TEGROUP_DTYPE_BF16, DTYPE, "row_scale_dtype", REALS, TEGROUP_DTYPE_BF16);
}

TEST(status, gemm_combinations) {
    tegroup_gemm_desc *f = &w.forward, *x = &w.dgrad, *g = &w.wgrad;
    BAD(problem, f->accumulate = 1, COMBINATION, "accumulate", 0, 1);
    BAD(problem_wgrad, g->beta = w.forward.beta, COMBINATION, "accumulate", 0, 1);
    BAD(problem_dgrad, x->beta = w.forward.beta, COMBINATION, "beta", 1, 0);
    BAD(problem_dgrad, x->row_scale_dtype = TEGROUP_DTYPE_F32, COMBINATION, "row_scale_dtype", 0, TEGROUP_DTYPE_F32);
    BAD(problem, f->bias_of_b = 1, COMBINATION, "bias_of_b", TEGROUP_OP_WGRAD, TEGROUP_OP_FORWARD);
    BAD(problem_dgrad, x->bias_of_b = 1, COMBINATION, "bias_of_b", TEGROUP_OP_WGRAD, TEGROUP_OP_DGRAD);
    BAD(problem_wgrad, memset(&g->bias, 0, sizeof g->bias); g->row_scale = NULL; g->row_scale_dtype = TEGROUP_DTYPE_UNSET; g->bias_of_b = 1, COMBINATION, "bias_of_b", 0, 1);
    BAD(problem_wgrad, g->bias_of_b = 1; g->bias.shape.cols = K; LISTED(g->b, HOST); g->row_scale_dtype = TEGROUP_DTYPE_F32, COMBINATION, "row_scale_dtype", 0, TEGROUP_DTYPE_F32);
    ASSERT_STREQ("does not go with rows in a list of buffers, which have no common numbering", error.rule);
    BAD(problem_wgrad, g->bias_of_b = 2, VALUE, "bias_of_b", 1, 2);
    BAD(problem, f->bias_of_b = -1, VALUE, "bias_of_b", 1, -1);
    BAD(problem, f->functor = 2, VALUE, "functor", 1, 2);
    BAD(problem_wgrad, g->functor = -1, VALUE, "functor", 1, -1);
    BAD(problem, f->functor = 1, COMBINATION, "functor", 0, 1);
    ASSERT_STREQ("does not go with a bias that is added: it adds its own", error.rule);
    BAD(problem_wgrad, g->functor = 1, COMBINATION, "functor", 0, 1);
    ASSERT_STREQ("does not go with accumulate: give d as c and a beta of 1, and it is given the whole", error.rule);
    BAD(problem_wgrad, g->tail = TEGROUP_TAIL_ZERO, COMBINATION, "tail", 0, TEGROUP_TAIL_ZERO);
    BAD(problem, f->tail = TEGROUP_TAIL_ZERO; LISTED(f->d, HOST), COMBINATION, "tail", 0, TEGROUP_TAIL_ZERO);
    BAD(problem, f->tail = TEGROUP_TAIL_POISON; f->c.shape.elements = f->d.shape.elements = ROWS * N, COMBINATION, "tail", 0, TEGROUP_TAIL_POISON);
    BAD(problem, LISTED(f->a, HOST), COMBINATION, "row_scale_dtype", 0, TEGROUP_DTYPE_F32);
    BAD(problem, uniform(&f->d), COMBINATION, "d.shape.row_sizes.encoding", 1, 0);
    BAD(problem, uniform(&f->c), COMBINATION, "c.shape.row_sizes.encoding", 1, 0);
    BAD(problem, f->bias.shape.row_sizes = f->a.shape.row_sizes, COMBINATION, "bias.shape.row_sizes.encoding", 0, TEGROUP_ENCODING_COUNTS);
    BAD(problem_wgrad, uniform(&g->b), COMBINATION, "b.shape.row_sizes.encoding", 1, 0);
    BAD(problem_dgrad, uniform(&x->a), COMBINATION, "d.shape.row_sizes.encoding", 0, 1);
}

TEST(status, cublaslt_fields) {
    BAD(plan, w.forward.options.host_sizes_final = 2, VALUE, "options.host_sizes_final", 1, 2);
    spoil_nothing();
    w.forward.options.cublaslt_functions = &w.functions;
    GOOD(plan);
    BAD(plan, w.functions.struct_size = 8; w.forward.options.cublaslt_functions = &w.functions, STRUCT_SIZE, "options.cublaslt_functions.struct_size", sizeof w.functions, 8);
}

TEST(status, tune_save_load) {
    tegroup_plan other;
    NOT(plan_tune, NULL AND &w.tune AND NULL, NULL_ARGUMENT, "plan", 1, 0);
    NOT(plan_tune, &w.forward_plan AND NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    BAD(tune, w.tune.struct_size--, STRUCT_SIZE, "struct_size", sizeof w.tune, sizeof w.tune - 1);
    BAD(tune, w.tune.gemm = NULL, NULL_ARGUMENT, "gemm", 1, 0);
    BAD(tune, w.tune.overwrite = 0, VALUE, "overwrite", 1, 0);
    BAD(tune, w.tune.any_numerics = -1, VALUE, "any_numerics", 1, -1);
    BAD(tune, w.tune.flush_bytes = 1, NULL_ARGUMENT, "flush", 1, 0);
    BAD(tune, w.tune.rounds = -1, VALUE, "rounds", TEGROUP_TUNE_ROUNDS, -1);
    BAD(tune, w.tune.rounds = TEGROUP_TUNE_ROUNDS + 1, VALUE, "rounds", TEGROUP_TUNE_ROUNDS, TEGROUP_TUNE_ROUNDS + 1);
    BAD(tune, w.tune.gemm = &w.dgrad, PLAN, "op", TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD);
    /* the CPU backend has one candidate, and no others to compare it with */
    float measured[TEGROUP_TUNE_CANDIDATES + 1] = {0};
    spoil_nothing();
    w.tune.milliseconds = measured;
    GOOD(tune);
    for (int i = 0; i < TEGROUP_TUNE_CANDIDATES; i++) ASSERT_EQ(-1, measured[i]);
    ASSERT_EQ(0, measured[TEGROUP_TUNE_CANDIDATES]);
    /* a rival */
    float rival[3] = {0};
#define RIVAL w.tune.rival_plan = &w.dgrad_plan; w.tune.rival = &w.dgrad; w.tune.rival_milliseconds = rival
    BAD(tune, RIVAL; w.tune.rival = NULL, COMBINATION, "rival", 1, 0);
    BAD(tune, RIVAL; w.tune.rival_plan = NULL, COMBINATION, "rival", 0, 1);
    BAD(tune, w.tune.quantize_count = 1, COMBINATION, "quantize_count", 0, 1);
    BAD(tune, RIVAL; w.tune.quantize_count = -1, VALUE, "quantize_count", 0, -1);
    BAD(tune, RIVAL; w.tune.quantize_count = 1, COMBINATION, "quantize", 1, 0);
    BAD(tune, RIVAL; w.tune.quantize = &w.quantize, COMBINATION, "quantize", 0, 1);
    BAD(tune, RIVAL; w.tune.rival_milliseconds = NULL, NULL_ARGUMENT, "rival_milliseconds", 1, 0);
    BAD(tune, RIVAL; w.tune.rival_milliseconds = (float *)(void *)((char *)rival + 2), ALIGNMENT, "rival_milliseconds",
        4, ((uintptr_t)rival + 2) % 4);
    BAD(tune, RIVAL; w.tune.rival_milliseconds = (float *)(void *)&w.forward_plan, OVERLAP, "rival_milliseconds", 0, 1);
    BAD(tune, w.tune.milliseconds = (float *)(void *)((char *)measured + 1), ALIGNMENT, "milliseconds", 4,
        ((uintptr_t)measured + 1) % 4);
    BAD(tune, w.tune.milliseconds = (float *)(void *)&w.forward_plan, OVERLAP, "milliseconds", 0, 1);
    spoil_nothing();
    RIVAL;
    w.tune.rival = &w.forward;
    ASSERT_EQ(TEGROUP_ERROR_PLAN, call_tune(&error));
    ASSERT_STREQ("op", error.field);
    ASSERT_STREQ("rival", error.within);
    BAD(tune, RIVAL; w.quantize.space = TEGROUP_SPACE_DEVICE; w.tune.quantize = &w.quantize; w.tune.quantize_count = 1, COMBINATION, "quantize.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    spoil_nothing();
    RIVAL;
    w.tune.quantize = &w.quantize;
    w.tune.quantize_count = 1;
    GOOD(tune);
    ASSERT_TRUE(rival[0] == -1 && rival[1] == -1 && rival[2] == 0);
#undef RIVAL

    NOT(plan_save, NULL AND w.saved AND sizeof w.saved, NULL_ARGUMENT, "plan", 1, 0);
    NOT(plan_save, &w.forward_plan AND NULL AND sizeof w.saved, NULL_ARGUMENT, "bytes", 1, 0);
    NOT(plan_save, &w.forward_plan AND w.saved AND sizeof w.saved - 1, WORKSPACE, "size", sizeof w.saved, sizeof w.saved - 1);
    BAD(save, w.forward_plan.hypothetical = 1, PLAN, "plan.hypothetical", 0, 1);
    BAD(save, w.forward_plan.magic = 0, PLAN, "plan", TEGROUP_PLAN_MAGIC, 0);

    NOT(plan_load, NULL AND w.saved AND sizeof w.saved AND &w.plan, NULL_ARGUMENT, "desc", 1, 0);
    NOT(plan_load, &w.forward AND NULL AND sizeof w.saved AND &w.plan, NULL_ARGUMENT, "bytes", 1, 0);
    NOT(plan_load, &w.forward AND w.saved AND sizeof w.saved AND NULL, NULL_ARGUMENT, "plan", 1, 0);
    NOT(plan_load, &w.forward AND w.saved AND sizeof w.saved - 1 AND &w.plan, PLAN, "size", sizeof w.saved, sizeof w.saved - 1);
    BAD(load, w.forward.struct_size++, STRUCT_SIZE, "struct_size", sizeof w.forward, sizeof w.forward + 1);
    BAD(load, w.forward.options.backend = TEGROUP_BACKEND_PORTABLE, PLAN, "options.backend", TEGROUP_BACKEND_CPU, TEGROUP_BACKEND_PORTABLE);
    BAD(load, w.forward.op = TEGROUP_OP_UNSET, UNSET, "op", TEGROUP_OP_FORWARD, 0);
    BAD(load, w.forward.alpha.stride = 0, PLAN, "alpha.stride", 1, 0);
    BAD(load, memset(w.saved, 0, 4), PLAN, "bytes", 0x54475431, 0); /* "TGT1" */

    /* each byte flipped, each length; the plan that comes back is the one that was saved */
    spoil_nothing();
    for (size_t i = 0; i < sizeof w.saved; i++)
        for (int bit = 0; bit < 8; bit += 3) {
            w.saved[i] ^= (unsigned char)(1 << bit);
            memset(&other, 0x5A, sizeof other);
            ASSERT_EQ(TEGROUP_ERROR_PLAN, tegroup_plan_load(&w.forward, w.saved, sizeof w.saved, &other, &error));
            ASSERT_EQ(0x5A, *(unsigned char *)&other);
            w.saved[i] ^= (unsigned char)(1 << bit);
        }
    for (size_t size = 0; size < sizeof w.saved; size += 37)
        ASSERT_EQ(TEGROUP_ERROR_PLAN, tegroup_plan_load(&w.forward, w.saved, size, &other, &error));
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_load(&w.forward, w.saved, sizeof w.saved, &other, &error));
    ASSERT_EQ(0, memcmp(&other, &w.forward_plan, sizeof other));
}

TEST(status, targets) {
    BAD(explain, w.target.sm = -1, VALUE, "target.sm", 0, -1);
    BAD(explain, w.target.cublaslt_version = -1, VALUE, "target.cublaslt_version", 0, -1);
    BAD(plan_target, w.target.threads = -1, VALUE, "target.threads", 0, -1);
    BAD(explain, w.target.multiprocessors = -1, VALUE, "target.multiprocessors", 0, -1);
    BAD(explain, w.target.memory_bits = -1, VALUE, "target.memory_bits", 0, -1);
    BAD(plan_target, w.target.multiprocessors = -7, VALUE, "target.multiprocessors", 0, -7);
}

/* What no backend of this build, or of no build, can do. */
static tegroup_gemm_desc *host(tegroup_backend backend) {
    w.dgrad.options.backend = backend;
    return &w.dgrad;
}
/* The same product in BF16, in the memory of a Hopper that has everything. */
static tegroup_gemm_desc *device(tegroup_backend backend, int32_t sm, int32_t cublaslt_version) {
    tegroup_gemm_desc *x = host(backend);
    x->space = x->a.shape.row_sizes.space = x->d.shape.row_sizes.space = TEGROUP_SPACE_DEVICE;
    x->a.dtype = x->b.dtype = x->d.dtype = TEGROUP_DTYPE_BF16;
    x->a.ld = x->b.ld = x->d.ld = 8;
    w.target.sm = sm;
    w.target.cublaslt_version = cublaslt_version;
    w.target.built = (1u << TEGROUP_BACKEND_COUNT) - 1;
    return x;
}

static tegroup_gemm_desc *fp8(tegroup_gemm_desc *x) {
    x->a.dtype = x->b.dtype = TEGROUP_DTYPE_F8E4M3;
    x->a.scaling = x->b.scaling = TEGROUP_SCALING_ROW;
    x->b.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
    x->a.ld = x->b.ld = x->d.ld = 16;
    return x;
}

static tegroup_gemm_desc *looped(void) { /* with the sizes where that backend wants them */
    tegroup_gemm_desc *x = device(TEGROUP_BACKEND_CUBLASLT_LOOP, 90, 131000);
    x->a.shape.row_sizes.space = x->d.shape.row_sizes.space = TEGROUP_SPACE_HOST;
    return x;
}
static void scaled(tegroup_gemm_desc *x, tegroup_space alpha, tegroup_space beta) {
    x->c = x->d;
    x->alpha.space = alpha;
    x->beta.space = beta;
    x->alpha.stride = x->beta.stride = 1;
}

TEST(status, unsupported) {
    const uint32_t halves = 1u << TEGROUP_DTYPE_F16 | 1u << TEGROUP_DTYPE_BF16, results = halves | 1u << TEGROUP_DTYPE_F32;
    const tegroup_backend sm90 = TEGROUP_BACKEND_SM90, grouped = TEGROUP_BACKEND_CUBLASLT_GROUPED, portable = TEGROUP_BACKEND_PORTABLE,
                          loop = TEGROUP_BACKEND_CUBLASLT_LOOP, cpu = TEGROUP_BACKEND_CPU;
    BAD(plan_dgrad, host(cpu)->space = TEGROUP_SPACE_DEVICE, UNSUPPORTED, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(plan_dgrad, host(cpu)->a.shape.row_sizes.space = TEGROUP_SPACE_DEVICE, UNSUPPORTED, "a.shape.row_sizes.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(plan_dgrad, LISTED(host(cpu)->a, DEVICE), UNSUPPORTED, "a.pointers_space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(plan_dgrad, host(cpu)->d.dtype = TEGROUP_DTYPE_F8E5M2; w.dgrad.d.scaling = TEGROUP_SCALING_TENSOR, UNSUPPORTED, "d.scaling", TEGROUP_SCALING_NONE,
        TEGROUP_SCALING_TENSOR);
    BAD(plan_dgrad, host(cpu)->alpha.space = TEGROUP_SPACE_DEVICE, UNSUPPORTED, "alpha.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(plan, w.forward.beta.space = TEGROUP_SPACE_DEVICE, UNSUPPORTED, "beta.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(plan_target, device(sm90, 0, 0), UNSUPPORTED, "target.sm", 90, 0);
    BAD(plan_target, device(sm90, 80, 0), UNSUPPORTED, "target.sm", 90, 80);
    BAD(plan_target, device(sm90, 100, 0), UNSUPPORTED, "target.sm", 90, 100);
    BAD(plan_target, device(portable, 75, 0), UNSUPPORTED, "target.sm", 80, 75);
    BAD(plan_target, device(portable, 0, 0), UNSUPPORTED, "target.sm", 80, 0);
    BAD(plan_target, device(sm90, 90, 0)->space = TEGROUP_SPACE_HOST, UNSUPPORTED, "space", TEGROUP_SPACE_DEVICE, TEGROUP_SPACE_HOST);
    BAD(plan_target, device(portable, 90, 0)->options.compute = TEGROUP_COMPUTE_F64, UNSUPPORTED, "options.compute", TEGROUP_COMPUTE_F32, TEGROUP_COMPUTE_F64);
    BAD(plan_target, device(sm90, 90, 0)->d.dtype = TEGROUP_DTYPE_F64; w.dgrad.options.compute = TEGROUP_COMPUTE_F64, UNSUPPORTED, "d.dtype", results, TEGROUP_DTYPE_F64);
    BAD(plan_target, device(sm90, 90, 0)->a.ld = 12; w.dgrad.gather_a.rows = 1, UNSUPPORTED, "a.ld", 16, 24);
    BAD(plan_target, device(sm90, 90, 0)->a.ld = 12; LISTED(w.dgrad.a, DEVICE), UNSUPPORTED, "a.ld", 16, 24);
    BAD(plan_target, device(sm90, 90, 0)->d.ld = 0, UNSUPPORTED, "d.ld", 16, 2 * K);
    BAD(plan_target, device(sm90, 90, 0)->b.group_stride = N * 8 + 4, UNSUPPORTED, "b.group_stride", 16, 2 * (N * 8 + 4));
    BAD(plan_target, device(sm90, 90, 0)->b.group_stride = INT64_C(1) << 39, UNSUPPORTED, "b.group_stride", (INT64_C(1) << 40) - 16, INT64_C(1) << 40);
    BAD(plan_target, device(sm90, 90, 0)->options.data_alignment_bytes = 8, UNSUPPORTED, "options.data_alignment_bytes", 16, 8);
    BAD(plan_target, device(grouped, 90, 131000)->options.data_alignment_bytes = 8, UNSUPPORTED, "options.data_alignment_bytes", 16, 8);
    BAD(plan_target, device(grouped, 90, 130300), UNSUPPORTED, "target.cublaslt_version", 130801, 130300);
    BAD(plan_target, device(grouped, 90, 0), UNSUPPORTED, "target.cublaslt_version", 130801, 0);
    BAD(plan_target, device(grouped, 90, 130100)->options.ignore_quirks = 1u << 3, UNSUPPORTED, "target.cublaslt_version", 130400, 130100);
    BAD(plan_target, device(grouped, 90, 130100)->options.ignore_quirks = 1u << 5, UNSUPPORTED,
        "target.cublaslt_version", 130801, 130100);
    BAD(plan_target, device(grouped, 90, 130100)->alpha.space = TEGROUP_SPACE_DEVICE, UNSUPPORTED, "target.cublaslt_version", 131000, 130100);
    BAD(plan_target, device(grouped, 103, 130700), UNSUPPORTED, "target.cublaslt_version", 130801, 130700);
    BAD(plan_target, device(grouped, 100, 131000)->alpha.space = TEGROUP_SPACE_DEVICE, UNSUPPORTED, "target.cublaslt_version", 0, 131000);
    BAD(plan_target, device(grouped, 90, 130700), UNSUPPORTED, "target.cublaslt_version", 130801, 130700);
    BAD(plan_target, device(grouped, 90, 131000)->tail = TEGROUP_TAIL_ZERO, UNSUPPORTED, "tail", TEGROUP_TAIL_KEEP, TEGROUP_TAIL_ZERO);
    BAD(plan_target, device(grouped, 90, 131000)->a.ld = 7, UNSUPPORTED, "target.cublaslt_version", 0, 131000);
    BAD(plan_target, device(loop, 90, 131000), UNSUPPORTED, "a.shape.row_sizes.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(plan_target, device(loop, 90, 110000), UNSUPPORTED, "target.cublaslt_version", 120000, 110000);
    BAD(plan_target, fp8(device(sm90, 90, 0))->b.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA, UNSUPPORTED, "b.columnwise_order", TEGROUP_COLUMNWISE_TRANSPOSED, TEGROUP_COLUMNWISE_AS_DATA);
    BAD(plan_target, fp8(device(sm90, 90, 0))->a.scale_dtype = TEGROUP_DTYPE_BF16, UNSUPPORTED, "a.scale_dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    BAD(plan_target, fp8(device(sm90, 90, 0))->b.scale_dtype = TEGROUP_DTYPE_F8E8M0, UNSUPPORTED, "b.scale_dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F8E8M0);
    BAD(plan_target, fp8(device(sm90, 90, 0))->b.scale_parts = 2, UNSUPPORTED, "b.scale_parts", 1, 2);
    BAD(plan_target, LISTED(device(sm90, 90, 0)->b, HOST), UNSUPPORTED, "b.pointers_space", TEGROUP_SPACE_DEVICE, TEGROUP_SPACE_HOST);
    BAD(plan_target, device(sm90, 90, 0)->a.shape.elements = ROWS * N, UNSUPPORTED, "a.shape.elements", 0, 1);
    BAD(plan_target, device(sm90, 90, 0)->d.shape.elements = ROWS * K, UNSUPPORTED, "d.shape.elements", 0, 1);
    BAD(plan_target, LISTED(device(sm90, 90, 0)->d, DEVICE); w.dgrad.d.shape.col_sizes.encoding = TEGROUP_ENCODING_COUNTS; w.dgrad.d.ld = 0, UNSUPPORTED, "d.shape.col_sizes.encoding", 0, 1);
    BAD(plan_target, device(sm90, 90, 0)->b.shape.row_sizes = w.dgrad.a.shape.row_sizes, UNSUPPORTED, "b.shape.row_sizes.encoding", 0, 1);
    BAD(plan_target, device(sm90, 90, 0)->c = w.dgrad.d; w.dgrad.c.ld = 7, UNSUPPORTED, "c.ld", 16, 14);
    BAD(plan_target, device(grouped, 90, 131000)->op = TEGROUP_OP_FORWARD; w.dgrad.b.shape.rows = K; w.dgrad.b.shape.cols = N; w.dgrad.bias = w.wgrad.bias;
        w.dgrad.bias.shape.cols = K, UNSUPPORTED, "bias", 0, TEGROUP_DTYPE_F32);
    BAD(plan_target, device(grouped, 90, 131000)->options.sm_limit = 8, UNSUPPORTED, "options.sm_limit", 0, 8);
    BAD(plan_target, device(grouped, 90, 130900)->alpha.space = TEGROUP_SPACE_DEVICE, UNSUPPORTED, "target.cublaslt_version", 131000, 130900);
    BAD(plan_target, device(grouped, 90, 130900)->c = w.dgrad.d; w.dgrad.beta.space = TEGROUP_SPACE_DEVICE, UNSUPPORTED,
        "target.cublaslt_version", 131000, 130900);
    BAD(plan_target, device(grouped, 90, 131000)->b.group_stride = 100, UNSUPPORTED, "target.cublaslt_version", 0, 131000);
    const uint32_t groupeds = 1u << TEGROUP_DTYPE_F16 | 1u << TEGROUP_DTYPE_BF16 | 1u << TEGROUP_DTYPE_F8E4M3
                              | 1u << TEGROUP_DTYPE_F8E5M2;
    BAD(plan_target, device(grouped, 90, 131000)->a.dtype = TEGROUP_DTYPE_F32; w.dgrad.b.dtype = TEGROUP_DTYPE_F32,
        UNSUPPORTED, "a.dtype", groupeds, TEGROUP_DTYPE_F32);
    BAD(plan_target, device(grouped, 90, 131000)->d.dtype = TEGROUP_DTYPE_F16, UNSUPPORTED, "d.dtype", 1u << TEGROUP_DTYPE_BF16 | 1u << TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F16);
    BAD(plan_target, looped()->options.sm_limit = 1, UNSUPPORTED, "options.sm_limit", 0, 1);
    BAD(plan_target, LISTED(looped()->b, DEVICE), UNSUPPORTED, "b.pointers_space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(plan_target, scaled(device(sm90, 90, 0), TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE), UNSUPPORTED,
        "alpha.space", TEGROUP_SPACE_DEVICE, TEGROUP_SPACE_HOST);
    BAD(plan_target, scaled(device(sm90, 90, 0), TEGROUP_SPACE_UNSET, TEGROUP_SPACE_HOST), UNSUPPORTED, "beta.space",
        TEGROUP_SPACE_DEVICE, TEGROUP_SPACE_HOST);
    BAD(plan_target, scaled(looped(), TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE), UNSUPPORTED, "alpha.space",
        TEGROUP_SPACE_DEVICE, TEGROUP_SPACE_HOST);
    BAD(plan_target, scaled(looped(), TEGROUP_SPACE_DEVICE, TEGROUP_SPACE_HOST), UNSUPPORTED, "beta.space",
        TEGROUP_SPACE_DEVICE, TEGROUP_SPACE_HOST);

    BAD(plan_dgrad, host(sm90), NOT_BUILT, "target.built", 1, 0);
    BAD(plan_dgrad, host(grouped), NOT_BUILT, "target.built", 1, 0);
    BAD(plan_dgrad, host(portable), NOT_BUILT, "target.built", 1, 0);
    BAD(plan_dgrad, host(loop), NOT_BUILT, "target.built", 1, 0);
    BAD(plan_dgrad, device(TEGROUP_BACKEND_AUTO, 90, 0), NOT_BUILT, "target.built", 1, 0);
    BAD(plan_target, host(cpu); w.target.built = 1u << TEGROUP_BACKEND_SM90, NOT_BUILT, "target.built", 1, 0);

    BAD(plan_target, device(grouped, 90, 131000)->options.cublas_workspace_bytes = SIZE_MAX; w.dgrad.options.ignore_quirks = 1u << 6, OVERFLOW, "options.cublas_workspace_bytes", ADDRESSABLE, INT64_MAX);
    BAD(plan_target, device(loop, 90, 131000)->options.cublas_workspace_bytes = SIZE_MAX / 4; w.dgrad.options.stream_count = INT32_MAX;
        w.dgrad.a.shape.row_sizes.space = w.dgrad.d.shape.row_sizes.space = TEGROUP_SPACE_HOST, OVERFLOW, "options.cublas_workspace_bytes", ADDRESSABLE, INT64_MAX);
}

/* A product with lists of pointers, planned for a GPU that is not here. */
static tegroup_gemm_desc *elsewhere(void) {
    tegroup_gemm_desc *x = device(TEGROUP_BACKEND_PORTABLE, 90, 0);
    LISTED(x->a, DEVICE);
    return x;
}
static void planned_elsewhere(void) {
    spoil_nothing();
    if (tegroup_plan_make(elsewhere(), &w.target, &good.dgrad_plan, &error) != TEGROUP_OK) printf("no plan elsewhere: %s %s\n", error.field, error.rule);
}
static void planned_here(void) {
    if (tegroup_plan_make(&good.dgrad, NULL, &good.dgrad_plan, &error) != TEGROUP_OK) printf("no plan: %s %s\n", error.field, error.rule);
}

/* Every field of the plan, changed in a descriptor that is good by itself. */
TEST(status, plan_mismatch) {
    tegroup_gemm_desc *f = &w.forward, *x = &w.dgrad, *g = &w.wgrad;
    const int32_t f32 = TEGROUP_DTYPE_F32, bf16 = TEGROUP_DTYPE_BF16, f64 = TEGROUP_DTYPE_F64;
    BAD(forward, w.forward_plan.magic++, PLAN, "plan", TEGROUP_PLAN_MAGIC, TEGROUP_PLAN_MAGIC + 1);
    BAD(forward, memset(&w.forward_plan, 0, sizeof w.forward_plan); w.forward_plan.struct_size = sizeof w.forward_plan, PLAN, "plan", TEGROUP_PLAN_MAGIC, 0);
    BAD(other_plan, (void)0, PLAN, "op", TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD);
    BAD(forward, f->space = TEGROUP_SPACE_DEVICE, PLAN, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(forward, f->options.compute = TEGROUP_COMPUTE_F64, PLAN, "options.compute", TEGROUP_COMPUTE_F32, TEGROUP_COMPUTE_F64);
    BAD(forward, f->a.shape.groups = f->b.shape.groups = f->c.shape.groups = f->d.shape.groups = f->bias.shape.groups = EXPERTS - 1,
        PLAN, "a.shape.groups", EXPERTS, EXPERTS - 1);
    BAD(fewer_rows, ALIKE(f->a, f->c, f->d), PLAN, "a.shape.rows", ROWS, ROWS - 1);
    BAD(forward, f->b.shape.rows = f->c.shape.cols = f->d.shape.cols = f->bias.shape.cols = N - 1, PLAN, "d.shape.cols", N, N - 1);
    BAD(forward, f->a.shape.cols = f->b.shape.cols = K + 1, PLAN, "a.shape.cols", K, K + 1);
    BAD(dgrad, x->a.shape.cols = x->b.shape.rows = N - 1, PLAN, "a.shape.cols", N, N - 1);
    BAD(wgrad, g->b.shape.cols = g->d.shape.cols = K - 1, PLAN, "d.shape.cols", K, K - 1);
    BAD(wgrad, g->bias_of_b = 1; g->bias.shape.cols = K, PLAN, "bias_of_b", 0, 1);
    BAD(forward, f->a.dtype = f->b.dtype = TEGROUP_DTYPE_BF16, PLAN, "a.dtype", f32, bf16);
    BAD(forward, f->c.dtype = TEGROUP_DTYPE_UNSET; f->c.data = NULL; f->beta.space = TEGROUP_SPACE_UNSET; f->beta.data = NULL, PLAN, "c.dtype", f32, 0);
    BAD(dgrad, x->c = w.dgrad.d, PLAN, "c.dtype", 0, f32);
    BAD(dgrad, x->d.dtype = TEGROUP_DTYPE_BF16, PLAN, "d.dtype", f32, bf16);
    BAD(forward, f->bias.dtype = TEGROUP_DTYPE_BF16, PLAN, "bias.dtype", f32, bf16);
    BAD(forward, f->bias.dtype = f->row_scale_dtype = TEGROUP_DTYPE_UNSET; f->bias.data = NULL; f->row_scale = NULL, PLAN, "bias.dtype", f32, 0);
    BAD(forward, f->row_scale_dtype = TEGROUP_DTYPE_F64, PLAN, "row_scale_dtype", f32, f64);
    BAD(forward, f->row_scale_dtype = TEGROUP_DTYPE_UNSET; f->row_scale = NULL, PLAN, "row_scale_dtype", f32, 0);
    BAD(forward, f->a.ld = K + 1, PLAN, "a.ld", K, K + 1);
    BAD(forward, f->b.ld = K + 3, PLAN, "b.ld", K, K + 3);
    BAD(forward, f->c.ld = N + 1, PLAN, "c.ld", N, N + 1);
    BAD(forward, f->d.ld = N + 2, PLAN, "d.ld", N, N + 2);
    BAD(dgrad, uniform(&x->a); uniform(&x->d), PLAN, "a.shape.row_sizes.encoding", 1, 0);
    BAD(dgrad, x->a.shape.elements = ROWS * N, PLAN, "a.shape.elements", 0, 1);
    BAD(dgrad, x->a.shape.row_sizes.space = x->d.shape.row_sizes.space = TEGROUP_SPACE_DEVICE, PLAN, "a.shape.row_sizes.space",
        TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(dgrad, LISTED(x->a, HOST), PLAN, "a.pointers_space", TEGROUP_SPACE_UNSET, TEGROUP_SPACE_HOST);
    BAD(dgrad, LISTED(x->b, HOST), PLAN, "b.pointers_space", TEGROUP_SPACE_UNSET, TEGROUP_SPACE_HOST);
    BAD(dgrad, LISTED(x->d, HOST), PLAN, "d.pointers_space", TEGROUP_SPACE_UNSET, TEGROUP_SPACE_HOST);
    BAD(forward, f->alpha.stride = 0, PLAN, "alpha.stride", 1, 0);
    BAD(forward, f->beta.stride = 0, PLAN, "beta.stride", 1, 0);
    BAD(forward, f->alpha.space = TEGROUP_SPACE_UNSET; f->alpha.data = NULL, PLAN, "alpha.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_UNSET);
    BAD(forward, f->alpha.space = TEGROUP_SPACE_DEVICE, PLAN, "alpha.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(forward, f->beta.space = TEGROUP_SPACE_DEVICE, PLAN, "beta.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(dgrad, x->accumulate = 1, PLAN, "accumulate", 0, 1);
    BAD(forward, f->tail = TEGROUP_TAIL_ZERO, PLAN, "tail", TEGROUP_TAIL_KEEP, TEGROUP_TAIL_ZERO);
    BAD(check, f->tail = TEGROUP_TAIL_POISON, PLAN, "tail", TEGROUP_TAIL_KEEP, TEGROUP_TAIL_POISON);

    /* A plan for a machine that is not here gives sizes, and is not run. */
    planned_elsewhere();
    BAD(dgrad, elsewhere(), NOT_BUILT, "plan.backend", TEGROUP_BACKEND_CPU, TEGROUP_BACKEND_PORTABLE);
    BAD(dgrad, (void)elsewhere(); w.dgrad_plan.hypothetical = 0, NOT_BUILT, "plan.backend", TEGROUP_BACKEND_CPU, TEGROUP_BACKEND_PORTABLE);
    BAD(dgrad, elsewhere()->a.pointers_space = TEGROUP_SPACE_HOST, PLAN, "a.pointers_space", TEGROUP_SPACE_DEVICE, TEGROUP_SPACE_HOST);
    planned_here();
}

/* The memory of a run: every buffer NULL and misaligned. */
TEST(status, gemm_memory) {
    tegroup_gemm_desc *f = &w.forward, *x = &w.dgrad, *g = &w.wgrad;
#define BUFFER(call, pointer, field, alignment)           \
    BAD(call, pointer = NULL, NULL_ARGUMENT, field, 1, 0); \
    ALIGNED(call, pointer, field, alignment)
    BUFFER(forward, f->a.data, "a.data", 4);
    BUFFER(forward, f->b.data, "b.data", 4);
    BUFFER(forward, f->c.data, "c.data", 4);
    BUFFER(forward, f->d.data, "d.data", 4);
    BUFFER(forward, f->bias.data, "bias.data", 4);
    BUFFER(forward, f->row_scale, "row_scale", 4);
    BUFFER(forward, f->alpha.data, "alpha.data", 4);
    BUFFER(forward, f->beta.data, "beta.data", 4);
    BUFFER(forward, f->options.workspace, "options.workspace", TEGROUP_ALIGNMENT);
    BUFFER(forward, f->a.shape.snapshot, "a.shape.snapshot", TEGROUP_ALIGNMENT);
    BUFFER(forward, f->c.shape.snapshot, "c.shape.snapshot", TEGROUP_ALIGNMENT);
    BUFFER(forward, f->d.shape.snapshot, "d.shape.snapshot", TEGROUP_ALIGNMENT);
    BUFFER(check, f->d.data, "d.data", 4);
    BUFFER(dgrad, x->a.data, "a.data", 4);
    BUFFER(dgrad, x->b.data, "b.data", 4);
    BUFFER(dgrad, x->d.data, "d.data", 4);
    BUFFER(wgrad, g->a.data, "a.data", 4);
    BUFFER(wgrad, g->b.data, "b.data", 4);
    BUFFER(wgrad, g->d.data, "d.data", 4);
    BUFFER(wgrad, g->bias.data, "bias.data", 4);
    BUFFER(wgrad, g->b.shape.snapshot, "b.shape.snapshot", TEGROUP_ALIGNMENT);
    BAD(replanned_dgrad, SHIFT(x->d.data, 4); x->d.dtype = TEGROUP_DTYPE_F64; x->options.compute = TEGROUP_COMPUTE_F64, ALIGNMENT, "d.data", 8, 4);
    BAD(replanned, f->alpha.dtype = TEGROUP_DTYPE_F64; SHIFT(f->alpha.data, 4), ALIGNMENT, "alpha.data", 8, 4);
    BAD(dgrad, x->alpha.data = w.alpha, UNSET, "alpha.space", TEGROUP_SPACE_HOST, 0);
    BAD(dgrad, x->beta.data = w.beta, UNSET, "beta.space", TEGROUP_SPACE_HOST, 0);
    BAD(dgrad, x->row_scale = w.row_scale, UNSET, "row_scale_dtype", TEGROUP_DTYPE_F32, 0);
    BAD(forward, f->options.workspace_bytes = w.forward_plan.workspace_bytes - 1, WORKSPACE, "options.workspace_bytes",
        w.forward_plan.workspace_bytes, w.forward_plan.workspace_bytes - 1);
    BAD(wgrad, g->options.workspace_bytes = 0, WORKSPACE, "options.workspace_bytes", w.wgrad_plan.workspace_bytes, 0);
}

static int64_t *rows_in(const void *snapshot) { return (int64_t *)(uintptr_t)tegroup_snapshot_read(snapshot).rows; }

/* Without rows there are no row scales, and no memory for any. */
TEST(status, gemm_of_no_rows) {
    tegroup_gemm_desc *f = &w.forward;
    tegroup_tensor *const tensors[] = {&f->a, &f->c, &f->d};
    spoil_nothing();
    for (int i = 0; i < 3; i++) {
        uniform(tensors[i]);
        tensors[i]->shape.rows = 0;
        tensors[i]->data = NULL;
    }
    f->row_scale = NULL;
    GOOD(replanned);
}

/* A snapshot of something else. Each operand is given a copy of its own. */
static tegroup_snapshot_header *snapshot_of(tegroup_tensor *tensor) {
    memcpy(w.snapshot_out, w.snapshot, sizeof w.snapshot);
    tensor->shape.snapshot = w.snapshot_out;
    return (tegroup_snapshot_header *)(void *)w.snapshot_out;
}

/* wgrad's b with columns that differ, prepared as such. */
static tegroup_snapshot_header *irregular_b(void) {
    if (tegroup_prepare(&w.irregular, NULL, &error) != TEGROUP_OK) printf("not prepared: %s %s\n", error.field, error.rule);
    w.wgrad.b.shape = w.irregular.shape;
    w.wgrad.b.shape.snapshot = w.snapshot_out;
    return (tegroup_snapshot_header *)(void *)w.snapshot_out;
}

/* Its first group's last element, moved to there. */
static void ends_at(tegroup_snapshot_header *header, int64_t end) {
    tegroup_snapshot_view view = tegroup_snapshot_read(header);
    *(int64_t *)(uintptr_t)view.cols = K;
    *(int64_t *)(uintptr_t)view.offset = end - view.rows[0] * K;
}

/* A buffer may have any number of rows that holds all groups, as many as planned or not. */
#define ENDS (w.starts[EXPERTS - 1] + w.counts[EXPERTS - 1]) /* the row behind the last group */

TEST(status, gemm_snapshots) {
#define SNAPSHOT(call, tensor, field)                                                                                               \
    BAD(call, snapshot_of(&tensor)->magic = 0, CAPACITY, field, TEGROUP_SNAPSHOT_MAGIC, 0);                                         \
    BAD(call, snapshot_of(&tensor)->groups++, CAPACITY, field, EXPERTS, EXPERTS + 1);                                               \
    BAD(call, snapshot_of(&tensor)->rows_end = ROWS + 1, CAPACITY, field, ROWS, ROWS + 1);                                          \
    BAD(call, tensor.shape.rows = ENDS - 1, CAPACITY, field, ENDS - 1, ENDS);                                                       \
    BAD(call, snapshot_of(&tensor)->irregular = 1, CAPACITY, field, 0, 1)
    SNAPSHOT(forward, w.forward.a, "a.shape.snapshot");
    SNAPSHOT(forward, w.forward.c, "c.shape.snapshot");
    SNAPSHOT(forward, w.forward.d, "d.shape.snapshot");
    SNAPSHOT(dgrad, w.dgrad.a, "a.shape.snapshot");
    SNAPSHOT(dgrad, w.dgrad.d, "d.shape.snapshot");
    SNAPSHOT(wgrad, w.wgrad.a, "a.shape.snapshot");
    SNAPSHOT(wgrad, w.wgrad.b, "b.shape.snapshot");
    BAD(replanned_wgrad, irregular_b()->capacity_cols++, CAPACITY, "b.shape.snapshot", K, K + 1);
    BAD(replanned_wgrad, irregular_b()->capacity_elements++, CAPACITY, "b.shape.snapshot", ROWS * K, ROWS * K + 1);
    BAD(replanned_wgrad, irregular_b()->ld = 9, CAPACITY, "b.shape.snapshot", 0, 9);
    BAD(replanned_wgrad, irregular_b()->irregular = 0, CAPACITY, "b.shape.snapshot", 1, 0);
    spoil_nothing();
    irregular_b();
    GOOD(replanned_wgrad);
    GOOD(problem_wgrad);
    ASSERT_EQ(1, w.problem.irregular);
    spoil_nothing();
    GOOD(problem_wgrad);
    ASSERT_EQ(0, w.problem.irregular);
    /* The deep check walks the snapshot: a group that ends past the buffer. */
    BAD(check, w.forward.options.check_level = TEGROUP_CHECK_DEEP; rows_in(snapshot_of(&w.forward.d))[EXPERTS - 1] = ROWS,
        CAPACITY, "d.shape.snapshot", ROWS, ROWS + w.starts[EXPERTS - 1]);
    BAD(check, w.forward.options.check_level = TEGROUP_CHECK_DEEP; ((int64_t *)(uintptr_t)tegroup_snapshot_read(snapshot_of(&w.forward.a)).start)[0] = ROWS,
        CAPACITY, "a.shape.snapshot", ROWS, ROWS + w.counts[0]);
    /* ... past the elements, though it is no longer than they are. */
    BAD(replanned_wgrad, w.wgrad.options.check_level = TEGROUP_CHECK_DEEP; ends_at(irregular_b(), ROWS * K + 1),
        CAPACITY, "b.shape.snapshot", ROWS * K, ROWS * K + 1);
    spoil_nothing();
    w.wgrad.options.check_level = TEGROUP_CHECK_DEEP;
    ends_at(irregular_b(), ROWS * K);
    GOOD(replanned_wgrad);
    /* And what operands that meet say of a group's rows. */
    BAD(check, w.forward.options.check_level = TEGROUP_CHECK_DEEP; rows_in(snapshot_of(&w.forward.d))[0]--, CAPACITY, "d.shape.snapshot", w.counts[0], w.counts[0] - 1);
    BAD(replanned_wgrad, w.wgrad.options.check_level = TEGROUP_CHECK_DEEP; rows_in(snapshot_of(&w.wgrad.b))[0]--, CAPACITY, "b.shape.snapshot", w.counts[0], w.counts[0] - 1);
    spoil_nothing();
    w.forward.options.check_level = TEGROUP_CHECK_DEEP;
    rows_in(snapshot_of(&w.forward.a))[0] = -1, rows_in(w.snapshot)[0] = 0;
    GOOD(check);
    /* What has data must have a type. */
    BAD(replanned, w.forward.bias.dtype = TEGROUP_DTYPE_UNSET; w.forward.row_scale_dtype = TEGROUP_DTYPE_UNSET; w.forward.row_scale = NULL, UNSET, "bias.dtype", FLOATS, 0);
    BAD(replanned_dgrad, w.dgrad.c.data = w.x, UNSET, "c.dtype", FLOATS, 0);
}

/* Every pair of an output and something else that a run touches, sharing one element. */
TEST(status, gemm_overlaps) {
    tegroup_gemm_desc *f = &w.forward, *x = &w.dgrad, *g = &w.wgrad;
#define LAST(array) (void *)((char *)(array) + sizeof(array) - sizeof(array)[0])
    BAD(forward, f->d.data = LAST(w.x), OVERLAP, "d.data", 0, 1);
    BAD(forward, f->d.data = w.weight, OVERLAP, "d.data", 0, 1);
    BAD(forward, f->d.data = w.old + 1, OVERLAP, "d.data", 0, 1);
    BAD(forward, f->d.data = w.old; f->c.shape.snapshot = memcpy(w.snapshot_out, w.snapshot, sizeof w.snapshot), OVERLAP, "d.data", 0, 1);
    BAD(forward, f->d.data = w.snapshot_out; f->c.shape.snapshot = memcpy(w.snapshot_out, w.snapshot,
        sizeof w.snapshot), OVERLAP, "d.data", 0, 1);
    BAD(forward, f->d.data = w.snapshot_out; f->d.shape.snapshot = memcpy(w.snapshot_out, w.snapshot,
        sizeof w.snapshot), OVERLAP, "d.data", 0, 1);
    BAD(wgrad, g->d.data = w.snapshot_out; g->b.shape.snapshot = memcpy(w.snapshot_out, w.snapshot,
        sizeof w.snapshot), OVERLAP, "d.data", 0, 1);
    BAD(forward, f->d.data = LAST(w.bias), OVERLAP, "d.data", 0, 1);
    BAD(forward, f->d.data = LAST(w.row_scale), OVERLAP, "d.data", 0, 1);
    BAD(replanned, uniform(&f->a); uniform(&f->c); uniform(&f->d);
        f->a.shape.rows = f->c.shape.rows = f->d.shape.rows = ROWS / EXPERTS;
        f->row_scale = w.gate_up; f->d.data = w.gate_up + ROWS - 1, OVERLAP, "d.data", 0, 1); /* the last group's */
    BAD(forward, f->d.data = LAST(w.alpha), OVERLAP, "d.data", 0, 1);
    BAD(forward, f->d.data = w.beta, OVERLAP, "d.data", 0, 1);
    BAD(forward, f->d.data = w.snapshot, OVERLAP, "d.data", 0, 1);
    BAD(forward, f->a.data = LAST(w.y), OVERLAP, "d.data", 0, 1);
    BAD(check, f->d.data = LAST(w.x), OVERLAP, "d.data", 0, 1);
    BAD(replanned, f->d.data = w.old; f->d.ld = N + 1; f->d.shape.rows = f->c.shape.rows = f->a.shape.rows = ROWS, OVERLAP, "d.data", 0, 1);
    BAD(dgrad, x->d.data = LAST(w.y_grad), OVERLAP, "d.data", 0, 1);
    BAD(dgrad, x->b.data = w.x_grad, OVERLAP, "d.data", 0, 1);
    BAD(wgrad, g->d.data = w.x, OVERLAP, "d.data", 0, 1);
    BAD(wgrad, g->d.data = LAST(w.y_grad), OVERLAP, "d.data", 0, 1);
    BAD(wgrad, g->bias.data = LAST(w.weight_grad), OVERLAP, "d.data", 0, 1);
    BAD(wgrad, g->bias.data = LAST(w.y_grad), OVERLAP, "bias.data", 0, 1);
    BAD(wgrad, g->bias.data = w.x, OVERLAP, "bias.data", 0, 1);
    BAD(wgrad, g->bias.data = w.snapshot, OVERLAP, "bias.data", 0, 1);
    BAD(replanned_wgrad, g->row_scale = w.bias_grad; g->row_scale_dtype = TEGROUP_DTYPE_F32, OVERLAP, "bias.data", 0, 1);
    BAD(replanned_wgrad, g->accumulate = 0; g->c = g->d; g->c.data = w.weight; g->beta = w.forward.beta; g->bias.data = LAST(w.weight), OVERLAP, "bias.data", 0, 1);
    /* c may be d itself, and nothing else that shares its memory */
    BAD(replanned_wgrad, g->accumulate = 0; g->c = g->d; g->c.group_stride = N * K + 1; g->beta = w.forward.beta, OVERLAP, "d.data", 0, 1);
    /* the workspace is written, too */
    BAD(forward, f->a.data = w.workspace + 64, OVERLAP, "options.workspace", 0, 1);
    BAD(forward, f->options.workspace = w.x, OVERLAP, "options.workspace", 0, 1);
    BAD(forward, f->b.data = w.workspace + 64, OVERLAP, "options.workspace", 0, 1);
    BAD(forward, f->c.data = w.workspace + 64, OVERLAP, "options.workspace", 0, 1);
    BAD(forward, f->d.data = w.workspace + 64, OVERLAP, "options.workspace", 0, 1);
    BAD(forward, f->bias.data = w.workspace + 64, OVERLAP, "options.workspace", 0, 1);
    BAD(forward, f->row_scale = w.workspace + 64, OVERLAP, "options.workspace", 0, 1);
    BAD(forward, f->alpha.data = w.workspace + 64, OVERLAP, "options.workspace", 0, 1);
    BAD(forward, f->beta.data = w.workspace + 64, OVERLAP, "options.workspace", 0, 1);
    BAD(forward, memcpy(w.workspace, w.snapshot, sizeof w.snapshot); f->a.shape.snapshot = w.workspace, OVERLAP, "options.workspace", 0, 1);
    BAD(wgrad, g->bias.data = w.workspace + 64, OVERLAP, "options.workspace", 0, 1);
    /* what is absent has no snapshot, whatever is left in its shape */
    spoil_nothing();
    x->c.shape = x->d.shape;
    x->c.shape.snapshot = x->d.data;
    GOOD(dgrad);
}

/* Operands given as one pointer a group: of the descriptor always, of each entry with the deep check. */
static void list_of(tegroup_tensor *tensor, void **list, size_t bytes) {
    for (int g = 0; g < EXPERTS; g++) list[g] = (char *)tensor->data + (size_t)g * bytes;
    tensor->data = NULL;
    tensor->pointers = list;
    tensor->pointers_space = TEGROUP_SPACE_HOST;
}
static void lists_of(tegroup_gemm_desc *desc, tegroup_tensor *tensor, void **list, size_t bytes) {
    list_of(tensor, list, bytes);
    desc->options.check_level = TEGROUP_CHECK_DEEP;
}

TEST(status, lists) {
    tegroup_gemm_desc *x = &w.dgrad, *g = &w.wgrad;
    const size_t one = N * K * sizeof(float);
    spoil_nothing();
    lists_of(x, &x->b, lists[0], one);
    GOOD(replanned_dgrad);
    BAD(replanned_dgrad, lists_of(x, &x->b, lists[0], one); x->b.data = w.weight, COMBINATION, "b.data", 0, 1);
    BAD(replanned_dgrad, lists_of(x, &x->b, lists[0], one); x->b.pointers = NULL, NULL_ARGUMENT, "b.pointers", 1, 0);
    BAD(replanned_dgrad, lists_of(x, &x->b, lists[0], one); SHIFT(x->b.pointers, 2), ALIGNMENT, "b.pointers", sizeof(void *), 2);
    BAD(replanned_dgrad, lists_of(x, &x->b, lists[0], one); lists[0][2] = NULL, NULL_ARGUMENT, "b.pointers", -1, 2);
    BAD(replanned_dgrad, lists_of(x, &x->b, lists[0], one); SHIFT(lists[0][1], 2), ALIGNMENT, "b.pointers", 4, 2);
    for (int rows = -1; rows < 1; rows++) { /* of groups that are not worked on there may be none */
        spoil_nothing();
        lists_of(x, &x->b, lists[0], one);
        lists[0][2] = NULL;
        rows_in(w.snapshot)[2] = rows;
        GOOD(replanned_dgrad);
        BAD(replanned_wgrad, lists_of(g, &g->d, lists[1], one); g->accumulate = 0; lists[1][2] = NULL; rows_in(w.snapshot)[2] = rows; if (rows < 0) lists[1][1] = NULL,
            NULL_ARGUMENT, "d.pointers", -1, rows < 0 ? 1 : 2);
    }
    /* ... and of one that is worked on there must be, if only for a row or a column */
    BAD(replanned_dgrad, lists_of(x, &x->b, lists[0], one); lists[0][2] = NULL; rows_in(w.snapshot)[2] = 1,
        NULL_ARGUMENT, "b.pointers", -1, 2);
    BAD(replanned_wgrad, *(int64_t *)(uintptr_t)tegroup_snapshot_read(irregular_b()).cols = 1; list_of(&g->d,
        lists[1], one); lists[1][0] = NULL,
        NULL_ARGUMENT, "d.pointers", -1, 0);
    BAD(dgrad, x->b.pointers = lists[0], UNSET, "b.pointers_space", TEGROUP_SPACE_HOST, 0);

    /* at the default level, too, every list is looked at before it is read: where an address is used, and only there */
    for (int i = 0; i < 5; i++) {
        tegroup_gemm_desc *f = &w.forward;
        tegroup_tensor *const tensors[5] = {&f->a, &f->b, &f->c, &f->d, &f->bias};
        static const char *const fields[5] = {"a.pointers", "b.pointers", "c.pointers", "d.pointers", "bias.pointers"};
        const size_t bytes[5] = {ROWS * K * sizeof(float) / EXPERTS, one, ROWS * N * sizeof(float) / EXPERTS, ROWS * N * sizeof(float) / EXPERTS, N * sizeof(float)};
#define ONE_LIST(entry) f->row_scale = NULL; f->row_scale_dtype = TEGROUP_DTYPE_UNSET; list_of(tensors[i], lists[0], bytes[i]); entry
        BAD(replanned, ONE_LIST(lists[0][2] = NULL), NULL_ARGUMENT, fields[i], -1, 2);
        BAD(replanned, ONE_LIST(SHIFT(lists[0][3], 1)), ALIGNMENT, fields[i], 4, 1);
        spoil_nothing();
        ONE_LIST(lists[0][2] = NULL);
        rows_in(w.snapshot)[2] = 0;
        GOOD(replanned);
        if (i == 2) { /* C of a group whose beta is 0 */
            spoil_nothing();
            ONE_LIST(lists[0][1] = NULL);
            w.beta[1] = 0;
            GOOD(replanned);
        }
    }
    BAD(replanned_wgrad, list_of(&g->bias, lists[1], N * sizeof(float)); lists[1][1] = NULL, NULL_ARGUMENT, "bias.pointers", -1, 1);
    BAD(replanned_wgrad, list_of(&g->d, lists[1], one); lists[1][0] = NULL, NULL_ARGUMENT, "d.pointers", -1, 0);
    spoil_nothing(); /* what is added to is left alone where there are no rows */
    list_of(&g->d, lists[1], one);
    list_of(&g->bias, lists[2], N * sizeof(float));
    lists[1][0] = lists[2][0] = NULL;
    rows_in(w.snapshot)[0] = 0;
    GOOD(replanned_wgrad);

    /* two groups that would write the same memory: both are named, and windows side by side are none */
    BAD(replanned_wgrad, lists_of(g, &g->d, lists[1], one); lists[1][3] = lists[1][1], OVERLAP, "d.pointers", 1, 3);
    BAD(replanned_wgrad, lists_of(g, &g->d, lists[1], one); SHIFT(lists[1][1], sizeof(float)), OVERLAP, "d.pointers", 1, 2);
    BAD(replanned_wgrad, lists_of(g, &g->bias, lists[1], N * sizeof(float)); lists[1][0] = lists[1][2], OVERLAP, "bias.pointers", 0, 2);
    BAD(replanned, w.forward.options.check_level = TEGROUP_CHECK_DEEP; w.forward.row_scale = NULL; w.forward.row_scale_dtype = TEGROUP_DTYPE_UNSET;
        list_of(&w.forward.d, lists[0], ROWS * N * sizeof(float) / EXPERTS); lists[0][1] = (char *)lists[0][0] + (size_t)w.counts[0] * N * sizeof(float) - sizeof(float),
        OVERLAP, "d.pointers", 0, 1);
    /* each group's matrix in columns of its own of one buffer; with one column less the last one goes on into the first's next row */
#define WINDOWS(ld_) g->d.data = w.fc1_weight_grad; lists_of(g, &g->d, lists[1], K * sizeof(float)); SHIFT(lists[1][EXPERTS - 1], 2 * sizeof(float)); g->d.ld = ld_
    BAD(replanned_wgrad, WINDOWS(EXPERTS * K + 1), OVERLAP, "d.pointers", 0, EXPERTS - 1);
    spoil_nothing();
    WINDOWS(EXPERTS * K + 2);
    GOOD(replanned_wgrad);
    for (int rows = -1; rows < 1; rows++) { /* what is not written is not held against others */
        spoil_nothing();
        lists_of(g, &g->d, lists[1], one);
        lists[1][3] = lists[1][1];
        rows_in(w.snapshot)[3] = rows;
        GOOD(replanned_wgrad);
    }
    for (int cols = 0; cols < 2; cols++) { /* nor a group of rows without columns, as far apart as they are */
        spoil_nothing();
        *(int64_t *)(uintptr_t)tegroup_snapshot_read(irregular_b()).cols = cols;
        g->b.shape.offsets = NULL;
        g->b.shape.elements = 0;
        g->b.ld = K;
        lists_of(g, &g->b, lists[0], K * sizeof(float));
        lists[0][0] = w.weight_grad;
        if (cols == 0) GOOD(replanned_wgrad);
        else ASSERT_TRUE(call_replanned_wgrad(&error) == TEGROUP_ERROR_OVERLAP);
    }
    BAD(replanned_dgrad, lists_of(x, &x->b, lists[0], one); lists[0][3] = w.x_grad, OVERLAP, "d.data", 0, 1);
    BAD(replanned_wgrad, lists_of(g, &g->d, lists[1], one); lists[1][0] = w.x, OVERLAP, "d.pointers", 0, 1);
    BAD(replanned_wgrad, lists_of(g, &g->d, lists[1], one); lists[1][2] = w.workspace, OVERLAP, "options.workspace", 0, 1);

    /* the lists themselves, whatever the level */
    BAD(replanned_dgrad, list_of(&x->b, lists[0], one); x->d.data = LAST(lists[0]), OVERLAP, "d.data", 0, 1);
    BAD(replanned_dgrad, list_of(&x->b, (void **)(void *)w.workspace, one), OVERLAP, "options.workspace", 0, 1);
    BAD(replanned_wgrad, list_of(&g->d, lists[1], one); g->bias.data = lists[1], OVERLAP, "bias.data", 0, 1);
    BAD(replanned_wgrad, list_of(&g->bias, lists[1], N * sizeof(float)); g->d.data = lists[1], OVERLAP, "d.data", 0, 1);
    BAD(replanned_wgrad, lists_of(g, &g->d, lists[1], one); lists[1][1] = lists[1], OVERLAP, "d.pointers", 0, 1);
    BAD(replanned_wgrad, lists_of(g, &g->bias, lists[1], N * sizeof(float)); lists[1][1] = lists[1], OVERLAP, "bias.pointers", 0, 1);
}

/* dgrad's a is tokens, picked by the routing; wgrad's operands are, too. */
static tegroup_gemm_desc *gathered(tegroup_gemm_desc *desc) {
    desc->a.data = w.tokens;
    desc->gather_a.slot_of_row = w.slot_of_row;
    desc->gather_a.rows = TOKENS;
    desc->gather_a.slots = CHOICES;
    if (desc->op == TEGROUP_OP_WGRAD) {
        desc->gather_b = desc->gather_a;
        desc->gather_b.slots = 0; /* 1 */
        desc->gather_b.rows = ROWS;
    }
    return desc;
}

TEST(status, gather) {
    tegroup_gemm_desc *f = &w.forward, *x = &w.dgrad, *g = &w.wgrad;
    spoil_nothing();
    gathered(x);
    gathered(g);
    GOOD(replanned_dgrad);
    GOOD(replanned_wgrad);
    RANGE(problem, f->gather_a.rows, "gather_a.rows", int64_t, 0, TEGROUP_MAX_ROWS);
    RANGE(problem_wgrad, g->gather_b.rows, "gather_b.rows", int64_t, 0, TEGROUP_MAX_ROWS);
    NOT_NEGATIVE(problem, f->gather_a.slots, "gather_a.slots");
    NOT_NEGATIVE(problem_wgrad, gathered(g)->gather_b.slots, "gather_b.slots");
    BAD(problem, f->gather_b.rows = 5, COMBINATION, "gather_b.rows", 0, 5);
    BAD(problem_dgrad, x->gather_b.rows = 6, COMBINATION, "gather_b.rows", 0, 6);
    BAD(problem_dgrad, uniform(&gathered(x)->a); uniform(&x->d), COMBINATION, "gather_a.rows", 0, TOKENS);
    BAD(problem_dgrad, gathered(x)->a.shape.elements = ROWS * N, COMBINATION, "gather_a.rows", 0, TOKENS);
    BAD(problem_wgrad, gathered(g)->b.shape = w.irregular.shape, COMBINATION, "gather_b.rows", 0, ROWS);
    BAD(problem_dgrad, LISTED(gathered(x)->a, HOST), COMBINATION, "gather_a.rows", 0, TOKENS);
    BAD(problem_dgrad, gathered(x)->a.dtype = TEGROUP_DTYPE_F8E4M3; x->a.scaling = TEGROUP_SCALING_TENSOR, COMBINATION, "gather_a.rows", 0, TOKENS);
    BAD(problem_dgrad, gathered(x)->gather_a.rows = TEGROUP_MAX_ROWS; x->a.ld = TEGROUP_MAX_COLS, OVERFLOW, "gather_a.rows", ADDRESSABLE, INT64_MAX);

    /* As planned: whether, but not how many. */
    BAD(dgrad, gathered(x), PLAN, "gather_a.rows", 0, 1);
    BAD(wgrad, gathered(g)->gather_a.rows = 0, PLAN, "gather_b.rows", 0, 1);

    /* Memory: the index, and the rows that are really there. */
    BUFFER(replanned_dgrad, gathered(x)->a.data, "a.data", 4);
    BUFFER(replanned_dgrad, gathered(x)->gather_a.slot_of_row, "gather_a.slot_of_row", 8);
    BUFFER(replanned_wgrad, gathered(g)->gather_b.slot_of_row, "gather_b.slot_of_row", 8);
    BAD(dgrad, x->gather_a.slot_of_row = w.slot_of_row, UNSET, "gather_a.rows", 1, 0);
    BAD(wgrad, g->gather_b.slot_of_row = w.slot_of_row, UNSET, "gather_b.rows", 1, 0);
    BAD(replanned_dgrad, gathered(x)->d.data = LAST(w.tokens), OVERLAP, "d.data", 0, 1);
    BAD(replanned_dgrad, gathered(x)->a.data = w.gate_up; x->gather_a.rows = 2 * ROWS; x->d.data = LAST(w.gate_up), OVERLAP, "d.data", 0, 1);
    BAD(replanned_dgrad, gathered(x)->d.data = LAST(w.slot_of_row), OVERLAP, "d.data", 0, 1);
    BAD(replanned_wgrad, gathered(g)->d.data = w.slot_of_row; memset(&g->gather_a, 0, sizeof g->gather_a), OVERLAP, "d.data", 0, 1);
    BAD(replanned_wgrad, gathered(g)->bias.data = LAST(w.slot_of_row), OVERLAP, "bias.data", 0, 1);
    BAD(replanned_wgrad, gathered(g)->b.data = w.gate_up; g->gather_b.rows = (2 * ROWS * N) / K; g->bias.data = w.gate_up + (2 * ROWS * N / K - 1) * K, OVERLAP, "bias.data", 0, 1);
    BAD(replanned_dgrad, gathered(x)->gather_a.slot_of_row = (int64_t *)(void *)(w.workspace + 64), OVERLAP, "options.workspace", 0, 1);
    BAD(replanned_wgrad, gathered(g)->gather_b.slot_of_row = (int64_t *)(void *)(w.workspace + 64), OVERLAP, "options.workspace", 0, 1);
    BAD(replanned_dgrad, gathered(x)->a.data = w.workspace + 64; x->gather_a.rows = 1, OVERLAP, "options.workspace", 0, 1);
    spoil_nothing(); /* as many rows as the groups have would reach d */
    gathered(x)->a.data = w.gate_up;
    x->d.data = w.gate_up + TOKENS * N;
    GOOD(replanned_dgrad);
    spoil_nothing(); /* without rows nothing is read */
    gathered(x)->a.shape.rows = x->d.shape.rows = 0;
    x->a.data = x->d.data = NULL;
    x->gather_a.slot_of_row = NULL;
    w.prepare.shape.rows = 0;
    counts_are(0, 0, 0, 0);
    GOOD(prepare);
    x->a.shape.snapshot = x->d.shape.snapshot = w.snapshot_out;
    GOOD(replanned_dgrad);

    BAD(plan_target, device(TEGROUP_BACKEND_PORTABLE, 90, 0)->gather_a.rows = 7, UNSUPPORTED, "gather_a.rows", 0, 7);
    BAD(plan_target, device(TEGROUP_BACKEND_CUBLASLT_GROUPED, 90, 131000)->gather_a.rows = 8, UNSUPPORTED, "gather_a.rows", 0, 8);
    BAD(plan_target, looped()->gather_a.rows = 9, UNSUPPORTED, "gather_a.rows", 0, 9);
    BAD(plan_target, device(TEGROUP_BACKEND_AUTO, 80, 0)->gather_a.rows = 7, UNSUPPORTED, "target.sm", 90, 80);
    spoil_nothing();
    device(TEGROUP_BACKEND_AUTO, 90, 131000)->gather_a.rows = 7;
    GOOD(plan_target);
    ASSERT_EQ(TEGROUP_BACKEND_SM90, w.plan.backend);
}

/* Every rule of one matrix, and of one that the others fix the extents of. */
#define MATRIX(call, m, name, dtypes)                                                                                               \
    BAD(call, m.dtype = TEGROUP_DTYPE_COUNT, VALUE, name ".dtype", TEGROUP_DTYPE_COUNT - 1, TEGROUP_DTYPE_COUNT);                   \
    BAD(call, m.dtype = TEGROUP_DTYPE_F8E5M2, DTYPE, name ".dtype", dtypes, TEGROUP_DTYPE_F8E5M2);                                  \
    BAD(call, m.dtype = dtypes == INTEGERS ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_I64, DTYPE, name ".dtype", dtypes, m.dtype);         \
    RANGE(call, m.rows, name ".rows", int64_t, 0, TEGROUP_MAX_ROWS);                                                                \
    RANGE(call, m.cols, name ".cols", int64_t, 0, TEGROUP_MAX_COLS);                                                                \
    BAD(call, m.ld = m.cols > 1 ? m.cols - 1 : -1, LAYOUT, name ".ld", m.cols, m.ld);                                               \
    BAD(call, m.ld = TEGROUP_MAX_COLS + 1, VALUE, name ".ld", TEGROUP_MAX_COLS, TEGROUP_MAX_COLS + 1);                              \
    BAD(call, m.data = NULL, NULL_ARGUMENT, name ".data", 1, 0);                                                                    \
    ALIGNED(call, m.data, name ".data", tegroup_dtype_bits(m.dtype) / 8)
#define REQUIRED(call, m, name, dtypes) BAD(call, m.dtype = TEGROUP_DTYPE_UNSET, UNSET, name ".dtype", dtypes, 0)
#define FREE_ROWS(call, m, name) BAD(call, m.rows = TEGROUP_MAX_ROWS; m.ld = TEGROUP_MAX_COLS, OVERFLOW, name ".rows", ADDRESSABLE, INT64_MAX)
#define FIXED_ROWS(call, m, name)                                              \
    BAD(call, m.rows++, SHAPE, name ".rows", m.rows - 1, m.rows);              \
    BAD(call, m.rows--, SHAPE, name ".rows", m.rows + 1, m.rows)
#define FIXED_COLS(call, m, name)                                              \
    BAD(call, m.cols++, SHAPE, name ".cols", m.cols - 1, m.cols);              \
    BAD(call, m.cols--, SHAPE, name ".cols", m.cols + 1, m.cols)
#define FIXED(call, m, name)     \
    FIXED_ROWS(call, m, name);   \
    FIXED_COLS(call, m, name)
/* An output that shares its first element with another operand. */
#define OVERLAP(call, out, name, other) BAD(call, out.data = other, OVERLAP, name ".data", 0, 1)
#define NO_GPU(call, desc) BAD(call, desc.space = TEGROUP_SPACE_DEVICE, NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE)
/* A snapshot of something else. */
static tegroup_snapshot_header *snapshot_at(const void **snapshot) {
    memcpy(w.snapshot_out, w.snapshot, sizeof w.snapshot);
    *snapshot = w.snapshot_out;
    return (tegroup_snapshot_header *)(void *)w.snapshot_out;
}
#define OTHER_SNAPSHOT(call, snapshot, field)                                                                   \
    ALIGNED(call, snapshot, field, TEGROUP_ALIGNMENT);                                                          \
    BAD(call, snapshot_at(&snapshot)->magic--, CAPACITY, field, TEGROUP_SNAPSHOT_MAGIC, TEGROUP_SNAPSHOT_MAGIC - 1); \
    BAD(call, snapshot_at(&snapshot)->rows_end = ROWS + 1, CAPACITY, field, ROWS, ROWS + 1)

/* Parameters that the kind does not take, and input columns of kinds with and without an up. */
#define ACTIVATION(call)                                                                                                                \
    BAD(call, a->activation = TEGROUP_ACTIVATION_GELU; a->interleaved = 1, VALUE, "interleaved", 0, 1);                                 \
    BAD(call, a->alpha = 1.702, VALUE, "alpha", real(0), real(1.702));                                                              \
    BAD(call, a->limit = 7, VALUE, "limit", real(0), real(7));                                                                      \
    BAD(call, a->activation = TEGROUP_ACTIVATION_SILU; a->alpha = (double)NAN, VALUE, "alpha", real(0), real((double)NAN));         \
    BAD(call, a->activation = TEGROUP_ACTIVATION_RELU_SQUARED; a->limit = -1, VALUE, "limit", real(0), real(-1));                   \
    BAD(call, a->activation = TEGROUP_ACTIVATION_SWIGLU_CLAMPED; a->alpha = -1, VALUE, "alpha", real(3.4028234663852886e38), real(-1));\
    BAD(call, a->activation = TEGROUP_ACTIVATION_SWIGLU_CLAMPED; a->alpha = (double)NAN, VALUE, "alpha", real(3.4028234663852886e38), real((double)NAN));\
    BAD(call, a->activation = TEGROUP_ACTIVATION_SWIGLU_CLAMPED; a->alpha = (double)INFINITY, VALUE, "alpha", real(3.4028234663852886e38), real((double)INFINITY));\
    BAD(call, a->activation = TEGROUP_ACTIVATION_SWIGLU_CLAMPED; a->limit = -1, VALUE, "limit", real(0), real(-1));                 \
    BAD(call, a->activation = TEGROUP_ACTIVATION_SITU_GLU; a->alpha = 1e-30, VALUE, "alpha", real(8.673617379884035e-19), real(1e-30)); \
    BAD(call, a->activation = TEGROUP_ACTIVATION_SITU_GLU; a->alpha = 1e30, VALUE, "alpha", real(1.152921504606846976e18), real(1e30)); \
    BAD(call, a->activation = TEGROUP_ACTIVATION_SITU_GLU; a->limit = 1e-30, VALUE, "limit", real(8.673617379884035e-19), real(1e-30)); \
    BAD(call, a->activation = TEGROUP_ACTIVATION_SITU_GLU; a->limit = 1e30, VALUE, "limit", real(1.152921504606846976e18), real(1e30)); \
    BAD(call, a->activation = TEGROUP_ACTIVATION_SWIGLU_CLAMPED; a->limit = (double)NAN, VALUE, "limit", real(0), real((double)NAN));\
    BAD(call, a->activation = TEGROUP_ACTIVATION_RELU_SQUARED, SHAPE, "input.cols", N, 2 * N)

TEST(status, activation) {
    tegroup_activation_desc *a = &w.activation;
    NOT_NEGATIVE(activation, a->threads, "threads");
    BAD(activation, a->threads = INT32_MIN, VALUE, "threads", 0, INT32_MIN);
    BAD(activation, a->activation = TEGROUP_ACTIVATION_UNSET, UNSET, "activation", TEGROUP_ACTIVATION_SWIGLU, 0);
    BAD(activation, a->activation = (tegroup_activation)14, VALUE, "activation", TEGROUP_ACTIVATION_IDENTITY, 14);
    RANGE(activation, a->interleaved, "interleaved", int32_t, 0, 1);
    ACTIVATION(activation);
    REQUIRED(activation, a->input, "input", FLOATS);
    REQUIRED(activation, a->output, "output", FLOATS);
    MATRIX(activation, a->input, "input", FLOATS);
    MATRIX(activation, a->row_scale, "row_scale", REALS);
    BAD(activation, a->row_scale.dtype = TEGROUP_DTYPE_UNSET, UNSET, "row_scale.dtype", REALS, 0);
    MATRIX(activation, a->output, "output", FLOATS);
    FIXED(activation, a->input, "input");
    FIXED(activation, a->row_scale, "row_scale");
    FREE_ROWS(activation, a->output, "output");
    BAD(activation, a->output.cols--, SHAPE, "input.cols", 2 * N - 2, 2 * N);
    OVERLAP(activation, a->output, "output", LAST(w.gate_up));
    OVERLAP(activation, a->output, "output", LAST(w.row_scale));
    BAD(activation, a->output.data = w.snapshot + 256, OVERLAP, "output.data", 0, 1);
    OTHER_SNAPSHOT(activation, a->snapshot, "snapshot");
    NO_GPU(activation, w.activation);
    /* A matrix without elements has no memory: it needs none, and shares none. */
    spoil_nothing();
    a->input.rows = a->row_scale.rows = a->output.rows = 0;
    a->input.data = a->row_scale.data = a->output.data = NULL;
    a->snapshot = NULL;
    GOOD(activation);
    spoil_nothing();
    w.permute.tokens.cols = w.permute.permuted.cols = 0;
    w.permute.tokens.ld = w.permute.permuted.ld = N;
    w.permute.permuted.data = w.permute.tokens.data;
    GOOD(permute);
}

TEST(status, activation_backward) {
    tegroup_activation_backward_desc *a = &w.activation_backward;
    NOT_NEGATIVE(activation_backward, a->threads, "threads");
    BAD(activation_backward, a->threads = INT32_MIN, VALUE, "threads", 0, INT32_MIN);
    BAD(activation_backward, a->activation = TEGROUP_ACTIVATION_UNSET, UNSET, "activation", TEGROUP_ACTIVATION_SWIGLU, 0);
    BAD(activation_backward, a->activation = (tegroup_activation)14, VALUE, "activation", TEGROUP_ACTIVATION_IDENTITY, 14);
    RANGE(activation_backward, a->interleaved, "interleaved", int32_t, 0, 1);
    ACTIVATION(activation_backward);
    REQUIRED(activation_backward, a->input, "input", FLOATS);
    REQUIRED(activation_backward, a->grad_output, "grad_output", FLOATS);
    REQUIRED(activation_backward, a->grad_input, "grad_input", FLOATS);
    MATRIX(activation_backward, a->input, "input", FLOATS);
    MATRIX(activation_backward, a->row_scale, "row_scale", REALS);
    MATRIX(activation_backward, a->grad_output, "grad_output", FLOATS);
    MATRIX(activation_backward, a->grad_input, "grad_input", FLOATS);
    MATRIX(activation_backward, a->grad_row_scale, "grad_row_scale", REALS);
    FIXED(activation_backward, a->input, "input");
    FIXED(activation_backward, a->row_scale, "row_scale");
    FIXED(activation_backward, a->grad_input, "grad_input");
    FIXED(activation_backward, a->grad_row_scale, "grad_row_scale");
    FREE_ROWS(activation_backward, a->grad_output, "grad_output");
    OVERLAP(activation_backward, a->grad_input, "grad_input", LAST(w.gate_up));
    OVERLAP(activation_backward, a->grad_input, "grad_input", LAST(w.row_scale));
    OVERLAP(activation_backward, a->grad_input, "grad_input", LAST(w.y_grad));
    BAD(activation_backward, a->grad_input.data = w.gate_up; a->grad_input.ld = 2 * N + 1, OVERLAP, "grad_input.data", 0, 1);
    BAD(activation_backward, a->grad_input.data = w.gate_up; a->grad_input.dtype = TEGROUP_DTYPE_BF16, OVERLAP, "grad_input.data", 0, 1);
    OVERLAP(activation_backward, a->grad_row_scale, "grad_row_scale", LAST(w.gate_up));
    OVERLAP(activation_backward, a->grad_row_scale, "grad_row_scale", w.row_scale);
    OVERLAP(activation_backward, a->grad_row_scale, "grad_row_scale", LAST(w.y_grad));
    OVERLAP(activation_backward, a->grad_row_scale, "grad_row_scale", LAST(w.gate_up_grad));
    BAD(activation_backward, a->grad_input.data = w.snapshot + 256, OVERLAP, "grad_input.data", 0, 1);
    BAD(activation_backward, a->grad_row_scale.data = w.snapshot + 256, OVERLAP, "grad_row_scale.data", 0, 1);
    OTHER_SNAPSHOT(activation_backward, a->snapshot, "snapshot");
    NO_GPU(activation_backward, w.activation_backward);

    spoil_nothing(); /* in place is allowed */
    a->grad_input.data = w.gate_up;
    GOOD(activation_backward);
}

/* What both directions of the router check alike. */
#define ROUTER(call, r)                                                                                         \
    RANGE(call, r->experts, "experts", int32_t, 1, TEGROUP_MAX_GROUPS);                                         \
    RANGE(call, r->k, "k", int32_t, 1, 64);                                                                     \
    BAD(call, r->k = EXPERTS + 1, VALUE, "k", EXPERTS, EXPERTS + 1);                                            \
    RANGE(call, r->normalize, "normalize", int32_t, 0, 1);                                                      \
    BAD(call, r->balance_coefficient = -0.5, VALUE, "balance_coefficient", real(0), real(-0.5));                                    \
    BAD(call, r->balance_coefficient = (double)NAN, VALUE, "balance_coefficient", real(0), real((double)NAN))

/* Nothing is read of so many tokens. */
static void router_of_many(int64_t tokens) {
    w.router.logits.rows = w.router.probabilities.rows = w.router.weights.rows = w.router.indices.rows = tokens;
}

TEST(status, count) {
    tegroup_count_desc *c = &w.count;
    RANGE(count, c->groups, "groups", int32_t, 0, TEGROUP_MAX_GROUPS);
    REQUIRED(count, c->labels, "labels", INTEGERS);
    REQUIRED(count, c->counts, "counts", INTEGERS);
    REQUIRED(count, c->offsets, "offsets", INTEGERS); /* it has data */
    MATRIX(count, c->labels, "labels", INTEGERS);
    MATRIX(count, c->counts, "counts", INTEGERS);
    MATRIX(count, c->offsets, "offsets", INTEGERS);
    FREE_ROWS(count, c->labels, "labels");
    FIXED(count, c->counts, "counts");
    FIXED(count, c->offsets, "offsets");
    BAD(count, c->labels.rows = INT64_C(1) << 30; c->counts.dtype = TEGROUP_DTYPE_I32, DTYPE, "counts.dtype", I64, TEGROUP_DTYPE_I32);
    BAD(count, c->labels.rows = INT64_C(1) << 30; c->offsets.dtype = TEGROUP_DTYPE_I32, DTYPE, "offsets.dtype", I64, TEGROUP_DTYPE_I32);
    OVERLAP(count, c->counts, "counts", w.indices);
    OVERLAP(count, c->offsets, "offsets", w.indices);
    OVERLAP(count, c->offsets, "offsets", LAST(w.counts_out));
    NO_GPU(count, w.count);
}

TEST(status, count_of_slots) {
    tegroup_count_desc *c = &w.count_slots;
    BAD(count, w.count.block = 2, VALUE, "block", 1, 2);
    BAD(count, w.count.block = -1, VALUE, "block", 1, -1);
    RANGE(count_slots, c->block, "block", int64_t, 0, TEGROUP_MAX_COLS);
    REQUIRED(count_slots, c->starts, "starts", INTEGERS); /* they have data */
    REQUIRED(count_slots, c->slot_of_row, "slot_of_row", INTEGERS);
    REQUIRED(count_slots, c->padded_rows, "padded_rows", INTEGERS);
    REQUIRED(count_slots, c->row_of_slot, "row_of_slot", INTEGERS);
    MATRIX(count_slots, c->labels, "labels", INTEGERS);
    MATRIX(count_slots, c->starts, "starts", INTEGERS);
    MATRIX(count_slots, c->slot_of_row, "slot_of_row", INTEGERS);
    MATRIX(count_slots, c->padded_rows, "padded_rows", INTEGERS);
    MATRIX(count_slots, c->row_of_slot, "row_of_slot", INTEGERS);
    FIXED(count_slots, c->labels, "labels");
    FIXED(count_slots, c->starts, "starts");
    FIXED_ROWS(count_slots, c->slot_of_row, "slot_of_row");
    FIXED(count_slots, c->padded_rows, "padded_rows");
    FREE_ROWS(count_slots, c->row_of_slot, "row_of_slot");
    BAD(count, w.count.padded_rows = c->padded_rows, COMBINATION, "padded_rows.dtype", TEGROUP_DTYPE_UNSET, TEGROUP_DTYPE_I64);
    BAD(count, w.count.row_of_slot = c->row_of_slot, COMBINATION, "row_of_slot.dtype", TEGROUP_DTYPE_UNSET, TEGROUP_DTYPE_I64);
    BAD(count_slots, memset(&c->row_of_slot, 0, sizeof c->row_of_slot), UNSET, "row_of_slot.dtype", INTEGERS, 0);
    BAD(count_slots, c->slot_of_row.cols = TEGROUP_MAX_COLS; c->row_of_slot.dtype = TEGROUP_DTYPE_I32, DTYPE, "row_of_slot.dtype", I64, TEGROUP_DTYPE_I32);
    BAD(count, w.count.labels.rows = INT64_C(1) << 30; w.count.starts = c->starts; w.count.starts.dtype = TEGROUP_DTYPE_I32, DTYPE, "starts.dtype", I64, TEGROUP_DTYPE_I32);
    OVERLAP(count_slots, c->starts, "starts", w.indices);
    OVERLAP(count_slots, c->starts, "starts", w.slot_of_row);
    OVERLAP(count_slots, c->counts, "counts", w.ends_out);
    OVERLAP(count_slots, c->row_of_slot, "row_of_slot", w.slot_of_row);
    OVERLAP(count_slots, c->row_of_slot, "row_of_slot", w.starts);
    OVERLAP(count_slots, c->offsets, "offsets", w.row_of_slot_out);
    NO_GPU(count_slots, w.count_slots);
}

TEST(status, export) {
    tegroup_export_desc *d = &w.exports;
    RANGE(export, d->shape.groups, "shape.groups", int32_t, 0, TEGROUP_MAX_GROUPS);
    RANGE(export, d->shape.rows, "shape.rows", int64_t, 0, TEGROUP_MAX_COLS);
    RANGE(export, d->from.rows, "from.rows", int64_t, 0, TEGROUP_MAX_COLS);
    RANGE(export, d->block, "block", int64_t, 0, TEGROUP_MAX_COLS);
    RANGE(export, d->slots, "slots", int64_t, 0, TEGROUP_MAX_COLS);
    NOT_NEGATIVE(export, d->threads, "threads");
    BAD(export, d->threads = INT32_MIN, VALUE, "threads", 0, INT32_MIN);
    BAD(export, d->from.groups--, SHAPE, "from.groups", EXPERTS, EXPERTS - 1);
    BAD(export, d->from.groups++, SHAPE, "from.groups", EXPERTS, EXPERTS + 1);
    BAD(export, d->shape.row_sizes.space = TEGROUP_SPACE_DEVICE, COMBINATION, "shape.row_sizes.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(export, d->from.row_sizes.space = TEGROUP_SPACE_DEVICE, COMBINATION, "from.row_sizes.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(export, d->shape.snapshot = NULL, NULL_ARGUMENT, "shape.snapshot", 1, 0);
    BAD(export, d->from.snapshot = NULL, NULL_ARGUMENT, "from.snapshot", 1, 0);
    OTHER_SNAPSHOT(export, d->shape.snapshot, "shape.snapshot");
    OTHER_SNAPSHOT(export, d->from.snapshot, "from.snapshot");
    BAD(export, snapshot_at(&d->shape.snapshot)->groups--, CAPACITY, "shape.snapshot", EXPERTS, EXPERTS - 1);
    BAD(export, snapshot_at(&d->from.snapshot)->groups++, CAPACITY, "from.snapshot", EXPERTS, EXPERTS + 1);
#define EXPORTED(m)                                          \
    REQUIRED(export, d->m, #m, INTEGERS); /* it has data */  \
    MATRIX(export, d->m, #m, INTEGERS);                      \
    FIXED(export, d->m, #m);                                 \
    OVERLAP(export, d->m, #m, w.slot_of_row);                \
    OVERLAP(export, d->m, #m, w.snapshot)
    EXPORTED(counts);
    EXPORTED(offsets);
    EXPORTED(ends);
    EXPORTED(labels);
    MATRIX(export, d->sorted_ids, "sorted_ids", INTEGERS);
    FIXED(export, d->sorted_ids, "sorted_ids");
    MATRIX(export, d->source_rows, "source_rows", INTEGERS);
    FIXED(export, d->source_rows, "source_rows");
    REQUIRED(export, d->slot_of_row, "slot_of_row", INTEGERS);
    MATRIX(export, d->slot_of_row, "slot_of_row", INTEGERS);
    FIXED(export, d->slot_of_row, "slot_of_row");
    OVERLAP(export, d->sorted_ids, "sorted_ids", w.slot_of_row);
    OVERLAP(export, d->source_rows, "source_rows", w.slot_of_row);
    OVERLAP(export, d->counts, "counts", w.ends_out);
    BAD(export, d->sorted_ids.dtype = TEGROUP_DTYPE_I32; d->slots = TEGROUP_MAX_COLS, DTYPE, "sorted_ids.dtype", I64, TEGROUP_DTYPE_I32);
    BAD(export, d->source_rows.dtype = TEGROUP_DTYPE_I32; d->from.rows = TEGROUP_MAX_COLS, DTYPE, "source_rows.dtype", I64, TEGROUP_DTYPE_I32);
    BAD(export, memset(&d->sorted_ids, 0, sizeof d->sorted_ids), COMBINATION, "slot_of_row.dtype", TEGROUP_DTYPE_UNSET, TEGROUP_DTYPE_I64);
    BAD(export, memset(&d->sorted_ids, 0, sizeof d->sorted_ids); memset(&d->slot_of_row, 0, sizeof d->slot_of_row), COMBINATION, "slots", 0, SLOTS);
    BAD(export, memset(&d->source_rows, 0, sizeof d->source_rows), COMBINATION, "from.snapshot", 0, 1);
    BAD(export, memset(&d->source_rows, 0, sizeof d->source_rows); d->from.snapshot = NULL, COMBINATION, "from.groups", 0, EXPERTS);
    BAD(export, memset(&d->source_rows, 0, sizeof d->source_rows); d->from.snapshot = NULL; d->from.groups = 0, COMBINATION, "from.rows", 0, ROWS);
    BAD(export, d->counts.dtype = d->offsets.dtype = d->ends.dtype = d->labels.dtype = TEGROUP_DTYPE_UNSET; d->counts.data = d->offsets.data = d->ends.data = d->labels.data = NULL;
        memset(&d->slot_of_row, 0, sizeof d->slot_of_row + sizeof d->slots + sizeof d->sorted_ids + sizeof d->from + sizeof d->source_rows), UNSET, "counts.dtype", INTEGERS, 0);
    NO_GPU(export, w.exports);
}

TEST(status, skew) {
    tegroup_skew_desc *d = &w.skew;
    RANGE(skew, d->shape.groups, "shape.groups", int32_t, 0, TEGROUP_MAX_GROUPS);
    RANGE(skew, d->shape.rows, "shape.rows", int64_t, 0, TEGROUP_MAX_COLS);
    RANGE(skew, d->tile_rows, "tile_rows", int64_t, 1, TEGROUP_MAX_COLS);
    RANGE(skew, d->row_bytes, "row_bytes", int64_t, 0, TEGROUP_MAX_COLS);
    BAD(skew, d->shape.row_sizes.space = TEGROUP_SPACE_DEVICE, COMBINATION, "shape.row_sizes.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(skew, d->shape.snapshot = NULL, NULL_ARGUMENT, "shape.snapshot", 1, 0);
    OTHER_SNAPSHOT(skew, d->shape.snapshot, "shape.snapshot");
    BAD(skew, snapshot_at(&d->shape.snapshot)->groups--, CAPACITY, "shape.snapshot", EXPERTS, EXPERTS - 1);
    BAD(skew, d->result = NULL, NULL_ARGUMENT, "result", 1, 0);
    ALIGNED(skew, d->result, "result", 8);
    BAD(skew, d->result = (tegroup_skew *)(void *)w.snapshot, OVERLAP, "result", 0, 1);
    NO_GPU(skew, w.skew);
}

TEST(status, router) {
    tegroup_router_desc *r = &w.router;
    ROUTER(router, r);
    REQUIRED(router, r->logits, "logits", FLOATS);
    REQUIRED(router, r->probabilities, "probabilities", REALS); /* they have data */
    REQUIRED(router, r->weights, "weights", F32);
    REQUIRED(router, r->indices, "indices", INTEGERS);
    REQUIRED(router, r->counts, "counts", INTEGERS);
    BAD(router, memset(&r->probabilities, 0, sizeof r->probabilities), UNSET, "probabilities.dtype", REALS, 0); /* the loss needs both */
    BAD(router, memset(&r->counts, 0, sizeof r->counts), UNSET, "counts.dtype", INTEGERS, 0);
    BAD(router, memset(&r->probabilities, 0, sizeof(tegroup_matrix) * 4); r->balance_loss = NULL, UNSET, "probabilities.dtype", REALS, 0);
    BAD(router, memset(&r->probabilities, 0, sizeof r->probabilities); r->balance_loss = NULL; r->weights.dtype = TEGROUP_DTYPE_F16, DTYPE, "weights.dtype", REALS,
        TEGROUP_DTYPE_F16);
    BAD(router, router_of_many(INT64_C(1) << 30); r->counts.dtype = TEGROUP_DTYPE_I32, DTYPE, "counts.dtype", I64, TEGROUP_DTYPE_I32);
    MATRIX(router, r->logits, "logits", FLOATS);
    MATRIX(router, r->probabilities, "probabilities", REALS);
    MATRIX(router, r->weights, "weights", F32);
    MATRIX(router, r->indices, "indices", INTEGERS);
    MATRIX(router, r->counts, "counts", INTEGERS);
    NOT_NEGATIVE(router, r->threads, "threads");
    BAD(router, r->threads = INT32_MIN, VALUE, "threads", 0, INT32_MIN);
    BAD(router, r->weights.dtype = TEGROUP_DTYPE_F64, DTYPE, "weights.dtype", F32, TEGROUP_DTYPE_F64);
    FREE_ROWS(router, r->logits, "logits");
    FIXED_COLS(router, r->logits, "logits");
    FIXED(router, r->probabilities, "probabilities");
    FIXED(router, r->weights, "weights");
    FIXED(router, r->indices, "indices");
    FIXED(router, r->counts, "counts");
    ALIGNED(router, r->balance_loss, "balance_loss", 8);
    OVERLAP(router, r->probabilities, "probabilities", LAST(w.logits));
    OVERLAP(router, r->weights, "weights", LAST(w.logits));
    OVERLAP(router, r->weights, "weights", LAST(w.probabilities_out));
    OVERLAP(router, r->indices, "indices", LAST(w.logits));
    OVERLAP(router, r->indices, "indices", LAST(w.probabilities_out));
    OVERLAP(router, r->indices, "indices", LAST(w.weights_out));
    OVERLAP(router, r->counts, "counts", w.logits);
    OVERLAP(router, r->counts, "counts", w.probabilities_out);
    OVERLAP(router, r->counts, "counts", w.weights_out);
    OVERLAP(router, r->counts, "counts", w.indices_out);
    BAD(router, r->balance_loss = (double *)(void *)w.logits, OVERLAP, "balance_loss", 0, 1);
    BAD(router, r->balance_loss = (double *)(void *)w.probabilities_out, OVERLAP, "balance_loss", 0, 1);
    BAD(router, r->balance_loss = (double *)(void *)w.weights_out, OVERLAP, "balance_loss", 0, 1);
    BAD(router, r->balance_loss = (double *)(void *)w.indices_out, OVERLAP, "balance_loss", 0, 1);
    BAD(router, r->balance_loss = (double *)(void *)w.counts_out, OVERLAP, "balance_loss", 0, 1);
    ALIGNED(router, r->workspace, "workspace", TEGROUP_ALIGNMENT);
    NO_GPU(router, w.router);
}

TEST(status, router_backward) {
    tegroup_router_backward_desc *r = &w.router_backward;
    ROUTER(router_backward, r);
    NOT_NEGATIVE(router_backward, r->threads, "threads");
    BAD(router_backward, r->threads = INT32_MIN, VALUE, "threads", 0, INT32_MIN);
    REQUIRED(router_backward, r->probabilities, "probabilities", REALS);
    REQUIRED(router_backward, r->indices, "indices", INTEGERS);
    REQUIRED(router_backward, r->counts, "counts", INTEGERS);
    REQUIRED(router_backward, r->grad_weights, "grad_weights", F32);
    REQUIRED(router_backward, r->grad_logits, "grad_logits", FLOATS);
    MATRIX(router_backward, r->probabilities, "probabilities", REALS);
    MATRIX(router_backward, r->indices, "indices", INTEGERS);
    MATRIX(router_backward, r->counts, "counts", INTEGERS);
    MATRIX(router_backward, r->grad_weights, "grad_weights", F32);
    MATRIX(router_backward, r->grad_logits, "grad_logits", FLOATS);
    FREE_ROWS(router_backward, r->probabilities, "probabilities");
    FIXED_COLS(router_backward, r->probabilities, "probabilities");
    FIXED(router_backward, r->indices, "indices");
    FIXED(router_backward, r->counts, "counts");
    FIXED(router_backward, r->grad_weights, "grad_weights");
    FIXED(router_backward, r->grad_logits, "grad_logits");
    OVERLAP(router_backward, r->grad_logits, "grad_logits", LAST(w.probabilities));
    OVERLAP(router_backward, r->grad_logits, "grad_logits", LAST(w.indices));
    OVERLAP(router_backward, r->grad_logits, "grad_logits", LAST(w.counts));
    OVERLAP(router_backward, r->grad_logits, "grad_logits", LAST(w.weights_grad));
    spoil_nothing(); /* counts are ignored without the loss */
    r->balance_coefficient = 0;
    r->counts.data = r->grad_logits.data;
    GOOD(router_backward);
    NO_GPU(router_backward, w.router_backward);
}

/* A router's scheme, of both calls alike. */
static float scheme_bias[EXPERTS];
static int32_t scheme_given[TOKENS * CHOICES];
static uint8_t scheme_mask[TOKENS];
static int64_t scheme_valid[2];
static double scheme_out[2 + TOKENS * (EXPERTS + 1)];
static void scheme_biased(tegroup_router_scheme *s) { s->bias = tegroup_matrix_of(scheme_bias, 1, EXPERTS, TEGROUP_DTYPE_F32); }
static void scheme_gives(tegroup_router_scheme *s) { s->given_indices = tegroup_matrix_of(scheme_given, TOKENS, CHOICES, TEGROUP_DTYPE_I32); }
#define SCHEME(call, s, plain)                                                                                                          \
    BAD(call, plain; s->score = (tegroup_score)3, VALUE, "scheme.score", TEGROUP_SCORE_SQRT_SOFTPLUS, 3);                               \
    BAD(call, plain; s->score = (tegroup_score)-1, VALUE, "scheme.score", TEGROUP_SCORE_SQRT_SOFTPLUS, -1);                             \
    BAD(call, plain; s->n_group = 1; s->topk_group = 1, VALUE, "scheme.n_group", 64, 1);                                                \
    BAD(call, plain; s->n_group = 65; s->topk_group = 1, VALUE, "scheme.n_group", 64, 65);                                              \
    BAD(call, plain; s->n_group = EXPERTS + 1; s->topk_group = EXPERTS, VALUE, "scheme.n_group", EXPERTS, EXPERTS + 1);                 \
    BAD(call, plain; s->n_group = EXPERTS, VALUE, "scheme.topk_group", EXPERTS, 0);                                                     \
    BAD(call, plain; s->n_group = EXPERTS; s->topk_group = EXPERTS + 1, VALUE, "scheme.topk_group", EXPERTS, EXPERTS + 1);              \
    BAD(call, plain; s->topk_group = 1, VALUE, "scheme.topk_group", 0, 1);                                                              \
    BAD(call, plain; s->n_group = EXPERTS; s->topk_group = CHOICES - 1, VALUE, "scheme.topk_group", CHOICES, CHOICES - 1);              \
    BAD(call, plain; s->n_group = EXPERTS; s->topk_group = CHOICES; s->group_score = (tegroup_group_score)2, VALUE, "scheme.group_score", 1, 2); \
    BAD(call, plain; s->group_score = TEGROUP_GROUP_SCORE_MAX, COMBINATION, "scheme.group_score", 0, 1);                                \
    BAD(call, plain; s->bias.data = scheme_bias, UNSET, "scheme.bias.dtype", REALS, 0);                                                 \
    BAD(call, plain; scheme_biased(s); s->bias.dtype = TEGROUP_DTYPE_BF16, DTYPE, "scheme.bias.dtype", REALS, TEGROUP_DTYPE_BF16);      \
    BAD(call, plain; scheme_biased(s); s->bias.cols--, SHAPE, "scheme.bias.cols", EXPERTS, EXPERTS - 1);                                \
    BAD(call, plain; scheme_biased(s); s->bias.rows++, SHAPE, "scheme.bias.rows", 1, 2);                                                \
    BAD(call, plain; s->normalize_epsilon = -1, VALUE, "scheme.normalize_epsilon", real(3.4028234663852886e38), real(-1));          \
    BAD(call, plain; s->normalize_epsilon = (double)NAN, VALUE, "scheme.normalize_epsilon", real(3.4028234663852886e38), real((double)NAN));\
    BAD(call, plain; s->route_factor = -2.5, VALUE, "scheme.route_factor", real(3.4028234663852886e38), real(-2.5));                \
    BAD(call, plain; s->route_factor = (double)INFINITY, VALUE, "scheme.route_factor", real(3.4028234663852886e38), real((double)INFINITY));\
    BAD(call, plain; scheme_gives(s); s->given_indices.dtype = TEGROUP_DTYPE_F32, DTYPE, "scheme.given_indices.dtype", INTEGERS, TEGROUP_DTYPE_F32); \
    BAD(call, plain; scheme_gives(s); s->given_indices.cols--, SHAPE, "scheme.given_indices.cols", CHOICES, CHOICES - 1);               \
    BAD(call, plain; scheme_gives(s); s->given_indices.rows--, SHAPE, "scheme.given_indices.rows", TOKENS, TOKENS - 1);                 \
    BAD(call, plain; scheme_gives(s); scheme_biased(s), COMBINATION, "scheme.bias.dtype", 0, TEGROUP_DTYPE_F32);                        \
    BAD(call, plain; scheme_gives(s); s->n_group = EXPERTS; s->topk_group = CHOICES, COMBINATION, "scheme.n_group", 0, EXPERTS);        \
    BAD(call, plain; s->sequence_tokens = -1, VALUE, "scheme.sequence_tokens", 0, -1);                                                  \
    BAD(call, plain; s->sequence_tokens = TOKENS + 1, SHAPE, "scheme.sequence_tokens", TOKENS, TOKENS + 1);                             \
    BAD(call, plain; s->z_coefficient = -1, VALUE, "scheme.z_coefficient", real(0), real(-1));                                      \
    BAD(call, plain; s->z_coefficient = (double)NAN, VALUE, "scheme.z_coefficient", real(0), real((double)NAN))

static void scheme_without_loss(void) { w.router_backward.balance_coefficient = 0; }
static tegroup_matrix scheme_gradients(void) { return tegroup_matrix_of(scheme_out + 2, 1, EXPERTS + 1, TEGROUP_DTYPE_F64); }

TEST(status, router_scheme) {
    tegroup_router_desc *r = &w.router;
    tegroup_router_scheme *s = &r->scheme;
    SCHEME(router, s, (void)0);
    SCHEME(router_layout, s, (void)0);
    BAD(router, scheme_biased(s); s->bias.data = NULL, NULL_ARGUMENT, "scheme.bias.data", 1, 0);
    BAD(router, scheme_gives(s); s->given_indices.data = NULL, NULL_ARGUMENT, "scheme.given_indices.data", 1, 0);
    spoil_nothing(); /* a layout reads sizes alone */
    scheme_biased(s);
    s->bias.data = NULL;
    GOOD(router_layout);
    spoil_nothing();
    scheme_gives(s);
    s->given_indices.data = NULL;
    GOOD(router_layout);
    BAD(router_layout, s->score = TEGROUP_SCORE_SIGMOID; r->logits.rows = -1, VALUE, "logits.rows", TEGROUP_MAX_ROWS, -1);
    BAD(router, r->normalize = 0; s->normalize_epsilon = 1, COMBINATION, "scheme.normalize_epsilon", real(0), real(1));
    BAD(router, r->z_loss = (double *)(void *)((char *)scheme_out + 1), ALIGNMENT, "z_loss", 8, 1);
    BAD(router, r->loss_gradients = scheme_gradients(); r->loss_gradients.dtype = TEGROUP_DTYPE_F32, DTYPE, "loss_gradients.dtype", 1 << TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F32);
    BAD(router, r->loss_gradients = scheme_gradients(); r->loss_gradients.cols--, SHAPE, "loss_gradients.cols", EXPERTS + 1, EXPERTS);
    BAD(router, r->loss_gradients = scheme_gradients(); s->sequence_tokens = 1, SHAPE, "loss_gradients.rows", TOKENS, 1);
    BAD(router, r->loss_gradients = scheme_gradients(); memset(&r->indices, 0, sizeof r->indices), UNSET, "indices.dtype", INTEGERS, 0);
    BAD(router, s->score = TEGROUP_SCORE_SIGMOID; memset(&r->indices, 0, sizeof r->indices), UNSET, "indices.dtype", INTEGERS, 0);
    BAD(router, r->z_loss = r->balance_loss, OVERLAP, "balance_loss", 0, 1);
    BAD(router, r->loss_gradients = scheme_gradients(); r->z_loss = scheme_out + 2, OVERLAP, "z_loss", 0, 1);
    BAD(router, r->loss_gradients = scheme_gradients(); r->loss_gradients.data = r->logits.data, OVERLAP, "loss_gradients.data", 0, 1);
    BAD(router, s->bias = tegroup_matrix_of(r->weights.data, 1, EXPERTS, TEGROUP_DTYPE_F32), OVERLAP, "weights.data", 0, 1);
    BAD(router, scheme_gives(s); s->given_indices.data = r->indices.data, OVERLAP, "indices.data", 0, 1);
    BAD(router, s->token_mask = (const uint8_t *)r->counts.data, OVERLAP, "counts.data", 0, 1);
    BAD(router, s->valid_tokens = (int64_t *)(void *)((char *)scheme_valid + 1), ALIGNMENT, "scheme.valid_tokens", 8, 1);
    BAD(router, s->valid_tokens = (const int64_t *)r->counts.data, OVERLAP, "counts.data", 0, 1);
    spoil_nothing(); /* counts are not needed with a scheme */
    s->score = TEGROUP_SCORE_SIGMOID, s->token_mask = memset(scheme_mask, 1, sizeof scheme_mask), s->valid_tokens = scheme_valid;
    memset(&r->counts, 0, sizeof r->counts);
    r->z_loss = scheme_out, r->loss_gradients = scheme_gradients();
    GOOD(router);
}

TEST(status, router_scheme_backward) {
    tegroup_router_backward_desc *r = &w.router_backward;
    tegroup_router_scheme *s = &r->scheme;
    SCHEME(router_backward, s, scheme_without_loss());
    BAD(router_backward, scheme_without_loss(); s->valid_tokens = (int64_t *)(void *)((char *)scheme_valid + 1), ALIGNMENT, "scheme.valid_tokens", 8, 1);
    BAD(router_backward, s->score = TEGROUP_SCORE_SIGMOID, COMBINATION, "balance_coefficient", real(0), real(0.01));
    BAD(router_backward, r->loss_scale = (double)NAN, VALUE, "loss_scale", real(1.7976931348623157e308), real((double)NAN));
    BAD(router_backward, r->loss_scale = -(double)INFINITY, VALUE, "loss_scale", real(1.7976931348623157e308), real(-(double)INFINITY));
    BAD(router_backward, r->loss_gradients = scheme_gradients(), COMBINATION, "balance_coefficient", real(0), real(0.01));
    BAD(router_backward, scheme_without_loss(); s->z_coefficient = 1, UNSET, "loss_gradients.dtype", 1 << TEGROUP_DTYPE_F64, 0);
    BAD(router_backward, scheme_without_loss(); r->loss_gradients = scheme_gradients(); s->z_coefficient = 1, UNSET, "logits.dtype", FLOATS, 0);
    BAD(router_backward, scheme_without_loss(); r->loss_gradients = scheme_gradients(); r->loss_gradients.cols++, SHAPE, "loss_gradients.cols", EXPERTS + 1, EXPERTS + 2);
    BAD(router_backward, scheme_without_loss(); r->loss_gradients = scheme_gradients(); r->grad_logits.data = scheme_out + 2, OVERLAP, "grad_logits.data", 0, 1);
    BAD(router_backward, scheme_without_loss(); scheme_biased(s); r->grad_logits.data = scheme_bias, OVERLAP, "grad_logits.data", 0, 1);
    spoil_nothing(); /* logits are ignored without the z-loss */
    scheme_without_loss();
    r->loss_gradients = scheme_gradients();
    r->logits.data = r->grad_logits.data;
    GOOD(router_backward);
}

static float permutation_weights[TOKENS * CHOICES];
static void permutation_weighs(void) { w.permutation.weights = tegroup_matrix_of(permutation_weights, TOKENS, CHOICES, TEGROUP_DTYPE_F32); }
TEST(status, permutation_weights) {
    tegroup_permutation_desc *p = &w.permutation;
    BAD(permutation, p->weights.data = permutation_weights, UNSET, "weights.dtype", REALS, 0);
    BAD(permutation, permutation_weighs(); p->weights.dtype = TEGROUP_DTYPE_BF16, DTYPE, "weights.dtype", REALS, TEGROUP_DTYPE_BF16);
    BAD(permutation, permutation_weighs(); p->weights.rows++, SHAPE, "weights.rows", TOKENS, TOKENS + 1);
    BAD(permutation, permutation_weighs(); p->weights.cols--, SHAPE, "weights.cols", CHOICES, CHOICES - 1);
    BAD(permutation, permutation_weighs(); p->weights.data = NULL, NULL_ARGUMENT, "weights.data", 1, 0);
    BAD(permutation, permutation_weighs(); p->weights.data = p->row_of_slot.data, OVERLAP, "row_of_slot.data", 0, 1);
    BAD(permutation, permutation_weighs(); p->weights.data = p->slot_of_row.data, OVERLAP, "slot_of_row.data", 0, 1);
    spoil_nothing();
    permutation_weighs();
    GOOD(permutation);
}

static _Alignas(TEGROUP_ALIGNMENT) unsigned char permutation_snapshot[8192];
static void permutation_prepares(void) {
    w.permutation.shape.snapshot = NULL;
    memset(&w.permutation.shape.row_sizes, 0, sizeof w.permutation.shape.row_sizes);
    w.permutation.snapshot = permutation_snapshot;
    w.permutation.snapshot_bytes = sizeof permutation_snapshot;
}
TEST(status, permutation_prepares) {
    tegroup_permutation_desc *p = &w.permutation;
    tegroup_layout layout;
    spoil_nothing();
    ASSERT_EQ(TEGROUP_OK, tegroup_snapshot_layout(&p->shape, &layout, NULL));
    BAD(permutation, permutation_prepares(); p->shape.snapshot = w.snapshot, COMBINATION, "shape.snapshot", 0, 1);
    BAD(permutation, permutation_prepares(); p->snapshot_bytes = layout.total_bytes - 1, WORKSPACE, "snapshot_bytes", layout.total_bytes, layout.total_bytes - 1);
    BAD(permutation, permutation_prepares(); p->snapshot = permutation_snapshot + 8, ALIGNMENT, "snapshot", TEGROUP_ALIGNMENT, 8);
    BAD(permutation, permutation_prepares(); p->shape.row_sizes.alignment = -1, VALUE, "shape.row_sizes.alignment", TEGROUP_MAX_ROWS, -1);
    BAD(permutation, permutation_prepares(); p->shape.row_sizes.data_space = TEGROUP_SPACE_DEVICE, COMBINATION, "shape.row_sizes.data_space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    BAD(permutation, permutation_prepares(); p->shape.col_sizes = tegroup_sizes_of(p->row_of_slot.data, TEGROUP_DTYPE_I32, TEGROUP_SPACE_HOST), OVERLAP, "row_of_slot.data", 0, 1);
    BAD(permutation, permutation_prepares(); p->row_of_slot.data = permutation_snapshot, OVERLAP, "row_of_slot.data", 0, 1);
    BAD(permutation, permutation_prepares(); p->indices.data = permutation_snapshot, OVERLAP, "snapshot", 0, 1);
    spoil_nothing();
    permutation_prepares();
    GOOD(permutation);
    p->shape.snapshot = p->snapshot;
    GOOD(permutation);
}

static float permutation_row_weights[1024];
static void permutation_gives_weights(void) {
    w.permutation.slot_weights = tegroup_matrix_of(permutation_weights, TOKENS, CHOICES, TEGROUP_DTYPE_F32);
    w.permutation.row_weights = tegroup_matrix_of(permutation_row_weights, 1, w.permutation.shape.rows, TEGROUP_DTYPE_F32);
}
TEST(status, permutation_row_weights) {
    tegroup_permutation_desc *p = &w.permutation;
    spoil_nothing();
    ASSERT_LE(p->shape.rows, 1024);
    BAD(permutation, permutation_gives_weights(); memset(&p->row_weights, 0, sizeof p->row_weights), COMBINATION, "slot_weights.dtype", 0, 1);
    BAD(permutation, permutation_gives_weights(); memset(&p->slot_weights, 0, sizeof p->slot_weights), COMBINATION, "slot_weights.dtype", 1, 0);
    BAD(permutation, permutation_gives_weights(); p->slot_weights.dtype = TEGROUP_DTYPE_BF16, DTYPE, "slot_weights.dtype", REALS, TEGROUP_DTYPE_BF16);
    BAD(permutation, permutation_gives_weights(); p->row_weights.dtype = TEGROUP_DTYPE_BF16, DTYPE, "row_weights.dtype", REALS, TEGROUP_DTYPE_BF16);
    BAD(permutation, permutation_gives_weights(); p->slot_weights.dtype = TEGROUP_DTYPE_F64, DTYPE, "row_weights.dtype", TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F32);
    BAD(permutation, permutation_gives_weights(); p->slot_weights.rows++, SHAPE, "slot_weights.rows", TOKENS, TOKENS + 1);
    BAD(permutation, permutation_gives_weights(); p->row_weights.cols--, SHAPE, "row_weights.cols", p->shape.rows, p->shape.rows - 1);
    BAD(permutation, permutation_gives_weights(); p->row_weights.data = NULL, NULL_ARGUMENT, "row_weights.data", 1, 0);
    BAD(permutation, permutation_gives_weights(); p->row_weights.data = p->indices.data, OVERLAP, "row_weights.data", 0, 1);
    spoil_nothing();
    permutation_gives_weights();
    GOOD(permutation);
}

TEST(status, permutation) {
    tegroup_permutation_desc *p = &w.permutation;
    RANGE(permutation, p->shape.groups, "shape.groups", int32_t, 0, TEGROUP_MAX_GROUPS);
    RANGE(permutation, p->shape.rows, "shape.rows", int64_t, 0, TEGROUP_MAX_COLS);
    NOT_NEGATIVE(permutation, p->threads, "threads");
    BAD(permutation, p->threads = INT32_MIN, VALUE, "threads", 0, INT32_MIN);
    BAD(permutation, p->shape.row_sizes.space = TEGROUP_SPACE_DEVICE, COMBINATION, "shape.row_sizes.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    REQUIRED(permutation, p->indices, "indices", INTEGERS);
    REQUIRED(permutation, p->row_of_slot, "row_of_slot", INTEGERS);
    REQUIRED(permutation, p->slot_of_row, "slot_of_row", INTEGERS);
    MATRIX(permutation, p->indices, "indices", INTEGERS);
    MATRIX(permutation, p->row_of_slot, "row_of_slot", INTEGERS);
    MATRIX(permutation, p->slot_of_row, "slot_of_row", INTEGERS);
    BAD(permutation, p->shape.rows = TEGROUP_MAX_COLS; p->row_of_slot.dtype = TEGROUP_DTYPE_I32, DTYPE, "row_of_slot.dtype", I64, TEGROUP_DTYPE_I32);
    BAD(permutation, p->indices.rows = p->row_of_slot.rows = INT64_C(1) << 30; p->slot_of_row.dtype = TEGROUP_DTYPE_I32, DTYPE, "slot_of_row.dtype", I64, TEGROUP_DTYPE_I32);
    FREE_ROWS(permutation, p->indices, "indices");
    FIXED(permutation, p->row_of_slot, "row_of_slot");
    FIXED(permutation, p->slot_of_row, "slot_of_row");
    OVERLAP(permutation, p->row_of_slot, "row_of_slot", w.indices);
    OVERLAP(permutation, p->slot_of_row, "slot_of_row", w.indices);
    OVERLAP(permutation, p->slot_of_row, "slot_of_row", LAST(w.row_of_slot_out));
    BAD(permutation, p->row_of_slot.data = w.snapshot, OVERLAP, "row_of_slot.data", 0, 1);
    BAD(permutation, p->slot_of_row.data = w.snapshot + 256, OVERLAP, "slot_of_row.data", 0, 1);
    BAD(permutation, p->shape.snapshot = NULL, NULL_ARGUMENT, "shape.snapshot", 1, 0);
    OTHER_SNAPSHOT(permutation, p->shape.snapshot, "shape.snapshot");
    BAD(permutation, snapshot_at(&p->shape.snapshot)->groups--, CAPACITY, "shape.snapshot", EXPERTS, EXPERTS - 1);
    ALIGNED(permutation, p->workspace, "workspace", TEGROUP_ALIGNMENT);
    NO_GPU(permutation, w.permutation);
}

/* Workspaces: nothing on the host, and on a GPU what the sizes ask for. */
TEST(status, operation_layouts) {
    spoil_nothing();
    w.router.experts = TEGROUP_MAX_GROUPS;
    GOOD(router_layout);
    tegroup_router_desc      *r = &w.router;
    tegroup_permutation_desc *p = &w.permutation;
    NOT(router_layout, NULL AND &w.layout, NULL_ARGUMENT, "desc", 1, 0);
    NOT(router_layout, &w.router AND NULL, NULL_ARGUMENT, "layout", 1, 0);
    NOT(permutation_layout, NULL AND &w.layout, NULL_ARGUMENT, "desc", 1, 0);
    NOT(permutation_layout, &w.permutation AND NULL, NULL_ARGUMENT, "layout", 1, 0);
    ROUTER(router_layout, r);
    RANGE(permutation_layout, p->shape.groups, "shape.groups", int32_t, 0, TEGROUP_MAX_GROUPS);
    RANGE(permutation_layout, p->shape.rows, "shape.rows", int64_t, 0, TEGROUP_MAX_COLS);
    RANGE(permutation_layout, p->indices.rows, "indices.rows", int64_t, 0, TEGROUP_MAX_ROWS);
    RANGE(permutation_layout, p->indices.cols, "indices.cols", int64_t, 0, TEGROUP_MAX_COLS);
    BAD(permutation_layout, p->space = TEGROUP_SPACE_DEVICE; p->indices.rows = TEGROUP_MAX_ROWS; p->indices.cols = TEGROUP_MAX_COLS; p->shape.groups = 4096,
        OVERFLOW, "indices.rows", ADDRESSABLE, TEGROUP_MAX_ROWS);
    /* 2^61 slots: the counts before each run are addressable, and four bytes a slot are not. */
    BAD(permutation_layout, p->space = TEGROUP_SPACE_DEVICE; p->indices.rows = TEGROUP_MAX_ROWS; p->indices.cols = INT64_C(1) << 21; p->weights.dtype = TEGROUP_DTYPE_F32,
        OVERFLOW, "indices.rows", ADDRESSABLE, TEGROUP_MAX_ROWS);
    spoil_nothing();
    GOOD(router_layout);
    ASSERT_EQ((size_t)0, w.layout.total_bytes);
    GOOD(permutation_layout);
    ASSERT_EQ((size_t)0, w.layout.total_bytes);
    r->space = p->space = TEGROUP_SPACE_DEVICE;
    GOOD(router_layout);
    ASSERT_EQ((size_t)(64 * 8 * EXPERTS), w.layout.total_bytes);
    r->balance_loss = NULL;
    GOOD(router_layout);
    ASSERT_EQ((size_t)0, w.layout.total_bytes);
    p->indices.rows = 1000;
    p->indices.cols = 3;
    GOOD(permutation_layout); /* six runs of 512 slots */
    ASSERT_EQ((size_t)512, w.layout.total_bytes);
    ASSERT_EQ((size_t)(6 * 8 * EXPERTS), w.layout.items[0].bytes);
    ASSERT_EQ((size_t)(8 * EXPERTS), w.layout.items[1].bytes);
    p->shape.groups = 4096; /* runs of 2048 */
    GOOD(permutation_layout);
    ASSERT_EQ((size_t)(3 * 8 * 4096), w.layout.total_bytes);
}

TEST(status, validate) {
    tegroup_tensor *t = &w.validate.tensor;
    BAD(validate, t->dtype = TEGROUP_DTYPE_UNSET, UNSET, "tensor.dtype", FLOATS, 0);
    BAD(validate, t->dtype = TEGROUP_DTYPE_I32, DTYPE, "tensor.dtype", tegroup_scaling_info(TEGROUP_SCALING_NONE)->data_dtypes, TEGROUP_DTYPE_I32);
    BAD(validate, t->dtype = TEGROUP_DTYPE_F8E5M2; t->scaling = TEGROUP_SCALING_TENSOR, NULL_ARGUMENT, "tensor.scale_inv", 1, 0);
    BAD(validate, w.validate.columnwise = 1, COMBINATION, "columnwise", 0, 1);
    BAD(validate, w.validate.columnwise = -1, VALUE, "columnwise", 1, -1);
    BAD(validate, t->shape.rows = -1, VALUE, "tensor.shape.rows", TEGROUP_MAX_ROWS, -1);
    BAD(validate, t->ld = K - 1, LAYOUT, "tensor.ld", K, K - 1);
    BAD(validate, t->shape.elements = 1, COMBINATION, "tensor.shape.col_sizes.encoding", 0, 1);
    BAD(validate, LISTED(*t, HOST), COMBINATION, "tensor.pointers_space", 0, TEGROUP_SPACE_HOST);
    BAD(validate, t->shape.snapshot = NULL, NULL_ARGUMENT, "tensor.shape.snapshot", 1, 0);
    ALIGNED(validate, t->shape.snapshot, "tensor.shape.snapshot", TEGROUP_ALIGNMENT);
    BAD(validate, t->data = NULL, NULL_ARGUMENT, "tensor.data", 1, 0);
    ALIGNED(validate, t->data, "tensor.data", 4);
    BAD(validate, w.validate.result = NULL, NULL_ARGUMENT, "result", 1, 0);
    ALIGNED(validate, w.validate.result, "result", 8);
    BAD(validate, w.validate.result = (tegroup_validation *)(void *)w.x, OVERLAP, "result", 0, 1);
    BAD(validate, w.validate.result = (tegroup_validation *)(void *)w.snapshot, OVERLAP, "result", 0, 1);
    BAD(validate, t->shape.row_sizes.space = TEGROUP_SPACE_DEVICE, COMBINATION, "tensor.shape.row_sizes.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    NO_GPU(validate, w.validate);
}

TEST(status, scale_convert) {
    tegroup_scale_convert_desc *s = &w.scale_convert;
    RANGE(scale_convert, s->columnwise, "columnwise", int32_t, 0, 1);
    NOT_NEGATIVE(scale_convert, s->threads, "threads");
    BAD(scale_convert, s->to.dtype = TEGROUP_DTYPE_F32, DTYPE, "to.dtype", 1u << TEGROUP_DTYPE_F8E4M3 | 1u << TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F32);
    BAD(scale_convert, s->from.shape.rows++, SHAPE, "to.shape.rows", N + 1, N);
    BAD(scale_convert, s->from.shape.cols++, SHAPE, "to.shape.cols", K + 1, K);
    BAD(scale_convert, s->from.shape.groups--, SHAPE, "to.shape.groups", EXPERTS - 1, EXPERTS);
    BAD(scale_convert, s->from.scale_parts = 3, SHAPE, "to.scale_parts", 3, 0);
    BAD(scale_convert, s->from.scaling = TEGROUP_SCALING_ROW, SHAPE, "to.scaling", TEGROUP_SCALING_ROW, TEGROUP_SCALING_MXFP8);
    BAD(scale_convert, s->from.scale_inv = NULL, NULL_ARGUMENT, "from.scale_inv", 1, 0);
    BAD(scale_convert, s->to.scale_inv = NULL, NULL_ARGUMENT, "to.scale_inv", 1, 0);
    BAD(scale_convert, s->columnwise = 1, NULL_ARGUMENT, "from.columnwise_scale_inv", 1, 0);
    BAD(scale_convert, s->to.scale_inv = w.weight, OVERLAP, "to.scale_inv", 0, 1);
    BAD(scale_convert, s->from.scale_inv = w.workspace + 2047, OVERLAP, "to.scale_inv", 0, 1);
    BAD(tensor_layout, s->from.scale_outer_stride = INT64_MAX / 23, OVERFLOW, "tensor.shape.rows", ADDRESSABLE, INT64_MAX);
    BAD(tensor_layout, s->from.scale_parts = 4, LAYOUT, "tensor.scale_parts", N, 4);
    NO_GPU(scale_convert, w.scale_convert);
}

/* The rest is in test_code_order.c. */
TEST(status, code_convert) {
    tegroup_code_convert_desc *c = &w.code_convert;
    RANGE(code_convert, c->columnwise, "columnwise", int32_t, 0, 1);
    NOT_NEGATIVE(code_convert, c->threads, "threads");
    BAD(code_convert, c->from.shape.rows++, SHAPE, "to.shape.rows", 4, 3);
    BAD(code_convert, c->to.data = (char *)w.weight + 32, OVERLAP, "to.data", 0, 1);
    NO_GPU(code_convert, w.code_convert);
}

/* The rest is in test_quantize.c, which shows that a spoilt call writes nothing. */
TEST(status, quantize) {
    tegroup_quantize_desc *q = &w.quantize;
    RANGE(quantize, q->interleaved, "interleaved", int32_t, 0, 1);
    NOT_NEGATIVE(quantize, q->threads, "threads");
    BAD(quantize, q->output.scaling = TEGROUP_SCALING_NONE; q->output.dtype = TEGROUP_DTYPE_F32, UNSET, "output.scaling", (1u << TEGROUP_SCALING_COUNT) - 2, 0);
    BAD(quantize, q->output.data = w.gate_up, OVERLAP, "output.data", 0, 1);
}

TEST(status, dequantize) {
    tegroup_dequantize_desc *d = &w.dequantize;
    RANGE(dequantize, d->columnwise, "columnwise", int32_t, 0, 1);
    NOT_NEGATIVE(dequantize, d->threads, "threads");
    BAD(dequantize, d->output.data = w.weight, OVERLAP, "output.data", 0, 1);
    BAD(dequantize, d->input.scale_inv = NULL, NULL_ARGUMENT, "input.scale_inv", 1, 0);
}

TEST(status, permute) {
    tegroup_permute_desc *p = &w.permute;
    RANGE(permute, p->k, "k", int32_t, 1, 64);
    REQUIRED(permute, p->tokens, "tokens", FLOATS | BYTES);
    REQUIRED(permute, p->slot_of_row, "slot_of_row", INTEGERS);
    REQUIRED(permute, p->permuted, "permuted", FLOATS);
    MATRIX(permute, p->tokens, "tokens", FLOATS);
    MATRIX(permute, p->slot_of_row, "slot_of_row", INTEGERS);
    BAD(permute, p->row_of_slot = p->slot_of_row, SHAPE, "row_of_slot.rows", p->tokens.rows, 1);
    BAD(permute, p->row_of_slot.data = p->slot_of_row.data, UNSET, "row_of_slot.dtype", INTEGERS, 0);
    BAD(permute, p->tokens.rows = p->weights.rows = INT64_C(1) << 30; p->slot_of_row.dtype = TEGROUP_DTYPE_I32, DTYPE, "slot_of_row.dtype", I64, TEGROUP_DTYPE_I32);
    BAD(permute, p->tokens.dtype = TEGROUP_DTYPE_F4E2M1, DTYPE, "tokens.dtype", FLOATS | BYTES, TEGROUP_DTYPE_F4E2M1);
    BAD(permute, memset(&p->weights, 0, sizeof p->weights); p->tokens.dtype = TEGROUP_DTYPE_I32, DTYPE, "permuted.dtype", I32, TEGROUP_DTYPE_F32);
    BAD(permute, memset(&p->weights, 0, sizeof p->weights); p->permuted.dtype = TEGROUP_DTYPE_I32, DTYPE, "permuted.dtype", FLOATS, TEGROUP_DTYPE_I32);
    MATRIX(permute, p->weights, "weights", REALS);
    NOT_NEGATIVE(permute, p->threads, "threads");
    BAD(permute, p->threads = INT32_MIN, VALUE, "threads", 0, INT32_MIN);
    BAD(permute, p->weights.dtype = TEGROUP_DTYPE_UNSET, UNSET, "weights.dtype", REALS, 0);
    MATRIX(permute, p->permuted, "permuted", FLOATS);
    FREE_ROWS(permute, p->tokens, "tokens");
    FIXED_ROWS(permute, p->slot_of_row, "slot_of_row");
    FIXED(permute, p->weights, "weights");
    FIXED(permute, p->permuted, "permuted");
    OVERLAP(permute, p->permuted, "permuted", LAST(w.tokens));
    OVERLAP(permute, p->permuted, "permuted", LAST(w.slot_of_row));
    OVERLAP(permute, p->permuted, "permuted", LAST(w.weights));
    spoil_nothing(); /* a map that is not read, since the other one is there, too */
    p->row_of_slot = tegroup_matrix_of(w.slot_of_row, p->tokens.rows, p->k, p->slot_of_row.dtype);
    p->slot_of_row.data = p->permuted.data;
    ASSERT_EQ(TEGROUP_ERROR_OVERLAP, call_permute(&error));
    ASSERT_STREQ("permuted.data", error.field);
    NO_GPU(permute, w.permute);
}

TEST(status, combine) {
    tegroup_combine_desc *c = &w.combine;
    NOT_NEGATIVE(combine, c->threads, "threads");
    BAD(combine, c->threads = INT32_MIN, VALUE, "threads", 0, INT32_MIN);
    BAD(combine, c->accumulate = 2, VALUE, "accumulate", 1, 2);
    BAD(combine, c->accumulate = 1; c->permuted.dtype = TEGROUP_DTYPE_F32; c->tokens.dtype = TEGROUP_DTYPE_F64, COMBINATION, "accumulate", 0, 1);
    REQUIRED(combine, c->permuted, "permuted", FLOATS);
    REQUIRED(combine, c->row_of_slot, "row_of_slot", INTEGERS);
    REQUIRED(combine, c->tokens, "tokens", FLOATS);
    MATRIX(combine, c->permuted, "permuted", FLOATS);
    MATRIX(combine, c->row_of_slot, "row_of_slot", INTEGERS);
    BAD(combine, c->permuted.rows = INT64_C(1) << 31; c->row_of_slot.dtype = TEGROUP_DTYPE_I32, DTYPE, "row_of_slot.dtype", I64, TEGROUP_DTYPE_I32);
    MATRIX(combine, c->weights, "weights", REALS);
    MATRIX(combine, c->tokens, "tokens", FLOATS);
    FREE_ROWS(combine, c->permuted, "permuted");
    FREE_ROWS(combine, c->row_of_slot, "row_of_slot");
    FIXED(combine, c->weights, "weights");
    FIXED(combine, c->tokens, "tokens");
    OVERLAP(combine, c->tokens, "tokens", LAST(w.old));
    OVERLAP(combine, c->tokens, "tokens", LAST(w.row_of_slot));
    OVERLAP(combine, c->tokens, "tokens", LAST(w.weights));
    NO_GPU(combine, w.combine);
}

TEST(status, combine_backward) {
    tegroup_combine_backward_desc *c = &w.combine_backward;
    REQUIRED(combine_backward, c->grad_tokens, "grad_tokens", FLOATS);
    REQUIRED(combine_backward, c->permuted, "permuted", FLOATS);
    REQUIRED(combine_backward, c->row_of_slot, "row_of_slot", INTEGERS);
    REQUIRED(combine_backward, c->grad_permuted, "grad_permuted", FLOATS);
    REQUIRED(combine_backward, c->grad_weights, "grad_weights", REALS); /* it has data */
    NOT_NEGATIVE(combine_backward, c->threads, "threads");
    BAD(combine_backward, c->threads = INT32_MIN, VALUE, "threads", 0, INT32_MIN);
    BAD(combine_backward, memset(&c->grad_weights, 0, sizeof c->grad_weights), COMBINATION, "permuted.dtype", TEGROUP_DTYPE_UNSET, c->permuted.dtype);
    BAD(combine_backward, memset(&c->grad_weights, 0, sizeof c->grad_weights); c->permuted.dtype = TEGROUP_DTYPE_UNSET, UNSET, "permuted.dtype", FLOATS, 0);
    MATRIX(combine_backward, c->grad_tokens, "grad_tokens", FLOATS);
    MATRIX(combine_backward, c->permuted, "permuted", FLOATS);
    MATRIX(combine_backward, c->row_of_slot, "row_of_slot", INTEGERS);
    BAD(combine_backward, c->grad_permuted.rows = INT64_C(1) << 31; c->row_of_slot.dtype = TEGROUP_DTYPE_I32, DTYPE, "row_of_slot.dtype", I64, TEGROUP_DTYPE_I32);
    MATRIX(combine_backward, c->weights, "weights", REALS);
    MATRIX(combine_backward, c->grad_permuted, "grad_permuted", FLOATS);
    MATRIX(combine_backward, c->grad_weights, "grad_weights", REALS);
    FREE_ROWS(combine_backward, c->grad_tokens, "grad_tokens");
    FREE_ROWS(combine_backward, c->grad_permuted, "grad_permuted");
    FIXED_ROWS(combine_backward, c->row_of_slot, "row_of_slot");
    FIXED(combine_backward, c->permuted, "permuted");
    FIXED(combine_backward, c->weights, "weights");
    FIXED_COLS(combine_backward, c->grad_permuted, "grad_permuted");
    FIXED(combine_backward, c->grad_weights, "grad_weights");
    OVERLAP(combine_backward, c->grad_permuted, "grad_permuted", LAST(w.tokens));
    OVERLAP(combine_backward, c->grad_permuted, "grad_permuted", LAST(w.old));
    OVERLAP(combine_backward, c->grad_permuted, "grad_permuted", LAST(w.row_of_slot));
    OVERLAP(combine_backward, c->grad_permuted, "grad_permuted", LAST(w.weights));
    OVERLAP(combine_backward, c->grad_weights, "grad_weights", LAST(w.tokens));
    OVERLAP(combine_backward, c->grad_weights, "grad_weights", LAST(w.old));
    OVERLAP(combine_backward, c->grad_weights, "grad_weights", LAST(w.row_of_slot));
    OVERLAP(combine_backward, c->grad_weights, "grad_weights", LAST(w.weights));
    OVERLAP(combine_backward, c->grad_weights, "grad_weights", LAST(w.rows_out));
    NO_GPU(combine_backward, w.combine_backward);
}

/* ---- The grouped linear layer -------------------------------------------------------------------------------- */

#define LINEAR_TENSOR(t, name, size)                                                                                                \
    BAD(linear_plan, w.linear.t.dtype = (tegroup_dtype)99, VALUE, name ".dtype", TEGROUP_DTYPE_COUNT - 1, 99);                      \
    BAD(linear_plan, w.linear.t.scaling = (tegroup_scaling)99, VALUE, name ".scaling", TEGROUP_SCALING_COUNT - 1, 99);              \
    BAD(linear_plan, w.linear.t.scaling = TEGROUP_SCALING_TENSOR, DTYPE, name ".dtype",                                             \
        tegroup_scaling_info(TEGROUP_SCALING_TENSOR)->data_dtypes, TEGROUP_DTYPE_F32);                                              \
    BAD(linear_plan, w.linear.t.shape.groups = -1, VALUE, name ".shape.groups", TEGROUP_MAX_GROUPS, -1);                            \
    BAD(linear_plan, w.linear.t.shape.rows = -1, VALUE, name ".shape.rows", TEGROUP_MAX_ROWS, -1);                                  \
    BAD(linear_plan, w.linear.t.shape.cols = -1, VALUE, name ".shape.cols", TEGROUP_MAX_COLS, -1);                                  \
    BAD(linear_plan, w.linear.t.ld = -1, LAYOUT, name ".ld", size, -1);                                                             \
    BAD(linear_plan, w.linear.t.pointers_space = (tegroup_space)3, VALUE, name ".pointers_space", TEGROUP_SPACE_DEVICE, 3)
#define LINEAR_FOLLOWS(t, name, size)                                                                                               \
    LINEAR_TENSOR(t, name, size);                                                                                                   \
    BAD(linear_plan, w.linear.t.shape.groups++, SHAPE, name ".shape.groups", EXPERTS, EXPERTS + 1);                                 \
    BAD(linear_plan, w.linear.t.shape.cols++, SHAPE, name ".shape.cols", size, size + 1)
#define LINEAR_ROWS(t, name, size)                                                                                                  \
    LINEAR_FOLLOWS(t, name, size);                                                                                                  \
    BAD(linear_plan, w.linear.t.shape.row_sizes.encoding = TEGROUP_ENCODING_UNSET, UNSET, name ".shape.row_sizes.encoding",         \
        TEGROUP_ENCODING_COUNTS, 0);                                                                                                \
    BAD(linear_plan, uniform(&w.linear.t), UNSET, name ".shape.row_sizes.encoding", TEGROUP_ENCODING_COUNTS, 0);      \
    BAD(linear_plan, w.linear.t.shape.row_sizes.space = TEGROUP_SPACE_UNSET, UNSET, name ".shape.row_sizes.space", 1, 0);           \
    BAD(linear_plan, w.linear.t.shape.col_sizes.encoding = TEGROUP_ENCODING_COUNTS, UNSUPPORTED,                                    \
        name ".shape.col_sizes.encoding", 0, TEGROUP_ENCODING_COUNTS);                                                              \
    BAD(linear_plan, w.linear.t.shape.elements = 7, UNSUPPORTED, name ".shape.elements", 0, 7);                                     \
    BAD(linear_plan, w.linear.t.group_stride = 99, COMBINATION, name ".group_stride", 0, 99);                                       \
    BAD(linear_plan, LISTED(w.linear.t, HOST), UNSUPPORTED, name ".pointers_space", 0, TEGROUP_SPACE_HOST)
#define LINEAR_UNIFORM(t, name)                                                                                                     \
    BAD(linear_plan, w.linear.t.shape.row_sizes = w.prepare.shape.row_sizes, COMBINATION, name ".shape.row_sizes.encoding", 0,      \
        TEGROUP_ENCODING_COUNTS);                                                                                                   \
    BAD(linear_plan, w.linear.t.group_stride = 1, LAYOUT, name ".group_stride", w.linear.t.shape.rows * w.linear.t.shape.cols, 1)
#define LINEAR_PLAIN(t, name)                                                                                                       \
    BAD(linear_plan, w.linear.t.dtype = TEGROUP_DTYPE_F8E4M3; w.linear.t.scaling = TEGROUP_SCALING_TENSOR, UNSUPPORTED, name ".scaling",\
        TEGROUP_SCALING_NONE, TEGROUP_SCALING_TENSOR)
#define LINEAR_OUTPUT(t, name, size)                                                                                                \
    LINEAR_PLAIN(t, name);                                                                                                          \
    BAD(linear_plan, w.linear.t.ld = size + 1, LAYOUT, name ".ld", size, size + 1)
#define LINEAR_MEMORY(call, t, name)                                                                                                \
    BAD(call, w.linear.t.data = NULL, NULL_ARGUMENT, name ".data", 1, 0);                                                           \
    BAD(call, SHIFT(w.linear.t.data, 2), ALIGNMENT, name ".data", 4, 2)
#define LINEAR_LIST(call, t, name)                                                                                                  \
    BAD(call, w.linear.t.pointers = (void *const *)w.linear.t.data, UNSET, name ".pointers_space", TEGROUP_SPACE_HOST, 0);          \
    BAD(call, LISTED(w.linear.t, HOST), PLAN, name ".pointers_space", 0, TEGROUP_SPACE_HOST)
#define ABSENT(t) memset(&w.linear.t, 0, sizeof w.linear.t)

TEST(status, linear_plan) {
    STRUCT_SIZE(linear_plan, tegroup_linear_desc, linear);
    SPACE(linear_plan, linear);
    NOT(linear_plan_make, NULL AND NULL AND &w.linear_plan_out, NULL_ARGUMENT, "desc", 1, 0);
    NOT(linear_plan_make, &w.linear AND NULL AND NULL, NULL_ARGUMENT, "plan", 1, 0);
    LINEAR_TENSOR(weight, "weight", K);
    BAD(linear_plan, ABSENT(weight), UNSET, "weight.dtype", FLOATS, 0);
    BAD(linear_plan, w.linear.weight.shape.groups++, SHAPE, "bias.shape.groups", EXPERTS + 1, EXPERTS);
    BAD(linear_plan, w.linear.weight.shape.rows++, SHAPE, "bias.shape.cols", N + 1, N);
    BAD(linear_plan, w.linear.weight.shape.cols++, SHAPE, "input.shape.cols", K + 1, K);
    BAD(linear_plan, w.linear.weight.dtype = TEGROUP_DTYPE_F64, DTYPE, "input.dtype", TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F32);
    BAD(linear_plan, w.linear.weight.dtype = w.linear.input.dtype = TEGROUP_DTYPE_BF16, DTYPE, "input.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    ASSERT_STREQ("must equal grad_output.dtype (FP8: either kind; F32 goes with weights of F16 and BF16, too)", error.rule);
    LINEAR_UNIFORM(weight, "weight");
    LINEAR_FOLLOWS(bias, "bias", N);
    LINEAR_UNIFORM(bias, "bias");
    LINEAR_PLAIN(bias, "bias");
    BAD(linear_plan, w.linear.bias.shape.rows = 2, SHAPE, "bias.shape.rows", 1, 2);
    LINEAR_ROWS(input, "input", K);
    BAD(linear_plan, w.linear.input.dtype = TEGROUP_DTYPE_F16, DTYPE, "input.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F16);
    BAD(linear_plan, w.linear.input.dtype = TEGROUP_DTYPE_F8E4M3; w.linear.input.scaling = TEGROUP_SCALING_TENSOR, COMBINATION, "weight.scaling",
        7u << TEGROUP_SCALING_TENSOR | 1u << TEGROUP_SCALING_BLOCK_128X128 | 1u << TEGROUP_SCALING_BLOCK_32X32, TEGROUP_SCALING_NONE);
    ASSERT_STREQ("must be one that is multiplied with input.scaling", error.rule);
    BAD(linear_plan, w.linear.grad_output.dtype = TEGROUP_DTYPE_F8E4M3; w.linear.grad_output.scaling = TEGROUP_SCALING_TENSOR, UNSUPPORTED, "grad_row_scale",
        TEGROUP_SCALING_NONE, TEGROUP_SCALING_TENSOR);
    LINEAR_ROWS(out, "out", N);
    LINEAR_OUTPUT(out, "out", N);
    BAD(linear_plan, w.linear.out.dtype = TEGROUP_DTYPE_F64, DTYPE, "out.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    LINEAR_ROWS(grad_output, "grad_output", N);
    BAD(linear_plan, w.linear.grad_output.dtype = TEGROUP_DTYPE_F16, DTYPE, "grad_output.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F16);
    LINEAR_ROWS(dgrad_out, "dgrad_out", K);
    LINEAR_OUTPUT(dgrad_out, "dgrad_out", K);
    BAD(linear_plan, w.linear.dgrad_out.dtype = TEGROUP_DTYPE_F64, DTYPE, "dgrad_out.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    LINEAR_FOLLOWS(main_grad, "main_grad", K);
    LINEAR_UNIFORM(main_grad, "main_grad");
    LINEAR_OUTPUT(main_grad, "main_grad", K);
    BAD(linear_plan, w.linear.main_grad.shape.rows++, SHAPE, "main_grad.shape.rows", N, N + 1);
    BAD(linear_plan, w.linear.main_grad.group_stride = N * K + 1, LAYOUT, "main_grad.group_stride", N * K, N * K + 1);
    BAD(linear_plan, w.linear.main_grad.dtype = TEGROUP_DTYPE_F64, DTYPE, "main_grad.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    LINEAR_FOLLOWS(bias_grad, "bias_grad", N);
    LINEAR_UNIFORM(bias_grad, "bias_grad");
    LINEAR_OUTPUT(bias_grad, "bias_grad", N);
    BAD(linear_plan, w.linear.bias_grad.group_stride = N + 1, LAYOUT, "bias_grad.group_stride", N, N + 1);
    BAD(linear_plan, w.linear.bias_grad.dtype = TEGROUP_DTYPE_I32, DTYPE, "bias_grad.dtype", tegroup_scaling_info(TEGROUP_SCALING_NONE)->data_dtypes, TEGROUP_DTYPE_I32);
    LINEAR_ROWS(grad_row_scale, "grad_row_scale", 1);
    LINEAR_OUTPUT(grad_row_scale, "grad_row_scale", 1);

    BAD(linear_plan, ABSENT(out); ABSENT(dgrad_out); ABSENT(main_grad), UNSET, "out.dtype", FLOATS, 0);
    BAD(linear_plan, w.linear.out.dtype = TEGROUP_DTYPE_UNSET, UNSET, "out.dtype", FLOATS, 0);
    BAD(linear_plan, w.linear.input.dtype = TEGROUP_DTYPE_UNSET, UNSET, "input.dtype", FLOATS, 0);
    BAD(linear_plan, ABSENT(input), COMBINATION, "out", 1, 0);
    BAD(linear_plan, ABSENT(input); ABSENT(grad_output), COMBINATION, "out", 1, 0);
    BAD(linear_plan, ABSENT(input); ABSENT(out), COMBINATION, "main_grad", 1, 0);
    BAD(linear_plan, ABSENT(grad_output), COMBINATION, "dgrad_out", 1, 0);
    BAD(linear_plan, ABSENT(grad_output); ABSENT(dgrad_out), COMBINATION, "main_grad", 1, 0);
    BAD(linear_plan, ABSENT(main_grad), COMBINATION, "bias_grad", 1, 0);
    BAD(linear_plan, ABSENT(bias), COMBINATION, "bias_grad", 1, 0);
    BAD(linear_plan, ABSENT(bias); ABSENT(bias_grad), COMBINATION, "grad_row_scale", 1, 0);
    BAD(linear_plan, ABSENT(bias); ABSENT(bias_grad); ABSENT(grad_row_scale), COMBINATION, "row_scale_dtype", 0, TEGROUP_DTYPE_F32);
    BAD(linear_plan, ABSENT(dgrad_out), COMBINATION, "grad_row_scale", 1, 0);
    BAD(linear_plan, w.linear.row_scale = NULL; w.linear.row_scale_dtype = TEGROUP_DTYPE_UNSET, COMBINATION, "grad_row_scale", 1, 0);
    BAD(linear_plan, w.linear.row_scale_dtype = TEGROUP_DTYPE_UNSET, UNSET, "row_scale_dtype", TEGROUP_DTYPE_F32, 0);
    BAD(linear_plan, w.linear.row_scale_dtype = TEGROUP_DTYPE_BF16, DTYPE, "row_scale_dtype", REALS, TEGROUP_DTYPE_BF16);
    BAD(linear_plan, w.linear.bias.dtype = TEGROUP_DTYPE_F64, UNSUPPORTED, "bias.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    BAD(linear_plan, w.linear.weight_layout = (tegroup_weight_layout)2, VALUE, "weight_layout", TEGROUP_WEIGHT_IN_OUT, 2);
    BAD(linear_plan, w.linear.weight_layout = TEGROUP_WEIGHT_IN_OUT, SHAPE, "bias.shape.cols", K, N);
    ASSERT_STREQ("must equal weight.shape.cols", error.rule);
    BAD(linear_plan, w.linear.weight_layout = TEGROUP_WEIGHT_IN_OUT; ABSENT(bias); ABSENT(bias_grad); ABSENT(grad_row_scale); w.linear.row_scale = NULL;
        w.linear.row_scale_dtype = TEGROUP_DTYPE_UNSET, SHAPE, "input.shape.cols", N, K);
    ASSERT_STREQ("must equal weight.shape.rows", error.rule);
    BAD(linear_plan, w.linear.accumulate = 2, VALUE, "accumulate", 1, 2);
    BAD(linear_plan, w.linear.accumulate = 1; ABSENT(main_grad); ABSENT(bias_grad), COMBINATION, "accumulate", 0, 1);
    BAD(linear_plan, w.linear.out_tail = TEGROUP_TAIL_ZERO; ABSENT(out), COMBINATION, "out_tail", 0, TEGROUP_TAIL_ZERO);
    BAD(linear_plan, w.linear.dgrad_out_tail = TEGROUP_TAIL_ZERO; ABSENT(dgrad_out); ABSENT(grad_row_scale), COMBINATION, "dgrad_out_tail", 0, TEGROUP_TAIL_ZERO);
    BAD(linear_plan, w.linear.out_tail = (tegroup_tail)3, VALUE, "out_tail", TEGROUP_TAIL_POISON, 3);
    BAD(linear_plan, w.linear.dgrad_out_tail = (tegroup_tail)3, VALUE, "dgrad_out_tail", TEGROUP_TAIL_POISON, 3);
    BAD(linear_plan, w.linear.options.compute = (tegroup_compute)4, VALUE, "options.compute", TEGROUP_COMPUTE_FAST_ACCUM, 4);
    BAD(linear_plan, w.linear.options.expected_rows = -1, VALUE, "options.expected_rows", 0, -1);
    BAD(linear_plan, w.linear.options.expected_rows_max = -1, VALUE, "options.expected_rows_max", 0, -1);
    BAD(linear_plan, w.linear.options.data_alignment_bytes = 3, VALUE, "options.data_alignment_bytes", TEGROUP_ALIGNMENT, 3);
    BAD(linear_plan, w.linear.options.backend = TEGROUP_BACKEND_COUNT, VALUE, "options.backend", TEGROUP_BACKEND_COUNT - 1, TEGROUP_BACKEND_COUNT);
    BAD(linear_plan, w.linear.options.backend = TEGROUP_BACKEND_SM90, NOT_BUILT, "target.built", 1, 0);
    BAD(linear_plan, w.linear.options.sm_limit = -1, VALUE, "options.sm_limit", 0, -1);
    BAD(linear_plan, w.linear.options.threads = -1, VALUE, "options.threads", 0, -1);
    BAD(linear_plan, w.linear.options.check_level = (tegroup_check_level)2, VALUE, "options.check_level", TEGROUP_CHECK_DEEP, 2);
    BAD(linear_plan, w.linear.options.stream_count = -1, VALUE, "options.stream_count", 0, -1);
    BAD(linear_plan, w.linear.options.host_sizes_final = 2, VALUE, "options.host_sizes_final", 1, 2);
    BAD(linear_plan, w.linear.options.cublaslt_functions = &w.functions; w.functions.struct_size = 1, STRUCT_SIZE, "options.cublaslt_functions.struct_size", sizeof w.functions, 1);
    BAD(linear_plan_target, w.target.struct_size = 1, STRUCT_SIZE, "target.struct_size", sizeof w.target, 1);
    BAD(linear_plan, w.linear.gather_input.rows = -1, VALUE, "gather_input.rows", TEGROUP_MAX_ROWS, -1);
    BAD(linear_plan, w.linear.gather_grad_output.slots = -1, VALUE, "gather_grad_output.slots", 0, -1);
    BAD(linear_forward, w.linear.gather_input.slot_of_row = (const int64_t *)w.x, UNSET, "gather_input.rows", 1, 0);
    BAD(linear_gemm, ABSENT(main_grad); ABSENT(bias_grad), UNSET, "main_grad.dtype", FLOATS, 0);
    NOT(linear_gemm, NULL AND TEGROUP_OP_DGRAD AND &w.gemm, NULL_ARGUMENT, "desc", 1, 0);
    NOT(linear_gemm, &w.linear AND TEGROUP_OP_DGRAD AND NULL, NULL_ARGUMENT, "gemm", 1, 0);
    NOT(linear_gemm, &w.linear AND TEGROUP_OP_UNSET AND &w.gemm, UNSET, "op", TEGROUP_OP_FORWARD, 0);
    NOT(linear_gemm, &w.linear AND (tegroup_op)4 AND &w.gemm, VALUE, "op", TEGROUP_OP_WGRAD, 4);

    spoil_nothing(); /* inputs may have room between their rows and groups */
    w.linear.input.ld = K + 3;
    w.linear.grad_output.ld = N + 1;
    w.linear.weight.ld = K + 1;
    w.linear.weight.group_stride = N * (K + 1) + 2;
    GOOD(linear_plan);
}

TEST(status, linear_calls) {
    NOT(linear_forward, NULL AND &w.linear AND NULL, NULL_ARGUMENT, "plan", 1, 0);
    NOT(linear_dgrad, &w.linear_plan AND NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    NOT(linear_wgrad, NULL AND &w.linear AND NULL, NULL_ARGUMENT, "plan", 1, 0);
    BAD(linear_forward, w.linear_plan.struct_size = 1, STRUCT_SIZE, "plan.struct_size", sizeof w.linear_plan, 1);
    BAD(linear_wgrad, w.linear_plan.magic = 1, PLAN, "plan", TEGROUP_LINEAR_PLAN_MAGIC, 1);
    BAD(linear_forward, memset(&w.linear_plan.forward, 0, sizeof w.linear_plan.forward), PLAN, "out.dtype", 0, TEGROUP_DTYPE_F32);
    BAD(linear_dgrad, memset(&w.linear_plan.dgrad, 0, sizeof w.linear_plan.dgrad), PLAN, "dgrad_out.dtype", 0, TEGROUP_DTYPE_F32);
    BAD(linear_wgrad, memset(&w.linear_plan.wgrad, 0, sizeof w.linear_plan.wgrad), PLAN, "main_grad.dtype", 0, TEGROUP_DTYPE_F32);
    BAD(linear_forward, ABSENT(out), UNSET, "out.dtype", FLOATS, 0);
    BAD(linear_forward, w.linear.weight_layout = TEGROUP_WEIGHT_IN_OUT, PLAN, "weight_layout", 0, 1);
    BAD(linear_dgrad, w.linear.weight_layout = TEGROUP_WEIGHT_IN_OUT, PLAN, "weight_layout", 0, 1);
    BAD(linear_wgrad, w.linear.weight_layout = TEGROUP_WEIGHT_IN_OUT, PLAN, "weight_layout", 0, 1);
    BAD(linear_dgrad, ABSENT(grad_row_scale), PLAN, "grad_row_scale.dtype", TEGROUP_DTYPE_F32, 0);
    BAD(linear_wgrad, ABSENT(bias_grad), PLAN, "bias_grad.dtype", TEGROUP_DTYPE_F32, 0);
    BAD(linear_forward, ABSENT(bias); ABSENT(bias_grad); ABSENT(grad_row_scale); w.linear.row_scale = NULL;
        w.linear.row_scale_dtype = TEGROUP_DTYPE_UNSET, PLAN, "bias.dtype", TEGROUP_DTYPE_F32, 0);
    BAD(linear_forward, w.linear.out.dtype = TEGROUP_DTYPE_BF16, PLAN, "out.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    BAD(linear_dgrad, w.linear.dgrad_out.dtype = TEGROUP_DTYPE_BF16, PLAN, "dgrad_out.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    BAD(linear_dgrad, w.linear.grad_row_scale.dtype = TEGROUP_DTYPE_BF16, PLAN, "grad_row_scale.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    BAD(linear_wgrad, w.linear.main_grad.dtype = TEGROUP_DTYPE_BF16, PLAN, "main_grad.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    BAD(linear_wgrad, w.linear.accumulate = 1, PLAN, "accumulate", 0, 1);
    BAD(linear_forward, w.linear.out_tail = TEGROUP_TAIL_ZERO, PLAN, "out_tail", TEGROUP_TAIL_KEEP, TEGROUP_TAIL_ZERO);
    BAD(linear_dgrad, w.linear.dgrad_out_tail = TEGROUP_TAIL_ZERO, PLAN, "dgrad_out_tail", TEGROUP_TAIL_KEEP, TEGROUP_TAIL_ZERO);
    BAD(linear_forward, w.linear.input.ld = K + 1, PLAN, "input.ld", K, K + 1);
    BAD(linear_dgrad, w.linear.weight.ld = K + 1, PLAN, "weight.ld", K, K + 1);
    BAD(linear_wgrad, w.linear.grad_output.ld = N + 1, PLAN, "grad_output.ld", N, N + 1);
    BAD(linear_wgrad, w.linear.main_grad.ld = K + 1, LAYOUT, "main_grad.ld", K, K + 1);

    LINEAR_MEMORY(linear_forward, input, "input");
    LINEAR_MEMORY(linear_forward, weight, "weight");
    LINEAR_MEMORY(linear_forward, bias, "bias");
    LINEAR_MEMORY(linear_forward, out, "out");
    LINEAR_MEMORY(linear_dgrad, grad_output, "grad_output");
    LINEAR_MEMORY(linear_dgrad, weight, "weight");
    LINEAR_MEMORY(linear_dgrad, dgrad_out, "dgrad_out");
    LINEAR_MEMORY(linear_dgrad, bias, "bias");
    LINEAR_MEMORY(linear_dgrad, grad_row_scale, "grad_row_scale");
    LINEAR_MEMORY(linear_wgrad, grad_output, "grad_output");
    LINEAR_MEMORY(linear_wgrad, input, "input");
    LINEAR_MEMORY(linear_wgrad, main_grad, "main_grad");
    LINEAR_MEMORY(linear_wgrad, bias_grad, "bias_grad");
    LINEAR_LIST(linear_forward, weight, "weight");
    LINEAR_LIST(linear_forward, bias, "bias");
    LINEAR_LIST(linear_dgrad, weight, "weight");
    LINEAR_LIST(linear_wgrad, main_grad, "main_grad");
    LINEAR_LIST(linear_wgrad, bias_grad, "bias_grad");
    BAD(linear_forward, w.linear.row_scale = NULL, NULL_ARGUMENT, "row_scale", 1, 0);
    BAD(linear_wgrad, SHIFT(w.linear.row_scale, 1), ALIGNMENT, "row_scale", 4, 1);
    BAD(linear_forward, w.linear.input.shape.snapshot = NULL; w.linear.out.shape.snapshot = NULL, NULL_ARGUMENT, "input.shape.snapshot", 1, 0);
    BAD(linear_dgrad, w.linear.dgrad_out.shape.snapshot = NULL, NULL_ARGUMENT, "dgrad_out.shape.snapshot", 1, 0);
    BAD(linear_wgrad, w.linear.grad_output.shape.snapshot = w.snapshot_out, COMBINATION, "grad_output.shape.snapshot", 0, 1);
    BAD(linear_forward, memset(w.snapshot, 0, 4), CAPACITY, "input.shape.snapshot", TEGROUP_SNAPSHOT_MAGIC, 0);
    BAD(linear_forward, w.linear.options.workspace = NULL, NULL_ARGUMENT, "options.workspace", 1, 0);
    BAD(linear_dgrad, SHIFT(w.linear.options.workspace, 16), ALIGNMENT, "options.workspace", TEGROUP_ALIGNMENT, 16);
    BAD(linear_wgrad, w.linear.options.workspace_bytes = 1, WORKSPACE, "options.workspace_bytes", w.linear_plan.workspace_bytes, 1);
}

/* Every output against whatever its call touches: the field, and the other one in the rule. */
#define MEETS(call, spoil, field, other)                                                                                            \
    do {                                                                                                                            \
        BAD(call, spoil, OVERLAP, field, 0, 1);                                                                                     \
        ASSERT_STREQ("must not overlap " other, error.status == TEGROUP_ERROR_OVERLAP ? error.rule : "nothing");                                                                        \
    } while (0)

/* Rows picked by an index, of as many rows as there are; room for what is to meet it. */
static int64_t slots[4096];
static void picked(tegroup_gather *gather) {
    gather->slot_of_row = slots;
    gather->rows = ROWS;
}
TEST(status, linear_overlaps) {
    tegroup_linear_desc *l = &w.linear;
    MEETS(linear_forward, l->out.data = w.x, "out.data", "input");
    MEETS(linear_forward, l->out.data = w.weight, "out.data", "weight");
    MEETS(linear_forward, l->out.data = w.bias, "out.data", "bias");
    MEETS(linear_forward, l->out.data = w.row_scale, "out.data", "row_scale");
    MEETS(linear_forward, l->out.data = w.snapshot, "out.data", "a snapshot");
    MEETS(linear_forward, l->options.workspace = w.x, "options.workspace", "input");
    MEETS(linear_forward, l->options.workspace = w.y, "options.workspace", "out");
    MEETS(linear_dgrad, l->dgrad_out.data = w.y_grad, "dgrad_out.data", "grad_output");
    MEETS(linear_dgrad, l->dgrad_out.data = w.weight, "dgrad_out.data", "weight");
    MEETS(linear_dgrad, l->dgrad_out.data = w.bias, "dgrad_out.data", "bias");
    MEETS(linear_dgrad, l->grad_row_scale.data = w.x_grad, "grad_row_scale.data", "dgrad_out");
    MEETS(linear_dgrad, l->grad_row_scale.data = w.y_grad, "grad_row_scale.data", "grad_output");
    MEETS(linear_dgrad, l->grad_row_scale.data = w.bias, "grad_row_scale.data", "bias");
    MEETS(linear_dgrad, l->grad_row_scale.data = w.weight, "grad_row_scale.data", "weight");
    MEETS(linear_dgrad, l->options.workspace = w.row_scale_grad, "options.workspace", "grad_row_scale");
    MEETS(linear_dgrad, l->options.workspace = w.bias; l->options.workspace_bytes = w.linear_plan.workspace_bytes, "options.workspace", "bias");
    MEETS(replanned_linear_dgrad, list_of(&l->weight, lists[0], N * K * 4); l->grad_row_scale.data = lists[0], "grad_row_scale.data", "weight");
    MEETS(replanned_linear_dgrad, list_of(&l->bias, lists[0], N * 4); l->dgrad_out.data = lists[0], "dgrad_out.data", "bias");
    MEETS(replanned_linear_dgrad, list_of(&l->bias, (void **)(void *)w.workspace, N * 4), "options.workspace", "bias");
    MEETS(replanned_linear_dgrad, picked(&l->gather_grad_output); l->dgrad_out.data = slots, "dgrad_out.data", "gather_grad_output.slot_of_row");
    MEETS(replanned_linear_wgrad, picked(&l->gather_input); l->main_grad.data = slots, "main_grad.data", "gather_input.slot_of_row");
    MEETS(linear_wgrad, l->main_grad.data = w.x, "main_grad.data", "input");
    MEETS(linear_wgrad, l->main_grad.data = w.y_grad, "main_grad.data", "grad_output");
    MEETS(linear_wgrad, l->main_grad.data = w.bias_grad, "main_grad.data", "bias_grad");
    MEETS(linear_wgrad, l->bias_grad.data = w.x, "bias_grad.data", "input");
    MEETS(linear_wgrad, l->bias_grad.data = w.row_scale, "bias_grad.data", "row_scale");
}

/* ---- The grouped MLP ----------------------------------------------------------------------------------------- */

#define MLP_TENSOR(t, cols_)                                                                                                        \
    BAD(mlp_plan, w.mlp.t.scaling = (tegroup_scaling)99, VALUE, #t ".scaling", TEGROUP_SCALING_COUNT - 1, 99);                      \
    BAD(mlp_plan, w.mlp.t.shape.rows = -1, VALUE, #t ".shape.rows", TEGROUP_MAX_ROWS, -1);                                          \
    BAD(mlp_plan, w.mlp.t.ld = -1, LAYOUT, #t ".ld", cols_, -1);                                                                    \
    BAD(mlp_plan, w.mlp.t.shape.cols++, SHAPE, #t ".shape.cols", cols_, (cols_) + 1);                                               \
    BAD(mlp_plan, w.mlp.t.dtype = TEGROUP_DTYPE_UNSET, UNSET, #t ".dtype", FLOATS, 0)
#define MLP_ROWS(t, cols_)                                                                                                          \
    BAD(mlp_plan, w.mlp.t.shape.rows = ROWS + 1, SHAPE, #t ".shape.rows", ROWS, ROWS + 1);                                          \
    BAD(mlp_plan, w.mlp.t.shape.groups++, SHAPE, #t ".shape.groups", EXPERTS, EXPERTS + 1);                                         \
    BAD(mlp_plan, w.mlp.t.shape.cols++, SHAPE, #t ".shape.cols", cols_, (cols_) + 1);                                               \
    BAD(mlp_plan, w.mlp.t.shape.row_sizes.encoding = TEGROUP_ENCODING_UNSET, UNSET, #t ".shape.row_sizes.encoding",                 \
        TEGROUP_ENCODING_COUNTS, 0);                                                                                                \
    BAD(mlp_plan, w.mlp.t.shape.elements = 7, UNSUPPORTED, #t ".shape.elements", 0, 7);                                             \
    BAD(mlp_plan, LISTED(w.mlp.t, HOST), UNSUPPORTED, #t ".pointers_space", 0, TEGROUP_SPACE_HOST);           \
    BAD(mlp_plan, w.mlp.t.shape.snapshot = w.snapshot_out, COMBINATION, #t ".shape.snapshot", 0, 1)
#define MLP_CONTIGUOUS(t, cols_) BAD(mlp_plan, w.mlp.t.ld = (cols_) + 1, LAYOUT, #t ".ld", cols_, (cols_) + 1)
#define MLP_MEMORY(call, t)                                                                                                         \
    BAD(call, w.mlp.t.data = NULL, NULL_ARGUMENT, #t ".data", 1, 0);                                                                \
    BAD(call, SHIFT(w.mlp.t.data, 2), ALIGNMENT, #t ".data", 4, 2)
#define MLP_MEMORY_APART(call, t)                                                                                                   \
    BAD(call, mlp_apart(); w.mlp.t.data = NULL, NULL_ARGUMENT, #t ".data", 1, 0);                                                   \
    BAD(call, mlp_apart(); SHIFT(w.mlp.t.data, 2), ALIGNMENT, #t ".data", 4, 2)
#define MLP_ABSENT(t) memset(&w.mlp.t, 0, sizeof w.mlp.t)

TEST(status, mlp_plan) {
    STRUCT_SIZE(mlp_plan, tegroup_mlp_desc, mlp);
    SPACE(mlp_plan, mlp);
    NOT(mlp_plan_make, NULL AND NULL AND &w.mlp_plan_out, NULL_ARGUMENT, "desc", 1, 0);
    NOT(mlp_plan_make, &w.mlp AND NULL AND NULL, NULL_ARGUMENT, "plan", 1, 0);
    BAD(mlp_plan, w.mlp.space = TEGROUP_SPACE_DEVICE, UNSUPPORTED, "input.shape.row_sizes.space", TEGROUP_SPACE_DEVICE, TEGROUP_SPACE_HOST);
    BAD(mlp_plan, w.mlp.activation = TEGROUP_ACTIVATION_UNSET, UNSET, "activation", TEGROUP_ACTIVATION_SWIGLU, 0);
    BAD(mlp_plan, w.mlp.gather_input.rows = -1, VALUE, "gather_input.rows", TEGROUP_MAX_ROWS, -1);
    BAD(mlp_plan, w.mlp.gather_grad_output.slots = -1, VALUE, "gather_grad_output.slots", 0, -1);
    BAD(replanned_mlp_dgrad, w.mlp.gather_grad_output.rows = 1, NULL_ARGUMENT, "gather_grad_output.slot_of_row", 1, 0);
    BAD(mlp_plan, w.mlp.activation = (tegroup_activation)99, VALUE, "activation", TEGROUP_ACTIVATION_IDENTITY, 99);
    BAD(mlp_plan, w.mlp.activation = TEGROUP_ACTIVATION_RELU, SHAPE, "fc1.weight.shape.rows", N, 2 * N);
    BAD(mlp_plan, w.mlp.interleaved = 2, VALUE, "interleaved", 1, 2);
    BAD(mlp_plan, w.mlp.limit = -1, VALUE, "limit", real(0), real(-1));
    BAD(mlp_plan, w.mlp.recompute = 2, VALUE, "recompute", 1, 2);
    BAD(mlp_plan, w.mlp.fc2_bias_scaled = 2, VALUE, "fc2_bias_scaled", 1, 2);
    BAD(mlp_plan, w.mlp.fusion = (tegroup_fusion)3, VALUE, "fusion", TEGROUP_FUSION_REQUIRED, 3);
    BAD(mlp_plan, w.mlp.fusion = TEGROUP_FUSION_REQUIRED, UNSUPPORTED, "fusion", TEGROUP_FUSION_AUTO, TEGROUP_FUSION_REQUIRED);

    MLP_TENSOR(fc1.bias, 2 * N);
    MLP_TENSOR(fc1.main_grad, K);
    MLP_TENSOR(fc1.bias_grad, 2 * N);
    MLP_TENSOR(fc2.bias, K);
    MLP_TENSOR(fc2.main_grad, N);
    MLP_TENSOR(fc2.bias_grad, K);
    BAD(mlp_plan, MLP_ABSENT(fc1.weight), UNSET, "fc1.weight.dtype", FLOATS, 0);
    BAD(mlp_plan, MLP_ABSENT(fc2.weight); w.mlp.fc2.weight.shape.groups = EXPERTS, UNSET, "fc2.weight.dtype", FLOATS, 0);
    BAD(mlp_plan, w.mlp.fc1.weight_layout = (tegroup_weight_layout)2, VALUE, "fc1.weight_layout", TEGROUP_WEIGHT_IN_OUT, 2);
    BAD(mlp_plan, w.mlp.fc2.weight_layout = (tegroup_weight_layout)-1, VALUE, "fc2.weight_layout", TEGROUP_WEIGHT_IN_OUT, -1);
    BAD(mlp_plan, w.mlp.fc1.weight_layout = TEGROUP_WEIGHT_IN_OUT, SHAPE, "fc1.bias.shape.cols", K, 2 * N);
    BAD(mlp_plan, w.mlp.fc1.weight.shape.groups++, SHAPE, "fc1.bias.shape.groups", EXPERTS + 1, EXPERTS);
    BAD(mlp_plan, w.mlp.fc2.weight.shape.groups++, SHAPE, "fc2.weight.shape.groups", EXPERTS, EXPERTS + 1);
    BAD(mlp_plan, w.mlp.fc1.weight.shape.rows++, SHAPE, "fc1.bias.shape.cols", 2 * N + 1, 2 * N);
    BAD(mlp_plan, w.mlp.fc2.weight.shape.cols++, SHAPE, "activated.shape.cols", N + 1, N);
    BAD(mlp_plan, w.mlp.fc2.main_grad.shape.groups++, SHAPE, "fc2.main_grad.shape.groups", EXPERTS, EXPERTS + 1);
    ASSERT_STREQ("must equal fc2.weight.shape.groups", error.rule);
    BAD(mlp_plan, w.mlp.fc1.weight.dtype = TEGROUP_DTYPE_F64, DTYPE, "input.dtype", TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F32);
    ASSERT_STREQ("must equal fc1.weight.dtype (FP8: either kind; F32 goes with weights of F16 and BF16, too)", error.rule);
    BAD(mlp_plan, w.mlp.fc2.weight.dtype = TEGROUP_DTYPE_F64, DTYPE, "activated.dtype", TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F32);
    BAD(mlp_plan, w.mlp.fc2.weight.dtype = w.mlp.activated.dtype = TEGROUP_DTYPE_BF16, DTYPE, "activated.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    BAD(mlp_plan, w.mlp.grad_preactivation.dtype = TEGROUP_DTYPE_F16, DTYPE, "grad_preactivation.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F16);
    BAD(mlp_plan, w.mlp.grad_output.dtype = TEGROUP_DTYPE_F16, DTYPE, "grad_output.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F16);
    BAD(mlp_plan, w.mlp.fc2.weight.shape.row_sizes = w.prepare.shape.row_sizes, COMBINATION, "fc2.weight.shape.row_sizes.encoding", 0, TEGROUP_ENCODING_COUNTS);
    BAD(mlp_plan, w.mlp.fc2.main_grad.ld = N + 1, LAYOUT, "fc2.main_grad.ld", N, N + 1);

    BAD(mlp_plan, w.mlp.input.shape.rows++, SHAPE, "out.shape.rows", ROWS + 1, ROWS);
    BAD(mlp_plan, w.mlp.input.shape.cols++, SHAPE, "input.shape.cols", K, K + 1);
    MLP_ROWS(out, K);
    MLP_ROWS(grad_output, K);
    MLP_ROWS(dgrad_out, K);
    MLP_ROWS(grad_row_scale, 1);
    BAD(mlp_plan, w.mlp.fc2_bias_scaled = 0; w.mlp.grad_row_scale.shape.cols = 2, SHAPE, "grad_row_scale.shape.cols",
        1, 2); /* of no product */
    MLP_ROWS(preactivation, 2 * N);
    MLP_ROWS(activated, N);
    MLP_ROWS(grad_preactivation, 2 * N);
    MLP_CONTIGUOUS(out, K);
    MLP_CONTIGUOUS(dgrad_out, K);
    MLP_CONTIGUOUS(grad_row_scale, 1);
    MLP_CONTIGUOUS(preactivation, 2 * N);
    MLP_CONTIGUOUS(activated, N);
    MLP_CONTIGUOUS(grad_preactivation, 2 * N);

    BAD(mlp_plan, MLP_ABSENT(input), UNSET, "input.dtype", FLOATS, 0);
    BAD(mlp_plan, MLP_ABSENT(out); MLP_ABSENT(grad_preactivation); MLP_ABSENT(fc1.main_grad); MLP_ABSENT(fc2.main_grad), UNSET, "out.dtype", FLOATS, 0);
    BAD(mlp_plan, MLP_ABSENT(grad_preactivation), COMBINATION, "dgrad_out", 1, 0);
    BAD(mlp_plan, MLP_ABSENT(grad_preactivation); MLP_ABSENT(dgrad_out), COMBINATION, "grad_row_scale", 1, 0);
    BAD(mlp_plan, MLP_ABSENT(grad_preactivation); MLP_ABSENT(dgrad_out); MLP_ABSENT(grad_row_scale), COMBINATION, "fc1.main_grad", 1, 0);
    BAD(mlp_plan, MLP_ABSENT(preactivation), COMBINATION, "grad_preactivation", 1, 0);
    BAD(mlp_plan, MLP_ABSENT(grad_output), COMBINATION, "grad_preactivation", 1, 0);
    BAD(mlp_plan, MLP_ABSENT(activated), COMBINATION, "fc2.main_grad", 1, 0);
    BAD(mlp_plan, MLP_ABSENT(fc1.main_grad), COMBINATION, "fc1.bias_grad", 1, 0);
    BAD(mlp_plan, MLP_ABSENT(fc1.bias), COMBINATION, "fc1.bias_grad", 1, 0);
    BAD(mlp_plan, MLP_ABSENT(fc2.main_grad), COMBINATION, "fc2.bias_grad", 1, 0);
    BAD(mlp_plan, MLP_ABSENT(fc2.bias), COMBINATION, "fc2.bias_grad", 1, 0);
    BAD(mlp_plan, MLP_ABSENT(fc2.bias); MLP_ABSENT(fc2.bias_grad), COMBINATION, "fc2_bias_scaled", 0, 1);
    BAD(mlp_plan, w.mlp.recompute = 1; MLP_ABSENT(activated); MLP_ABSENT(fc2.main_grad); MLP_ABSENT(fc2.bias_grad), COMBINATION, "recompute", 0, 1);
    BAD(mlp_plan, w.mlp.recompute = 1; MLP_ABSENT(grad_preactivation); MLP_ABSENT(dgrad_out); MLP_ABSENT(grad_row_scale); MLP_ABSENT(fc1.main_grad);
        MLP_ABSENT(fc1.bias_grad), COMBINATION, "recompute", 0, 1);
    BAD(mlp_plan, w.mlp.row_scale_dtype = TEGROUP_DTYPE_UNSET, UNSET, "row_scale_dtype", TEGROUP_DTYPE_F32, 0);
    BAD(mlp_plan, w.mlp.row_scale_dtype = TEGROUP_DTYPE_BF16, DTYPE, "row_scale_dtype", REALS, TEGROUP_DTYPE_BF16);
    BAD(mlp_plan, w.mlp.row_scale = NULL; w.mlp.row_scale_dtype = TEGROUP_DTYPE_UNSET, COMBINATION, "grad_row_scale", 1, 0);
    BAD(mlp_plan, w.mlp.row_scale = NULL; w.mlp.row_scale_dtype = TEGROUP_DTYPE_UNSET; MLP_ABSENT(grad_row_scale), COMBINATION, "fc2_bias_scaled", 0, 1);
    BAD(mlp_plan, w.mlp.grad_row_scale.dtype = TEGROUP_DTYPE_F16, DTYPE, "grad_row_scale.dtype", REALS, TEGROUP_DTYPE_F16);
    BAD(mlp_plan, w.mlp.grad_row_scale.dtype = TEGROUP_DTYPE_F64, DTYPE, "grad_row_scale.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    BAD(mlp_plan, w.mlp.fc2.bias.dtype = TEGROUP_DTYPE_F64, UNSUPPORTED, "fc2.bias.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    BAD(mlp_plan, w.mlp.accumulate = 2, VALUE, "accumulate", 1, 2);
    BAD(mlp_plan, w.mlp.accumulate = 1; MLP_ABSENT(fc1.main_grad); MLP_ABSENT(fc1.bias_grad); MLP_ABSENT(fc2.main_grad); MLP_ABSENT(fc2.bias_grad), COMBINATION,
        "accumulate", 0, 1);
    BAD(mlp_plan, w.mlp.out_tail = TEGROUP_TAIL_ZERO; MLP_ABSENT(out), COMBINATION, "out_tail", 0, TEGROUP_TAIL_ZERO);
    BAD(mlp_plan, w.mlp.out_tail = (tegroup_tail)3, VALUE, "out_tail", TEGROUP_TAIL_POISON, 3);
    BAD(mlp_plan, w.mlp.dgrad_out_tail = TEGROUP_TAIL_ZERO; MLP_ABSENT(dgrad_out), COMBINATION, "dgrad_out_tail", 0, TEGROUP_TAIL_ZERO);
    BAD(mlp_plan, w.mlp.dgrad_out_tail = (tegroup_tail)3, VALUE, "dgrad_out_tail", TEGROUP_TAIL_POISON, 3);
    BAD(mlp_plan, w.mlp.options.backend = TEGROUP_BACKEND_SM90, NOT_BUILT, "target.built", 1, 0);
    BAD(mlp_plan, w.mlp.options.threads = -1, VALUE, "options.threads", 0, -1);
    BAD(mlp_plan, w.mlp.options.compute = (tegroup_compute)4, VALUE, "options.compute", TEGROUP_COMPUTE_FAST_ACCUM, 4);
    NOT(mlp_gemm, NULL AND NULL AND TEGROUP_MLP_FC1 AND TEGROUP_OP_DGRAD AND &w.gemm, NULL_ARGUMENT, "desc", 1, 0);
    NOT(mlp_gemm, NULL AND &w.mlp AND TEGROUP_MLP_LAYER_UNSET AND TEGROUP_OP_DGRAD AND &w.gemm, UNSET, "layer", TEGROUP_MLP_FC1, 0);
    NOT(mlp_gemm, NULL AND &w.mlp AND (tegroup_mlp_layer)4 AND TEGROUP_OP_DGRAD AND &w.gemm, VALUE, "layer", TEGROUP_MLP_FC1_UP, 4);
    NOT(mlp_gemm, NULL AND &w.mlp AND TEGROUP_MLP_FC1_UP AND TEGROUP_OP_DGRAD AND &w.gemm, COMBINATION, "op", 1, 0);
    NOT(mlp_gemm, NULL AND &w.mlp AND TEGROUP_MLP_FC1 AND TEGROUP_OP_UNSET AND &w.gemm, UNSET, "op", TEGROUP_OP_FORWARD, 0);
    NOT(mlp_gemm, NULL AND &w.mlp AND TEGROUP_MLP_FC1 AND (tegroup_op)4 AND &w.gemm, VALUE, "op", TEGROUP_OP_WGRAD, 4);
    NOT(mlp_gemm, NULL AND &w.mlp AND TEGROUP_MLP_FC1 AND TEGROUP_OP_DGRAD AND NULL, NULL_ARGUMENT, "gemm", 1, 0);
    BAD(mlp_gemm, MLP_ABSENT(grad_preactivation); MLP_ABSENT(dgrad_out); MLP_ABSENT(grad_row_scale); MLP_ABSENT(fc1.main_grad); MLP_ABSENT(fc1.bias_grad), COMBINATION,
        "op", 1, 0);
}

/* Gates in the first half of what fc1 has, ups in the second, each as two weights; and the plan of that. */
static void mlp_apart(void) {
    tegroup_tensor *const gates[] = {&w.mlp.fc1.weight, &w.mlp.fc1.bias, &w.mlp.fc1.main_grad, &w.mlp.fc1.bias_grad};
    tegroup_tensor *const ups[] = {&w.mlp.fc1_up.weight, &w.mlp.fc1_up.bias, &w.mlp.fc1_up.main_grad, &w.mlp.fc1_up.bias_grad};
    for (int i = 0; i < 4; i++) {
        int64_t *half = i % 2 ? &gates[i]->shape.cols : &gates[i]->shape.rows;
        *half /= 2;
        *ups[i] = *gates[i];
        SHIFT(ups[i]->data, (size_t)(EXPERTS * gates[i]->shape.rows * gates[i]->shape.cols) * sizeof(float));
    }
    if (tegroup_mlp_plan_make(&w.mlp, NULL, &w.mlp_plan, NULL) != TEGROUP_OK) w.mlp_plan.magic = 0;
}

TEST(status, mlp_of_gates_and_ups_apart) {
    spoil_nothing();
    mlp_apart();
    ASSERT_EQ(TEGROUP_MLP_PLAN_MAGIC, w.mlp_plan.magic);
    ASSERT_TRUE(w.mlp_plan.workspace_bytes <= sizeof w.workspace);
    GOOD(mlp_forward);
    GOOD(mlp_dgrad);
    GOOD(mlp_wgrad);
    BAD(mlp_plan, mlp_apart(); w.mlp.activation = TEGROUP_ACTIVATION_RELU, COMBINATION, "fc1_up.weight", TEGROUP_ACTIVATION_SWIGLU, TEGROUP_ACTIVATION_RELU);
    BAD(mlp_plan, mlp_apart(); w.mlp.fc1.weight.shape.rows = w.mlp.fc1_up.weight.shape.rows = INT64_MIN, VALUE, "fc1.weight.shape.rows", TEGROUP_MAX_ROWS, INT64_MIN);
    BAD(mlp_plan, mlp_apart(); w.mlp.interleaved = 1, COMBINATION, "interleaved", 0, 1);
    BAD(mlp_plan, mlp_apart(); MLP_ABSENT(fc1_up.weight), COMBINATION, "fc1_up.bias", 1, 0);
    BAD(mlp_plan, mlp_apart(); MLP_ABSENT(fc1_up.weight); MLP_ABSENT(fc1_up.bias), COMBINATION, "fc1_up.main_grad", 1, 0);
    BAD(mlp_plan, mlp_apart(); MLP_ABSENT(fc1_up.weight); MLP_ABSENT(fc1_up.bias); MLP_ABSENT(fc1_up.main_grad), COMBINATION, "fc1_up.bias_grad", 1, 0);
    BAD(mlp_plan, mlp_apart(); w.mlp.fc1_up.weight.dtype = TEGROUP_DTYPE_BF16, DTYPE, "fc1_up.weight.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    BAD(mlp_plan, mlp_apart(); MLP_ABSENT(fc1_up.bias), UNSET, "fc1_up.bias.dtype", TEGROUP_DTYPE_F32, 0);
    BAD(mlp_plan, mlp_apart(); MLP_ABSENT(fc1.bias); MLP_ABSENT(fc1.bias_grad); MLP_ABSENT(fc1_up.bias_grad), DTYPE, "fc1_up.bias.dtype", 0, TEGROUP_DTYPE_F32);
    BAD(mlp_plan, mlp_apart(); w.mlp.fc1_up.bias.dtype = (tegroup_dtype)99, VALUE, "fc1_up.bias.dtype", TEGROUP_DTYPE_COUNT - 1, 99);
    BAD(mlp_plan, mlp_apart(); MLP_ABSENT(fc1_up.main_grad), UNSET, "fc1_up.main_grad.dtype", TEGROUP_DTYPE_F32, 0);
    BAD(mlp_plan, mlp_apart(); w.mlp.fc1_up.bias_grad.dtype = TEGROUP_DTYPE_F64, DTYPE, "fc1_up.bias_grad.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    BAD(mlp_plan, mlp_apart(); w.mlp.fc1_up.weight_layout = TEGROUP_WEIGHT_IN_OUT, COMBINATION, "fc1_up.weight_layout", 0, 1);
    BAD(mlp_plan, mlp_apart(); w.mlp.fc1_up.weight.shape.groups++, SHAPE, "fc1_up.weight.shape.groups", EXPERTS, EXPERTS + 1);
    BAD(mlp_plan, mlp_apart(); w.mlp.fc1_up.weight.shape.rows++, SHAPE, "fc1_up.weight.shape.rows", N, N + 1);
    BAD(mlp_plan, mlp_apart(); w.mlp.fc1_up.weight.shape.cols++, SHAPE, "fc1_up.weight.shape.cols", K, K + 1);
    BAD(mlp_plan, mlp_apart(); w.mlp.fc1_up.bias.shape.cols++, SHAPE, "fc1_up.bias.shape.cols", N, N + 1);
    BAD(mlp_plan, mlp_apart(); w.mlp.fc1_up.main_grad.shape.rows++, SHAPE, "fc1_up.main_grad.shape.rows", N, N + 1);
    BAD(mlp_plan, mlp_apart(); w.mlp.fc1_up.main_grad.ld = K + 1, LAYOUT, "fc1_up.main_grad.ld", K, K + 1);
    BAD(mlp_plan, mlp_apart(); w.mlp.preactivation.shape.cols++, SHAPE, "preactivation.shape.cols", 2 * N, 2 * N + 1);
    BAD(mlp_plan, mlp_apart(); w.mlp.grad_preactivation.shape.cols = N, SHAPE, "grad_preactivation.shape.cols", 2 * N, N);
    BAD(mlp_plan, mlp_apart(); w.mlp.preactivation.ld = 2 * N + 2, LAYOUT, "preactivation.ld", 2 * N, 2 * N + 2);
    BAD(mlp_plan, mlp_apart(); w.mlp.fc2.weight.shape.cols++; w.mlp.fc2.main_grad.shape.cols++; w.mlp.activated.shape.cols++, SHAPE, "fc1.weight.shape.rows", N + 1, N);
    BAD(mlp_plan, mlp_apart(); w.mlp.options.backend = TEGROUP_BACKEND_SM90, UNSUPPORTED, "preactivation.shape.cols", 8, 2 * N);
    BAD(mlp_plan, mlp_apart(); w.mlp.options.backend = TEGROUP_BACKEND_CUBLASLT_GROUPED, UNSUPPORTED, "preactivation.shape.cols", 8, 2 * N);
    BAD(mlp_plan, mlp_apart(); w.mlp.fusion = TEGROUP_FUSION_REQUIRED, UNSUPPORTED, "fusion", TEGROUP_FUSION_AUTO, TEGROUP_FUSION_REQUIRED);

    BAD(mlp_forward, mlp_apart(); w.mlp_plan = good.mlp_plan, PLAN, "fc1_up.weight.dtype", 0, TEGROUP_DTYPE_F32);
    BAD(mlp_wgrad, mlp_apart(); MLP_ABSENT(fc1_up.weight), PLAN, "fc1_up.weight.dtype", TEGROUP_DTYPE_F32, 0);
    BAD(mlp_wgrad, mlp_apart(); MLP_ABSENT(fc1_up.main_grad); MLP_ABSENT(fc1_up.bias_grad), PLAN, "fc1_up.main_grad.dtype", TEGROUP_DTYPE_F32, 0);
    BAD(mlp_forward, mlp_apart(); w.mlp.fc1_up.bias.dtype = TEGROUP_DTYPE_BF16, PLAN, "fc1_up.bias.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    BAD(mlp_forward, mlp_apart(); w.mlp.fc1_up.weight.ld = K + 1, PLAN, "fc1_up.weight.ld", K, K + 1);
    BAD(mlp_dgrad, mlp_apart(); w.mlp.fc1_up.weight_layout = TEGROUP_WEIGHT_IN_OUT, PLAN, "fc1_up.weight_layout", 0, 1);
    BAD(mlp_dgrad, mlp_apart(); w.mlp.fc1_up.weight.data = w.mlp.dgrad_out.data, OVERLAP, "dgrad_out.data", 0, 1);
    BAD(mlp_wgrad, mlp_apart(); w.mlp.fc1_up.main_grad.data = w.mlp.fc1.main_grad.data, OVERLAP, "fc1.main_grad.data", 0, 1);
    MLP_MEMORY_APART(mlp_forward, fc1_up.weight);
    MLP_MEMORY_APART(mlp_forward, fc1_up.bias);
    MLP_MEMORY_APART(mlp_dgrad, fc1_up.weight);
    MLP_MEMORY_APART(mlp_wgrad, fc1_up.main_grad);
    MLP_MEMORY_APART(mlp_wgrad, fc1_up.bias_grad);
}

/* Each product of gates and of ups: the halves of rows that it reads and writes. */
TEST(status, mlp_gemm_of_gates_and_ups_apart) {
    static const struct { tegroup_op op; const float *a, *d; int accumulates[2]; } products[] = {
        {TEGROUP_OP_FORWARD, NULL, w.preactivation, {0, 0}}, {TEGROUP_OP_DGRAD, w.grad_preactivation, NULL, {0, 1}}, {TEGROUP_OP_WGRAD, w.grad_preactivation, NULL, {0, 0}}};
    for (int i = 0; i < 3; i++)
        for (int up = 0; up < 2; up++) {
            spoil_nothing();
            mlp_apart();
            ASSERT_EQ(TEGROUP_OK, tegroup_mlp_gemm(&w.mlp_plan, &w.mlp, up ? TEGROUP_MLP_FC1_UP : TEGROUP_MLP_FC1, products[i].op, &w.gemm, &error));
            if (products[i].a != NULL) ASSERT_TRUE(w.gemm.a.data == products[i].a + up * N && w.gemm.a.ld == 2 * N && w.gemm.a.shape.cols == N);
            if (products[i].d != NULL) ASSERT_TRUE(w.gemm.d.data == products[i].d + up * N && w.gemm.d.ld == 2 * N && w.gemm.d.shape.cols == N);
            if (products[i].op != TEGROUP_OP_WGRAD) ASSERT_TRUE(w.gemm.b.data == (up ? w.mlp.fc1_up : w.mlp.fc1).weight.data);
            else ASSERT_TRUE(w.gemm.d.data == (up ? w.mlp.fc1_up : w.mlp.fc1).main_grad.data);
            ASSERT_EQ(products[i].accumulates[up], w.gemm.accumulate);
            ASSERT_EQ(TEGROUP_OK, tegroup_gemm_problem(&w.gemm, &w.problem, &error));
        }
}

/* Each product as the MLP has it: what it multiplies, what it adds, and where it puts the result; NULL: in the
 * workspace. */
TEST(status, mlp_gemm) {
    static const struct { tegroup_mlp_layer layer; tegroup_op op; const void *a, *b, *bias, *d; } products[] = {
        {TEGROUP_MLP_FC1, TEGROUP_OP_FORWARD, w.x, w.fc1_weight, w.fc1_bias, w.preactivation},
        {TEGROUP_MLP_FC2, TEGROUP_OP_FORWARD, w.activated, w.fc2_weight, w.fc2_bias, w.mlp_out},
        {TEGROUP_MLP_FC2, TEGROUP_OP_DGRAD, w.mlp_grad_output, w.fc2_weight, NULL, NULL},
        {TEGROUP_MLP_FC1, TEGROUP_OP_DGRAD, w.grad_preactivation, w.fc1_weight, NULL, w.x_grad},
        {TEGROUP_MLP_FC2, TEGROUP_OP_WGRAD, w.mlp_grad_output, w.activated, w.fc2_bias_grad, w.fc2_weight_grad},
        {TEGROUP_MLP_FC1, TEGROUP_OP_WGRAD, w.grad_preactivation, w.x, w.fc1_bias_grad, w.fc1_weight_grad},
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        spoil_nothing();
        ASSERT_EQ(TEGROUP_OK, tegroup_mlp_gemm(&w.mlp_plan, &w.mlp, products[i].layer, products[i].op, &w.gemm,
            &error));
        const unsigned char *d = (const unsigned char *)w.gemm.d.data;
        ASSERT_EQ(products[i].op, w.gemm.op);
        ASSERT_TRUE(w.gemm.a.data == products[i].a && w.gemm.b.data == products[i].b
            && w.gemm.bias.data == products[i].bias);
        if (products[i].d != NULL) ASSERT_TRUE(d == products[i].d);
        else ASSERT_TRUE(d >= w.workspace && d < w.workspace + w.mlp_plan.workspace_bytes);
        ASSERT_EQ(TEGROUP_OK, tegroup_gemm_problem(&w.gemm, &w.problem, &error));
    }
}

static void mlp_rows(int64_t rows) {
    tegroup_tensor *const tensors[] = {&w.mlp.input, &w.mlp.out, &w.mlp.grad_output, &w.mlp.dgrad_out, &w.mlp.grad_row_scale,
                                       &w.mlp.preactivation, &w.mlp.activated, &w.mlp.grad_preactivation};
    for (int i = 0; i < 8; i++) tensors[i]->shape.rows = rows;
}

TEST(status, mlp_calls) {
    NOT(mlp_forward, NULL AND &w.mlp AND NULL, NULL_ARGUMENT, "plan", 1, 0);
    NOT(mlp_dgrad, &w.mlp_plan AND NULL AND NULL, NULL_ARGUMENT, "desc", 1, 0);
    BAD(mlp_gemm, w.mlp_plan.struct_size = 1, STRUCT_SIZE, "plan.struct_size", sizeof w.mlp_plan, 1);
    BAD(mlp_gemm, w.mlp_plan.magic = 7, PLAN, "plan", TEGROUP_MLP_PLAN_MAGIC, 7);
    BAD(mlp_forward, w.mlp.options.threads = -1, VALUE, "options.threads", 0, -1);
    BAD(mlp_dgrad, w.mlp.options.threads = INT32_MIN, VALUE, "options.threads", 0, INT32_MIN);
    BAD(mlp_forward, w.mlp.activated.data = (void *)(uintptr_t)w.mlp.input.shape.snapshot, OVERLAP, "activated.data", 0, 1);
    BAD(mlp_dgrad, w.mlp.grad_preactivation.data = (void *)(uintptr_t)w.mlp.input.shape.snapshot, OVERLAP, "grad_preactivation.data", 0, 1);
    BAD(mlp_forward, w.mlp_plan.struct_size = 1, STRUCT_SIZE, "plan.struct_size", sizeof w.mlp_plan, 1);
    BAD(mlp_wgrad, w.mlp_plan.magic = 1, PLAN, "plan", TEGROUP_MLP_PLAN_MAGIC, 1);
    BAD(mlp_forward, w.mlp.activation = TEGROUP_ACTIVATION_SWIGLU, PLAN, "activation", TEGROUP_ACTIVATION_SWIGLU_CLAMPED, TEGROUP_ACTIVATION_SWIGLU);
    BAD(mlp_dgrad, w.mlp.interleaved = 1, PLAN, "interleaved", 0, 1);
    BAD(mlp_forward, w.mlp.fusion = TEGROUP_FUSION_REQUIRED, PLAN, "fusion", TEGROUP_FUSION_NEVER, TEGROUP_FUSION_REQUIRED);
    BAD(mlp_forward, w.mlp.fusion = TEGROUP_FUSION_NEVER; w.mlp_plan.planned.fused = TEGROUP_FUSED_FORWARD, PLAN, "fusion", TEGROUP_FUSION_REQUIRED, TEGROUP_FUSION_NEVER);
    BAD(mlp_forward, w.mlp_plan.planned.fused = TEGROUP_FUSED_FORWARD, PLAN, "plan", TEGROUP_BACKEND_SM90, TEGROUP_BACKEND_CPU);
    BAD(mlp_dgrad, w.mlp.fusion = TEGROUP_FUSION_REQUIRED, PLAN, "fusion", TEGROUP_FUSION_NEVER, TEGROUP_FUSION_REQUIRED);
    BAD(mlp_dgrad, w.mlp.fusion = TEGROUP_FUSION_NEVER; w.mlp_plan.planned.fused = TEGROUP_FUSED_DGRAD, PLAN, "fusion", TEGROUP_FUSION_REQUIRED, TEGROUP_FUSION_NEVER);
    BAD(mlp_dgrad, w.mlp_plan.planned.fused = TEGROUP_FUSED_DGRAD, PLAN, "plan", TEGROUP_BACKEND_SM90, TEGROUP_BACKEND_CPU);
    spoil_nothing(); /* what forward has in an epilogue is not dgrad's */
    w.mlp_plan.planned.fused = TEGROUP_FUSED_FORWARD;
    GOOD(mlp_dgrad);
    BAD(mlp_dgrad, w.mlp.preactivation.ld = 2 * N + 1, LAYOUT, "preactivation.ld", 2 * N, 2 * N + 1);
    BAD(mlp_dgrad, w.mlp.recompute = 1, PLAN, "recompute", 0, 1);
    BAD(mlp_forward, MLP_ABSENT(out), UNSET, "out.dtype", FLOATS, 0);
    BAD(mlp_dgrad, MLP_ABSENT(dgrad_out), PLAN, "dgrad_out.dtype", TEGROUP_DTYPE_F32, 0);
    BAD(mlp_dgrad, MLP_ABSENT(grad_row_scale), PLAN, "grad_row_scale.dtype", TEGROUP_DTYPE_F32, 0);
    BAD(mlp_wgrad, MLP_ABSENT(fc2.main_grad); MLP_ABSENT(fc2.bias_grad), PLAN, "fc2.main_grad.dtype", TEGROUP_DTYPE_F32, 0);
    BAD(mlp_wgrad, MLP_ABSENT(fc1.bias_grad), PLAN, "fc1.bias_grad.dtype", TEGROUP_DTYPE_F32, 0);
    BAD(mlp_wgrad, MLP_ABSENT(fc1.main_grad); MLP_ABSENT(fc1.bias_grad); MLP_ABSENT(fc2.main_grad); MLP_ABSENT(fc2.bias_grad), UNSET, "fc1.main_grad.dtype",
        FLOATS, 0);
    BAD(mlp_forward, MLP_ABSENT(preactivation); MLP_ABSENT(grad_preactivation); MLP_ABSENT(dgrad_out); MLP_ABSENT(grad_row_scale); MLP_ABSENT(fc1.main_grad);
        MLP_ABSENT(fc1.bias_grad), PLAN, "preactivation.dtype", TEGROUP_DTYPE_F32, 0);
    BAD(mlp_forward, w.mlp.fc2_bias_scaled = 0, PLAN, "fc2_bias_scaled", 1, 0);
    BAD(mlp_forward, w.mlp.fc1.weight_layout = TEGROUP_WEIGHT_IN_OUT, PLAN, "fc1.weight_layout", 0, 1);
    BAD(mlp_dgrad, w.mlp.fc2.weight_layout = TEGROUP_WEIGHT_IN_OUT, PLAN, "fc2.weight_layout", 0, 1);
    BAD(mlp_wgrad, w.mlp.fc1.weight_layout = TEGROUP_WEIGHT_IN_OUT, PLAN, "fc1.weight_layout", 0, 1);
    BAD(mlp_dgrad, w.mlp_plan.planned.fc2_bias_scaled = 0, PLAN, "fc2_bias_scaled", 0, 1);
    BAD(mlp_dgrad, w.mlp.preactivation.shape.groups--, SHAPE, "preactivation.shape.groups", EXPERTS, EXPERTS - 1);
    BAD(mlp_forward, w.mlp.out.dtype = TEGROUP_DTYPE_BF16, PLAN, "out.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    BAD(mlp_forward, w.mlp.preactivation.dtype = TEGROUP_DTYPE_BF16, PLAN, "preactivation.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    BAD(mlp_dgrad, w.mlp.preactivation.dtype = TEGROUP_DTYPE_BF16, PLAN, "preactivation.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    BAD(mlp_dgrad, w.mlp.grad_row_scale.dtype = TEGROUP_DTYPE_F64, PLAN, "grad_row_scale.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    BAD(mlp_forward, w.mlp.row_scale_dtype = TEGROUP_DTYPE_F64, PLAN, "row_scale_dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    BAD(mlp_dgrad, w.mlp.row_scale_dtype = TEGROUP_DTYPE_F64, PLAN, "row_scale_dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64);
    BAD(mlp_wgrad, w.mlp.accumulate = 1, PLAN, "accumulate", 0, 1);
    BAD(mlp_forward, w.mlp.out_tail = TEGROUP_TAIL_ZERO, PLAN, "out_tail", TEGROUP_TAIL_KEEP, TEGROUP_TAIL_ZERO);
    BAD(mlp_dgrad, w.mlp.dgrad_out_tail = TEGROUP_TAIL_ZERO, PLAN, "dgrad_out_tail", TEGROUP_TAIL_KEEP, TEGROUP_TAIL_ZERO);
    BAD(mlp_wgrad, w.mlp.fc2.main_grad.dtype = TEGROUP_DTYPE_BF16, PLAN, "fc2.main_grad.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    BAD(mlp_dgrad, w.mlp.grad_output.ld = K + 1, PLAN, "grad_output.ld", K, K + 1);

    MLP_MEMORY(mlp_forward, input);
    MLP_MEMORY(mlp_forward, fc1.weight);
    MLP_MEMORY(mlp_forward, fc1.bias);
    MLP_MEMORY(mlp_forward, preactivation);
    MLP_MEMORY(mlp_forward, activated);
    MLP_MEMORY(mlp_forward, fc2.weight);
    MLP_MEMORY(mlp_forward, fc2.bias);
    MLP_MEMORY(mlp_forward, out);
    MLP_MEMORY(mlp_dgrad, grad_output);
    MLP_MEMORY(mlp_dgrad, fc2.weight);
    MLP_MEMORY(mlp_dgrad, fc2.bias);
    MLP_MEMORY(mlp_dgrad, preactivation);
    MLP_MEMORY(mlp_dgrad, grad_preactivation);
    MLP_MEMORY(mlp_dgrad, fc1.weight);
    MLP_MEMORY(mlp_dgrad, dgrad_out);
    MLP_MEMORY(mlp_dgrad, grad_row_scale);
    MLP_MEMORY(mlp_wgrad, grad_output);
    MLP_MEMORY(mlp_wgrad, activated);
    MLP_MEMORY(mlp_wgrad, grad_preactivation);
    MLP_MEMORY(mlp_wgrad, input);
    MLP_MEMORY(mlp_wgrad, fc1.main_grad);
    MLP_MEMORY(mlp_wgrad, fc1.bias_grad);
    MLP_MEMORY(mlp_wgrad, fc2.main_grad);
    MLP_MEMORY(mlp_wgrad, fc2.bias_grad);
    BAD(mlp_forward, w.mlp.row_scale = NULL, NULL_ARGUMENT, "row_scale", 1, 0);
    BAD(mlp_dgrad, w.mlp.row_scale = NULL, NULL_ARGUMENT, "row_scale", 1, 0);
    BAD(mlp_wgrad, SHIFT(w.mlp.row_scale, 1), ALIGNMENT, "row_scale", 4, 1);
    BAD(mlp_forward, w.mlp.fc1.weight.pointers = (void *const *)w.mlp.fc1.weight.data, UNSET, "fc1.weight.pointers_space", TEGROUP_SPACE_HOST, 0);
    BAD(mlp_wgrad, LISTED(w.mlp.fc2.main_grad, HOST), PLAN, "fc2.main_grad.pointers_space", 0, TEGROUP_SPACE_HOST);
    BAD(mlp_forward, w.mlp.input.shape.snapshot = NULL, NULL_ARGUMENT, "input.shape.snapshot", 1, 0);
    BAD(mlp_dgrad, w.mlp.input.shape.snapshot = NULL, NULL_ARGUMENT, "input.shape.snapshot", 1, 0);
    BAD(mlp_dgrad, w.mlp.grad_output.shape.snapshot = NULL, NULL_ARGUMENT, "grad_output.shape.snapshot", 1, 0);
    BAD(mlp_forward, memset(w.snapshot, 0, 4), CAPACITY, "input.shape.snapshot", TEGROUP_SNAPSHOT_MAGIC, 0);
    BAD(mlp_forward, w.mlp.options.workspace = NULL, NULL_ARGUMENT, "options.workspace", 1, 0);
    BAD(mlp_dgrad, SHIFT(w.mlp.options.workspace, 16), ALIGNMENT, "options.workspace", TEGROUP_ALIGNMENT, 16);
    BAD(mlp_dgrad, w.mlp.options.workspace_bytes = w.mlp_plan.workspace_bytes - 1, WORKSPACE, "options.workspace_bytes", w.mlp_plan.workspace_bytes,
        w.mlp_plan.workspace_bytes - 1);
    BAD(mlp_dgrad, mlp_rows(ROWS + 1), PLAN, "input.shape.rows", ROWS, ROWS + 1);
    BAD(mlp_forward, mlp_rows(ENDS - 1), CAPACITY, "input.shape.snapshot", ENDS - 1, ENDS);
    BAD(mlp_wgrad, w.mlp.options.workspace_bytes = w.mlp_plan.wgrad_workspace_bytes - 1, WORKSPACE, "options.workspace_bytes", w.mlp_plan.wgrad_workspace_bytes,
        w.mlp_plan.wgrad_workspace_bytes - 1);
}

/* A rule that asks for one type names that one, and not what its number would mean as a set. */
TEST(status, one_type_is_no_set) {
    tegroup_linear_plan linear;
    tegroup_mlp_plan mlp;
    char text[256];
    spoil_nothing();
    w.linear.row_scale_dtype = TEGROUP_DTYPE_UNSET;
    ASSERT_EQ(tegroup_linear_plan_make(&w.linear, NULL, &linear, &error), TEGROUP_ERROR_UNSET);
    tegroup_error_text(&error, text, sizeof text);
    ASSERT_TRUE(strstr(text, "row_scale_dtype must be set with row_scale (expected F32, got UNSET)") != NULL);
    w.mlp.row_scale_dtype = TEGROUP_DTYPE_UNSET;
    ASSERT_EQ(tegroup_mlp_plan_make(&w.mlp, NULL, &mlp, &error), TEGROUP_ERROR_UNSET);
    tegroup_error_text(&error, text, sizeof text);
    ASSERT_TRUE(strstr(text, "row_scale_dtype must be set with row_scale (expected F32, got UNSET)") != NULL);
    spoil_nothing();
    mlp_apart();
    MLP_ABSENT(fc1_up.bias);
    ASSERT_EQ(tegroup_mlp_plan_make(&w.mlp, NULL, &mlp, &error), TEGROUP_ERROR_UNSET);
    tegroup_error_text(&error, text, sizeof text);
    ASSERT_TRUE(strstr(text, "(expected F32, got UNSET)") != NULL);
}

/* A tensor between the products is held to its rules by a call, too, where no product has it: without dgrad_out and
 * main_grads the activation's gradient alone writes grad_preactivation. */
TEST(status, mlp_gradient_of_the_activation_alone) {
    tegroup_mlp_plan plan;
    for (int i = 0; i < 4; i++) {
        spoil_nothing();
        MLP_ABSENT(dgrad_out), MLP_ABSENT(grad_row_scale), MLP_ABSENT(fc1.main_grad), MLP_ABSENT(fc1.bias_grad),
            MLP_ABSENT(fc2.main_grad), MLP_ABSENT(fc2.bias_grad);
        w.mlp.fc2_bias_scaled = 0;
        ASSERT_EQ(TEGROUP_OK, tegroup_mlp_plan_make(&w.mlp, NULL, &plan, &error));
        if (i == 1) w.mlp.grad_preactivation.ld = 2 * N + 1;
        if (i == 2) w.mlp.grad_preactivation.shape.rows--;
        if (i == 3) w.mlp.grad_preactivation.shape.snapshot = w.snapshot_out;
        memcpy(&before, &w, sizeof w);
        ASSERT_EQ(i == 0 ? TEGROUP_OK : i == 1 ? TEGROUP_ERROR_LAYOUT : i == 2 ? TEGROUP_ERROR_SHAPE
            : TEGROUP_ERROR_COMBINATION,
                  tegroup_mlp_dgrad(&plan, &w.mlp, NULL, &error));
        if (i == 0) continue;
        ASSERT_STREQ(i == 1 ? "grad_preactivation.ld" : i == 2 ? "grad_preactivation.shape.rows"
            : "grad_preactivation.shape.snapshot", error.field);
        ASSERT_EQ(0, memcmp(&before, &w, sizeof w));
    }
    spoil_nothing();
    w.mlp.fc2_bias_scaled = 0; /* no product gives a part of grad_row_scale */
    ASSERT_EQ(TEGROUP_OK, tegroup_mlp_plan_make(&w.mlp, NULL, &plan, &error));
    w.mlp.grad_row_scale.ld = 2;
    memcpy(&before, &w, sizeof w);
    ASSERT_EQ(TEGROUP_ERROR_LAYOUT, tegroup_mlp_dgrad(&plan, &w.mlp, NULL, &error));
    ASSERT_STREQ("grad_row_scale.ld", error.field);
    ASSERT_EQ(0, memcmp(&before, &w, sizeof w));
}

/* Whatever a call writes against whatever else it touches, in one product or another. */
TEST(status, mlp_overlaps) {
    tegroup_mlp_desc *m = &w.mlp;
    MEETS(mlp_wgrad, m->fc1.bias_grad.data = w.activated, "fc1.bias_grad.data", "activated");
    /* what a call does not touch may lie anywhere, and what it does not write may be absent */
    spoil_nothing();
    m->activated.data = w.x_grad;
    GOOD(mlp_dgrad);
    spoil_nothing();
    m->fc2_bias_scaled = 0;
    m->row_scale = w.fc1_weight_grad;
    GOOD(replanned_mlp_wgrad);
    spoil_nothing();
    MLP_ABSENT(fc1.main_grad), MLP_ABSENT(fc1.bias_grad), MLP_ABSENT(fc2.main_grad), MLP_ABSENT(fc2.bias_grad);
    GOOD(mlp_dgrad);
    spoil_nothing();
    m->out.shape.snapshot = w.snapshot_out;
    GOOD(mlp_wgrad);
    MEETS(mlp_forward, m->out.data = w.x, "out.data", "input");
    MEETS(mlp_forward, m->out.data = w.fc1_weight, "out.data", "fc1.weight");
    MEETS(mlp_forward, m->out.data = w.fc1_bias, "out.data", "fc1.bias");
    MEETS(mlp_forward, m->out.data = w.fc2_weight, "out.data", "fc2.weight");
    MEETS(mlp_forward, m->out.data = w.row_scale, "out.data", "row_scale");
    MEETS(mlp_forward, m->out.data = w.preactivation, "out.data", "preactivation");
    MEETS(mlp_forward, m->out.data = w.snapshot, "out.data", "a snapshot");
    MEETS(mlp_forward, m->preactivation.data = w.fc2_weight, "preactivation.data", "fc2.weight");
    MEETS(mlp_forward, m->activated.data = w.fc2_bias, "activated.data", "fc2.bias");
    MEETS(mlp_forward, m->activated.data = w.x, "activated.data", "input");
    MEETS(mlp_forward, m->options.workspace = w.fc2_weight; m->options.workspace_bytes = w.mlp_plan.workspace_bytes, "options.workspace", "fc2.weight");
    MEETS(mlp_forward, m->options.workspace = w.preactivation; m->options.workspace_bytes = w.mlp_plan.workspace_bytes, "options.workspace", "preactivation");
    MEETS(replanned_mlp_forward, picked(&m->gather_input); m->out.data = slots, "out.data", "gather_input.slot_of_row");
    MEETS(replanned_mlp_dgrad, picked(&m->gather_grad_output); m->grad_row_scale.data = slots, "grad_row_scale.data", "gather_grad_output.slot_of_row");
    MEETS(replanned_mlp_wgrad, picked(&m->gather_input); m->fc2.main_grad.data = slots, "fc2.main_grad.data", "gather_input.slot_of_row");
    MEETS(mlp_dgrad, m->dgrad_out.data = w.mlp_grad_output, "dgrad_out.data", "grad_output");
    MEETS(mlp_dgrad, m->dgrad_out.data = w.fc2_weight, "dgrad_out.data", "fc2.weight");
    MEETS(mlp_dgrad, m->dgrad_out.data = w.preactivation, "dgrad_out.data", "preactivation");
    MEETS(mlp_dgrad, m->grad_preactivation.data = w.fc1_weight, "grad_preactivation.data", "fc1.weight");
    MEETS(mlp_dgrad, m->grad_preactivation.data = w.preactivation + 1, "grad_preactivation.data", "preactivation");
    MEETS(mlp_dgrad, m->grad_row_scale.data = w.fc2_bias, "grad_row_scale.data", "fc2.bias");
    MEETS(mlp_dgrad, m->grad_row_scale.data = w.row_scale, "grad_row_scale.data", "row_scale");
    MEETS(mlp_dgrad, m->grad_row_scale.data = w.x_grad, "dgrad_out.data", "grad_row_scale");
    MEETS(replanned_mlp_forward, list_of(&m->fc2.weight, lists[0], 8); m->preactivation.data = lists[0], "preactivation.data", "fc2.weight");
    MEETS(replanned_mlp_dgrad, list_of(&m->fc1.weight, lists[0], 8); m->grad_row_scale.data = lists[0], "grad_row_scale.data", "fc1.weight");
    MEETS(replanned_mlp_dgrad, list_of(&m->fc1.weight, (void **)(void *)w.workspace, 8), "options.workspace", "fc1.weight");
    MEETS(replanned_mlp_wgrad, list_of(&m->fc1.main_grad, lists[0], 8); m->fc2.main_grad.data = lists[0], "fc2.main_grad.data", "fc1.main_grad");
    MEETS(mlp_wgrad, m->fc1.main_grad.data = w.x, "fc1.main_grad.data", "input");
    MEETS(mlp_wgrad, m->fc1.main_grad.data = w.activated, "fc1.main_grad.data", "activated");
    MEETS(mlp_wgrad, m->fc2.main_grad.data = w.grad_preactivation, "fc2.main_grad.data", "grad_preactivation");
    MEETS(mlp_wgrad, m->fc2.main_grad.data = w.fc1_weight_grad, "fc1.main_grad.data", "fc2.main_grad");
    MEETS(mlp_wgrad, m->fc2.bias_grad.data = w.row_scale, "fc2.bias_grad.data", "row_scale");
    MEETS(mlp_wgrad, m->options.workspace = w.fc1_weight_grad; m->options.workspace_bytes = w.mlp_plan.wgrad_workspace_bytes, "options.workspace", "fc1.main_grad");

    spoil_nothing(); /* in place: the one that is allowed */
    m->grad_preactivation.data = w.preactivation;
    GOOD(mlp_dgrad);
}

/* ---- Names, texts and sizes ---------------------------------------------------------------------------------- */

/* Every enum that a descriptor or an argument has, one below its values and one above: VALUE, and the number that came. */
#define ENUM(call, lvalue, field, type, last) RANGE(call, lvalue, field, type, 0, last)
#define ENUM_DTYPE(call, lvalue, field) ENUM(call, lvalue, field, tegroup_dtype, TEGROUP_DTYPE_COUNT - 1)
#define ENUM_SPACE(call, lvalue, field) ENUM(call, lvalue, field, tegroup_space, TEGROUP_SPACE_DEVICE)
#define ENUM_TENSOR(call, t, name)                                                                                                  \
    ENUM_DTYPE(call, t.dtype, name ".dtype");                                                                                       \
    ENUM(call, t.scaling, name ".scaling", tegroup_scaling, TEGROUP_SCALING_COUNT - 1);                                             \
    ENUM_SPACE(call, t.pointers_space, name ".pointers_space");                                                                     \
    ENUM_DTYPE(call, t.scale_dtype, name ".scale_dtype");                                                                           \
    ENUM(call, t.columnwise_order, name ".columnwise_order", tegroup_columnwise_order, TEGROUP_COLUMNWISE_F32);                     \
    ENUM(call, t.code_order, name ".code_order", tegroup_code_order, TEGROUP_CODES_INTERLEAVED);                                    \
    ENUM(call, t.shape.row_sizes.encoding, name ".shape.row_sizes.encoding", tegroup_encoding, TEGROUP_ENCODING_ENDS);              \
    ENUM_SPACE(call, t.shape.row_sizes.space, name ".shape.row_sizes.space");                                                       \
    ENUM(call, t.shape.col_sizes.encoding, name ".shape.col_sizes.encoding", tegroup_encoding, TEGROUP_ENCODING_ENDS)
#define ENUM_SIZES(call, sizes, name)                                                                                               \
    ENUM(call, sizes.encoding, name ".encoding", tegroup_encoding, TEGROUP_ENCODING_ENDS);                                          \
    ENUM_DTYPE(call, sizes.dtype, name ".dtype");                                                                                   \
    ENUM_SPACE(call, sizes.space, name ".space");                                                                                   \
    ENUM_SPACE(call, sizes.data_space, name ".data_space")
#define ENUM_ACTIVATION(call, lvalue) ENUM(call, lvalue, "activation", tegroup_activation, TEGROUP_ACTIVATION_IDENTITY)
#define ENUM_TAILS(call, desc)                                                                                                      \
    ENUM(call, desc.out_tail, "out_tail", tegroup_tail, TEGROUP_TAIL_POISON);                                                       \
    ENUM(call, desc.dgrad_out_tail, "dgrad_out_tail", tegroup_tail, TEGROUP_TAIL_POISON)
#define ENUM_OPTIONS(call, desc)                                                                                                    \
    ENUM(call, desc.options.compute, "options.compute", tegroup_compute, TEGROUP_COMPUTE_FAST_ACCUM);                                                    \
    ENUM(call, desc.options.backend, "options.backend", tegroup_backend, TEGROUP_BACKEND_COUNT - 1);                                                \
    ENUM(call, desc.options.check_level, "options.check_level", tegroup_check_level, TEGROUP_CHECK_DEEP)

TEST(status, every_enum) {
    ENUM_SPACE(prepare, w.prepare.space, "space");
    ENUM_SIZES(prepare, w.prepare.shape.row_sizes, "shape.row_sizes");
    ENUM_SIZES(irregular, w.irregular.shape.row_sizes, "shape.row_sizes");
    ENUM_DTYPE(irregular, w.irregular.shape.col_sizes.dtype, "shape.col_sizes.dtype");
    ENUM_SPACE(irregular, w.irregular.shape.col_sizes.space, "shape.col_sizes.space");
    ENUM_SPACE(irregular, w.irregular.shape.col_sizes.data_space, "shape.col_sizes.data_space");
    ENUM(irregular, w.irregular.shape.col_sizes.encoding, "shape.col_sizes.encoding", tegroup_encoding, TEGROUP_ENCODING_ENDS);
    ENUM(problem, w.forward.op, "op", tegroup_op, TEGROUP_OP_WGRAD);
    ENUM_SPACE(problem, w.forward.space, "space");
    ENUM_TENSOR(problem, w.forward.a, "a");
    ENUM_TENSOR(problem, w.forward.b, "b");
    ENUM_TENSOR(problem, w.forward.c, "c");
    ENUM_TENSOR(problem, w.forward.d, "d");
    ENUM_TENSOR(problem, w.forward.bias, "bias");
    ENUM_DTYPE(problem, w.forward.row_scale_dtype, "row_scale_dtype");
    ENUM_DTYPE(problem, w.forward.alpha.dtype, "alpha.dtype");
    ENUM_SPACE(problem, w.forward.alpha.space, "alpha.space");
    ENUM_DTYPE(problem, w.forward.beta.dtype, "beta.dtype");
    ENUM_SPACE(problem, w.forward.beta.space, "beta.space");
    ENUM(problem, w.forward.tail, "tail", tegroup_tail, TEGROUP_TAIL_POISON);
    ENUM_OPTIONS(problem, w.forward);
    ENUM_OPTIONS(plan, w.forward);
    ENUM_SPACE(linear_plan, w.linear.space, "space");
    ENUM_TENSOR(linear_plan, w.linear.weight, "weight");
    ENUM_TENSOR(linear_plan, w.linear.bias, "bias");
    ENUM_TENSOR(linear_plan, w.linear.input, "input");
    ENUM_TENSOR(linear_plan, w.linear.out, "out");
    ENUM_TENSOR(linear_plan, w.linear.grad_output, "grad_output");
    ENUM_TENSOR(linear_plan, w.linear.dgrad_out, "dgrad_out");
    ENUM_TENSOR(linear_plan, w.linear.main_grad, "main_grad");
    ENUM_TENSOR(linear_plan, w.linear.bias_grad, "bias_grad");
    ENUM_TENSOR(linear_plan, w.linear.grad_row_scale, "grad_row_scale");
    ENUM_DTYPE(linear_plan, w.linear.row_scale_dtype, "row_scale_dtype");
    ENUM_TAILS(linear_plan, w.linear);
    ENUM_OPTIONS(linear_plan, w.linear);
    NOT(linear_gemm, &w.linear AND (tegroup_op)-1 AND &w.gemm, VALUE, "op", TEGROUP_OP_WGRAD, -1);
    ENUM_SPACE(mlp_plan, w.mlp.space, "space");
    ENUM_ACTIVATION(mlp_plan, w.mlp.activation);
    ENUM(mlp_plan, w.mlp.fusion, "fusion", tegroup_fusion, TEGROUP_FUSION_REQUIRED);
    ENUM_TENSOR(mlp_plan, w.mlp.fc1.weight, "fc1.weight");
    ENUM_TENSOR(mlp_plan, w.mlp.fc1.bias, "fc1.bias");
    ENUM_TENSOR(mlp_plan, w.mlp.fc1.main_grad, "fc1.main_grad");
    ENUM_TENSOR(mlp_plan, w.mlp.fc1.bias_grad, "fc1.bias_grad");
    ENUM_TENSOR(mlp_plan, w.mlp.fc2.weight, "fc2.weight");
    ENUM_TENSOR(mlp_plan, w.mlp.fc2.bias, "fc2.bias");
    ENUM_TENSOR(mlp_plan, w.mlp.fc2.main_grad, "fc2.main_grad");
    ENUM_TENSOR(mlp_plan, w.mlp.fc2.bias_grad, "fc2.bias_grad");
    ENUM_TENSOR(mlp_plan, w.mlp.input, "input");
    ENUM_TENSOR(mlp_plan, w.mlp.out, "out");
    ENUM_TENSOR(mlp_plan, w.mlp.grad_output, "grad_output");
    ENUM_TENSOR(mlp_plan, w.mlp.dgrad_out, "dgrad_out");
    ENUM_TENSOR(mlp_plan, w.mlp.grad_row_scale, "grad_row_scale");
    ENUM_TENSOR(mlp_plan, w.mlp.preactivation, "preactivation");
    ENUM_TENSOR(mlp_plan, w.mlp.activated, "activated");
    ENUM_TENSOR(mlp_plan, w.mlp.grad_preactivation, "grad_preactivation");
    ENUM_DTYPE(mlp_plan, w.mlp.row_scale_dtype, "row_scale_dtype");
    ENUM_TAILS(mlp_plan, w.mlp);
    ENUM_OPTIONS(mlp_plan, w.mlp);
    NOT(mlp_gemm, NULL AND &w.mlp AND (tegroup_mlp_layer)-1 AND TEGROUP_OP_DGRAD AND &w.gemm, VALUE, "layer", TEGROUP_MLP_FC1_UP, -1);
    NOT(mlp_gemm, NULL AND &w.mlp AND TEGROUP_MLP_FC1 AND (tegroup_op)-1 AND &w.gemm, VALUE, "op", TEGROUP_OP_WGRAD, -1);
    ENUM_SPACE(activation, w.activation.space, "space");
    ENUM_ACTIVATION(activation, w.activation.activation);
    ENUM_DTYPE(activation, w.activation.input.dtype, "input.dtype");
    ENUM_DTYPE(activation, w.activation.row_scale.dtype, "row_scale.dtype");
    ENUM_DTYPE(activation, w.activation.output.dtype, "output.dtype");
    ENUM_SPACE(activation_backward, w.activation_backward.space, "space");
    ENUM_ACTIVATION(activation_backward, w.activation_backward.activation);
    ENUM_DTYPE(activation_backward, w.activation_backward.grad_input.dtype, "grad_input.dtype");
    ENUM_DTYPE(activation_backward, w.activation_backward.grad_row_scale.dtype, "grad_row_scale.dtype");
    ENUM_SPACE(router, w.router.space, "space");
    ENUM_DTYPE(router, w.router.logits.dtype, "logits.dtype");
    ENUM_DTYPE(router, w.router.indices.dtype, "indices.dtype");
    ENUM_SPACE(router_backward, w.router_backward.space, "space");
    ENUM_SPACE(permutation, w.permutation.space, "space");
    ENUM_DTYPE(permutation, w.permutation.row_of_slot.dtype, "row_of_slot.dtype");
    ENUM_SPACE(permute, w.permute.space, "space");
    ENUM_DTYPE(permute, w.permute.weights.dtype, "weights.dtype");
    ENUM_SPACE(combine, w.combine.space, "space");
    ENUM_DTYPE(combine, w.combine.tokens.dtype, "tokens.dtype");
    ENUM_SPACE(combine_backward, w.combine_backward.space, "space");
    ENUM_SPACE(ep_sizes, w.ep_sizes.space, "space");
    ENUM_SPACE(ep_dispatch, w.ep_dispatch.space, "space");
    ENUM_SPACE(ep_expand, w.ep_expand.space, "space");
    ENUM_SPACE(ep_reduce, w.ep_reduce.space, "space");
    ENUM_SPACE(ep_combine, w.ep_combine.space, "space");
    ENUM_SPACE(validate, w.validate.space, "space");
    ENUM_SPACE(scale_convert, w.scale_convert.space, "space");
    ENUM_SPACE(quantize, w.quantize.space, "space");
    ENUM_SPACE(dequantize, w.dequantize.space, "space");
    ENUM_TENSOR(scale_convert, w.scale_convert.from, "from");
    ENUM_TENSOR(scale_convert, w.scale_convert.to, "to");
    ENUM_TENSOR(validate, w.validate.tensor, "tensor");
    NOT(scale_shape, (tegroup_scaling)-1 AND 0 AND 1 AND 1 AND &w.extent, VALUE, "scaling", TEGROUP_SCALING_COUNT - 1, -1);
}

TEST(status, names) {
    const int unknown[] = {-1, 99, 1 << 30};
#define STATUS(name, value, text)                                                   \
    ASSERT_EQ(value, (int)TEGROUP_##name);                                          \
    ASSERT_STREQ(#name, tegroup_status_name(TEGROUP_##name));                       \
    ASSERT_STREQ(text, tegroup_status_string(TEGROUP_##name));
    TEGROUP_STATUS_LIST(STATUS)
#define DTYPE(name, value, bits)                                                    \
    ASSERT_EQ(value, (int)TEGROUP_DTYPE_##name);                                    \
    ASSERT_STREQ(#name, tegroup_dtype_name(TEGROUP_DTYPE_##name));                  \
    ASSERT_EQ(bits, tegroup_dtype_bits(TEGROUP_DTYPE_##name));
    TEGROUP_DTYPE_LIST(DTYPE)
    ASSERT_STREQ("forward", tegroup_op_name(TEGROUP_OP_FORWARD));
    ASSERT_STREQ("dgrad", tegroup_op_name(TEGROUP_OP_DGRAD));
    ASSERT_STREQ("wgrad", tegroup_op_name(TEGROUP_OP_WGRAD));
    ASSERT_STREQ("cublaslt_grouped", tegroup_backend_name(TEGROUP_BACKEND_CUBLASLT_GROUPED));
    for (int b = 0; b < TEGROUP_BACKEND_COUNT; b++)
        for (int c = 0; c < b; c++) ASSERT_STRNE(tegroup_backend_name((tegroup_backend)b), tegroup_backend_name((tegroup_backend)c));
    ASSERT_STREQ("?", tegroup_op_name(TEGROUP_OP_UNSET));
    ASSERT_STREQ("?", tegroup_dtype_name(TEGROUP_DTYPE_UNSET));
    ASSERT_EQ(0, tegroup_dtype_bits(TEGROUP_DTYPE_UNSET));
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        ASSERT_STREQ("?", tegroup_status_name((tegroup_status)unknown[i]));
        ASSERT_STREQ("?", tegroup_status_string((tegroup_status)unknown[i]));
        ASSERT_STREQ("?", tegroup_dtype_name((tegroup_dtype)unknown[i]));
        ASSERT_STREQ("?", tegroup_op_name((tegroup_op)unknown[i]));
        ASSERT_STREQ("?", tegroup_backend_name((tegroup_backend)unknown[i]));
        ASSERT_EQ(0, tegroup_dtype_bits((tegroup_dtype)unknown[i]));
        ASSERT_TRUE(tegroup_scaling_info((tegroup_scaling)unknown[i]) == NULL);
    }
    ASSERT_EQ(TEGROUP_VERSION, tegroup_version());
    ASSERT_EQ(TEGROUP_VERSION, TEGROUP_VERSION_MAJOR * 10000 + TEGROUP_VERSION_MINOR * 100 + TEGROUP_VERSION_PATCH);
}

/* As snprintf: the length of the whole, a terminated beginning of it, nothing past the end, and NULL with 0. */
typedef int text_function(const void *, char *, size_t);
static int error_text(const void *of, char *text, size_t size) { return tegroup_error_text((const tegroup_error *)of, text, size); }
static int verdict_text(const void *of, char *text, size_t size) { return tegroup_verdict_text((const tegroup_verdict *)of, text, size); }
static int layout_text(const void *of, char *text, size_t size) { return tegroup_layout_text((const tegroup_layout *)of, text, size); }

TEST(status, texts) {
    static char    whole[4096], part[4096];
    text_function *text[] = {error_text, verdict_text, verdict_text, verdict_text, layout_text, layout_text, layout_text};
    tegroup_layout none = {0, 0, {{NULL, 0, 0}}}, workspace;
    tegroup_error none_wrong;
    const void    *of[] = {&error, &w.verdicts[0], &w.verdicts[3], &w.verdicts[4], &w.layout, &workspace, &none};
    spoil_nothing();
    GOOD(explain);
    GOOD(plan);
    ASSERT_TRUE(TEGROUP_OK == tegroup_plan_layout(&w.plan, &workspace, NULL));
    ASSERT_TRUE(TEGROUP_OK == tegroup_snapshot_layout(&w.irregular.shape, &w.layout, NULL));
    w.prepare.shape.groups = -1;
    ASSERT_TRUE(TEGROUP_ERROR_VALUE == call_prepare(&error));
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        int length = text[i](of[i], whole, sizeof whole);
        ASSERT_GT(length, 5);
        ASSERT_EQ((size_t)length, strlen(whole));
        ASSERT_EQ(length, text[i](of[i], NULL, 0));
        for (size_t size = 0; size <= (size_t)length + 2; size++) {
            size_t end = size == 0 ? 0 : size - 1 < (size_t)length ? size - 1 : (size_t)length;
            memset(part, '~', sizeof part);
            ASSERT_EQ(length, text[i](of[i], part, size));
            ASSERT_EQ(0, memcmp(part, whole, end));
            if (size > 0) ASSERT_EQ('\0', part[end]);
            for (size_t j = size; j < (size_t)length + 64; j++) ASSERT_EQ('~', part[j]);
        }
    }
    none_wrong = error;
    none_wrong.status = TEGROUP_OK;
    ASSERT_EQ(2, error_text(&none_wrong, whole, sizeof whole));
    ASSERT_STREQ("ok", whole);
    ASSERT_EQ(2, error_text(NULL, part, sizeof part));
    ASSERT_STREQ("ok", part);
    error_text(&error, whole, sizeof whole);
    ASSERT_TRUE(strchr(whole, '\n') == NULL && strstr(whole, "shape.groups") != NULL && strstr(whole, "-1") != NULL);
    layout_text(&w.layout, whole, sizeof whole);
    for (int i = 0; i < w.layout.count; i++) ASSERT_TRUE(strstr(whole, w.layout.items[i].name) != NULL);
}

/* The others, run once more, provoke every status twice. */
TEST(status, every_status_twice) {
    int twice = 0;
    memset(provoked, 0, sizeof provoked);
    for (test *t = test_list; t != NULL; t = t->next)
        if (strcmp(t->name, "status.every_status_twice") != 0) t->run();
    for (int s = 1; s < TEGROUP_STATUS_COUNT; s++) {
        if (s == TEGROUP_ERROR_CUDA || s == TEGROUP_ERROR_CUBLAS) continue; /* take a GPU: tests/gpu provokes them */
        if (provoked[s] >= 2) twice++;
        else printf("%s: provoked %d times\n", tegroup_status_name((tegroup_status)s), provoked[s]);
    }
    printf("statuses %d/%d\n", twice, TEGROUP_STATUS_COUNT - 3);
    ASSERT_EQ(TEGROUP_STATUS_COUNT - 3, twice);
}

TEST_MAIN()
