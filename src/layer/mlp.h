/* ---- Grouped MLP ---- */

/* A product of a call, and its plan. */
typedef struct tegroup_impl_mlp_product {
    tegroup_mlp_layer layer;
    int product;
    const tegroup_plan *plan;
    tegroup_gemm_desc gemm;
} tegroup_impl_mlp_product;

static inline void tegroup_impl_mlp_gemm(const tegroup_mlp_desc *desc, const tegroup_mlp_plan *plan,
                                         tegroup_mlp_layer layer, int product, tegroup_gemm_desc *gemm) {
    tegroup_linear_desc linear;
    const tegroup_op op = product == TEGROUP_IMPL_LINEAR_ROW_SCALE ? TEGROUP_OP_DGRAD : (tegroup_op)product;
    tegroup_impl_mlp_linear(desc, plan, op, layer, &linear);
    tegroup_impl_linear_product(&linear, product, gemm);
    if (product == TEGROUP_IMPL_LINEAR_ROW_SCALE) gemm->accumulate = 1; /* to what the activation gave */
}

/* An activation in the epilogue of a forward product, or the gradient of one in that of a dgrad. */
typedef struct tegroup_impl_epilogue {
    tegroup_fused_kernel kernel;               /* of the product that has it */
    tegroup_activation_desc activation;        /* of D; a gradient's, of its input */
    int keeps_d;                               /* forward: D is wanted, too */
    int activates_again;                       /* gradient: activation.output is wanted, too */
    tegroup_activation_backward_desc gradient; /* of D, whose memory holds sums for grad_row_scale instead */
} tegroup_impl_epilogue;

#if TEGROUP_IMPL_FUSED_KERNELS
static inline tegroup_status tegroup_impl_cuda_plan_fused(const tegroup_plan *plan, tegroup_fused_kernel *kernel,
                                                          tegroup_error *error);
static inline tegroup_status tegroup_impl_cuda_gemm_fused(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                          const tegroup_impl_epilogue *epilogue,
                                                          struct CUstream_st *stream, tegroup_error *error);
#endif

/* Why a product has no activation in its epilogue: fc1's forward product, or fc2's dgrad; NULL: it has. What a plan for another
 * machine could do is not for this build to say. */
static inline const char *tegroup_impl_mlp_unfused(const tegroup_mlp_desc *desc, const tegroup_plan *product,
                                                   tegroup_op op) {
    const int gradient = op == TEGROUP_OP_DGRAD;
    tegroup_linear_desc fc1, fc2;
    tegroup_impl_mlp_linear(desc, NULL, op, TEGROUP_MLP_FC1, &fc1);
    tegroup_impl_mlp_linear(desc, NULL, op, TEGROUP_MLP_FC2, &fc2);
    if (product->backend != TEGROUP_BACKEND_SM90 && product->backend != TEGROUP_BACKEND_PORTABLE)
        return "must not be REQUIRED: only SM90 and PORTABLE have products with an activation in their epilogue";
    if (!TEGROUP_IMPL_FUSED_KERNELS && !product->hypothetical)
        return "must not be REQUIRED: this build leaves out activations on the GPU";
    if (!tegroup_impl_gated(desc->activation))
        return "must not be REQUIRED: the epilogue's activation has a gate and an up";
    if (product->problem.a != fc1.out.dtype || fc1.out.dtype != fc2.input.dtype
        || tegroup_impl_bits(fc1.out.dtype) != 16
        || (gradient && (fc1.grad_output.dtype != fc1.out.dtype || fc2.dgrad_out.dtype != fc1.out.dtype)))
        return "must not be REQUIRED: the epilogue has its product's operands, preactivation, activated and their "
               "gradients as the same of F16 and BF16";
    if (fc2.input.shape.cols % 8 != 0) return "must not be REQUIRED: the epilogue has rows of 16 bytes";
    return NULL;
}

/* Which steps an epilogue takes over: the one place that knows of fused products. SM90's have tiles of 128 lines alone, and are the
 * slower ones where groups have fewer rows; forward also where the product would have tiles that fit its groups, and sums so long that
 * lines left empty cost more than the activation's bytes. PORTABLE's, which do not multiply meanwhile, gain nothing, and run when they
 * must. */
static inline tegroup_status tegroup_impl_mlp_fuse(const tegroup_mlp_desc *desc, const tegroup_plan *product,
                                                   tegroup_op op, uint32_t bit, uint32_t *fused,
                                                   tegroup_fused_kernel *kernel, tegroup_error *error) {
    const int required = desc->fusion == TEGROUP_FUSION_REQUIRED;
    const int64_t rows = desc->expected_rows > 0 ? desc->expected_rows : desc->input.shape.rows,
                  average = tegroup_impl_ceil_div(rows, tegroup_impl_max(1, desc->input.shape.groups));
    const char *why;
    if (!tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, (int)op)) return TEGROUP_OK;
    why = tegroup_impl_mlp_unfused(desc, product, op);
    TEGROUP_IMPL_RULE(!required || !why, ERROR_UNSUPPORTED, "fusion", why, TEGROUP_FUSION_AUTO, desc->fusion);
    if (why || desc->fusion == TEGROUP_FUSION_NEVER) return TEGROUP_OK;
    if (!required
        && (product->backend != TEGROUP_BACKEND_SM90 || average <= 128
            || (op == TEGROUP_OP_FORWARD && product->tile_m > 128
                && desc->input.shape.cols > tegroup_impl_mul(6, average))))
        return TEGROUP_OK;
    *fused |= bit;
    (void)kernel; /* of a build without them */
#if TEGROUP_IMPL_FUSED_KERNELS
    if (!product->hypothetical) return tegroup_impl_cuda_plan_fused(product, kernel, error);
#endif
    return TEGROUP_OK;
}

/* The products' workspace comes first, so that wgrad, which has no scratch, can do with that part. */
static inline tegroup_status tegroup_impl_mlp_layouts(const tegroup_mlp_desc *desc, tegroup_mlp_plan *plan,
                                                      tegroup_error *error) {
    const tegroup_layout *most =
        plan->fc1.workspace.total_bytes > plan->fc2.workspace.total_bytes ? &plan->fc1.workspace : &plan->fc2.workspace;
    const int forward = tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_OP_FORWARD),
              dgrad = tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_OP_DGRAD),
              has_preactivation = desc->preactivation.dtype != TEGROUP_DTYPE_UNSET,
              has_activated = desc->activated.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_linear_desc fc1, fc2;
    tegroup_impl_mlp_linear(desc, NULL, TEGROUP_OP_FORWARD, TEGROUP_MLP_FC1, &fc1);
    tegroup_impl_mlp_linear(desc, NULL, TEGROUP_OP_FORWARD, TEGROUP_MLP_FC2, &fc2);
    plan->wgrad_workspace = plan->fc1.wgrad.workspace.total_bytes > plan->fc2.wgrad.workspace.total_bytes
                                ? plan->fc1.wgrad.workspace
                                : plan->fc2.wgrad.workspace;
    plan->workspace = *most;
    plan->activated_item = plan->preactivation_item = -1;
    if (dgrad || (forward && !tegroup_impl_mlp_keeps(desc))) {
        plan->activated_item = plan->workspace.count;
        tegroup_impl_layout_add(&plan->workspace, "activated, and in dgrad its gradient",
                                tegroup_impl_extent_bytes(&fc2.dgrad_out));
    }
    if (forward && !has_preactivation) {
        plan->preactivation_item = plan->workspace.count;
        tegroup_impl_layout_add(&plan->workspace, "preactivation", tegroup_impl_extent_bytes(&fc1.out));
    }
    TEGROUP_IMPL_RULE(!tegroup_impl_layout_overflowed(&plan->workspace), ERROR_OVERFLOW, "input.shape.rows",
                      "must leave the workspace addressable", tegroup_impl_max_bytes(), desc->input.shape.rows);
    if (has_preactivation)
        tegroup_impl_layout_add(&plan->saved_by_forward, "preactivation",
                                tegroup_impl_extent_bytes(&desc->preactivation));
    if (has_activated)
        tegroup_impl_layout_add(desc->recompute ? &plan->saved_by_dgrad : &plan->saved_by_forward, "activated",
                                tegroup_impl_extent_bytes(&desc->activated));
    if (dgrad)
        tegroup_impl_layout_add(&plan->saved_by_dgrad, "grad_preactivation",
                                tegroup_impl_extent_bytes(&desc->grad_preactivation));
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_mlp_plan_make(const tegroup_mlp_desc *desc, const tegroup_target *target,
                                                 tegroup_mlp_plan *plan, tegroup_error *error) {
    tegroup_mlp_plan made;
    tegroup_gemm_desc gemm;
    int layer, product, tensor;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check(desc, error));
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    memset(&made, 0, sizeof made);
    made.struct_size = sizeof made;
    made.magic = TEGROUP_MLP_PLAN_MAGIC;
    made.activation = desc->activation;
    made.interleaved = desc->interleaved;
    made.recompute = desc->recompute;
    made.fc2_bias_scaled = desc->fc2_bias_scaled;
    for (tensor = 0; tensor < TEGROUP_IMPL_MLP_COUNT; tensor++)
        made.dtypes[tensor] = tegroup_impl_mlp_dtype(desc, tensor);
    for (layer = TEGROUP_MLP_FC1; layer <= TEGROUP_MLP_FC2; layer++) {
        tegroup_linear_plan *linear = layer == TEGROUP_MLP_FC1 ? &made.fc1 : &made.fc2;
        for (product = TEGROUP_OP_FORWARD; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++) {
            if (!tegroup_impl_mlp_wants(desc, (tegroup_mlp_layer)layer, product)) continue;
            tegroup_impl_mlp_gemm(desc, NULL, (tegroup_mlp_layer)layer, product, &gemm);
            TEGROUP_IMPL_TRY(
                tegroup_impl_mlp_refused(tegroup_impl_linear_plan_product(&gemm, product, target, linear, error),
                                         (tegroup_mlp_layer)layer, error));
        }
    }
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_fuse(desc, &made.fc1.forward, TEGROUP_OP_FORWARD, TEGROUP_FUSED_FORWARD,
                                           &made.fused, &made.activated_kernel, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_fuse(desc, &made.fc2.dgrad, TEGROUP_OP_DGRAD, TEGROUP_FUSED_DGRAD, &made.fused,
                                           &made.gradient_kernel, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_layouts(desc, &made, error));
    *plan = made;
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_mlp_check_plan(const tegroup_mlp_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_RULE(plan->struct_size == sizeof *plan, ERROR_STRUCT_SIZE, "plan.struct_size",
                      "must be the size of the struct", sizeof *plan, plan->struct_size);
    TEGROUP_IMPL_RULE(plan->magic == TEGROUP_MLP_PLAN_MAGIC, ERROR_PLAN, "plan",
                      "must be what tegroup_mlp_plan_make wrote", TEGROUP_MLP_PLAN_MAGIC, plan->magic);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_mlp_gemm(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                            tegroup_mlp_layer layer, tegroup_op op, tegroup_gemm_desc *gemm,
                                            tegroup_error *error) {
    if (plan) TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_plan(plan, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check(desc, error));
    TEGROUP_IMPL_RULE(layer != TEGROUP_MLP_LAYER_UNSET, ERROR_UNSET, "layer", "must be set", TEGROUP_MLP_FC1, 0);
    TEGROUP_IMPL_RULE_ENUM(layer, TEGROUP_MLP_FC2, "layer", "must be a tegroup_mlp_layer");
    TEGROUP_IMPL_RULE(op != TEGROUP_OP_UNSET, ERROR_UNSET, "op", "must be set", TEGROUP_OP_FORWARD, 0);
    TEGROUP_IMPL_RULE_ENUM(op, TEGROUP_OP_WGRAD, "op", "must be a tegroup_op");
    TEGROUP_IMPL_RULE(gemm != NULL, ERROR_NULL_ARGUMENT, "gemm", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_mlp_wants(desc, layer, (int)op), ERROR_COMBINATION, "op",
                      "must be of a product whose output is there", 1, 0);
    tegroup_impl_mlp_gemm(desc, plan, layer, (int)op, gemm);
    return TEGROUP_OK;
}

/* What a call checks before its products check themselves: the plan, the descriptor, and that they ask for the same. */
static inline tegroup_status tegroup_impl_mlp_check_call(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                                         int op, tegroup_error *error) {
    int layer, product;
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_plan(plan, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check(desc, error));
    TEGROUP_IMPL_RULE(plan->activation == desc->activation, ERROR_PLAN, "activation", "must be as planned",
                      plan->activation, desc->activation);
    TEGROUP_IMPL_RULE(plan->interleaved == desc->interleaved, ERROR_PLAN, "interleaved", "must be as planned",
                      plan->interleaved, desc->interleaved);
    TEGROUP_IMPL_RULE(plan->recompute == desc->recompute, ERROR_PLAN, "recompute", "must be as planned",
                      plan->recompute, desc->recompute);
    TEGROUP_IMPL_RULE(plan->fc2_bias_scaled == desc->fc2_bias_scaled, ERROR_PLAN, "fc2_bias_scaled",
                      "must be as planned", plan->fc2_bias_scaled, desc->fc2_bias_scaled);
    TEGROUP_IMPL_RULE(op != TEGROUP_OP_WGRAD || tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1, op)
                          || tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, op),
                      ERROR_UNSET, "fc1.main_grad.dtype",
                      "must be set, or fc2.main_grad's: they are what this call writes", TEGROUP_DTYPE_F64, 0);
    TEGROUP_IMPL_RULE(op == TEGROUP_OP_WGRAD || tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, op), ERROR_UNSET,
                      op == TEGROUP_OP_FORWARD ? "out.dtype" : "grad_preactivation.dtype",
                      "must be set: it is what this call writes", TEGROUP_DTYPE_F64, 0);
    for (layer = TEGROUP_MLP_FC1; layer <= TEGROUP_MLP_FC2; layer++)
        for (product = op; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++) {
            const tegroup_plan *one =
                tegroup_impl_linear_made(layer == TEGROUP_MLP_FC1 ? &plan->fc1 : &plan->fc2, product);
            const int tensor = tegroup_impl_mlp_asks((tegroup_mlp_layer)layer, product);
            if (product != op && !(product == TEGROUP_IMPL_LINEAR_ROW_SCALE && op == TEGROUP_OP_DGRAD)) continue;
            TEGROUP_IMPL_RULE(
                (one->magic == TEGROUP_PLAN_MAGIC) == tegroup_impl_mlp_wants(desc, (tegroup_mlp_layer)layer, product),
                ERROR_PLAN, tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_DTYPE),
                "must be set just when planned so", one->problem.d, tegroup_impl_mlp_at(desc, tensor)->dtype);
        }
    TEGROUP_IMPL_RULE(op == TEGROUP_OP_WGRAD || desc->input.shape.snapshot != NULL, ERROR_NULL_ARGUMENT,
                      "input.shape.snapshot", "must not be NULL: prepare first", 1, 0);
    TEGROUP_IMPL_RULE(op != TEGROUP_OP_FORWARD || tegroup_impl_mlp_keeps(desc) || plan->activated_item >= 0, ERROR_PLAN,
                      "activated.dtype", "must be as planned", plan->fc2.forward.problem.a, 0);
    return tegroup_impl_check_workspace(op == TEGROUP_OP_WGRAD ? &plan->wgrad_workspace : &plan->workspace, "workspace",
                                        "workspace_bytes", desc->workspace, desc->workspace_bytes, error);
}

/* Fills in `count` products of a call and has them check themselves. reads, writes: what the whole call touches, and thus has as
 * planned. */
static inline tegroup_status tegroup_impl_mlp_check_products(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                                             tegroup_impl_mlp_product *products, int count,
                                                             size_t workspace_bytes, uint32_t reads, uint32_t writes,
                                                             tegroup_error *error) {
    int i;
    for (i = 0; i < TEGROUP_IMPL_MLP_COUNT; i++)
        TEGROUP_IMPL_RULE(
            !((reads | writes) >> i & 1u) || tegroup_impl_mlp_dtype(desc, i) == plan->dtypes[i], ERROR_PLAN,
            i == TEGROUP_IMPL_MLP_ROW_SCALE ? "row_scale_dtype" : tegroup_impl_mlp_path(i, TEGROUP_IMPL_MEMBER_DTYPE),
            "must be as planned", plan->dtypes[i], tegroup_impl_mlp_dtype(desc, i));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_apart(desc, reads, writes, workspace_bytes, TEGROUP_CHECK_HOST, error));
    for (i = 0; i < count; i++) {
        tegroup_impl_mlp_product *p = &products[i];
        p->plan = tegroup_impl_linear_made(p->layer == TEGROUP_MLP_FC1 ? &plan->fc1 : &plan->fc2, p->product);
        tegroup_impl_mlp_gemm(desc, plan, p->layer, p->product, &p->gemm);
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_refused(
            tegroup_impl_linear_refused(tegroup_gemm_check(p->plan, &p->gemm, error), p->product, error), p->layer,
            error));
    }
    if (desc->check_level != TEGROUP_CHECK_DEEP) return TEGROUP_OK; /* lists may be walked now */
    return tegroup_impl_mlp_check_apart(desc, reads, writes, workspace_bytes, TEGROUP_CHECK_DEEP, error);
}

static inline tegroup_status tegroup_impl_mlp_run(const tegroup_impl_mlp_product *p, struct CUstream_st *stream,
                                                  tegroup_error *error) {
    return tegroup_impl_mlp_refused(
        tegroup_impl_linear_refused(tegroup_impl_gemm_run(p->plan, &p->gemm, stream, error), p->product, error),
        p->layer, error);
}

static inline tegroup_matrix tegroup_impl_mlp_matrix(const tegroup_tensor *t) {
    tegroup_matrix m;
    m.data = t->data;
    m.rows = t->shape.rows;
    m.cols = t->shape.cols;
    m.ld = t->ld;
    m.dtype = t->dtype;
    return m;
}

static inline tegroup_matrix tegroup_impl_mlp_row_scale(const tegroup_mlp_desc *desc) {
    tegroup_matrix m;
    m.data = (void *)(uintptr_t)desc->row_scale;
    m.rows = desc->input.shape.rows;
    m.cols = 1;
    m.ld = 0;
    m.dtype = desc->row_scale_dtype;
    return m;
}

/* activated = row_scale * f(preactivation), from and to where the products have them. */
static inline void tegroup_impl_mlp_describe_activation(const tegroup_mlp_desc *desc,
                                                        const tegroup_tensor *preactivation,
                                                        const tegroup_tensor *activated,
                                                        tegroup_activation_desc *activation) {
    memset(activation, 0, sizeof *activation);
    activation->struct_size = sizeof *activation;
    activation->space = desc->space;
    activation->activation = desc->activation;
    activation->interleaved = desc->interleaved;
    activation->alpha = desc->alpha;
    activation->limit = desc->limit;
    activation->snapshot = desc->input.shape.snapshot;
    activation->input = tegroup_impl_mlp_matrix(preactivation);
    activation->row_scale = tegroup_impl_mlp_row_scale(desc);
    activation->output = tegroup_impl_mlp_matrix(activated);
}

static inline tegroup_status tegroup_impl_mlp_activation(const tegroup_mlp_desc *desc,
                                                         const tegroup_tensor *preactivation,
                                                         const tegroup_tensor *activated,
                                                         tegroup_activation_desc *activation, tegroup_error *error) {
    tegroup_impl_mlp_describe_activation(desc, preactivation, activated, activation);
    return tegroup_impl_mlp_activation_refused(tegroup_impl_activation_check(activation, error), error);
}

static inline tegroup_status tegroup_impl_mlp_activation_backward(const tegroup_mlp_desc *desc,
                                                                  const tegroup_tensor *grad_activated,
                                                                  tegroup_activation_backward_desc *activation,
                                                                  tegroup_error *error) {
    tegroup_activation_desc forward;
    tegroup_impl_mlp_describe_activation(desc, &desc->preactivation, &desc->activated, &forward);
    tegroup_impl_activation_backward_of(&forward, activation);
    activation->grad_output = tegroup_impl_mlp_matrix(grad_activated);
    activation->grad_input = tegroup_impl_mlp_matrix(&desc->grad_preactivation);
    activation->grad_row_scale = tegroup_impl_mlp_matrix(&desc->grad_row_scale);
    return tegroup_impl_mlp_activation_refused(tegroup_impl_activation_backward_check(activation, error), error);
}

/* Whether a call runs its first product fused, as planned. */
static inline tegroup_status tegroup_impl_mlp_check_fused(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                                          const tegroup_impl_mlp_product *product, uint32_t bit,
                                                          int *fused, tegroup_error *error) {
    *fused = (plan->fused & bit) != 0;
    TEGROUP_IMPL_RULE(desc->fusion != (*fused ? TEGROUP_FUSION_NEVER : TEGROUP_FUSION_REQUIRED), ERROR_PLAN, "fusion",
                      "must be as planned", *fused ? TEGROUP_FUSION_REQUIRED : TEGROUP_FUSION_NEVER, desc->fusion);
    TEGROUP_IMPL_RULE(
        !*fused || product->plan->backend == TEGROUP_BACKEND_SM90 || product->plan->backend == TEGROUP_BACKEND_PORTABLE,
        ERROR_PLAN, "plan", "must have the product that was fused", TEGROUP_BACKEND_SM90, product->plan->backend);
    return TEGROUP_OK;
}
/* What an epilogue has to do with and no product checks. */
static inline tegroup_status tegroup_impl_mlp_check_epilogue(const tegroup_matrix *m, const char *field,
                                                             tegroup_error *error) {
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(m->data, 16) || m->rows == 0 || m->cols == 0, ERROR_ALIGNMENT, field,
                      "must be 16-byte aligned for an epilogue", 16, (uintptr_t)m->data % 16);
    return TEGROUP_OK;
}
static inline tegroup_status tegroup_impl_mlp_run_fused(const tegroup_impl_mlp_product *p,
                                                        const tegroup_impl_epilogue *epilogue,
                                                        struct CUstream_st *stream, tegroup_error *error) {
#if TEGROUP_IMPL_FUSED_KERNELS
    return tegroup_impl_mlp_refused(
        tegroup_impl_linear_refused(tegroup_impl_cuda_gemm_fused(p->plan, &p->gemm, epilogue, stream, error),
                                    p->product, error),
        p->layer, error);
#else
    (void)p, (void)epilogue, (void)stream, (void)error;
    return TEGROUP_OK;
#endif
}

#define TEGROUP_IMPL_BIT(name) (1u << TEGROUP_IMPL_MLP_##name)

/* The calls; run 0: only what they check. */

static inline tegroup_status tegroup_impl_mlp_forward(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                                      int run, struct CUstream_st *stream, tegroup_error *error) {
    const uint32_t reads = TEGROUP_IMPL_BIT(INPUT) | TEGROUP_IMPL_BIT(FC1_WEIGHT) | TEGROUP_IMPL_BIT(FC1_BIAS)
                           | TEGROUP_IMPL_BIT(FC2_WEIGHT) | TEGROUP_IMPL_BIT(FC2_BIAS) | TEGROUP_IMPL_BIT(ROW_SCALE);
    uint32_t writes = TEGROUP_IMPL_BIT(PREACTIVATION) | TEGROUP_IMPL_BIT(OUT);
    tegroup_impl_mlp_product products[2];
    tegroup_impl_epilogue epilogue;
    int fused;
    memset(&epilogue, 0, sizeof epilogue); /* there is no gradient */
    products[0].layer = TEGROUP_MLP_FC1;
    products[1].layer = TEGROUP_MLP_FC2;
    products[0].product = products[1].product = TEGROUP_OP_FORWARD;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_call(plan, desc, TEGROUP_OP_FORWARD, error));
    if (tegroup_impl_mlp_keeps(desc)) writes |= TEGROUP_IMPL_BIT(ACTIVATED);
    TEGROUP_IMPL_TRY(
        tegroup_impl_mlp_check_products(plan, desc, products, 2, plan->workspace.total_bytes, reads, writes, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_mlp_activation(desc, &products[0].gemm.d, &products[1].gemm.a, &epilogue.activation, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_fused(plan, desc, &products[0], TEGROUP_FUSED_FORWARD, &fused, error));
    if (fused) {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_epilogue(&epilogue.activation.output, "activated.data", error));
        if (desc->preactivation.dtype != TEGROUP_DTYPE_UNSET)
            TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_epilogue(&epilogue.activation.input, "preactivation.data", error));
    }

    if (!run) return TEGROUP_OK;
    if (fused) {
        epilogue.kernel = plan->activated_kernel;
        epilogue.keeps_d = desc->preactivation.dtype != TEGROUP_DTYPE_UNSET;
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run_fused(&products[0], &epilogue, stream, error));
    } else {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&products[0], stream, error));
        TEGROUP_IMPL_TRY(tegroup_impl_activation_run(&epilogue.activation, desc->threads, stream, error));
    }
    return tegroup_impl_mlp_run(&products[1], stream, error);
}

/* fc2's dgrad, the activation's gradient, then what is wanted of fc1's dgrad and the bias's part of grad_row_scale. activated
 * is computed again before its input may be overwritten. */
static inline tegroup_status tegroup_impl_mlp_dgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc, int run,
                                                    struct CUstream_st *stream, tegroup_error *error) {
    uint32_t reads = TEGROUP_IMPL_BIT(GRAD_OUTPUT) | TEGROUP_IMPL_BIT(FC2_WEIGHT) | TEGROUP_IMPL_BIT(PREACTIVATION)
                     | TEGROUP_IMPL_BIT(ROW_SCALE);
    uint32_t writes = TEGROUP_IMPL_BIT(GRAD_PREACTIVATION) | TEGROUP_IMPL_BIT(GRAD_ROW_SCALE);
    tegroup_impl_mlp_product products[3];
    tegroup_impl_epilogue epilogue;
    int count = 1, fused, i;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_call(plan, desc, TEGROUP_OP_DGRAD, error));
    products[0].layer = TEGROUP_MLP_FC2;
    products[0].product = TEGROUP_OP_DGRAD;
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_IMPL_LINEAR_ROW_SCALE)) {
        products[count].layer = TEGROUP_MLP_FC2;
        products[count++].product = TEGROUP_IMPL_LINEAR_ROW_SCALE;
        reads |= TEGROUP_IMPL_BIT(FC2_BIAS);
    }
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1, TEGROUP_OP_DGRAD)) {
        products[count].layer = TEGROUP_MLP_FC1;
        products[count++].product = TEGROUP_OP_DGRAD;
        reads |= TEGROUP_IMPL_BIT(FC1_WEIGHT);
        writes |= TEGROUP_IMPL_BIT(DGRAD_OUT);
    }
    if (desc->recompute) writes |= TEGROUP_IMPL_BIT(ACTIVATED);
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_products(plan, desc, products, count, plan->workspace.total_bytes, reads,
                                                     writes, error));
    if (desc->recompute)
        TEGROUP_IMPL_TRY(
            tegroup_impl_mlp_activation(desc, &desc->preactivation, &desc->activated, &epilogue.activation, error));
    else {
        tegroup_impl_mlp_describe_activation(desc, &desc->preactivation, &desc->activated, &epilogue.activation);
        /* kernels take from it where ups are, also where activated is absent */
        epilogue.activation.output.cols = desc->fc2.weight.shape.cols;
    }
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_activation_backward(desc, &products[0].gemm.d, &epilogue.gradient, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_fused(plan, desc, &products[0], TEGROUP_FUSED_DGRAD, &fused, error));
    if (fused) {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_epilogue(&epilogue.activation.input, "preactivation.data", error));
        TEGROUP_IMPL_TRY(
            tegroup_impl_mlp_check_epilogue(&epilogue.gradient.grad_input, "grad_preactivation.data", error));
        if (desc->recompute)
            TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_epilogue(&epilogue.activation.output, "activated.data", error));
    }

    if (!run) return TEGROUP_OK;
    if (fused) {
        epilogue.kernel = plan->gradient_kernel;
        epilogue.keeps_d = 0;
        epilogue.activates_again = desc->recompute;
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run_fused(&products[0], &epilogue, stream, error));
    } else {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&products[0], stream, error));
        if (desc->recompute)
            TEGROUP_IMPL_TRY(tegroup_impl_activation_run(&epilogue.activation, desc->threads, stream, error));
        TEGROUP_IMPL_TRY(tegroup_impl_activation_backward_run(&epilogue.gradient, desc->threads, stream, error));
    }
    for (i = 1; i < count; i++) TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&products[i], stream, error));
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_mlp_wgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc, int run,
                                                    struct CUstream_st *stream, tegroup_error *error) {
    uint32_t reads = 0, writes = 0;
    tegroup_impl_mlp_product products[2];
    int count = 0, i;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_call(plan, desc, TEGROUP_OP_WGRAD, error));
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_OP_WGRAD)) {
        products[count].layer = TEGROUP_MLP_FC2;
        products[count++].product = TEGROUP_OP_WGRAD;
        reads |= TEGROUP_IMPL_BIT(GRAD_OUTPUT) | TEGROUP_IMPL_BIT(ACTIVATED);
        if (desc->fc2_bias_scaled && desc->fc2.bias_grad.dtype != TEGROUP_DTYPE_UNSET)
            reads |= TEGROUP_IMPL_BIT(ROW_SCALE);
        writes |= TEGROUP_IMPL_BIT(FC2_MAIN_GRAD) | TEGROUP_IMPL_BIT(FC2_BIAS_GRAD);
    }
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1, TEGROUP_OP_WGRAD)) {
        products[count].layer = TEGROUP_MLP_FC1;
        products[count++].product = TEGROUP_OP_WGRAD;
        reads |= TEGROUP_IMPL_BIT(GRAD_PREACTIVATION) | TEGROUP_IMPL_BIT(INPUT);
        writes |= TEGROUP_IMPL_BIT(FC1_MAIN_GRAD) | TEGROUP_IMPL_BIT(FC1_BIAS_GRAD);
    }
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_products(plan, desc, products, count, plan->wgrad_workspace.total_bytes,
                                                     reads, writes, error));
    for (i = 0; i < count && run; i++) TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&products[i], stream, error));
    return TEGROUP_OK;
}
#undef TEGROUP_IMPL_BIT

TEGROUP_API tegroup_status tegroup_mlp_forward(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                               struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_mlp_forward(plan, desc, 1, stream, error);
}

TEGROUP_API tegroup_status tegroup_mlp_dgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_mlp_dgrad(plan, desc, 1, stream, error);
}

TEGROUP_API tegroup_status tegroup_mlp_wgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_mlp_wgrad(plan, desc, 1, stream, error);
}
