/* ---- The problem of a GEMM ---- */

/* Two tensors must agree in how their groups are made. */
static inline tegroup_status tegroup_impl_check_pair(const tegroup_tensor *t, tegroup_impl_operand operand,
                                                     const tegroup_tensor *like, const char *rule_ragged,
                                                     const char *rule_rows, tegroup_error *error) {
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&t->shape) == tegroup_impl_ragged(&like->shape), ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(ROW_SIZES), rule_ragged, tegroup_impl_ragged(&like->shape),
                      tegroup_impl_ragged(&t->shape));
    TEGROUP_IMPL_RULE(t->shape.rows == like->shape.rows, ERROR_SHAPE, TEGROUP_IMPL_PATH(ROWS), rule_rows,
                      like->shape.rows, t->shape.rows);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_check_scalars(const tegroup_scalars *s, const char *dtype_field,
                                                        const char *space_field, const char *stride_field,
                                                        tegroup_error *error) {
    TEGROUP_IMPL_RULE_ENUM(s->space, TEGROUP_SPACE_DEVICE, space_field, "must be a tegroup_space");
    if (s->space == TEGROUP_SPACE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_check_real(s->dtype, dtype_field, error));
    TEGROUP_IMPL_RULE(s->stride == 0 || s->stride == 1, ERROR_VALUE, stride_field, "must be 0 or 1", 1, s->stride);
    return TEGROUP_OK;
}

/* Rules about the descriptor's own numbers and enums. */
static inline tegroup_status tegroup_impl_check_options(const tegroup_gemm_desc *desc, tegroup_error *error) {
    TEGROUP_IMPL_RULE(desc->op != TEGROUP_OP_UNSET, ERROR_UNSET, "op", "must be set", TEGROUP_OP_FORWARD, 0);
    TEGROUP_IMPL_RULE_ENUM(desc->op, TEGROUP_OP_WGRAD, "op", "must be a tegroup_op");
    TEGROUP_IMPL_RULE_ENUM(desc->tail, TEGROUP_TAIL_POISON, "tail", "must be a tegroup_tail");
    TEGROUP_IMPL_RULE_ENUM(desc->compute, TEGROUP_COMPUTE_F64, "compute", "must be a tegroup_compute");
    TEGROUP_IMPL_RULE_ENUM(desc->backend, TEGROUP_BACKEND_COUNT - 1, "backend", "must be a tegroup_backend");
    TEGROUP_IMPL_RULE_ENUM(desc->check_level, TEGROUP_CHECK_DEEP, "check_level", "must be a tegroup_check_level");
    TEGROUP_IMPL_RULE(desc->accumulate == 0 || desc->accumulate == 1, ERROR_VALUE, "accumulate", "must be 0 or 1", 1,
                      desc->accumulate);
    TEGROUP_IMPL_RULE(desc->split_k >= 0, ERROR_VALUE, "split_k", "must not be negative", 0, desc->split_k);
    TEGROUP_IMPL_RULE(desc->expected_rows >= 0, ERROR_VALUE, "expected_rows", "must not be negative", 0,
                      desc->expected_rows);
    TEGROUP_IMPL_RULE(desc->expected_rows_max >= 0, ERROR_VALUE, "expected_rows_max", "must not be negative", 0,
                      desc->expected_rows_max);
    TEGROUP_IMPL_RULE(desc->sm_limit >= 0, ERROR_VALUE, "sm_limit", "must not be negative", 0, desc->sm_limit);
    TEGROUP_IMPL_RULE(desc->data_alignment_bytes >= 0 && desc->data_alignment_bytes <= TEGROUP_ALIGNMENT
                          && (desc->data_alignment_bytes & (desc->data_alignment_bytes - 1)) == 0,
                      ERROR_VALUE, "data_alignment_bytes", "must be 0 or a power of two up to TEGROUP_ALIGNMENT",
                      TEGROUP_ALIGNMENT, desc->data_alignment_bytes);
    TEGROUP_IMPL_RULE(desc->threads >= 0, ERROR_VALUE, "threads", "must not be negative", 0, desc->threads);
    TEGROUP_IMPL_RULE(desc->stream_count >= 0, ERROR_VALUE, "stream_count", "must not be negative", 0,
                      desc->stream_count);
    TEGROUP_IMPL_RULE(desc->host_sizes_final == 0 || desc->host_sizes_final == 1, ERROR_VALUE, "host_sizes_final",
                      "must be 0 or 1", 1, desc->host_sizes_final);
    TEGROUP_IMPL_RULE(!desc->cublaslt_functions
                          || desc->cublaslt_functions->struct_size == sizeof *desc->cublaslt_functions,
                      ERROR_STRUCT_SIZE, "cublaslt_functions.struct_size", "must be the size of the struct",
                      sizeof *desc->cublaslt_functions, desc->cublaslt_functions->struct_size);
    TEGROUP_IMPL_TRY(tegroup_impl_check_scalars(&desc->alpha, "alpha.dtype", "alpha.space", "alpha.stride", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scalars(&desc->beta, "beta.dtype", "beta.space", "beta.stride", error));
    return TEGROUP_OK;
}

/* Rules of an operand whose rows are picked by an index: they must have one numbering, and lie in one buffer as they are. */
static inline tegroup_status tegroup_impl_check_gather(const tegroup_gather *gather, const tegroup_tensor *t,
                                                       tegroup_impl_operand operand, tegroup_op op,
                                                       tegroup_error *error) {
    tegroup_tensor stored;
    TEGROUP_IMPL_RULE(gather->rows >= 0 && gather->rows <= TEGROUP_MAX_ROWS, ERROR_VALUE,
                      TEGROUP_IMPL_PATH(GATHER_ROWS), "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, gather->rows);
    TEGROUP_IMPL_RULE(gather->slots >= 0, ERROR_VALUE, TEGROUP_IMPL_PATH(GATHER_SLOTS), "must not be negative", 0,
                      gather->slots);
    if (gather->rows == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(operand == TEGROUP_IMPL_A || op == TEGROUP_OP_WGRAD, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(GATHER_ROWS), "needs op WGRAD: in others b has the weights", 0, gather->rows);
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&t->shape), ERROR_COMBINATION, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "needs row_sizes of the operand", 0, gather->rows);
    TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&t->shape), ERROR_COMBINATION, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "does not go with col_sizes or elements of the operand: its rows must have one width", 0,
                      gather->rows);
    TEGROUP_IMPL_RULE(!tegroup_impl_listed(t), ERROR_COMBINATION, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "does not go with pointers of the operand: its rows have no common numbering", 0, gather->rows);
    TEGROUP_IMPL_RULE(t->scaling == TEGROUP_SCALING_NONE, ERROR_COMBINATION, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "does not go with scaling of the operand", 0, gather->rows);
    stored = tegroup_impl_stored(t, gather);
    TEGROUP_IMPL_RULE(tegroup_impl_extent_bytes(&stored) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW,
                      TEGROUP_IMPL_PATH(GATHER_ROWS), "times ld must be addressable", tegroup_impl_max_bytes(),
                      tegroup_impl_extent_bytes(&stored));
    return TEGROUP_OK;
}

/* Rules between the operands' shapes. The reduced dimension and the two that remain must agree wherever they meet;
 * rows of a ragged tensor are capacities, and so are columns that differ between groups. */
static inline tegroup_status tegroup_impl_check_shapes(const tegroup_gemm_desc *desc, tegroup_error *error) {
    const tegroup_tensor *a = &desc->a, *b = &desc->b, *d = &desc->d;
    TEGROUP_IMPL_RULE(b->shape.groups == a->shape.groups, ERROR_SHAPE, "b.shape.groups", "must equal a.shape.groups",
                      a->shape.groups, b->shape.groups);
    TEGROUP_IMPL_RULE(d->shape.groups == a->shape.groups, ERROR_SHAPE, "d.shape.groups", "must equal a.shape.groups",
                      a->shape.groups, d->shape.groups);
    if (desc->op == TEGROUP_OP_WGRAD) {
        TEGROUP_IMPL_TRY(tegroup_impl_check_pair(b, TEGROUP_IMPL_B, a, "must be set just when a's is",
                                                 "must equal a.shape.rows", error));
        if (!tegroup_impl_ragged(&d->shape))
            TEGROUP_IMPL_RULE(d->shape.rows == a->shape.cols, ERROR_SHAPE, "d.shape.rows", "must equal a.shape.cols",
                              a->shape.cols, d->shape.rows);
        TEGROUP_IMPL_RULE(d->shape.cols == b->shape.cols, ERROR_SHAPE, "d.shape.cols", "must equal b.shape.cols",
                          b->shape.cols, d->shape.cols);
        return TEGROUP_OK;
    }
    TEGROUP_IMPL_TRY(tegroup_impl_check_pair(d, TEGROUP_IMPL_D, a, "must be set just when a's is",
                                             "must equal a.shape.rows", error));
    if (desc->op == TEGROUP_OP_FORWARD) {
        TEGROUP_IMPL_RULE(b->shape.cols == a->shape.cols, ERROR_SHAPE, "b.shape.cols", "must equal a.shape.cols",
                          a->shape.cols, b->shape.cols);
        if (!tegroup_impl_ragged(&b->shape))
            TEGROUP_IMPL_RULE(d->shape.cols == b->shape.rows, ERROR_SHAPE, "d.shape.cols", "must equal b.shape.rows",
                              b->shape.rows, d->shape.cols);
    } else {
        if (!tegroup_impl_ragged(&b->shape))
            TEGROUP_IMPL_RULE(b->shape.rows == a->shape.cols, ERROR_SHAPE, "b.shape.rows", "must equal a.shape.cols",
                              a->shape.cols, b->shape.rows);
        TEGROUP_IMPL_RULE(d->shape.cols == b->shape.cols, ERROR_SHAPE, "d.shape.cols", "must equal b.shape.cols",
                          b->shape.cols, d->shape.cols);
    }
    return TEGROUP_OK;
}

/* Rules between data types. */
static inline tegroup_status tegroup_impl_check_dtypes(const tegroup_gemm_desc *desc, tegroup_error *error) {
    const tegroup_tensor *a = &desc->a, *b = &desc->b, *d = &desc->d;
    int is_f64 = desc->compute == TEGROUP_COMPUTE_F64, fp8 = tegroup_impl_bits(a->dtype) == 8;
    TEGROUP_IMPL_RULE(fp8 ? tegroup_impl_bits(b->dtype) == 8 : b->dtype == a->dtype, ERROR_DTYPE, "b.dtype",
                      "must equal a.dtype (FP8: either kind)", a->dtype, b->dtype);
    TEGROUP_IMPL_RULE(a->dtype != TEGROUP_DTYPE_F64 || is_f64, ERROR_DTYPE, "a.dtype", "F64 needs compute F64",
                      TEGROUP_DTYPE_F32, a->dtype);
    TEGROUP_IMPL_RULE(d->dtype != TEGROUP_DTYPE_F64 || is_f64, ERROR_DTYPE, "d.dtype", "F64 needs compute F64",
                      TEGROUP_DTYPE_F32, d->dtype);
    if (desc->c.dtype != TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_RULE(desc->c.dtype == d->dtype, ERROR_DTYPE, "c.dtype", "must equal d.dtype", d->dtype,
                          desc->c.dtype);
    if (desc->bias.dtype != TEGROUP_DTYPE_UNSET) {
        TEGROUP_IMPL_RULE(tegroup_impl_is_float(desc->bias.dtype), ERROR_DTYPE, "bias.dtype",
                          "must be F64, F32, F16 or BF16", TEGROUP_DTYPE_F32, desc->bias.dtype);
        TEGROUP_IMPL_RULE(desc->bias.dtype != TEGROUP_DTYPE_F64 || is_f64, ERROR_DTYPE, "bias.dtype",
                          "F64 needs compute F64", TEGROUP_DTYPE_F32, desc->bias.dtype);
    }
    return tegroup_impl_check_real(desc->row_scale_dtype, "row_scale_dtype", error);
}

/* Rules about what goes with what. */
static inline tegroup_status tegroup_impl_check_extras(const tegroup_gemm_desc *desc, tegroup_error *error) {
    const tegroup_tensor *c = &desc->c, *d = &desc->d, *bias = &desc->bias;
    int has_c = c->dtype != TEGROUP_DTYPE_UNSET, has_bias = bias->dtype != TEGROUP_DTYPE_UNSET;
    if (has_c) {
        TEGROUP_IMPL_TRY(tegroup_impl_check_pair(c, TEGROUP_IMPL_C, d, "must be set just when d's is",
                                                 "must equal d.shape.rows", error));
        TEGROUP_IMPL_RULE(tegroup_impl_irregular(&c->shape) == tegroup_impl_irregular(&d->shape), ERROR_COMBINATION,
                          "c.shape.col_sizes.encoding", "and elements must be set just when d's are",
                          tegroup_impl_irregular(&d->shape), tegroup_impl_irregular(&c->shape));
        TEGROUP_IMPL_RULE(c->shape.groups == d->shape.groups, ERROR_SHAPE, "c.shape.groups",
                          "must equal d.shape.groups", d->shape.groups, c->shape.groups);
        TEGROUP_IMPL_RULE(c->shape.cols == d->shape.cols, ERROR_SHAPE, "c.shape.cols", "must equal d.shape.cols",
                          d->shape.cols, c->shape.cols);
        TEGROUP_IMPL_RULE(!desc->accumulate, ERROR_COMBINATION, "accumulate",
                          "does not go with c: it makes d its own c", 0, 1);
    }
    TEGROUP_IMPL_RULE(desc->beta.space == TEGROUP_SPACE_UNSET || !desc->accumulate, ERROR_COMBINATION, "accumulate",
                      "does not go with beta: it is 1", 0, 1);
    TEGROUP_IMPL_RULE(desc->beta.space == TEGROUP_SPACE_UNSET || has_c, ERROR_COMBINATION, "beta", "needs c", 1, 0);
    TEGROUP_IMPL_RULE(desc->tail == TEGROUP_TAIL_KEEP || desc->op != TEGROUP_OP_WGRAD, ERROR_COMBINATION, "tail",
                      "does not go with op WGRAD: its d has no tail", 0, desc->tail);
    TEGROUP_IMPL_RULE(desc->tail == TEGROUP_TAIL_KEEP || !tegroup_impl_irregular(&d->shape), ERROR_COMBINATION, "tail",
                      "other than KEEP needs d's groups to be rows of one width", 0, desc->tail);
    TEGROUP_IMPL_RULE(desc->tail == TEGROUP_TAIL_KEEP || !tegroup_impl_listed(d), ERROR_COMBINATION, "tail",
                      "other than KEEP does not go with d.pointers", 0, desc->tail);
    TEGROUP_IMPL_RULE(desc->row_scale_dtype == TEGROUP_DTYPE_UNSET || has_bias, ERROR_COMBINATION, "row_scale_dtype",
                      "needs bias", 0, desc->row_scale_dtype);
    TEGROUP_IMPL_RULE(desc->row_scale_dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_listed(&desc->a), ERROR_COMBINATION,
                      "row_scale_dtype", "does not go with a.pointers: its rows have no common numbering", 0,
                      desc->row_scale_dtype);
    if (has_bias) {
        int64_t n = desc->op == TEGROUP_OP_FORWARD ? d->shape.cols : desc->a.shape.cols;
        TEGROUP_IMPL_RULE(desc->op != TEGROUP_OP_DGRAD, ERROR_COMBINATION, "bias", "does not go with op DGRAD", 0, 1);
        TEGROUP_IMPL_RULE(!tegroup_impl_ragged(&bias->shape), ERROR_COMBINATION, "bias.shape.row_sizes.encoding",
                          "must be unset: one row a group", 0, bias->shape.row_sizes.encoding);
        TEGROUP_IMPL_RULE(bias->shape.groups == d->shape.groups, ERROR_SHAPE, "bias.shape.groups",
                          "must equal d.shape.groups", d->shape.groups, bias->shape.groups);
        TEGROUP_IMPL_RULE(bias->shape.rows == 1, ERROR_SHAPE, "bias.shape.rows", "must be 1", 1, bias->shape.rows);
        TEGROUP_IMPL_RULE(bias->shape.cols == n, ERROR_SHAPE, "bias.shape.cols", "must equal n, the columns of Y", n,
                          bias->shape.cols);
    }
    return TEGROUP_OK;
}

/* What has memory must be said to be there: else it would be left out without a word. */
static inline tegroup_status tegroup_impl_check_said(const tegroup_gemm_desc *desc, tegroup_error *error) {
    TEGROUP_IMPL_RULE(desc->c.dtype != TEGROUP_DTYPE_UNSET || (!desc->c.data && !desc->c.pointers), ERROR_UNSET,
                      "c.dtype", "must be set with data", desc->d.dtype, 0);
    TEGROUP_IMPL_RULE(desc->bias.dtype != TEGROUP_DTYPE_UNSET || (!desc->bias.data && !desc->bias.pointers),
                      ERROR_UNSET, "bias.dtype", "must be set with data", desc->a.dtype, 0);
    TEGROUP_IMPL_RULE(desc->alpha.space != TEGROUP_SPACE_UNSET || !desc->alpha.data, ERROR_UNSET, "alpha.space",
                      "must be set with data", TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE(desc->beta.space != TEGROUP_SPACE_UNSET || !desc->beta.data, ERROR_UNSET, "beta.space",
                      "must be set with data", TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE(desc->row_scale_dtype != TEGROUP_DTYPE_UNSET || !desc->row_scale, ERROR_UNSET, "row_scale_dtype",
                      "must be set with row_scale", TEGROUP_DTYPE_F32, 0);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_gemm_problem(const tegroup_gemm_desc *desc, tegroup_problem *problem,
                                                tegroup_error *error) {
    const tegroup_tensor *operands[5];
    int32_t i;
    TEGROUP_IMPL_RULE(desc != NULL, ERROR_NULL_ARGUMENT, "desc", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(problem != NULL, ERROR_NULL_ARGUMENT, "problem", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_head(desc->struct_size, sizeof *desc, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_options(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&desc->a, TEGROUP_IMPL_A, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&desc->b, TEGROUP_IMPL_B, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&desc->d, TEGROUP_IMPL_D, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_gather(&desc->gather_a, &desc->a, TEGROUP_IMPL_A, desc->op, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_gather(&desc->gather_b, &desc->b, TEGROUP_IMPL_B, desc->op, error));
    if (desc->c.dtype != TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&desc->c, TEGROUP_IMPL_C, error));
    if (desc->bias.dtype != TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&desc->bias, TEGROUP_IMPL_BIAS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_shapes(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_dtypes(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_extras(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_said(desc, error));

    memset(problem, 0, sizeof *problem);
    problem->op = desc->op;
    problem->space = desc->space;
    problem->compute = desc->compute;
    problem->groups = desc->a.shape.groups;
    problem->rows = desc->a.shape.rows;
    problem->n = desc->op == TEGROUP_OP_FORWARD ? desc->d.shape.cols : desc->a.shape.cols;
    problem->k = desc->op == TEGROUP_OP_FORWARD ? desc->a.shape.cols : desc->d.shape.cols;
    problem->a = desc->a.dtype;
    problem->b = desc->b.dtype;
    problem->c = desc->c.dtype;
    problem->d = desc->d.dtype;
    problem->bias = desc->bias.dtype;
    problem->row_scale = desc->row_scale_dtype;
    problem->a_scaling = desc->a.scaling;
    problem->b_scaling = desc->b.scaling;
    problem->d_scaling = desc->d.scaling;
    problem->lda = tegroup_impl_ld(&desc->a);
    problem->ldb = tegroup_impl_ld(&desc->b);
    problem->ldc = desc->c.dtype != TEGROUP_DTYPE_UNSET ? tegroup_impl_ld(&desc->c) : 0;
    problem->ldd = tegroup_impl_ld(&desc->d);
    operands[TEGROUP_IMPL_A] = &desc->a;
    operands[TEGROUP_IMPL_B] = &desc->b;
    operands[TEGROUP_IMPL_C] = &desc->c;
    operands[TEGROUP_IMPL_D] = &desc->d;
    operands[TEGROUP_IMPL_BIAS] = &desc->bias;
    for (i = 0; i < 5; i++) {
        const tegroup_tensor *t = operands[i];
        if (t->dtype == TEGROUP_DTYPE_UNSET) continue;
        problem->pointers_space[i] = t->pointers_space;
        if (i == TEGROUP_IMPL_BIAS) continue;
        if (tegroup_impl_ragged(&t->shape)) problem->rows_space[i] = t->shape.row_sizes.space;
        problem->ragged_cols[i] = t->shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET;
        problem->has_elements[i] = t->shape.elements > 0;
        problem->irregular |= tegroup_impl_irregular(&t->shape);
    }
    /* the side that is uniform in a regular problem */
    problem->irregular |= tegroup_impl_ragged(desc->op == TEGROUP_OP_WGRAD ? &desc->d.shape : &desc->b.shape);
    problem->gathered[TEGROUP_IMPL_A] = desc->gather_a.rows > 0;
    problem->gathered[TEGROUP_IMPL_B] = desc->gather_b.rows > 0;
    problem->alpha_space = desc->alpha.space;
    problem->beta_space = desc->beta.space;
    problem->alpha_stride = desc->alpha.space != TEGROUP_SPACE_UNSET ? desc->alpha.stride : 0;
    problem->beta_stride = desc->beta.space != TEGROUP_SPACE_UNSET ? desc->beta.stride : 0;
    problem->accumulate = desc->accumulate;
    problem->tail = desc->tail;
    problem->split_k = desc->split_k > 1 ? desc->split_k : 1;
    return TEGROUP_OK;
}
