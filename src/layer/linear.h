/* ---- Grouped linear layer ---- */

/* The tensors of a layer, by name. */
/* clang-format off */
#define TEGROUP_IMPL_LINEAR_TENSORS(X)                                                                                 \
    X(WEIGHT, weight) X(BIAS, bias) X(INPUT, input) X(OUT, out) X(GRAD_OUTPUT, grad_output) X(DGRAD_OUT, dgrad_out)    \
    X(MAIN_GRAD, main_grad) X(BIAS_GRAD, bias_grad) X(GRAD_ROW_SCALE, grad_row_scale)
/* clang-format on */

#define TEGROUP_IMPL_ENUMERATE(name, member) TEGROUP_IMPL_LINEAR_##name,
typedef enum tegroup_impl_linear_tensor {
    TEGROUP_IMPL_LINEAR_NONE,
    TEGROUP_IMPL_LINEAR_TENSORS(TEGROUP_IMPL_ENUMERATE) TEGROUP_IMPL_LINEAR_COUNT
} tegroup_impl_linear_tensor;
#undef TEGROUP_IMPL_ENUMERATE

/* The products of a layer: those that are a tegroup_op by its number, then row_scale's gradient. That is a forward product
 * with dY for X and each expert's bias for a weight of one row. */
enum { TEGROUP_IMPL_LINEAR_ROW_SCALE = TEGROUP_OP_WGRAD + 1, TEGROUP_IMPL_LINEAR_PRODUCTS };

/* Which tensor is a, b, c, d and bias of a product. */
static inline tegroup_impl_linear_tensor tegroup_impl_linear_role(int product, int operand) {
#define TEGROUP_IMPL_ROLES(a, b, d, bias)                                                                              \
    {                                                                                                                  \
        TEGROUP_IMPL_LINEAR_##a, TEGROUP_IMPL_LINEAR_##b, TEGROUP_IMPL_LINEAR_NONE, TEGROUP_IMPL_LINEAR_##d,           \
            TEGROUP_IMPL_LINEAR_##bias                                                                                 \
    }
    static const tegroup_impl_linear_tensor roles[TEGROUP_IMPL_LINEAR_PRODUCTS][5] = {
        TEGROUP_IMPL_ROLES(NONE, NONE, NONE, NONE), TEGROUP_IMPL_ROLES(INPUT, WEIGHT, OUT, BIAS),
        TEGROUP_IMPL_ROLES(GRAD_OUTPUT, WEIGHT, DGRAD_OUT, NONE),
        TEGROUP_IMPL_ROLES(GRAD_OUTPUT, INPUT, MAIN_GRAD, BIAS_GRAD),
        TEGROUP_IMPL_ROLES(GRAD_OUTPUT, BIAS, GRAD_ROW_SCALE, NONE)};
#undef TEGROUP_IMPL_ROLES
    return roles[product][operand];
}

static inline const tegroup_tensor *tegroup_impl_linear_at(const tegroup_linear_desc *desc,
                                                           tegroup_impl_linear_tensor tensor) {
#define TEGROUP_IMPL_CASE(name, member)                                                                                \
    case TEGROUP_IMPL_LINEAR_##name: return &desc->member;
    switch (tensor) { TEGROUP_IMPL_LINEAR_TENSORS(TEGROUP_IMPL_CASE) default : return NULL; }
#undef TEGROUP_IMPL_CASE
}

static inline const char *tegroup_impl_linear_path(tegroup_impl_linear_tensor tensor, int member) {
#define TEGROUP_IMPL_ROW(name, member) TEGROUP_IMPL_PATHS(#member),
    static const char *const paths[TEGROUP_IMPL_LINEAR_COUNT][TEGROUP_IMPL_MEMBER_COUNT] = {
        TEGROUP_IMPL_PATHS("?"), TEGROUP_IMPL_LINEAR_TENSORS(TEGROUP_IMPL_ROW)};
#undef TEGROUP_IMPL_ROW
    return paths[tensor][member];
}
#define TEGROUP_IMPL_LINEAR_PATH(member) tegroup_impl_linear_path(tensor, TEGROUP_IMPL_MEMBER_##member)

static inline const char *tegroup_impl_linear_name(tegroup_impl_linear_tensor tensor) {
#define TEGROUP_IMPL_NAME(name, member) #member,
    static const char *const names[TEGROUP_IMPL_LINEAR_COUNT] = {"?", TEGROUP_IMPL_LINEAR_TENSORS(TEGROUP_IMPL_NAME)};
#undef TEGROUP_IMPL_NAME
    return names[tensor];
}

/* The rule of an output that shares memory with this tensor. */
static inline const char *tegroup_impl_linear_apart(tegroup_impl_linear_tensor tensor) {
#define TEGROUP_IMPL_WORDS(name, member) "must not overlap " #member,
    static const char *const words[TEGROUP_IMPL_LINEAR_COUNT] = {"?", TEGROUP_IMPL_LINEAR_TENSORS(TEGROUP_IMPL_WORDS)};
#undef TEGROUP_IMPL_WORDS
    return words[tensor];
}

/* A rule about one operand of a product, in the layer's words. */
static inline void tegroup_impl_linear_translate(tegroup_impl_linear_tensor tensor, tegroup_impl_operand operand,
                                                 tegroup_error *error) {
    static const char *const others[5] = {"must not overlap a", "must not overlap b", "must not overlap c",
                                          "must not overlap d", "must not overlap bias"};
    int member;
    for (member = 0; member < TEGROUP_IMPL_MEMBER_COUNT; member++)
        if (!strcmp(error->field, tegroup_impl_path(operand, (tegroup_impl_member)member))) {
            error->field = tegroup_impl_linear_path(tensor, member);
            break;
        }
    if (operand == TEGROUP_IMPL_BIAS && !strcmp(error->field, "bias")) error->field = tegroup_impl_linear_name(tensor);
    if (operand <= TEGROUP_IMPL_BIAS && !strcmp(error->rule, others[operand]))
        error->rule = tegroup_impl_linear_apart(tensor);
}

/* What a product was refused for, in the layer's words for its operands. "bias" is a word of both, so each operand is looked for in
 * what the product said, not in what an earlier one made of it. */
static inline void tegroup_impl_linear_retell(const tegroup_impl_linear_tensor roles[5], tegroup_error *error) {
    const tegroup_error said = *error;
    int operand;
    for (operand = 0; operand < 5; operand++) {
        tegroup_error told = said;
        if (roles[operand] == TEGROUP_IMPL_LINEAR_NONE) continue;
        tegroup_impl_linear_translate(roles[operand], (tegroup_impl_operand)operand, &told);
        if (told.field != said.field) error->field = told.field;
        if (told.rule != said.rule) error->rule = told.rule;
    }
}

static inline tegroup_status tegroup_impl_linear_refused(tegroup_status status, int product, tegroup_error *error) {
    tegroup_impl_linear_tensor roles[5];
    int operand;
    if (status == TEGROUP_OK || !error) return status;
    for (operand = 0; operand < 5; operand++) roles[operand] = tegroup_impl_linear_role(product, operand);
    if (!strcmp(error->field, "tail")) error->field = product == TEGROUP_OP_DGRAD ? "dgrad_out_tail" : "out_tail";
    else tegroup_impl_linear_retell(roles, error);
    return status;
}

/* A tensor's rules, by the name of this one. */
static inline tegroup_status tegroup_impl_linear_said_of(tegroup_impl_linear_tensor tensor, const tegroup_tensor *t,
                                                         tegroup_error *error) {
    const tegroup_status status = tegroup_impl_check_tensor(t, TEGROUP_IMPL_TENSOR, error);
    if (status != TEGROUP_OK && error) tegroup_impl_linear_translate(tensor, TEGROUP_IMPL_TENSOR, error);
    return status;
}

/* One tensor by itself and against the weight, which says what groups, n and k are. */
static inline tegroup_status tegroup_impl_linear_check_tensor(const tegroup_linear_desc *desc,
                                                              tegroup_impl_linear_tensor tensor, tegroup_error *error) {
    const tegroup_tensor *t = tegroup_impl_linear_at(desc, tensor), *weight = &desc->weight;
    const tegroup_tensor *rows_of = desc->input.dtype != TEGROUP_DTYPE_UNSET ? &desc->input : &desc->grad_output;
    const tegroup_shape *shape = &t->shape;
    int has_rows = tensor == TEGROUP_IMPL_LINEAR_INPUT || tensor == TEGROUP_IMPL_LINEAR_OUT
                   || tensor == TEGROUP_IMPL_LINEAR_GRAD_OUTPUT || tensor == TEGROUP_IMPL_LINEAR_DGRAD_OUT
                   || tensor == TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE;
    int is_weight = tensor == TEGROUP_IMPL_LINEAR_WEIGHT || tensor == TEGROUP_IMPL_LINEAR_MAIN_GRAD;
    int has_k = is_weight || tensor == TEGROUP_IMPL_LINEAR_INPUT || tensor == TEGROUP_IMPL_LINEAR_DGRAD_OUT;
    int is_operand = tensor == TEGROUP_IMPL_LINEAR_INPUT || tensor == TEGROUP_IMPL_LINEAR_GRAD_OUTPUT;
    int is_output = !is_operand && tensor != TEGROUP_IMPL_LINEAR_WEIGHT && tensor != TEGROUP_IMPL_LINEAR_BIAS;
    int64_t n = weight->shape.rows, k = weight->shape.cols;
    if (t->dtype == TEGROUP_DTYPE_UNSET && tensor != TEGROUP_IMPL_LINEAR_WEIGHT) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_linear_said_of(tensor, t, error));
    TEGROUP_IMPL_RULE(shape->groups == weight->shape.groups, ERROR_SHAPE, TEGROUP_IMPL_LINEAR_PATH(GROUPS),
                      "must equal weight.shape.groups", weight->shape.groups, shape->groups);
    TEGROUP_IMPL_RULE(shape->col_sizes.encoding == TEGROUP_ENCODING_UNSET, ERROR_UNSUPPORTED,
                      TEGROUP_IMPL_LINEAR_PATH(COL_SIZES), "must be unset: a layer's groups have one n and one k", 0,
                      shape->col_sizes.encoding);
    TEGROUP_IMPL_RULE(shape->elements == 0, ERROR_UNSUPPORTED, TEGROUP_IMPL_LINEAR_PATH(ELEMENTS),
                      "must be 0: a layer's groups have one n and one k", 0, shape->elements);
    if (has_rows) {
        TEGROUP_IMPL_RULE(tegroup_impl_ragged(shape), ERROR_UNSET, TEGROUP_IMPL_LINEAR_PATH(ROW_SIZES),
                          "must be set: a layer's rows are ragged", TEGROUP_ENCODING_COUNTS, 0);
        TEGROUP_IMPL_RULE(!tegroup_impl_listed(t), ERROR_UNSUPPORTED, TEGROUP_IMPL_LINEAR_PATH(POINTERS_SPACE),
                          "must be unset: a layer's rows are one buffer", 0, t->pointers_space);
        TEGROUP_IMPL_RULE(shape->rows == rows_of->shape.rows, ERROR_SHAPE, TEGROUP_IMPL_LINEAR_PATH(ROWS),
                          rows_of == &desc->input ? "must equal input.shape.rows" : "must equal grad_output.shape.rows",
                          rows_of->shape.rows, shape->rows);
        TEGROUP_IMPL_RULE(shape->snapshot == rows_of->shape.snapshot || !shape->snapshot || !rows_of->shape.snapshot,
                          ERROR_COMBINATION, TEGROUP_IMPL_LINEAR_PATH(SNAPSHOT),
                          rows_of == &desc->input ? "must be input.shape.snapshot, one for the routing"
                                                  : "must be grad_output.shape.snapshot, one for the routing",
                          0, 1);
    } else {
        TEGROUP_IMPL_RULE(!tegroup_impl_ragged(shape), ERROR_COMBINATION, TEGROUP_IMPL_LINEAR_PATH(ROW_SIZES),
                          "must be unset: every group is alike", 0, shape->row_sizes.encoding);
        TEGROUP_IMPL_RULE(!is_weight || shape->rows == n, ERROR_SHAPE, TEGROUP_IMPL_LINEAR_PATH(ROWS),
                          "must equal weight.shape.rows, n", n, shape->rows);
        TEGROUP_IMPL_RULE(is_weight || shape->rows == 1, ERROR_SHAPE, TEGROUP_IMPL_LINEAR_PATH(ROWS), "must be 1", 1,
                          shape->rows);
    }
    if (tensor == TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE)
        TEGROUP_IMPL_RULE(shape->cols == 1, ERROR_SHAPE, TEGROUP_IMPL_LINEAR_PATH(COLS), "must be 1", 1, shape->cols);
    else
        TEGROUP_IMPL_RULE(shape->cols == (has_k ? k : n), ERROR_SHAPE, TEGROUP_IMPL_LINEAR_PATH(COLS),
                          has_k ? "must equal weight.shape.cols, k" : "must equal weight.shape.rows, n", has_k ? k : n,
                          shape->cols);
    if (is_operand)
        TEGROUP_IMPL_RULE(tegroup_impl_bits(weight->dtype) == 8 ? tegroup_impl_bits(t->dtype) == 8
                                                                : t->dtype == weight->dtype,
                          ERROR_DTYPE, TEGROUP_IMPL_LINEAR_PATH(DTYPE), "must equal weight.dtype (FP8: either kind)",
                          weight->dtype, t->dtype);
    if (is_output) {
        TEGROUP_IMPL_RULE(tegroup_impl_ld(t) == shape->cols, ERROR_LAYOUT, TEGROUP_IMPL_LINEAR_PATH(LD),
                          "must be 0 or shape.cols: outputs are contiguous", shape->cols, t->ld);
        TEGROUP_IMPL_RULE(has_rows || tegroup_impl_group_stride(t) == shape->rows * shape->cols, ERROR_LAYOUT,
                          TEGROUP_IMPL_LINEAR_PATH(GROUP_STRIDE),
                          "must be 0 or shape.rows * shape.cols: outputs are contiguous", shape->rows * shape->cols,
                          t->group_stride);
    }
    return TEGROUP_OK;
}

#define TEGROUP_IMPL_THERE(member) (desc->member.dtype != TEGROUP_DTYPE_UNSET)

/* Which tensors are there, and for which others. */
static inline tegroup_status tegroup_impl_linear_check_there(const tegroup_linear_desc *desc, tegroup_error *error) {
    int tensor;
    for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++) {
        const tegroup_tensor *t = tegroup_impl_linear_at(desc, (tegroup_impl_linear_tensor)tensor);
        TEGROUP_IMPL_RULE(t->dtype != TEGROUP_DTYPE_UNSET || (!t->data && !t->pointers), ERROR_UNSET,
                          tegroup_impl_linear_path((tegroup_impl_linear_tensor)tensor, TEGROUP_IMPL_MEMBER_DTYPE),
                          "must be set with data", TEGROUP_DTYPE_F64, 0);
    }
    TEGROUP_IMPL_RULE(TEGROUP_IMPL_THERE(out) || TEGROUP_IMPL_THERE(dgrad_out) || TEGROUP_IMPL_THERE(main_grad),
                      ERROR_UNSET, "out.dtype", "must be set, or dgrad_out's, or main_grad's", TEGROUP_DTYPE_F64, 0);
#define TEGROUP_IMPL_NEEDS(member, other)                                                                              \
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(member) || TEGROUP_IMPL_THERE(other), ERROR_COMBINATION, #member,            \
                      "needs " #other, 1, 0)
    TEGROUP_IMPL_NEEDS(out, input);
    TEGROUP_IMPL_NEEDS(dgrad_out, grad_output);
    TEGROUP_IMPL_NEEDS(main_grad, input);
    TEGROUP_IMPL_NEEDS(main_grad, grad_output);
    TEGROUP_IMPL_NEEDS(bias_grad, main_grad);
    TEGROUP_IMPL_NEEDS(bias_grad, bias);
    TEGROUP_IMPL_NEEDS(grad_row_scale, dgrad_out);
    TEGROUP_IMPL_NEEDS(grad_row_scale, bias);
#undef TEGROUP_IMPL_NEEDS
    TEGROUP_IMPL_RULE_ENUM(desc->out_tail, TEGROUP_TAIL_POISON, "out_tail", "must be a tegroup_tail");
    TEGROUP_IMPL_RULE_ENUM(desc->dgrad_out_tail, TEGROUP_TAIL_POISON, "dgrad_out_tail", "must be a tegroup_tail");
    TEGROUP_IMPL_TRY(tegroup_impl_check_real(desc->row_scale_dtype, "row_scale_dtype", error));
    TEGROUP_IMPL_RULE(!desc->row_scale || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET, "row_scale_dtype",
                      "must be set with row_scale", TEGROUP_DTYPE_F32, 0);
    TEGROUP_IMPL_RULE(desc->row_scale_dtype == TEGROUP_DTYPE_UNSET || TEGROUP_IMPL_THERE(bias), ERROR_COMBINATION,
                      "row_scale_dtype", "needs bias", 0, desc->row_scale_dtype);
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(grad_row_scale) || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET,
                      ERROR_COMBINATION, "grad_row_scale", "needs row_scale", 1, 0);
    TEGROUP_IMPL_RULE(!desc->accumulate || TEGROUP_IMPL_THERE(main_grad), ERROR_COMBINATION, "accumulate",
                      "needs main_grad", 0, desc->accumulate);
    TEGROUP_IMPL_RULE(desc->out_tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_THERE(out), ERROR_COMBINATION, "out_tail",
                      "needs out", 0, desc->out_tail);
    TEGROUP_IMPL_RULE(desc->dgrad_out_tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_THERE(dgrad_out), ERROR_COMBINATION,
                      "dgrad_out_tail", "needs dgrad_out", 0, desc->dgrad_out_tail);
    return TEGROUP_OK;
}

/* The product that gives grad_row_scale has dY and the bias for operands. */
static inline tegroup_status tegroup_impl_linear_check_bias_type(const tegroup_linear_desc *desc,
                                                                 tegroup_error *error) {
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(grad_row_scale) || desc->bias.dtype == desc->grad_output.dtype,
                      ERROR_UNSUPPORTED, "grad_row_scale", "needs a bias of grad_output.dtype, to multiply them",
                      desc->grad_output.dtype, desc->bias.dtype);
    return TEGROUP_OK;
}

/* The layer's own rules: what its tensors are to each other. Those of a product are the product's. */
static inline tegroup_status tegroup_impl_linear_check(const tegroup_linear_desc *desc, tegroup_error *error) {
    int tensor;
    TEGROUP_IMPL_RULE(desc != NULL, ERROR_NULL_ARGUMENT, "desc", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_head(desc->struct_size, sizeof *desc, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_linear_check_there(desc, error));
    for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++)
        TEGROUP_IMPL_TRY(tegroup_impl_linear_check_tensor(desc, (tegroup_impl_linear_tensor)tensor, error));
    return tegroup_impl_linear_check_bias_type(desc, error);
}
#undef TEGROUP_IMPL_THERE

/* What every descriptor of a layer hands on to its products. */
#define TEGROUP_IMPL_TAKE_OPTIONS(to, from)                                                                            \
    do {                                                                                                               \
        (to)->compute = (from)->compute;                                                                               \
        (to)->expected_rows = (from)->expected_rows;                                                                   \
        (to)->expected_rows_max = (from)->expected_rows_max;                                                           \
        (to)->data_alignment_bytes = (from)->data_alignment_bytes;                                                     \
        (to)->backend = (from)->backend;                                                                               \
        (to)->sm_limit = (from)->sm_limit;                                                                             \
        (to)->threads = (from)->threads;                                                                               \
        (to)->ignore_quirks = (from)->ignore_quirks;                                                                   \
        (to)->check_level = (from)->check_level;                                                                       \
        (to)->workspace = (from)->workspace;                                                                           \
        (to)->workspace_bytes = (from)->workspace_bytes;                                                               \
        (to)->cublas_workspace_bytes = (from)->cublas_workspace_bytes;                                                 \
        (to)->cublaslt = (from)->cublaslt;                                                                             \
        (to)->cublaslt_functions = (from)->cublaslt_functions;                                                         \
        (to)->streams = (from)->streams;                                                                               \
        (to)->events = (from)->events;                                                                                 \
        (to)->stream_count = (from)->stream_count;                                                                     \
        (to)->host_sizes_final = (from)->host_sizes_final;                                                             \
    } while (0)

/* A product as tegroup_gemm takes it. */
static inline void tegroup_impl_linear_product(const tegroup_linear_desc *desc, int product, tegroup_gemm_desc *gemm) {
    const tegroup_tensor *operands[5];
    int i, is_op = product != TEGROUP_IMPL_LINEAR_ROW_SCALE;
    for (i = 0; i < 5; i++) operands[i] = tegroup_impl_linear_at(desc, tegroup_impl_linear_role(product, i));
    memset(gemm, 0, sizeof *gemm);
    gemm->struct_size = sizeof *gemm;
    gemm->op = is_op ? (tegroup_op)product : TEGROUP_OP_FORWARD;
    gemm->space = desc->space;
    gemm->a = *operands[TEGROUP_IMPL_A];
    gemm->b = *operands[TEGROUP_IMPL_B];
    gemm->d = *operands[TEGROUP_IMPL_D];
    if (operands[TEGROUP_IMPL_BIAS]) gemm->bias = *operands[TEGROUP_IMPL_BIAS];
    if (gemm->bias.dtype != TEGROUP_DTYPE_UNSET) {
        gemm->row_scale = desc->row_scale;
        gemm->row_scale_dtype = desc->row_scale_dtype;
    }
    if (product == TEGROUP_OP_WGRAD) gemm->accumulate = desc->accumulate;
    if (product == TEGROUP_OP_FORWARD) gemm->tail = desc->out_tail;
    if (product == TEGROUP_OP_DGRAD) gemm->tail = desc->dgrad_out_tail;
    TEGROUP_IMPL_TAKE_OPTIONS(gemm, desc);
    if (!is_op) gemm->backend = TEGROUP_BACKEND_AUTO; /* nor is the choice, or the word, about rows of one column */
    if (!is_op) gemm->data_alignment_bytes = 0;
}

static inline const tegroup_tensor *tegroup_impl_linear_output(const tegroup_linear_desc *desc, int product) {
    return tegroup_impl_linear_at(desc, tegroup_impl_linear_role(product, TEGROUP_IMPL_D));
}

static inline const tegroup_plan *tegroup_impl_linear_made(const tegroup_linear_plan *plan, int product) {
    switch (product) {
    case TEGROUP_OP_FORWARD: return &plan->forward;
    case TEGROUP_OP_DGRAD: return &plan->dgrad;
    case TEGROUP_OP_WGRAD: return &plan->wgrad;
    default: return &plan->grad_row_scale;
    }
}

/* Plans one product into a plan that is being made. */
static inline tegroup_status tegroup_impl_linear_plan_product(const tegroup_gemm_desc *gemm, int product,
                                                              const tegroup_target *target, tegroup_linear_plan *plan,
                                                              tegroup_error *error) {
    tegroup_plan *one = (tegroup_plan *)(uintptr_t)tegroup_impl_linear_made(plan, product);
    plan->struct_size = sizeof *plan;
    plan->magic = TEGROUP_LINEAR_PLAN_MAGIC;
    TEGROUP_IMPL_TRY(tegroup_impl_linear_refused(tegroup_plan_make(gemm, target, one, error), product, error));
    if (one->workspace.total_bytes > plan->workspace.total_bytes) plan->workspace = one->workspace;
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_linear_gemm(const tegroup_linear_desc *desc, tegroup_op op, tegroup_gemm_desc *gemm,
                                               tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_linear_check(desc, error));
    TEGROUP_IMPL_RULE(op != TEGROUP_OP_UNSET, ERROR_UNSET, "op", "must be set", TEGROUP_OP_FORWARD, 0);
    TEGROUP_IMPL_RULE_ENUM(op, TEGROUP_OP_WGRAD, "op", "must be a tegroup_op");
    TEGROUP_IMPL_RULE(gemm != NULL, ERROR_NULL_ARGUMENT, "gemm", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(
        tegroup_impl_linear_output(desc, (int)op)->dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET,
        tegroup_impl_linear_path(tegroup_impl_linear_role((int)op, TEGROUP_IMPL_D), TEGROUP_IMPL_MEMBER_DTYPE),
        "must be set: it is what this call writes", TEGROUP_DTYPE_F64, 0);
    tegroup_impl_linear_product(desc, (int)op, gemm);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_linear_plan_make(const tegroup_linear_desc *desc, const tegroup_target *target,
                                                    tegroup_linear_plan *plan, tegroup_error *error) {
    tegroup_linear_plan made;
    tegroup_gemm_desc gemm;
    int product;
    TEGROUP_IMPL_TRY(tegroup_impl_linear_check(desc, error));
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    memset(&made, 0, sizeof made);
    for (product = TEGROUP_OP_FORWARD; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++) {
        if (tegroup_impl_linear_output(desc, product)->dtype == TEGROUP_DTYPE_UNSET) continue;
        tegroup_impl_linear_product(desc, product, &gemm);
        TEGROUP_IMPL_TRY(tegroup_impl_linear_plan_product(&gemm, product, target, &made, error));
    }
    *plan = made;
    return TEGROUP_OK;
}

/* Everything that a call checks before its products check themselves. */
static inline tegroup_status tegroup_impl_linear_check_call(const tegroup_linear_plan *plan,
                                                            const tegroup_linear_desc *desc, tegroup_op op,
                                                            const tegroup_plan **planned, tegroup_gemm_desc *gemm,
                                                            tegroup_error *error) {
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(plan->struct_size == sizeof *plan, ERROR_STRUCT_SIZE, "plan.struct_size",
                      "must be the size of the struct", sizeof *plan, plan->struct_size);
    TEGROUP_IMPL_RULE(plan->magic == TEGROUP_LINEAR_PLAN_MAGIC, ERROR_PLAN, "plan",
                      "must be what tegroup_linear_plan_make wrote", TEGROUP_LINEAR_PLAN_MAGIC, plan->magic);
    TEGROUP_IMPL_TRY(tegroup_linear_gemm(desc, op, gemm, error));
    *planned = tegroup_impl_linear_made(plan, (int)op);
    TEGROUP_IMPL_RULE(
        (*planned)->magic == TEGROUP_PLAN_MAGIC, ERROR_PLAN,
        tegroup_impl_linear_path(tegroup_impl_linear_role((int)op, TEGROUP_IMPL_D), TEGROUP_IMPL_MEMBER_DTYPE),
        "must have been set when the plan was made", 0, gemm->d.dtype);
    return TEGROUP_OK;
}

/* Forward and wgrad are one product each. run 0: only what the call checks. */
static inline tegroup_status tegroup_impl_linear_call(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
                                                      tegroup_op op, int run, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    const tegroup_plan *planned;
    tegroup_gemm_desc gemm;
    TEGROUP_IMPL_TRY(tegroup_impl_linear_check_call(plan, desc, op, &planned, &gemm, error));
    TEGROUP_IMPL_TRY(tegroup_impl_linear_refused(tegroup_gemm_check(planned, &gemm, error), (int)op, error));
    if (!run) return TEGROUP_OK;
    return tegroup_impl_linear_refused(tegroup_impl_gemm_run(planned, &gemm, stream, error), (int)op, error);
}

/* Two products when row_scale has a gradient. Both are checked before the first runs, and neither may write what the other
 * touches. */
static inline tegroup_status tegroup_impl_linear_dgrad(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
                                                       int run, struct CUstream_st *stream, tegroup_error *error) {
    const int second = TEGROUP_IMPL_LINEAR_ROW_SCALE;
    const tegroup_plan *planned;
    tegroup_gemm_desc gemm, other;
    tegroup_check_level level;
    const tegroup_tensor *dx, *scale;
    int64_t workspace_bytes;
    TEGROUP_IMPL_TRY(tegroup_impl_linear_check_call(plan, desc, TEGROUP_OP_DGRAD, &planned, &gemm, error));
    dx = &desc->dgrad_out;
    scale = &desc->grad_row_scale;
    level = desc->check_level;
    workspace_bytes = (int64_t)planned->workspace.total_bytes;
    TEGROUP_IMPL_RULE((plan->grad_row_scale.magic != 0) == (scale->dtype != TEGROUP_DTYPE_UNSET), ERROR_PLAN,
                      "grad_row_scale.dtype", "must be set just when planned so", plan->grad_row_scale.problem.d,
                      scale->dtype);
    TEGROUP_IMPL_TRY(tegroup_impl_linear_refused(tegroup_gemm_check(planned, &gemm, error), TEGROUP_OP_DGRAD, error));
    if (scale->dtype == TEGROUP_DTYPE_UNSET) {
        if (!run) return TEGROUP_OK;
        return tegroup_impl_linear_refused(tegroup_impl_gemm_run(planned, &gemm, stream, error), TEGROUP_OP_DGRAD,
                                           error);
    }
    tegroup_impl_linear_product(desc, second, &other);
    TEGROUP_IMPL_TRY(
        tegroup_impl_linear_refused(tegroup_gemm_check(&plan->grad_row_scale, &other, error), second, error));
    TEGROUP_IMPL_RULE(!tegroup_impl_tensors_overlap(dx, scale, level), ERROR_OVERLAP, "grad_row_scale.data",
                      "must not overlap dgrad_out", 0, 1);
    TEGROUP_IMPL_RULE(!tegroup_impl_tensors_overlap(dx, &desc->bias, level), ERROR_OVERLAP, "dgrad_out.data",
                      "must not overlap bias", 0, 1);
    TEGROUP_IMPL_RULE(!tegroup_impl_tensors_overlap(scale, &desc->weight, level), ERROR_OVERLAP, "grad_row_scale.data",
                      "must not overlap weight", 0, 1);
    TEGROUP_IMPL_RULE(!tegroup_impl_tensor_overwritten(&desc->bias, desc->workspace, workspace_bytes, level),
                      ERROR_OVERLAP, "workspace", "must not overlap bias", 0, 1);
    TEGROUP_IMPL_RULE(!tegroup_impl_tensor_overwritten(scale, desc->workspace, workspace_bytes, level), ERROR_OVERLAP,
                      "workspace", "must not overlap grad_row_scale", 0, 1);
    if (!run) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(
        tegroup_impl_linear_refused(tegroup_impl_gemm_run(planned, &gemm, stream, error), TEGROUP_OP_DGRAD, error));
    return tegroup_impl_linear_refused(tegroup_impl_gemm_run(&plan->grad_row_scale, &other, stream, error), second,
                                       error);
}

TEGROUP_API tegroup_status tegroup_linear_forward(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
                                                  struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_linear_call(plan, desc, TEGROUP_OP_FORWARD, 1, stream, error);
}

TEGROUP_API tegroup_status tegroup_linear_dgrad(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
                                                struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_linear_dgrad(plan, desc, 1, stream, error);
}

TEGROUP_API tegroup_status tegroup_linear_wgrad(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
                                                struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_linear_call(plan, desc, TEGROUP_OP_WGRAD, 1, stream, error);
}
