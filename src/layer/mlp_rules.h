/* ---- Grouped MLP: tensors and rules ---- */

/* Its tensors, by name. */
/* clang-format off */
#define TEGROUP_IMPL_MLP_TENSORS(X)                                                                                    \
    X(FC1_WEIGHT, fc1.weight) X(FC1_BIAS, fc1.bias) X(FC1_MAIN_GRAD, fc1.main_grad) X(FC1_BIAS_GRAD, fc1.bias_grad)    \
    X(FC2_WEIGHT, fc2.weight) X(FC2_BIAS, fc2.bias) X(FC2_MAIN_GRAD, fc2.main_grad) X(FC2_BIAS_GRAD, fc2.bias_grad)    \
    X(INPUT, input) X(OUT, out) X(GRAD_OUTPUT, grad_output) X(DGRAD_OUT, dgrad_out)                                    \
    X(GRAD_ROW_SCALE, grad_row_scale) X(PREACTIVATION, preactivation) X(ACTIVATED, activated)                          \
    X(GRAD_PREACTIVATION, grad_preactivation)
/* clang-format on */

#define TEGROUP_IMPL_ENUMERATE(name, member) TEGROUP_IMPL_MLP_##name,
typedef enum tegroup_impl_mlp_tensor {
    TEGROUP_IMPL_MLP_TENSORS(TEGROUP_IMPL_ENUMERATE) TEGROUP_IMPL_MLP_ROW_SCALE, /* no tensor, but memory like one */
    TEGROUP_IMPL_MLP_COUNT
} tegroup_impl_mlp_tensor;
#undef TEGROUP_IMPL_ENUMERATE
enum {
    TEGROUP_IMPL_MLP_DTYPES_FIT =
        1 / (TEGROUP_IMPL_MLP_COUNT == sizeof(((tegroup_mlp_plan *)0)->dtypes) / sizeof(tegroup_dtype))
};

static inline const tegroup_tensor *tegroup_impl_mlp_at(const tegroup_mlp_desc *desc, int tensor) {
#define TEGROUP_IMPL_CASE(name, member)                                                                                \
    case TEGROUP_IMPL_MLP_##name: return &desc->member;
    switch (tensor) { TEGROUP_IMPL_MLP_TENSORS(TEGROUP_IMPL_CASE) default : return NULL; }
#undef TEGROUP_IMPL_CASE
}

static inline tegroup_dtype tegroup_impl_mlp_dtype(const tegroup_mlp_desc *desc, int tensor) {
    return tensor == TEGROUP_IMPL_MLP_ROW_SCALE ? desc->row_scale_dtype : tegroup_impl_mlp_at(desc, tensor)->dtype;
}

static inline const char *tegroup_impl_mlp_path(int tensor, int member) {
#define TEGROUP_IMPL_ROW(name, member) TEGROUP_IMPL_PATHS(#member),
    static const char *const paths[TEGROUP_IMPL_MLP_COUNT][TEGROUP_IMPL_MEMBER_COUNT] = {
        TEGROUP_IMPL_MLP_TENSORS(TEGROUP_IMPL_ROW) TEGROUP_IMPL_PATHS("row_scale")};
#undef TEGROUP_IMPL_ROW
    return paths[tensor][member];
}

static inline const char *tegroup_impl_mlp_name(int tensor) {
#define TEGROUP_IMPL_NAME(name, member) #member,
    static const char *const names[TEGROUP_IMPL_MLP_COUNT] = {TEGROUP_IMPL_MLP_TENSORS(TEGROUP_IMPL_NAME) "row_scale"};
#undef TEGROUP_IMPL_NAME
    return names[tensor];
}

static inline const char *tegroup_impl_mlp_apart(int tensor) {
#define TEGROUP_IMPL_WORDS(name, member) "must not overlap " #member,
    static const char *const words[TEGROUP_IMPL_MLP_COUNT] = {
        TEGROUP_IMPL_MLP_TENSORS(TEGROUP_IMPL_WORDS) "must not overlap row_scale"};
#undef TEGROUP_IMPL_WORDS
    return words[tensor];
}

/* What a linear layer's tensor is here. The gradient of activated, fc2's dgrad_out, goes by the name of what it is shaped as. */
static inline int tegroup_impl_mlp_role(tegroup_mlp_layer layer, int tensor) {
#define TEGROUP_IMPL_MLP_WORD(name) TEGROUP_IMPL_MLP_##name
    static const int roles[2][TEGROUP_IMPL_LINEAR_COUNT] = {
        {-1, TEGROUP_IMPL_MLP_WORD(FC1_WEIGHT), TEGROUP_IMPL_MLP_WORD(FC1_BIAS), TEGROUP_IMPL_MLP_WORD(INPUT),
         TEGROUP_IMPL_MLP_WORD(PREACTIVATION), TEGROUP_IMPL_MLP_WORD(GRAD_PREACTIVATION),
         TEGROUP_IMPL_MLP_WORD(DGRAD_OUT), TEGROUP_IMPL_MLP_WORD(FC1_MAIN_GRAD), TEGROUP_IMPL_MLP_WORD(FC1_BIAS_GRAD),
         -1},
        {-1, TEGROUP_IMPL_MLP_WORD(FC2_WEIGHT), TEGROUP_IMPL_MLP_WORD(FC2_BIAS), TEGROUP_IMPL_MLP_WORD(ACTIVATED),
         TEGROUP_IMPL_MLP_WORD(OUT), TEGROUP_IMPL_MLP_WORD(GRAD_OUTPUT), TEGROUP_IMPL_MLP_WORD(ACTIVATED),
         TEGROUP_IMPL_MLP_WORD(FC2_MAIN_GRAD), TEGROUP_IMPL_MLP_WORD(FC2_BIAS_GRAD),
         TEGROUP_IMPL_MLP_WORD(GRAD_ROW_SCALE)}};
#undef TEGROUP_IMPL_MLP_WORD
    return roles[layer - 1][tensor];
}

/* What one of the two layers was refused for, in the words of the MLP. */
static inline tegroup_status tegroup_impl_mlp_refused(tegroup_status status, tegroup_mlp_layer layer,
                                                      tegroup_error *error) {
#define TEGROUP_IMPL_RULES(verb, what)                                                                                 \
    { verb what, verb "fc1." what, verb "fc2." what }
    static const char *const rules[][3] = {TEGROUP_IMPL_RULES("must equal ", "weight.shape.groups"),
                                           TEGROUP_IMPL_RULES("must equal ", "weight.shape.rows, n"),
                                           TEGROUP_IMPL_RULES("must equal ", "weight.shape.cols, k"),
                                           TEGROUP_IMPL_RULES("must equal ", "weight.dtype (FP8: either kind)")};
#undef TEGROUP_IMPL_RULES
    const char *field, *rule;
    int tensor, member, i;
    if (status == TEGROUP_OK || !error) return status;
    field = error->field;
    rule = error->rule;
    for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++) {
        const int here = tegroup_impl_mlp_role(layer, tensor);
        if (here < 0) continue;
        for (member = 0; member < TEGROUP_IMPL_MEMBER_COUNT; member++)
            if (!strcmp(field, tegroup_impl_linear_path((tegroup_impl_linear_tensor)tensor, member)))
                error->field = tegroup_impl_mlp_path(here, member);
        if (!strcmp(field, tegroup_impl_linear_name((tegroup_impl_linear_tensor)tensor)))
            error->field = tegroup_impl_mlp_name(here);
        if (!strcmp(rule, tegroup_impl_linear_apart((tegroup_impl_linear_tensor)tensor)))
            error->rule = tegroup_impl_mlp_apart(here);
    }
    for (i = 0; i < 4; i++)
        if (!strcmp(rule, rules[i][0])) error->rule = rules[i][layer];
    return status;
}

/* ... and what the activation was. */
static inline tegroup_status tegroup_impl_mlp_activation_refused(tegroup_status status, tegroup_error *error) {
    static const char *const words[][2] = {
        {"input.data", "preactivation.data"},
        {"output.data", "activated.data"},
        {"grad_input.data", "grad_preactivation.data"},
        {"row_scale.data", "row_scale"},
        {"snapshot", "input.shape.snapshot"},
        {"must not overlap input", "must not overlap preactivation"},
        {"must not overlap input, unless it is input with the same ld and dtype",
         "must not overlap preactivation, unless it is preactivation with the same dtype"}};
    size_t i;
    if (status == TEGROUP_OK || !error) return status;
    for (i = 0; i < sizeof words / sizeof *words; i++) {
        if (!strcmp(error->field, words[i][0])) error->field = words[i][1];
        if (!strcmp(error->rule, words[i][0])) error->rule = words[i][1];
    }
    return status;
}

#define TEGROUP_IMPL_THERE(member) (desc->member.dtype != TEGROUP_DTYPE_UNSET)

/* The tensor that asks for a product by being there. */
static inline int tegroup_impl_mlp_asks(tegroup_mlp_layer layer, int product) {
    const int first = layer == TEGROUP_MLP_FC1;
    switch (product) {
    case TEGROUP_OP_FORWARD: return TEGROUP_IMPL_MLP_OUT;
    case TEGROUP_OP_DGRAD: return first ? TEGROUP_IMPL_MLP_DGRAD_OUT : TEGROUP_IMPL_MLP_GRAD_PREACTIVATION;
    case TEGROUP_OP_WGRAD: return first ? TEGROUP_IMPL_MLP_FC1_MAIN_GRAD : TEGROUP_IMPL_MLP_FC2_MAIN_GRAD;
    default: return TEGROUP_IMPL_MLP_GRAD_ROW_SCALE;
    }
}

static inline int tegroup_impl_mlp_wants(const tegroup_mlp_desc *desc, tegroup_mlp_layer layer, int product) {
    return tegroup_impl_mlp_at(desc, tegroup_impl_mlp_asks(layer, product))->dtype != TEGROUP_DTYPE_UNSET
           && (product != TEGROUP_IMPL_LINEAR_ROW_SCALE || (layer == TEGROUP_MLP_FC2 && desc->fc2_bias_scaled));
}

/* Does forward leave activated to the caller? Else it is scratch. */
static inline int tegroup_impl_mlp_keeps(const tegroup_mlp_desc *desc) {
    return TEGROUP_IMPL_THERE(activated) && !desc->recompute;
}

/* Rows that lie in the workspace, at an item of a made plan. */
static inline tegroup_tensor tegroup_impl_mlp_scratch(const tegroup_mlp_desc *desc, const tegroup_mlp_plan *plan,
                                                      int32_t item, tegroup_dtype dtype, int64_t cols) {
    tegroup_tensor t;
    memset(&t, 0, sizeof t);
    t.shape = desc->input.shape;
    t.shape.cols = cols;
    t.dtype = dtype;
    if (plan && item >= 0 && desc->workspace) t.data = tegroup_impl_layout_at(&plan->workspace, item, desc->workspace);
    return t;
}

/* One of the two layers as `op` sees it. plan NULL: scratch has no address yet. */
static inline void tegroup_impl_mlp_linear(const tegroup_mlp_desc *desc, const tegroup_mlp_plan *plan, tegroup_op op,
                                           tegroup_mlp_layer layer, tegroup_linear_desc *linear) {
    const tegroup_mlp_weights *weights = layer == TEGROUP_MLP_FC1 ? &desc->fc1 : &desc->fc2;
    memset(linear, 0, sizeof *linear);
    linear->struct_size = sizeof *linear;
    linear->space = desc->space;
    linear->weight = weights->weight;
    linear->bias = weights->bias;
    linear->main_grad = weights->main_grad;
    linear->bias_grad = weights->bias_grad;
    if (layer == TEGROUP_MLP_FC1) {
        linear->input = desc->input;
        linear->out = TEGROUP_IMPL_THERE(preactivation)
                          ? desc->preactivation
                          : tegroup_impl_mlp_scratch(desc, plan, plan ? plan->preactivation_item : -1,
                                                     desc->fc1.weight.dtype, desc->fc1.weight.shape.rows);
        linear->grad_output = desc->grad_preactivation;
        linear->dgrad_out = desc->dgrad_out;
        linear->dgrad_out_tail = desc->dgrad_out_tail;
    } else {
        const tegroup_tensor scratch = tegroup_impl_mlp_scratch(desc, plan, plan ? plan->activated_item : -1,
                                                                desc->fc2.weight.dtype, desc->fc2.weight.shape.cols);
        linear->input =
            TEGROUP_IMPL_THERE(activated) && !(op == TEGROUP_OP_FORWARD && desc->recompute) ? desc->activated : scratch;
        linear->out = desc->out;
        linear->out_tail = desc->out_tail;
        linear->grad_output = desc->grad_output;
        linear->dgrad_out = scratch;
        linear->grad_row_scale = desc->grad_row_scale;
        if (desc->fc2_bias_scaled) {
            linear->row_scale = desc->row_scale;
            linear->row_scale_dtype = desc->row_scale_dtype;
        }
    }
    linear->accumulate = desc->accumulate;
    TEGROUP_IMPL_TAKE_OPTIONS(linear, desc);
}

/* Which tensors are there, and for which others. */
static inline tegroup_status tegroup_impl_mlp_check_there(const tegroup_mlp_desc *desc, tegroup_error *error) {
    int tensor;
    for (tensor = 0; tensor < TEGROUP_IMPL_MLP_ROW_SCALE; tensor++) {
        const tegroup_tensor *t = tegroup_impl_mlp_at(desc, tensor);
        TEGROUP_IMPL_RULE(t->dtype != TEGROUP_DTYPE_UNSET || (!t->data && !t->pointers), ERROR_UNSET,
                          tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_DTYPE), "must be set with data",
                          TEGROUP_DTYPE_F64, 0);
        TEGROUP_IMPL_RULE_ENUM(t->dtype, TEGROUP_DTYPE_COUNT - 1,
                               tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_DTYPE), "must be a tegroup_dtype");
    }
    TEGROUP_IMPL_RULE(TEGROUP_IMPL_THERE(input), ERROR_UNSET, "input.dtype", "must be set", TEGROUP_DTYPE_F64, 0);
    TEGROUP_IMPL_RULE(TEGROUP_IMPL_THERE(out) || TEGROUP_IMPL_THERE(grad_preactivation)
                          || TEGROUP_IMPL_THERE(fc1.main_grad) || TEGROUP_IMPL_THERE(fc2.main_grad),
                      ERROR_UNSET, "out.dtype", "must be set, or grad_preactivation's, or a main_grad's",
                      TEGROUP_DTYPE_F64, 0);
#define TEGROUP_IMPL_NEEDS(member, other)                                                                              \
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(member) || TEGROUP_IMPL_THERE(other), ERROR_COMBINATION, #member,            \
                      "needs " #other, 1, 0)
    TEGROUP_IMPL_NEEDS(dgrad_out, grad_preactivation);
    TEGROUP_IMPL_NEEDS(grad_row_scale, grad_preactivation);
    TEGROUP_IMPL_NEEDS(grad_preactivation, preactivation);
    TEGROUP_IMPL_NEEDS(grad_preactivation, grad_output);
    TEGROUP_IMPL_NEEDS(fc1.main_grad, grad_preactivation);
    TEGROUP_IMPL_NEEDS(fc2.main_grad, grad_output);
    TEGROUP_IMPL_NEEDS(fc2.main_grad, activated);
    TEGROUP_IMPL_NEEDS(fc1.bias_grad, fc1.main_grad);
    TEGROUP_IMPL_NEEDS(fc1.bias_grad, fc1.bias);
    TEGROUP_IMPL_NEEDS(fc2.bias_grad, fc2.main_grad);
    TEGROUP_IMPL_NEEDS(fc2.bias_grad, fc2.bias);
#undef TEGROUP_IMPL_NEEDS
    TEGROUP_IMPL_RULE(!desc->recompute || TEGROUP_IMPL_THERE(activated), ERROR_COMBINATION, "recompute",
                      "needs activated", 0, 1);
    TEGROUP_IMPL_RULE(!desc->recompute || TEGROUP_IMPL_THERE(grad_preactivation), ERROR_COMBINATION, "recompute",
                      "needs grad_preactivation: dgrad does it", 0, 1);
    TEGROUP_IMPL_RULE(!desc->row_scale || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET, "row_scale_dtype",
                      "must be set with row_scale", TEGROUP_DTYPE_F32, 0);
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(grad_row_scale) || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET,
                      ERROR_COMBINATION, "grad_row_scale", "needs row_scale", 1, 0);
    TEGROUP_IMPL_RULE(!desc->fc2_bias_scaled || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET, ERROR_COMBINATION,
                      "fc2_bias_scaled", "needs row_scale", 0, 1);
    TEGROUP_IMPL_RULE(!desc->fc2_bias_scaled || TEGROUP_IMPL_THERE(fc2.bias), ERROR_COMBINATION, "fc2_bias_scaled",
                      "needs fc2.bias", 0, 1);
    TEGROUP_IMPL_RULE(!desc->accumulate || TEGROUP_IMPL_THERE(fc1.main_grad) || TEGROUP_IMPL_THERE(fc2.main_grad),
                      ERROR_COMBINATION, "accumulate", "needs fc1.main_grad or fc2.main_grad", 0, desc->accumulate);
    TEGROUP_IMPL_RULE(desc->out_tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_THERE(out), ERROR_COMBINATION, "out_tail",
                      "needs out", 0, desc->out_tail);
    TEGROUP_IMPL_RULE(desc->dgrad_out_tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_THERE(dgrad_out), ERROR_COMBINATION,
                      "dgrad_out_tail", "needs dgrad_out", 0, desc->dgrad_out_tail);
    return TEGROUP_OK;
}

/* A tensor that the activation reads or writes. */
static inline tegroup_status tegroup_impl_mlp_check_saved(const tegroup_mlp_desc *desc, int tensor,
                                                          tegroup_error *error) {
    const tegroup_tensor *t = tegroup_impl_mlp_at(desc, tensor);
    if (t->dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(TEGROUP_IMPL_FLOATS >> t->dtype & 1u, ERROR_UNSUPPORTED,
                      tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_DTYPE),
                      "must be F64, F32, F16 or BF16 for an activation", TEGROUP_IMPL_FLOATS, t->dtype);
    TEGROUP_IMPL_RULE(t->ld == 0 || t->ld == t->shape.cols, ERROR_LAYOUT,
                      tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_LD),
                      "must be 0 or shape.cols: what is saved is contiguous", t->shape.cols, t->ld);
    return TEGROUP_OK;
}

/* The rules of the MLP: what its tensors are to each other. Those of a product are the product's. */
static inline tegroup_status tegroup_impl_mlp_check(const tegroup_mlp_desc *desc, tegroup_error *error) {
    static const int rows[] = {TEGROUP_IMPL_MLP_OUT,
                               TEGROUP_IMPL_MLP_GRAD_OUTPUT,
                               TEGROUP_IMPL_MLP_DGRAD_OUT,
                               TEGROUP_IMPL_MLP_GRAD_ROW_SCALE,
                               TEGROUP_IMPL_MLP_PREACTIVATION,
                               TEGROUP_IMPL_MLP_ACTIVATED,
                               TEGROUP_IMPL_MLP_GRAD_PREACTIVATION};
    tegroup_linear_desc linear;
    int64_t width;
    int layer, tensor, i;
    TEGROUP_IMPL_RULE(desc != NULL, ERROR_NULL_ARGUMENT, "desc", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_head(desc->struct_size, sizeof *desc, desc->space, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_activation_kind(desc->activation, desc->interleaved, desc->alpha, desc->limit, error));
    TEGROUP_IMPL_RULE(desc->recompute == 0 || desc->recompute == 1, ERROR_VALUE, "recompute", "must be 0 or 1", 1,
                      desc->recompute);
    TEGROUP_IMPL_RULE(desc->fc2_bias_scaled == 0 || desc->fc2_bias_scaled == 1, ERROR_VALUE, "fc2_bias_scaled",
                      "must be 0 or 1", 1, desc->fc2_bias_scaled);
    TEGROUP_IMPL_RULE_ENUM(desc->fusion, TEGROUP_FUSION_REQUIRED, "fusion", "must be a tegroup_fusion");
    TEGROUP_IMPL_RULE_ENUM(desc->out_tail, TEGROUP_TAIL_POISON, "out_tail", "must be a tegroup_tail");
    TEGROUP_IMPL_RULE_ENUM(desc->dgrad_out_tail, TEGROUP_TAIL_POISON, "dgrad_out_tail", "must be a tegroup_tail");
    TEGROUP_IMPL_TRY(tegroup_impl_check_real(desc->row_scale_dtype, "row_scale_dtype", error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_there(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_activation_check_sizes(desc->space, &desc->input.shape, error));
    for (i = 0; i < 7; i++) {
        const tegroup_shape *shape = &tegroup_impl_mlp_at(desc, rows[i])->shape, *like = &desc->input.shape;
        if (tegroup_impl_mlp_at(desc, rows[i])->dtype == TEGROUP_DTYPE_UNSET) continue;
        TEGROUP_IMPL_RULE(shape->rows == like->rows, ERROR_SHAPE,
                          tegroup_impl_mlp_path(rows[i], TEGROUP_IMPL_MEMBER_ROWS), "must equal input.shape.rows",
                          like->rows, shape->rows);
        TEGROUP_IMPL_RULE(shape->snapshot == like->snapshot || !shape->snapshot || !like->snapshot, ERROR_COMBINATION,
                          tegroup_impl_mlp_path(rows[i], TEGROUP_IMPL_MEMBER_SNAPSHOT),
                          "must be input.shape.snapshot, one for the routing", 0, 1);
    }
    for (layer = TEGROUP_MLP_FC1; layer <= TEGROUP_MLP_FC2; layer++) {
        tegroup_impl_mlp_linear(desc, NULL, TEGROUP_OP_WGRAD, (tegroup_mlp_layer)layer, &linear);
        for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++)
            TEGROUP_IMPL_TRY(tegroup_impl_mlp_refused(
                tegroup_impl_linear_check_tensor(&linear, (tegroup_impl_linear_tensor)tensor, error),
                (tegroup_mlp_layer)layer, error));
        if (layer == TEGROUP_MLP_FC2 && tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_IMPL_LINEAR_ROW_SCALE))
            TEGROUP_IMPL_TRY(tegroup_impl_linear_check_bias_type(&linear, error));
        if (layer == TEGROUP_MLP_FC1) /* before fc2's tensors are held against fc2.weight */
            TEGROUP_IMPL_RULE(desc->fc2.weight.shape.groups == desc->fc1.weight.shape.groups, ERROR_SHAPE,
                              "fc2.weight.shape.groups", "must equal fc1.weight.shape.groups",
                              desc->fc1.weight.shape.groups, desc->fc2.weight.shape.groups);
    }
    width = tegroup_impl_activation_cols(desc->activation, desc->fc2.weight.shape.cols);
    TEGROUP_IMPL_RULE(desc->fc1.weight.shape.rows == width, ERROR_SHAPE, "fc1.weight.shape.rows",
                      tegroup_impl_gated(desc->activation) ? "must be twice fc2.weight.shape.cols: gate and up"
                                                           : "must equal fc2.weight.shape.cols",
                      width, desc->fc1.weight.shape.rows);
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_saved(desc, TEGROUP_IMPL_MLP_PREACTIVATION, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_saved(desc, TEGROUP_IMPL_MLP_ACTIVATED, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_saved(desc, TEGROUP_IMPL_MLP_GRAD_PREACTIVATION, error));
    return tegroup_impl_check_real(desc->grad_row_scale.dtype, "grad_row_scale.dtype", error);
}
#undef TEGROUP_IMPL_THERE

/* What a call writes must be apart from all else that it touches, and so must the workspace. Sets are bits of
 * tegroup_impl_mlp_tensor. The products have seen to their own operands; this is what lies between them. */
static inline tegroup_status tegroup_impl_mlp_check_apart(const tegroup_mlp_desc *desc, uint32_t reads, uint32_t writes,
                                                          size_t workspace_bytes, tegroup_check_level level,
                                                          tegroup_error *error) {
    const tegroup_tensor *all[TEGROUP_IMPL_MLP_COUNT];
    tegroup_tensor row_scale = desc->input;
    const tegroup_impl_region snapshot = tegroup_impl_snapshot_region(&desc->input);
    const int in_place = desc->grad_preactivation.data == desc->preactivation.data
                         && desc->grad_preactivation.dtype == desc->preactivation.dtype;
    int i, j;
    row_scale.shape.cols = 1;
    row_scale.ld = 0;
    row_scale.dtype = desc->row_scale_dtype;
    row_scale.data = (void *)(uintptr_t)desc->row_scale;
    for (i = 0; i < TEGROUP_IMPL_MLP_ROW_SCALE; i++) all[i] = tegroup_impl_mlp_at(desc, i);
    all[TEGROUP_IMPL_MLP_ROW_SCALE] = &row_scale;
    for (i = 0; i < TEGROUP_IMPL_MLP_COUNT; i++)
        if ((reads | writes) >> i & 1u)
            TEGROUP_IMPL_RULE(
                !tegroup_impl_tensor_overwritten(all[i], desc->workspace, (int64_t)workspace_bytes, level),
                ERROR_OVERLAP, "workspace", tegroup_impl_mlp_apart(i), 0, 1);
    TEGROUP_IMPL_RULE(!tegroup_impl_overlaps(desc->workspace, (int64_t)workspace_bytes, snapshot.base, snapshot.bytes),
                      ERROR_OVERLAP, "workspace", snapshot.rule, 0, 1);
    for (i = 0; i < TEGROUP_IMPL_MLP_ROW_SCALE; i++) {
        if (!(writes >> i & 1u)) continue;
        TEGROUP_IMPL_RULE(!tegroup_impl_tensor_overlaps(all[i], snapshot.base, snapshot.bytes, level), ERROR_OVERLAP,
                          tegroup_impl_mlp_path(i, tegroup_impl_listed(all[i]) ? TEGROUP_IMPL_MEMBER_POINTERS
                                                                               : TEGROUP_IMPL_MEMBER_DATA),
                          snapshot.rule, 0, 1);
        for (j = 0; j < TEGROUP_IMPL_MLP_COUNT; j++) {
            if (i == j || !((reads | writes) >> j & 1u)) continue;
            if (in_place && i == TEGROUP_IMPL_MLP_GRAD_PREACTIVATION && j == TEGROUP_IMPL_MLP_PREACTIVATION) continue;
            TEGROUP_IMPL_RULE(!tegroup_impl_tensors_overlap(all[i], all[j], level), ERROR_OVERLAP,
                              tegroup_impl_mlp_path(i, tegroup_impl_listed(all[i]) ? TEGROUP_IMPL_MEMBER_POINTERS
                                                                                   : TEGROUP_IMPL_MEMBER_DATA),
                              tegroup_impl_mlp_apart(j), 0, 1);
        }
    }
    return TEGROUP_OK;
}
