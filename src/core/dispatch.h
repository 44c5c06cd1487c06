/* ---- Check and run a GEMM ---- */

/* A call's problem must be the planned one, field by field. */
static inline tegroup_status tegroup_impl_check_planned(const tegroup_problem *planned, const tegroup_problem *p,
                                                        tegroup_error *error) {
#define TEGROUP_IMPL_SAME(member, field)                                                                               \
    TEGROUP_IMPL_RULE(planned->member == p->member, ERROR_PLAN, field, "must be as planned", planned->member, p->member)
    TEGROUP_IMPL_SAME(op, "op");
    TEGROUP_IMPL_SAME(space, "space");
    TEGROUP_IMPL_SAME(compute, "compute");
    TEGROUP_IMPL_SAME(groups, "a.shape.groups");
    TEGROUP_IMPL_SAME(rows, "a.shape.rows");
    TEGROUP_IMPL_SAME(n, "n");
    TEGROUP_IMPL_SAME(k, "k");
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
    TEGROUP_IMPL_SAME(ragged, "a.shape.row_sizes.encoding");
    TEGROUP_IMPL_SAME(irregular, "a.shape.col_sizes.encoding");
    TEGROUP_IMPL_SAME(sizes_space, "a.shape.row_sizes.space");
    TEGROUP_IMPL_SAME(lists, "a.pointers_space");
    TEGROUP_IMPL_SAME(lists_space, "a.pointers_space");
    TEGROUP_IMPL_SAME(alpha, "alpha.stride");
    TEGROUP_IMPL_SAME(beta, "beta.stride");
    TEGROUP_IMPL_SAME(alpha_space, "alpha.space");
    TEGROUP_IMPL_SAME(beta_space, "beta.space");
    TEGROUP_IMPL_SAME(accumulate, "accumulate");
    TEGROUP_IMPL_SAME(tail, "tail");
    TEGROUP_IMPL_SAME(split_k, "split_k");
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

/* Outputs (d, and bias in a wgrad) against everything else that the call touches. */
static inline tegroup_status tegroup_impl_check_overlaps(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                         tegroup_error *error) {
    const tegroup_tensor *d = &desc->d, *c = &desc->c, *bias = &desc->bias;
    tegroup_check_level level = desc->check_level;
    int64_t workspace_bytes = (int64_t)plan->workspace.total_bytes,
            d_bytes = tegroup_impl_listed(d) ? 0 : tegroup_impl_extent_bytes(d);
    int in_place = c->data == d->data && c->pointers == d->pointers && tegroup_impl_ld(c) == tegroup_impl_ld(d)
                   && tegroup_impl_group_stride(c) == tegroup_impl_group_stride(d);
#define TEGROUP_IMPL_APART(x, y, field, words)                                                                         \
    TEGROUP_IMPL_RULE(!tegroup_impl_tensors_overlap(x, y, level), ERROR_OVERLAP, field, words, 0, 1)
    TEGROUP_IMPL_APART(d, &desc->a, "d.data", "must not overlap a");
    TEGROUP_IMPL_APART(d, &desc->b, "d.data", "must not overlap b");
    if (!in_place) TEGROUP_IMPL_APART(d, c, "d.data", "must not overlap c, unless it is c with the same ld");
    TEGROUP_IMPL_APART(d, bias, "d.data", "must not overlap bias");
    if (desc->op == TEGROUP_OP_WGRAD) {
        TEGROUP_IMPL_APART(bias, &desc->a, "bias.data", "must not overlap a");
        TEGROUP_IMPL_APART(bias, &desc->b, "bias.data", "must not overlap b");
        TEGROUP_IMPL_APART(bias, c, "bias.data", "must not overlap c");
    }
#undef TEGROUP_IMPL_APART
#define TEGROUP_IMPL_WORKSPACE_APART(t, words)                                                                         \
    TEGROUP_IMPL_RULE(                                                                                                 \
        (t)->dtype == TEGROUP_DTYPE_UNSET || tegroup_impl_listed(t)                                                    \
            || !tegroup_impl_overlaps(desc->workspace, workspace_bytes, (t)->data, tegroup_impl_extent_bytes(t)),      \
        ERROR_OVERLAP, "workspace", words, 0, 1)
    TEGROUP_IMPL_WORKSPACE_APART(&desc->a, "must not overlap a");
    TEGROUP_IMPL_WORKSPACE_APART(&desc->b, "must not overlap b");
    TEGROUP_IMPL_WORKSPACE_APART(c, "must not overlap c");
    TEGROUP_IMPL_WORKSPACE_APART(d, "must not overlap d");
    TEGROUP_IMPL_WORKSPACE_APART(bias, "must not overlap bias");
#undef TEGROUP_IMPL_WORKSPACE_APART
    {
        tegroup_layout layout;
        const tegroup_tensor *tensors[4];
        int32_t i;
        tensors[0] = &desc->a;
        tensors[1] = &desc->b;
        tensors[2] = c;
        tensors[3] = d;
        for (i = 0; i < 4; i++) {
            if (tensors[i]->dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_ragged(&tensors[i]->shape)) continue;
            tegroup_impl_snapshot_layout(tensors[i]->shape.groups, tegroup_impl_irregular(&tensors[i]->shape), &layout);
            TEGROUP_IMPL_RULE(
                !tegroup_impl_overlaps(tensors[i]->shape.snapshot, (int64_t)layout.total_bytes, d->data, d_bytes),
                ERROR_OVERLAP, "d.data", "must not overlap a snapshot", 0, 1);
            TEGROUP_IMPL_RULE(!tegroup_impl_overlaps(tensors[i]->shape.snapshot, (int64_t)layout.total_bytes,
                                                     desc->workspace, workspace_bytes),
                              ERROR_OVERLAP, "workspace", "must not overlap a snapshot", 0, 1);
        }
    }
    if (desc->row_scale_dtype != TEGROUP_DTYPE_UNSET) {
        int64_t bytes = tegroup_impl_mul(desc->a.shape.rows, tegroup_impl_bits(desc->row_scale_dtype) / 8);
        if (!tegroup_impl_ragged(&desc->a.shape)) bytes = tegroup_impl_mul(bytes, desc->a.shape.groups);
        TEGROUP_IMPL_RULE(!tegroup_impl_overlaps(desc->row_scale, bytes, d->data, d_bytes), ERROR_OVERLAP, "d.data",
                          "must not overlap row_scale", 0, 1);
    }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_gemm_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                              tegroup_error *error) {
    tegroup_problem problem;
    int on_host;
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(plan->struct_size == sizeof *plan, ERROR_STRUCT_SIZE, "plan.struct_size",
                      "must be the size of the struct", sizeof *plan, plan->struct_size);
    TEGROUP_IMPL_RULE(plan->magic == TEGROUP_PLAN_MAGIC, ERROR_PLAN, "plan", "must be what tegroup_plan_make wrote",
                      TEGROUP_PLAN_MAGIC, plan->magic);
    TEGROUP_IMPL_TRY(tegroup_gemm_problem(desc, &problem, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_planned(&plan->problem, &problem, error));
    TEGROUP_IMPL_RULE(!plan->hypothetical, ERROR_NOT_BUILT, "plan.backend", "must be part of this build",
                      TEGROUP_BACKEND_CPU, plan->backend);

    on_host = desc->space == TEGROUP_SPACE_HOST;
    TEGROUP_IMPL_TRY(tegroup_impl_check_memory(&desc->a, TEGROUP_IMPL_A, desc->check_level, on_host, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_memory(&desc->b, TEGROUP_IMPL_B, desc->check_level, on_host, error));
    if (problem.c != TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_TRY(tegroup_impl_check_memory(&desc->c, TEGROUP_IMPL_C, desc->check_level, on_host, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_memory(&desc->d, TEGROUP_IMPL_D, desc->check_level, on_host, error));
    if (problem.bias != TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_TRY(tegroup_impl_check_memory(&desc->bias, TEGROUP_IMPL_BIAS, desc->check_level, on_host, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scalar_memory(&desc->alpha, "alpha.data", "alpha.space", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scalar_memory(&desc->beta, "beta.data", "beta.space", error));
    TEGROUP_IMPL_RULE(!desc->row_scale || problem.row_scale != TEGROUP_DTYPE_UNSET, ERROR_UNSET, "row_scale_dtype",
                      "must be set with row_scale", TEGROUP_DTYPE_F32, 0);
    TEGROUP_IMPL_RULE(desc->row_scale || problem.row_scale == TEGROUP_DTYPE_UNSET || problem.rows == 0
                          || problem.groups == 0,
                      ERROR_NULL_ARGUMENT, "row_scale", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_workspace(&plan->workspace, "workspace", "workspace_bytes", desc->workspace,
                                                  desc->workspace_bytes, error));
    return tegroup_impl_check_overlaps(plan, desc, error);
}

TEGROUP_API tegroup_status tegroup_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                        struct CUstream_st *stream, tegroup_error *error) {
    (void)stream;
    TEGROUP_IMPL_TRY(tegroup_gemm_check(plan, desc, error));
    tegroup_impl_cpu_gemm(plan, desc); /* the only backend of this build; a plan for another was refused above */
    return TEGROUP_OK;
}
