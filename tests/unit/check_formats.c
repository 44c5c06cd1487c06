/* Conversions and scale rules over arrays, for check_formats.py. */
#define TEGROUP_IMPLEMENTATION
#define TEGROUP_EXTERN
#include "tegroup.h"

void check_decode(int dtype, long n, const uint32_t *code, float *x);
void check_decode(int dtype, long n, const uint32_t *code, float *x) {
    for (long i = 0; i < n; i++) x[i] = tegroup_decode((tegroup_dtype)dtype, code[i]);
}
void check_encode(int dtype, long n, const float *x, uint32_t *code);
void check_encode(int dtype, long n, const float *x, uint32_t *code) {
    for (long i = 0; i < n; i++) code[i] = tegroup_encode((tegroup_dtype)dtype, x[i]);
}
void check_globals(long n, const float *amax, float *global);
void check_globals(long n, const float *amax, float *global) {
    for (long i = 0; i < n; i++) global[i] = tegroup_scale_global(amax[i]);
}
/* The scale is that which its code means. */
void check_quantise(int preset, int data, int scale, long n, const float *amax, const float *global, const float *x, float *multiplier, float *stored, uint32_t *code);
void check_quantise(int preset, int data, int scale, long n, const float *amax, const float *global, const float *x, float *multiplier, float *stored, uint32_t *code) {
    const tegroup_scale_rule rule = tegroup_scale_rule_of((tegroup_scale_preset)preset);
    for (long i = 0; i < n; i++) {
        tegroup_block_scale block;
        if (tegroup_scale_block(&rule, (tegroup_dtype)data, (tegroup_dtype)scale, amax[i], global[i], &block, NULL)) return;
        multiplier[i] = block.multiplier;
        stored[i] = tegroup_decode((tegroup_dtype)scale, block.bits);
        code[i] = tegroup_scaled_code((tegroup_dtype)data, &block, x[i]);
    }
}
