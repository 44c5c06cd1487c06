/* ---- Set-up of a grouped cuBLASLt matmul ---- */

/* What becomes of one group. Row-major D = A' B' is column-major D^T = B'^T A'^T, so that cuBLASLt's A is the
 * descriptor's b, and a leading dimension is a row's. Some groups are kept from it (they get no columns of D, as an
 * empty group has): those that are skipped, those whose result is what D holds already, empty sums with more to them
 * than zeros, and groups that cuBLASLt would read or write wrongly: their addresses, and the rows of D, must be of whole
 * 16 bytes. */
typedef enum tegroup_impl_alone {
    TEGROUP_IMPL_ALONE_NOTHING, /* cuBLASLt does it, or there is nothing to do            */
    TEGROUP_IMPL_ALONE_EMPTY,   /* the set-up kernel writes beta * C                      */
    TEGROUP_IMPL_ALONE_NAN      /* ... or NaN: not of whole 16 bytes                     */
} tegroup_impl_alone;

typedef struct tegroup_impl_setup {
    tegroup_impl_product product;
    int64_t entry[TEGROUP_SETUP_ALPHA_VALUE]; /* of every item of 8 bytes */
    float alpha, beta;
    tegroup_impl_alone alone;
} tegroup_impl_setup;

/* Where the items of the set-up workspace lie. */
typedef struct tegroup_impl_setup_items {
    char *at[TEGROUP_SETUP_COUNT];
} tegroup_impl_setup_items;

static inline tegroup_impl_setup_items tegroup_impl_setup_items_of(const tegroup_layout *layout, void *base) {
    tegroup_impl_setup_items items;
    int32_t i;
    for (i = 0; i < TEGROUP_SETUP_COUNT; i++) items.at[i] = (char *)tegroup_impl_layout_at(layout, i, base);
    return items;
}

/* No product of this problem has a term, whatever its sizes: cuBLASLt is not asked at all. */
TEGROUP_IMPL_HD int tegroup_impl_termless(const tegroup_gemm_desc *desc) {
    return desc->a.shape.rows == 0 || desc->a.shape.cols == 0 || desc->d.shape.cols == 0;
}

/* An address for cuBLASLt; one that it could not take belongs to a group that it does not touch. */
TEGROUP_IMPL_HD int64_t tegroup_impl_setup_address(const tegroup_impl_block *block, tegroup_dtype dtype) {
    return (int64_t)(uintptr_t)block->base + block->first * (tegroup_impl_bits(dtype) / 8);
}
TEGROUP_IMPL_HD int64_t tegroup_impl_setup_safe(int64_t address, int64_t otherwise) {
    return address == 0 || address % 16 != 0 ? otherwise : address;
}

/* alpha and beta stand for scalars that the descriptor leaves to the default. items: addresses only, nothing is read
 * there. */
TEGROUP_IMPL_HD void tegroup_impl_setup_group(const tegroup_gemm_desc *desc, const tegroup_snapshot_view views[4],
                                              int32_t g, double alpha, double beta,
                                              const tegroup_impl_setup_items *items, tegroup_impl_setup *s) {
    tegroup_impl_product p = tegroup_impl_product_of(desc, views, g, alpha, beta);
    int has_c = desc->accumulate || desc->c.dtype != TEGROUP_DTYPE_UNSET, wgrad = desc->op == TEGROUP_OP_WGRAD;
    int64_t m = tegroup_impl_max(0, p.m), n = tegroup_impl_max(0, p.n), k = tegroup_impl_max(0, p.k);
    int64_t a = tegroup_impl_setup_address(&p.b, desc->b.dtype), b = tegroup_impl_setup_address(&p.a, desc->a.dtype);
    int64_t d = tegroup_impl_setup_address(&p.d, desc->d.dtype);
    int64_t c = has_c ? tegroup_impl_setup_address(&p.c, desc->d.dtype) : d;
    int narrow = n * tegroup_impl_bits(desc->d.dtype) % 128 != 0; /* its stores would reach past D's columns */
    int64_t spare = (int64_t)(uintptr_t)items->at[TEGROUP_SETUP_A];
    memset(s, 0, sizeof *s);
    s->product = p;
    s->alpha = (float)p.alpha;
    s->beta = has_c ? (float)p.beta : 0;
    if (p.skip || p.untouched || n == 0) m = 0;
    if (m > 0 && k == 0) {
        /* zeros are cuBLASLt's work where many of them are likely and it is known to write them; 0 * alpha must be 0 */
        int finite = (tegroup_impl_bits_of_f32(s->alpha) & 0x7f800000u) != 0x7f800000u;
        if (!wgrad || s->beta != 0 || !finite || narrow || tegroup_impl_termless(desc))
            s->alone = TEGROUP_IMPL_ALONE_EMPTY;
    }
    if (m > 0 && s->alone == TEGROUP_IMPL_ALONE_NOTHING && (narrow || (k > 0 && ((a | b) & 15)) || ((c | d) & 15)))
        s->alone = TEGROUP_IMPL_ALONE_NAN;
    if (s->alone != TEGROUP_IMPL_ALONE_NOTHING) m = 0;

    s->entry[TEGROUP_SETUP_A] = tegroup_impl_setup_safe(a, spare);
    s->entry[TEGROUP_SETUP_B] = tegroup_impl_setup_safe(b, spare);
    s->entry[TEGROUP_SETUP_C] = tegroup_impl_setup_safe(c, spare);
    s->entry[TEGROUP_SETUP_D] = tegroup_impl_setup_safe(d, spare);
    s->entry[TEGROUP_SETUP_ALPHA] = (int64_t)(uintptr_t)items->at[TEGROUP_SETUP_ALPHA_VALUE] + 4 * (int64_t)g;
    s->entry[TEGROUP_SETUP_BETA] = (int64_t)(uintptr_t)items->at[TEGROUP_SETUP_BETA_VALUE] + 4 * (int64_t)g;
    s->entry[TEGROUP_SETUP_A_ROWS] = desc->op == TEGROUP_OP_FORWARD ? k : n;
    s->entry[TEGROUP_SETUP_A_COLS] = desc->op == TEGROUP_OP_FORWARD ? n : k;
    s->entry[TEGROUP_SETUP_B_ROWS] = wgrad ? m : k;
    s->entry[TEGROUP_SETUP_B_COLS] = wgrad ? k : m;
    s->entry[TEGROUP_SETUP_D_ROWS] = n;
    s->entry[TEGROUP_SETUP_D_COLS] = m;
    s->entry[TEGROUP_SETUP_A_LD] = tegroup_impl_max(1, p.b.ld);
    s->entry[TEGROUP_SETUP_B_LD] = tegroup_impl_max(1, p.a.ld);
    s->entry[TEGROUP_SETUP_C_LD] = tegroup_impl_max(1, has_c ? p.c.ld : p.d.ld);
    s->entry[TEGROUP_SETUP_D_LD] = tegroup_impl_max(1, p.d.ld);
}

TEGROUP_IMPL_HD void tegroup_impl_setup_store(const tegroup_impl_setup *s, const tegroup_impl_setup_items *items,
                                              int32_t g) {
    int32_t i;
    for (i = 0; i < TEGROUP_SETUP_ALPHA_VALUE; i++) ((int64_t *)(void *)items->at[i])[g] = s->entry[i];
    ((float *)(void *)items->at[TEGROUP_SETUP_ALPHA_VALUE])[g] = s->alpha;
    ((float *)(void *)items->at[TEGROUP_SETUP_BETA_VALUE])[g] = s->beta;
}
