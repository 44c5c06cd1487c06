/* ---- Check and run a GEMM ---- */

#if defined(TEGROUP_IMPL_CUDA)
static inline tegroup_status tegroup_impl_cuda_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error);
static inline tegroup_status tegroup_impl_cuda_check_pointers(const tegroup_gemm_desc *desc, tegroup_error *error);
/* What a backend asks of a call beyond the common rules. */
static inline tegroup_status tegroup_impl_cuda_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                     tegroup_error *error);
#endif

/* A call's problem must be the planned one, field by field. */
static inline tegroup_status tegroup_impl_check_planned(const tegroup_problem *planned, const tegroup_problem *p,
                                                        tegroup_error *error) {
#define TEGROUP_IMPL_SAME(member, field)                                                                               \
    TEGROUP_IMPL_RULE(planned->member == p->member, ERROR_PLAN, field, "must be as planned", planned->member, p->member)
#define TEGROUP_IMPL_SAME_EACH(member, count, path)                                                                    \
    for (i = 0; i < (count); i++)                                                                                      \
    TEGROUP_IMPL_SAME(member[i], tegroup_impl_path((tegroup_impl_operand)i, TEGROUP_IMPL_MEMBER_##path))
    int32_t i;
    TEGROUP_IMPL_SAME(op, "op");
    TEGROUP_IMPL_SAME(space, "space");
    TEGROUP_IMPL_SAME(compute, "options.compute");
    TEGROUP_IMPL_SAME(groups, "a.shape.groups");
    TEGROUP_IMPL_SAME(rows, "a.shape.rows");
    TEGROUP_IMPL_SAME(n, p->op == TEGROUP_OP_FORWARD ? "d.shape.cols" : "a.shape.cols");
    TEGROUP_IMPL_SAME(k, p->op == TEGROUP_OP_FORWARD ? "a.shape.cols" : "d.shape.cols");
    TEGROUP_IMPL_SAME(a, "a.dtype");
    TEGROUP_IMPL_SAME(b, "b.dtype");
    TEGROUP_IMPL_SAME(c, "c.dtype");
    TEGROUP_IMPL_SAME(d, "d.dtype");
    TEGROUP_IMPL_SAME(bias, "bias.dtype");
    TEGROUP_IMPL_SAME(row_scale, "row_scale_dtype");
    TEGROUP_IMPL_SAME(a_scaling, "a.scaling");
    TEGROUP_IMPL_SAME(b_scaling, "b.scaling");
    TEGROUP_IMPL_SAME(d_scaling, "d.scaling");
    TEGROUP_IMPL_SAME(lda, "a.ld");
    TEGROUP_IMPL_SAME(ldb, "b.ld");
    TEGROUP_IMPL_SAME(ldc, "c.ld");
    TEGROUP_IMPL_SAME(ldd, "d.ld");
    for (i = 0; i < 4; i++)
        TEGROUP_IMPL_RULE(!planned->rows_space[i] == !p->rows_space[i], ERROR_PLAN,
                          tegroup_impl_path((tegroup_impl_operand)i, TEGROUP_IMPL_MEMBER_ROW_SIZES),
                          "must be set just when planned so", planned->rows_space[i] != 0, p->rows_space[i] != 0);
    TEGROUP_IMPL_SAME_EACH(rows_space, 4, SIZES_SPACE);
    TEGROUP_IMPL_SAME_EACH(ragged_cols, 4, COL_SIZES);
    TEGROUP_IMPL_SAME_EACH(has_elements, 4, ELEMENTS);
    TEGROUP_IMPL_SAME_EACH(pointers_space, 5, POINTERS_SPACE);
    TEGROUP_IMPL_SAME_EACH(gathered, 2, GATHER_ROWS);
    TEGROUP_IMPL_SAME(alpha_space, "alpha.space");
    TEGROUP_IMPL_SAME(alpha_stride, "alpha.stride");
    TEGROUP_IMPL_SAME(beta_space, "beta.space");
    TEGROUP_IMPL_SAME(beta_stride, "beta.stride");
    TEGROUP_IMPL_SAME(accumulate, "accumulate");
    TEGROUP_IMPL_SAME(tail, "tail");
#undef TEGROUP_IMPL_SAME_EACH
#undef TEGROUP_IMPL_SAME
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_check_scalar_memory(const tegroup_scalars *s, const char *data_field,
                                                              const char *space_field, tegroup_error *error) {
    size_t element = s->dtype == TEGROUP_DTYPE_F64 ? 8 : 4;
    TEGROUP_IMPL_RULE(!s->data || s->space != TEGROUP_SPACE_UNSET, ERROR_UNSET, space_field, "must be set with data",
                      TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE(s->data || s->space == TEGROUP_SPACE_UNSET, ERROR_NULL_ARGUMENT, data_field, "must not be NULL",
                      1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(s->data, element), ERROR_ALIGNMENT, data_field,
                      "must be aligned to its element", element, (uintptr_t)s->data % element);
    return TEGROUP_OK;
}

/* Memory that a call reads or uses besides its tensors, with the rule that keeps outputs off it. */
typedef struct tegroup_impl_region {
    const void *base;
    int64_t bytes;
    const char *rule;
} tegroup_impl_region;

static inline tegroup_impl_region tegroup_impl_region_of(const void *base, int64_t bytes, const char *rule) {
    tegroup_impl_region region;
    region.base = base;
    region.bytes = bytes;
    region.rule = rule;
    return region;
}

static inline int64_t tegroup_impl_scalar_bytes(const tegroup_scalars *s, int32_t groups) {
    if (s->space == TEGROUP_SPACE_UNSET) return 0;
    return (s->stride ? (int64_t)groups : 1) * (s->dtype == TEGROUP_DTYPE_F64 ? 8 : 4);
}

static inline tegroup_impl_region tegroup_impl_snapshot_region(const tegroup_tensor *t) {
    tegroup_layout layout;
    if (t->dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_ragged(&t->shape)) return tegroup_impl_region_of(NULL, 0, "");
    tegroup_impl_snapshot_layout(t->shape.groups, tegroup_impl_irregular(&t->shape), &layout);
    return tegroup_impl_region_of(t->shape.snapshot, (int64_t)layout.total_bytes, "must not overlap a snapshot");
}

static inline tegroup_impl_region tegroup_impl_index_region(const tegroup_gather *gather, const tegroup_tensor *t,
                                                            const char *rule) {
    return tegroup_impl_region_of(gather->slot_of_row, gather->rows > 0 ? tegroup_impl_mul(8, t->shape.rows) : 0, rule);
}

/* Outputs (d, in a wgrad bias, and the workspace) against everything else that the call touches. */
static inline tegroup_status tegroup_impl_check_overlaps(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                         tegroup_error *error) {
    const tegroup_tensor *d = &desc->d, *c = &desc->c, *bias = &desc->bias, *tensors[5];
    const tegroup_tensor a = tegroup_impl_stored(&desc->a, &desc->gather_a),
                         b = tegroup_impl_stored(&desc->b, &desc->gather_b);
    static const char *const words[5] = {"must not overlap a", "must not overlap b",
                                         "must not overlap c, unless it is c with the same ld and snapshot",
                                         "must not overlap d", "must not overlap bias"};
    tegroup_impl_region regions[9];
    tegroup_check_level level = desc->options.check_level;
    const void *workspace = desc->options.workspace;
    int64_t workspace_bytes = (int64_t)plan->workspace.total_bytes;
    int64_t scale_rows =
        tegroup_impl_mul(desc->a.shape.rows, tegroup_impl_ragged(&desc->a.shape) ? 1 : desc->a.shape.groups);
    int in_place = c->data == d->data && c->pointers == d->pointers && tegroup_impl_ld(c) == tegroup_impl_ld(d)
                   && tegroup_impl_group_stride(c) == tegroup_impl_group_stride(d)
                   && (!tegroup_impl_ragged(&d->shape) || c->shape.snapshot == d->shape.snapshot);
    const char *d_field = tegroup_impl_listed(d) ? "d.pointers" : "d.data";
    const char *bias_field = tegroup_impl_listed(bias) ? "bias.pointers" : "bias.data";
    int writes_bias = desc->op == TEGROUP_OP_WGRAD && bias->dtype != TEGROUP_DTYPE_UNSET;
    int32_t i;
    tensors[TEGROUP_IMPL_A] = &a;
    tensors[TEGROUP_IMPL_B] = &b;
    tensors[TEGROUP_IMPL_C] = c;
    tensors[TEGROUP_IMPL_D] = d;
    tensors[TEGROUP_IMPL_BIAS] = bias;
    for (i = 0; i < 4; i++) regions[i] = tegroup_impl_snapshot_region(tensors[i]);
    regions[4] =
        tegroup_impl_region_of(desc->row_scale,
                               desc->row_scale_dtype == TEGROUP_DTYPE_UNSET
                                   ? 0
                                   : tegroup_impl_mul(scale_rows, tegroup_impl_bits(desc->row_scale_dtype) / 8),
                               "must not overlap row_scale");
    regions[5] = tegroup_impl_region_of(desc->alpha.data, tegroup_impl_scalar_bytes(&desc->alpha, d->shape.groups),
                                        "must not overlap alpha.data");
    regions[6] = tegroup_impl_region_of(desc->beta.data, tegroup_impl_scalar_bytes(&desc->beta, d->shape.groups),
                                        "must not overlap beta.data");
    regions[7] = tegroup_impl_index_region(&desc->gather_a, &desc->a, "must not overlap gather_a.slot_of_row");
    regions[8] = tegroup_impl_index_region(&desc->gather_b, &desc->b, "must not overlap gather_b.slot_of_row");
    for (i = 0; i < 5; i++)
        if (!(tensors[i] == c && in_place))
            TEGROUP_IMPL_RULE(!tegroup_impl_tensors_overlap(d, tensors[i], level), ERROR_OVERLAP, d_field, words[i], 0,
                              1);
    for (i = 0; i < 5 && writes_bias; i++)
        TEGROUP_IMPL_RULE(!tegroup_impl_tensors_overlap(bias, tensors[i], level), ERROR_OVERLAP, bias_field, words[i],
                          0, 1);
    for (i = 0; i < 5; i++)
        TEGROUP_IMPL_RULE(!tegroup_impl_tensor_overwritten(tensors[i], workspace, workspace_bytes, level),
                          ERROR_OVERLAP, "options.workspace", i == TEGROUP_IMPL_C ? "must not overlap c" : words[i], 0, 1);
    for (i = 0; i < 9; i++) {
        const tegroup_impl_region *r = &regions[i];
        TEGROUP_IMPL_RULE(!tegroup_impl_tensor_overlaps(d, r->base, r->bytes, level), ERROR_OVERLAP, d_field, r->rule,
                          0, 1);
        TEGROUP_IMPL_RULE(!writes_bias || !tegroup_impl_tensor_overlaps(bias, r->base, r->bytes, level), ERROR_OVERLAP,
                          bias_field, r->rule, 0, 1);
        TEGROUP_IMPL_RULE(!tegroup_impl_overlaps(workspace, workspace_bytes, r->base, r->bytes), ERROR_OVERLAP,
                          "options.workspace", r->rule, 0, 1);
    }
    return TEGROUP_OK;
}

/* The deep check of what a call's operands hold together, in host memory: each group has as many rows in all of those that are rows
 * of the activations, or the smallest number would be what is worked on; and a list has an address wherever one is used. */
static inline tegroup_status tegroup_impl_check_groups_meet(const tegroup_gemm_desc *desc, tegroup_error *error) {
    const tegroup_tensor *tensors[5] = {&desc->a, &desc->b, &desc->c, &desc->d, &desc->bias};
    const int wgrad = desc->op == TEGROUP_OP_WGRAD, ragged = tegroup_impl_ragged(&desc->a.shape);
    int32_t i, g;
    if (ragged && desc->a.shape.row_sizes.space != TEGROUP_SPACE_HOST) return TEGROUP_OK;
    const tegroup_snapshot_view sizes = tegroup_snapshot_read(ragged ? desc->a.shape.snapshot : NULL);
    for (i = 0; i < 5; i++) {
        const tegroup_impl_operand operand = (tegroup_impl_operand)i;
        const tegroup_tensor *t = tensors[i];
        if (t->dtype == TEGROUP_DTYPE_UNSET) continue;
        const int here = tegroup_impl_ragged(&t->shape) && t->shape.row_sizes.space == TEGROUP_SPACE_HOST;
        const tegroup_snapshot_view view = tegroup_snapshot_read(here ? t->shape.snapshot : NULL);
        const int walks = t->pointers_space == TEGROUP_SPACE_HOST && tegroup_impl_extent(t) > 0,
                  result = wgrad && operand != TEGROUP_IMPL_A && operand != TEGROUP_IMPL_B,
                  meets =
                      sizes.rows && view.rows
                      && (wgrad ? operand == TEGROUP_IMPL_B : operand == TEGROUP_IMPL_C || operand == TEGROUP_IMPL_D);
        const size_t element = tegroup_impl_element(t->dtype);
        for (g = 0; g < t->shape.groups; g++) {
            const int64_t rows = sizes.rows ? sizes.rows[g] : desc->a.shape.rows;
            if (meets)
                TEGROUP_IMPL_RULE(tegroup_impl_max(0, view.rows[g]) == tegroup_impl_max(0, rows), ERROR_CAPACITY,
                                  TEGROUP_IMPL_PATH(SNAPSHOT), "must give each group as many rows as a's",
                                  tegroup_impl_max(0, rows), tegroup_impl_max(0, view.rows[g]));
            if (!walks || rows < 0 || (rows == 0 && (!result || desc->accumulate))) continue; /* never looked at */
            TEGROUP_IMPL_RULE(t->pointers[g] != NULL, ERROR_NULL_ARGUMENT, TEGROUP_IMPL_PATH(POINTERS),
                              "must hold no NULL for a group that is worked on; got the group's index", -1, g);
            TEGROUP_IMPL_RULE(tegroup_impl_aligned(t->pointers[g], element), ERROR_ALIGNMENT,
                              TEGROUP_IMPL_PATH(POINTERS), "must hold addresses aligned to the element", element,
                              (uintptr_t)t->pointers[g] % element);
        }
    }
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_check_plan(const tegroup_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(plan->struct_size == sizeof *plan, ERROR_STRUCT_SIZE, "plan.struct_size",
                      "must be the size of the struct", sizeof *plan, plan->struct_size);
    TEGROUP_IMPL_RULE(plan->magic == TEGROUP_PLAN_MAGIC, ERROR_PLAN, "plan", "must be what tegroup_plan_make wrote",
                      TEGROUP_PLAN_MAGIC, plan->magic);
    return TEGROUP_OK;
}

/* A plan for a target gives sizes alone, and one may come from a file that was compiled with other switches than this one. */
static inline tegroup_status tegroup_impl_check_runs_here(const tegroup_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_RULE(tegroup_impl_built() >> plan->backend & 1u, ERROR_NOT_BUILT, "plan.backend",
                      "must be part of this build", TEGROUP_BACKEND_CPU, plan->backend);
    TEGROUP_IMPL_RULE(!plan->hypothetical, ERROR_PLAN, "plan.hypothetical",
                      "must be 0: one made for a target gives sizes alone", 0, plan->hypothetical);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_gemm_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                              tegroup_error *error) {
    tegroup_problem problem;
    TEGROUP_IMPL_TRY(tegroup_impl_check_plan(plan, error));
    TEGROUP_IMPL_TRY(tegroup_gemm_problem(desc, &problem, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_planned(&plan->problem, &problem, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_runs_here(plan, error));

    TEGROUP_IMPL_RULE(problem.c != TEGROUP_DTYPE_UNSET || (!desc->c.data && !desc->c.pointers), ERROR_UNSET, "c.dtype",
                      "must be set with data", desc->d.dtype, 0);
    TEGROUP_IMPL_RULE(problem.bias != TEGROUP_DTYPE_UNSET || (!desc->bias.data && !desc->bias.pointers), ERROR_UNSET,
                      "bias.dtype", "must be set with data", desc->a.dtype, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_memory(&desc->a, TEGROUP_IMPL_A, desc->options.check_level, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_memory(&desc->b, TEGROUP_IMPL_B, desc->options.check_level, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_index(&desc->gather_a, &desc->a, TEGROUP_IMPL_A, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_index(&desc->gather_b, &desc->b, TEGROUP_IMPL_B, error));
    if (problem.c != TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_TRY(tegroup_impl_check_memory(&desc->c, TEGROUP_IMPL_C, desc->options.check_level, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_memory(&desc->d, TEGROUP_IMPL_D, desc->options.check_level, error));
    if (problem.bias != TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_TRY(tegroup_impl_check_memory(&desc->bias, TEGROUP_IMPL_BIAS, desc->options.check_level, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scalar_memory(&desc->alpha, "alpha.data", "alpha.space", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scalar_memory(&desc->beta, "beta.data", "beta.space", error));
    TEGROUP_IMPL_RULE(!desc->row_scale || problem.row_scale != TEGROUP_DTYPE_UNSET, ERROR_UNSET, "row_scale_dtype",
                      "must be set with row_scale", TEGROUP_DTYPE_F32, 0);
    TEGROUP_IMPL_RULE(desc->row_scale || problem.row_scale == TEGROUP_DTYPE_UNSET || problem.rows == 0
                          || problem.groups == 0,
                      ERROR_NULL_ARGUMENT, "row_scale", "must not be NULL", 1, 0);
    if (problem.row_scale != TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_RULE(tegroup_impl_aligned(desc->row_scale, (size_t)tegroup_impl_bits(problem.row_scale) / 8),
                          ERROR_ALIGNMENT, "row_scale", "must be aligned to its element",
                          tegroup_impl_bits(problem.row_scale) / 8,
                          (uintptr_t)desc->row_scale % ((size_t)tegroup_impl_bits(problem.row_scale) / 8));
    if (desc->options.check_level == TEGROUP_CHECK_DEEP) TEGROUP_IMPL_TRY(tegroup_impl_check_groups_meet(desc, error));
#if defined(TEGROUP_IMPL_CUDA)
    if (desc->options.check_level == TEGROUP_CHECK_DEEP && desc->space == TEGROUP_SPACE_DEVICE)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointers(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check(plan, desc, error));
#endif
    TEGROUP_IMPL_TRY(tegroup_impl_check_workspace(&plan->workspace, "options.workspace", "options.workspace_bytes", desc->options.workspace,
                                                  desc->options.workspace_bytes, error));
    return tegroup_impl_check_overlaps(plan, desc, error);
}

/* What tegroup_gemm_check has passed. */
static inline tegroup_status tegroup_impl_gemm_run(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                   struct CUstream_st *stream, tegroup_error *error) {
    (void)stream, (void)error;
#if defined(TEGROUP_IMPL_CUDA)
    if (plan->backend != TEGROUP_BACKEND_CPU) return tegroup_impl_cuda_gemm(plan, desc, stream, error);
#endif
    tegroup_impl_cpu_gemm(plan, desc); /* a plan for a backend that is not built was refused by the check */
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                        struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_gemm_check(plan, desc, error));
    return tegroup_impl_gemm_run(plan, desc, stream, error);
}
