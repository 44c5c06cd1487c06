/* ---- Formulas ---- */

/* Arithmetic of one element, in float and in double, for the CPU's loops and the kernels' threads alike. exp is the
 * platform's: at most 1 ULP off in glibc and 2 in CUDA's device library, by their documentation. */
TEGROUP_IMPL_HD float tegroup_impl_exp_f32(float x) { return expf(x); }
TEGROUP_IMPL_HD double tegroup_impl_exp_f64(double x) { return exp(x); }

/* @each-real */
TEGROUP_IMPL_HD REAL tegroup_impl_sigmoid_FSUF(REAL x) { return (REAL)1 / ((REAL)1 + tegroup_impl_exp_FSUF(-x)); }

TEGROUP_IMPL_HD REAL tegroup_impl_swiglu_FSUF(REAL gate, REAL up) {
    return gate * tegroup_impl_sigmoid_FSUF(gate) * up;
}

/* d silu(x) / dx = s (1 + x (1 - s)) with s = sigmoid(x). */
TEGROUP_IMPL_HD void tegroup_impl_swiglu_grad_FSUF(REAL gate, REAL up, REAL grad, REAL *grad_gate, REAL *grad_up) {
    REAL s = tegroup_impl_sigmoid_FSUF(gate);
    *grad_gate = grad * up * s * ((REAL)1 + gate * ((REAL)1 - s));
    *grad_up = grad * gate * s;
}

/* Is row b's candidate better than a's? Ties go to the lower index; NaN never wins. */
TEGROUP_IMPL_HD int tegroup_impl_better_FSUF(REAL x, int32_t i, REAL best, int32_t best_index) {
    return x > best || (x == best && i < best_index);
}
/* @end */
