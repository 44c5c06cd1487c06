/* train_moe's model: a byte-level language model whose depth is made of mixture-of-experts blocks.
 *
 *     window of bytes -> embed -> project -> [ x + moe(norm(x)) ] per block -> norm -> head -> next byte
 *     moe(h) = route h to 2 of 8 experts, fc1, SwiGLU, fc2, and the weighted sum: tegroup's MoE layer
 *
 * A `model` holds what is learnt; a `pass` holds the plans and buffers that run it on a fixed number of windows. Both
 * are made once: a training step only fills the windows in and calls the stages below. A block is a tegroup_moe layer, the
 * other products go through tegroup_gemm as a single group. Buffers carry their dtype, so that the very code that trains in FP32
 * has its gradients checked in FP64; and their space, so that it runs on a GPU, too, where every call only enqueues.
 *
 * Mixed precision: what products read is BF16, what they sum, the stream and the weights that Adam moves are FP32. */

#include "train_moe_shared.h"
#include "train_moe_gpu.h"

#if defined(_OPENMP)
#define PARALLEL_FOR _Pragma("omp parallel for schedule(static)")
#else
#define PARALLEL_FOR
#endif

enum { BYTE_VALUES = 256, MAX_BLOCKS = 4, MAX_PARAMETERS = 5 + 4 * MAX_BLOCKS };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#define REAL float
#define FN(name) name##_f32
#include "train_moe_math.h"
#undef REAL
#undef FN
#define REAL double
#define FN(name) name##_f64
#include "train_moe_math.h"
#undef REAL
#undef FN

/* Call the version of an element-wise stage for the buffers' type, or the GPU's. */
#define BY_TYPE(dtype, name, ...) \
    ((dtype) == TEGROUP_DTYPE_F64 ? name##_f64(__VA_ARGS__) : name##_f32(__VA_ARGS__))
#define STAGE(s, name, ...) \
    (ON_GPU(s) ? name##_gpu((s)->stream, __VA_ARGS__) : BY_TYPE((s)->dtype, name, __VA_ARGS__))

/* Without train_moe.cu a constant, and every call of what it defines is left out. */
#if defined(TRAIN_MOE_GPU)
#define ON_GPU(s) ((s)->space == TEGROUP_SPACE_DEVICE)
#else
#define ON_GPU(s) 0
#endif

/* ---- Errors and memory ---- */

/* A refused call is a bug in this program: say which rule it broke, and stop. */
static void must(tegroup_status status, const tegroup_error *error)
{
    char text[512];
    if (status == TEGROUP_OK) return;
    tegroup_error_text(error, text, sizeof text);
    fprintf(stderr, "train_moe: %s\n", text);
    exit(1);
}

/* Allocations that are freed together, all in one space. Each has a header on the host: a link to the one before it, and
 * the GPU's part. */
typedef struct memory {
    struct allocation *last;
    tegroup_space      space;
} memory;

typedef struct allocation {
    struct allocation *before;
    void              *on_gpu;
} allocation;

static void *allocate(memory *owner, size_t bytes)
{
    const size_t here = TEGROUP_ALIGNMENT + (ON_GPU(owner) ? 0 : bytes);
    void *block = NULL;
    if (posix_memalign(&block, TEGROUP_ALIGNMENT, here) != 0) {
        fprintf(stderr, "train_moe: out of memory\n");
        exit(1);
    }
    memset(block, 0, here);
    allocation *head = block;
    head->before = owner->last;
    owner->last = head;
    if (!ON_GPU(owner)) return (char *)block + TEGROUP_ALIGNMENT;
    return head->on_gpu = allocate_gpu(bytes);
}

static void release(memory *owner)
{
    while (owner->last) {
        allocation *head = owner->last;
        owner->last = head->before;
        if (ON_GPU(owner)) release_gpu(head->on_gpu);
        free(head);
    }
}

static size_t matrix_bytes(tegroup_matrix m)
{
    return (size_t)(m.rows * m.cols) * (size_t)tegroup_dtype_bits(m.dtype) / 8;
}

static tegroup_matrix make_matrix(memory *owner, tegroup_dtype dtype, int64_t rows, int64_t cols)
{
    tegroup_matrix m = { .rows = rows, .cols = cols, .dtype = dtype };
    m.data = allocate(owner, matrix_bytes(m));
    return m;
}

/* ---- What is learnt ---- */

struct format;

typedef struct settings {
    tegroup_space   space;                 /* where the model lives; the stream of a GPU                         */
    struct CUstream_st *stream;
    tegroup_dtype   dtype, operand;        /* of the model, and of what products read                            */
    tegroup_compute compute;
    const struct format *format;           /* that experts are quantised to; NULL = they are of operand's type   */
    int64_t context, embed, width, hidden; /* bytes a window, and the widths of a byte, the stream and an expert */
    int32_t blocks, experts, choices;      /* choices: experts that each token takes                             */
    int32_t threads;                       /* 0 = all                                                            */
    double  balance;                       /* weight of the load-balancing loss                                  */
    double  dropout;                       /* the share of bytes, and of what norms give, that training drops    */
} settings;

/* Between the host's memory and the model's, in either direction. */
static void copy(const settings *s, void *to, const void *from, size_t bytes)
{
    if (ON_GPU(s)) copy_gpu(s->stream, to, from, bytes);
    else memcpy(to, from, bytes);
}

typedef struct parameter {
    char    name[32];
    int32_t rank;
    int64_t shape[3];
    int64_t elements;
    void   *value, *grad, *mean, *square; /* mean and square: Adam's moments of the gradient         */
    void   *operand;                      /* value as products read it; value itself in the same type */
} parameter;

typedef struct block_parameters {
    parameter norm, router, fc1, fc2;
} block_parameters;

typedef struct model {
    settings         s;
    memory           owner;
    parameter        embedding, projection, final_norm, head, head_bias;
    block_parameters block[MAX_BLOCKS];
    parameter       *all[MAX_PARAMETERS];
    int              count;
    step_clock      *clock;
    int64_t          updates; /* how often the weights have changed */
    uint64_t         random; /* of dropout */
} model;

/* A parameter of shape [d0, d1, d2], leading zeros left out. */
static void add_parameter(model *m, parameter *p, const char *name, int64_t d0, int64_t d1, int64_t d2)
{
    const int64_t shape[3] = { d0, d1, d2 };
    p->elements = 1;
    for (int i = 0; i < 3; i++)
        if (shape[i]) {
            p->shape[p->rank++] = shape[i];
            p->elements *= shape[i];
        }
    snprintf(p->name, sizeof p->name, "%s", name);
    void **buffers[] = { &p->value, &p->grad, &p->mean, &p->square };
    for (int i = 0; i < 4; i++)
        *buffers[i] = make_matrix(&m->owner, m->s.dtype, p->elements, 1).data;
    p->operand = p->value;
    if (p->rank > 1 && m->s.operand != m->s.dtype)
        p->operand = make_matrix(&m->owner, m->s.operand, p->elements, 1).data;
    m->all[m->count++] = p;
}

static void add_block_parameter(model *m, int block, parameter *p, const char *name, int64_t d0, int64_t d1, int64_t d2)
{
    char full[sizeof p->name];
    snprintf(full, sizeof full, "block%d.%s", block, name);
    add_parameter(m, p, full, d0, d1, d2);
}

static void declare_parameters(model *m)
{
    const settings *s = &m->s;
    add_parameter(m, &m->embedding, "embedding", 0, BYTE_VALUES, s->embed);
    add_parameter(m, &m->projection, "projection", 0, s->width, s->context * s->embed);
    for (int b = 0; b < s->blocks; b++) {
        block_parameters *p = &m->block[b];
        add_block_parameter(m, b, &p->norm, "norm", 0, 0, s->width);
        add_block_parameter(m, b, &p->router, "router", 0, s->experts, s->width);
        add_block_parameter(m, b, &p->fc1, "fc1", s->experts, 2 * s->hidden, s->width);
        add_block_parameter(m, b, &p->fc2, "fc2", s->experts, s->width, s->hidden);
    }
    add_parameter(m, &m->final_norm, "final_norm", 0, 0, s->width);
    add_parameter(m, &m->head, "head", 0, BYTE_VALUES, s->width);
    add_parameter(m, &m->head_bias, "head_bias", 0, 0, BYTE_VALUES);
}

/* Matrices start with the spread that keeps their output as wide as their input, gains at one, biases at zero. Routers
 * and the head start small, so that no expert and no byte is favoured before there is a reason. */
static void initialise(model *m, uint64_t seed)
{
    for (int i = 0; i < m->count; i++) {
        parameter *p = m->all[i];
        uint64_t own_seed = random_bits(&seed);
        double spread = 1 / sqrt((double)p->shape[p->rank - 1]);
        memory here = { .space = TEGROUP_SPACE_HOST };
        const tegroup_matrix values = make_matrix(&here, m->s.dtype, p->elements, 1);
        if (p == &m->embedding) spread = 1;
        if (p == &m->head || strstr(p->name, "router")) spread *= 0.3;
        if (p->rank > 1) BY_TYPE(m->s.dtype, fill_random, p->elements, spread, own_seed, values.data);
        else BY_TYPE(m->s.dtype, fill, p->elements, p == &m->head_bias ? 0 : 1, values.data);
        copy(&m->s, p->value, values.data, matrix_bytes(values));
        if (p->operand != p->value) STAGE(&m->s, narrow, p->elements, p->value, m->s.operand, p->operand);
        release(&here);
    }
}

static void model_make(model *m, const settings *s, uint64_t seed)
{
    memset(m, 0, sizeof *m);
    m->s = *s;
    m->owner.space = s->space;
    m->clock = allocate(&m->owner, sizeof *m->clock);
    declare_parameters(m);
    initialise(m, seed);
    m->random = ~seed;
}

static int64_t model_elements(const model *m)
{
    int64_t sum = 0;
    for (int i = 0; i < m->count; i++) sum += m->all[i]->elements;
    return sum;
}

/* One step of Adam with the gradients gathered since the last one, at the clock's rate. */
static void update(model *m)
{
    m->updates++;
    for (int i = 0; i < m->count; i++) {
        parameter *p = m->all[i];
        float *value = p->value, *grad = p->grad, *mean = p->mean, *square = p->square;
        void *bf16 = p->operand != p->value ? p->operand : NULL;
        if (ON_GPU(&m->s)) {
            adam_gpu(m->s.stream, p->elements, m->clock, grad, mean, square, value, bf16);
            continue;
        }
        const float rate = m->clock->rate;
        PARALLEL_FOR
        for (int64_t j = 0; j < p->elements; j++) adam(rate, &grad[j], &mean[j], &square[j], &value[j]);
        if (bf16) narrow_f32(p->elements, value, m->s.operand, bf16);
    }
}

#include "train_moe_formats.h"

/* ---- Products ---- */

typedef struct product {
    tegroup_gemm_desc desc;
    tegroup_plan      plan;
    double            flop;
} product;

/* The three products that a weight takes part in. */
typedef struct linear {
    product forward, dgrad, wgrad;
} linear;

/* One block's buffers. Those of the forward pass stay until the backward pass has read them. */
typedef struct block {
    block_parameters *weights;
    linear           router;
    tegroup_moe_desc moe;                          /* what forward leaves for backward, too            */
    tegroup_moe_plan plan;
    double           experts_flop;                 /* of each of its three calls                       */
    tegroup_tensor   plain[2];                     /* with a format: fc1's and fc2's weights unquantised */
    int64_t          quantised;                    /* the weights after so many updates; -1 = none     */
    tegroup_matrix   normed, inverse_rms, logits;  /* [tokens, ...]                                    */
    tegroup_matrix   indices, counts;              /* the experts of each token, the tokens of each expert */
    double          *balance_loss;                 /* on the host alone                                */
} block;

/* Gradients live only from one stage to the next, so that all blocks share one set. */
typedef struct gradients {
    tegroup_matrix embedded, stream, normed, logits, router_logits;
    tegroup_matrix narrowed; /* the stream's, as products read it */
} gradients;

typedef struct pass {
    model         *m;
    memory         owner, here;
    int64_t        tokens;
    uint8_t       *bytes,   *bytes_here;    /* [tokens, context]: the windows; and on the host    */
    int32_t       *targets, *targets_here;  /* [tokens]: the byte after each window; -1 = none    */
    double        *row_loss, *row_loss_here; /* [tokens]                                          */
    linear         projection, head;
    tegroup_matrix embedded, stream[MAX_BLOCKS + 1], normed, inverse_rms, logits;
    block          block[MAX_BLOCKS];
    gradients      grad;
    void          *workspace, *saved;           /* saved: by a block's dgrad for its wgrad                   */
    size_t         workspace_bytes, saved_bytes;
    double         gemm_flop, gemm_seconds;     /* of products, and of the calls that run them             */
    int64_t        part, parts;                 /* the micro-batch of a step, and how many; 0: not in training */
} pass;

/* An operand of `groups` matrices: a weight, a bias, or with one group a dense activation. */
static tegroup_tensor uniform(tegroup_dtype dtype, int64_t groups, int64_t rows, int64_t cols, void *data)
{
    tegroup_tensor t = { .dtype = dtype, .data = data };
    t.shape.groups = (int32_t)groups;
    t.shape.rows = rows;
    t.shape.cols = cols;
    return t;
}

/* An activation: `rows` says which rows belong to which group. */
static tegroup_tensor activation(const tegroup_shape *rows, tegroup_matrix m)
{
    tegroup_tensor t = { .dtype = m.dtype, .data = m.data, .shape = *rows };
    t.shape.cols = m.cols;
    return t;
}

/* One workspace serves every call of a pass: they run one after another. */
static void reserve(size_t *most, size_t bytes)
{
    if (*most < bytes) *most = bytes;
}

static void plan_product(pass *p, product *q, tegroup_op op, double rows, double n, double k)
{
    tegroup_error error;
    q->desc.struct_size = sizeof q->desc;
    q->desc.op = op;
    q->desc.space = p->m->s.space;
    q->desc.options.compute = p->m->s.compute;
    q->desc.options.threads = p->m->s.threads;
    must(tegroup_plan_make(&q->desc, NULL, &q->plan, &error), &error);
    q->flop = 2 * rows * n * k;
    reserve(&p->workspace_bytes, q->plan.workspace_bytes);
}

/* Plan y = x weight^T (+ bias) and its gradients. Weight gradients add up over micro-batches; grad_x is overwritten,
 * or added to where another branch has already written its part. */
static void plan_linear(pass *p, linear *l, const tegroup_shape *rows, const parameter *weight, const parameter *bias,
    tegroup_matrix x, tegroup_matrix y, tegroup_matrix grad_x, tegroup_matrix grad_y, int add_to_grad_x)
{
    const tegroup_dtype dtype = p->m->s.dtype;
    const int64_t groups = rows->groups, n = y.cols, k = x.cols;
    const tegroup_tensor w = uniform(p->m->s.operand, groups, n, k, weight->operand);

    l->forward.desc.a = activation(rows, x);
    l->forward.desc.b = w;
    l->forward.desc.d = activation(rows, y);
    if (bias) l->forward.desc.bias = uniform(dtype, groups, 1, n, bias->value);

    l->dgrad.desc.a = activation(rows, grad_y);
    l->dgrad.desc.b = w;
    l->dgrad.desc.d = activation(rows, grad_x);
    l->dgrad.desc.accumulate = add_to_grad_x;

    l->wgrad.desc.a = activation(rows, grad_y);
    l->wgrad.desc.b = activation(rows, x);
    l->wgrad.desc.d = uniform(dtype, groups, n, k, weight->grad);
    l->wgrad.desc.accumulate = 1;
    if (bias) l->wgrad.desc.bias = uniform(dtype, groups, 1, n, bias->grad);

    plan_product(p, &l->forward, TEGROUP_OP_FORWARD, (double)rows->rows, (double)n, (double)k);
    plan_product(p, &l->dgrad, TEGROUP_OP_DGRAD, (double)rows->rows, (double)n, (double)k);
    plan_product(p, &l->wgrad, TEGROUP_OP_WGRAD, (double)rows->rows, (double)n, (double)k);
}

static void multiply(pass *p, product *q)
{
    tegroup_error error;
    const double start = seconds();
    q->desc.options.workspace = p->workspace;
    q->desc.options.workspace_bytes = p->workspace_bytes;
    must(tegroup_gemm(&q->plan, &q->desc, p->m->s.stream, &error), &error);
    p->gemm_seconds += seconds() - start;
    p->gemm_flop += q->flop;
}

/* ---- Making a pass ---- */

static void make_gradients(pass *p)
{
    const settings *s = &p->m->s;
    const int64_t tokens = p->tokens;
    gradients *g = &p->grad;
    g->embedded      = make_matrix(&p->owner, s->dtype, tokens, s->context * s->embed);
    g->stream        = make_matrix(&p->owner, s->dtype, tokens, s->width);
    g->normed        = make_matrix(&p->owner, s->dtype, tokens, s->width);
    g->logits        = make_matrix(&p->owner, s->operand, tokens, BYTE_VALUES);
    g->router_logits = make_matrix(&p->owner, s->operand, tokens, s->experts);
    g->narrowed      = s->operand == s->dtype ? g->stream : make_matrix(&p->owner, s->operand, tokens, s->width);
}

static tegroup_mlp_weights expert_weights(const settings *s, const parameter *weight, int64_t n, int64_t k)
{
    const tegroup_mlp_weights weights = {
        .weight = uniform(s->operand, s->experts, n, k, weight->operand),
        .main_grad = uniform(s->dtype, s->experts, n, k, weight->grad)
    };
    return weights;
}

/* The experts' weights in the format, beside the plain ones that they are quantised from; and rows as the layer has them. */
static void quantise_experts(pass *p, block *b)
{
    const format *f = p->m->s.format;
    tegroup_mlp_weights *const weights[2] = { &b->moe.experts.fc1, &b->moe.experts.fc2 };
    for (int i = 0; i < 2; i++) {
        b->plain[i] = weights[i]->weight;
        weights[i]->weight = make_quantised(&p->owner, b->plain[i], f->weights, f->forward);
    }
    b->moe.rows_format.scaling = b->moe.grad_format.scaling = f->rows;
    b->moe.rows_format.rule = b->moe.grad_format.rule = tegroup_scale_rule_of(f->preset);
    b->moe.rows_format.columnwise_order = b->moe.grad_format.columnwise_order = f->order;
    b->moe.rows_format.dtype = f->forward;
    b->moe.grad_format.dtype = f->backward;
    b->quantised = -1;
}

static void plan_moe(pass *p, block *b)
{
    tegroup_error error;
    must(tegroup_moe_plan_make(&b->moe, NULL, &b->plan, &error), &error);
    b->moe.saved_by_forward_bytes = b->plan.saved_by_forward_bytes;
    b->moe.saved_by_forward = allocate(&p->owner, b->plan.saved_by_forward_bytes);
    reserve(&p->saved_bytes, b->plan.saved_by_dgrad_bytes);
    reserve(&p->workspace_bytes, b->plan.workspace_bytes);
}

/* What all blocks share. */
static void make_shared(pass *p)
{
    p->workspace = allocate(&p->owner, p->workspace_bytes);
    p->saved = allocate(&p->owner, p->saved_bytes);
}

/* The MoE layer of a block, forward and backward. Weight gradients add up over micro-batches. */
static void make_moe(pass *p, block *b, tegroup_matrix output)
{
    const settings *s = &p->m->s;
    const gradients *g = &p->grad;
    tegroup_moe_desc *moe = &b->moe;
    moe->struct_size = sizeof *moe;
    moe->space = s->space;
    moe->tokens = b->normed;
    moe->output = output;
    moe->grad_output = g->narrowed;
    moe->grad_tokens = g->normed;
    moe->grad_logits = g->router_logits;
    moe->router.k = s->choices;
    moe->router.normalize = 1;
    moe->router.logits = b->logits;
    moe->router.indices = b->indices;
    moe->router.counts = b->counts;
    moe->router.balance_coefficient = s->balance;
    moe->router.balance_loss = b->balance_loss;
    moe->experts.options.compute = s->compute;
    moe->experts.options.threads = s->threads;
    moe->experts.activation = TEGROUP_ACTIVATION_SWIGLU;
    moe->experts.accumulate = 1;
    moe->experts.fc1 = expert_weights(s, &b->weights->fc1, 2 * s->hidden, s->width);
    moe->experts.fc2 = expert_weights(s, &b->weights->fc2, s->width, s->hidden);
    if (s->format) quantise_experts(p, b);
    plan_moe(p, b);
    b->experts_flop = 6.0 * (double)(p->tokens * s->choices) * (double)s->width * (double)s->hidden;
}

static void make_block(pass *p, int index, const tegroup_shape *dense)
{
    const settings *s = &p->m->s;
    const int64_t tokens = p->tokens;
    block *b = &p->block[index];
    b->weights     = &p->m->block[index];
    b->normed      = make_matrix(&p->owner, s->operand, tokens, s->width);
    b->inverse_rms = make_matrix(&p->owner, s->dtype, tokens, 1);
    b->logits      = make_matrix(&p->owner, s->dtype, tokens, s->experts);
    b->indices     = make_matrix(&p->owner, TEGROUP_DTYPE_I32, tokens, s->choices);
    b->counts      = make_matrix(&p->owner, TEGROUP_DTYPE_I64, 1, s->experts);
    if (!ON_GPU(s)) b->balance_loss = allocate(&p->owner, sizeof *b->balance_loss);
    plan_linear(p, &b->router, dense, &b->weights->router, NULL, b->normed, b->logits, p->grad.normed,
        p->grad.router_logits, 1);
    make_moe(p, b, p->stream[index + 1]);
}

/* Everything that running the model on `tokens` windows needs. */
static pass *pass_make(model *m, int64_t tokens)
{
    const settings *s = &m->s;
    memory here = { .space = TEGROUP_SPACE_HOST };
    pass *p = allocate(&here, sizeof *p);
    const tegroup_shape dense = uniform(s->dtype, 1, tokens, 0, NULL).shape;
    p->m = m;
    p->tokens = tokens;
    p->here = here;
    p->owner.space = s->space;
    p->bytes_here = p->bytes = allocate(&p->here, (size_t)(tokens * s->context));
    p->targets_here = p->targets = allocate(&p->here, (size_t)tokens * sizeof *p->targets);
    p->row_loss_here = p->row_loss = allocate(&p->here, (size_t)tokens * sizeof *p->row_loss);
    if (ON_GPU(s)) {
        p->bytes = allocate(&p->owner, (size_t)(tokens * s->context));
        p->targets = allocate(&p->owner, (size_t)tokens * sizeof *p->targets);
        p->row_loss = allocate(&p->owner, (size_t)tokens * sizeof *p->row_loss);
    }
    p->embedded = make_matrix(&p->owner, s->operand, tokens, s->context * s->embed);
    for (int b = 0; b <= s->blocks; b++) p->stream[b] = make_matrix(&p->owner, s->dtype, tokens, s->width);
    p->normed = make_matrix(&p->owner, s->operand, tokens, s->width);
    p->inverse_rms = make_matrix(&p->owner, s->dtype, tokens, 1);
    p->logits = make_matrix(&p->owner, s->dtype, tokens, BYTE_VALUES);
    make_gradients(p);
    for (int b = 0; b < s->blocks; b++) make_block(p, b, &dense);
    plan_linear(p, &p->projection, &dense, &m->projection, NULL, p->embedded, p->stream[0], p->grad.embedded,
        p->grad.narrowed, 0);
    plan_linear(p, &p->head, &dense, &m->head, &m->head_bias, p->normed, p->logits, p->grad.normed, p->grad.logits, 0);
    make_shared(p);
    return p;
}

static void pass_release(pass *p)
{
    memory here = p->here; /* the pass itself lies in the memory that is released */
    release(&p->owner);
    release(&here);
}

/* ---- Forward ---- */

/* Window t becomes the `context` bytes before text[position], and its target that byte. */
static void set_window(pass *p, int64_t t, const uint8_t *text, int64_t position)
{
    const int64_t context = p->m->s.context;
    memcpy(p->bytes_here + t * context, text + position - context, (size_t)context);
    p->targets_here[t] = text[position];
}

/* Windows that were set on the host, to where the model is. */
static void load_windows(pass *p)
{
    const settings *s = &p->m->s;
    if (!ON_GPU(s)) return;
    copy(s, p->bytes, p->bytes_here, (size_t)(p->tokens * s->context));
    copy(s, p->targets, p->targets_here, (size_t)p->tokens * sizeof *p->targets);
}

/* Of what the norm behind stream[place] gives; and as the last place of all, of the windows' bytes. */
static dropout dropout_of(const pass *p, int place)
{
    const settings *s = &p->m->s;
    const int64_t places = s->blocks + 2;
    const dropout d = {
        .rate = p->parts == 0 ? 0 : s->dropout, .random = p->m->random,
        .number = p->part * places + place, .all = p->parts * places, .clock = p->m->clock
    };
    return d;
}

static dropout dropout_of_bytes(const pass *p) { return dropout_of(p, p->m->s.blocks + 1); }

static void embed_windows(pass *p)
{
    const settings *s = &p->m->s;
    STAGE(s, embed, p->tokens * s->context, s->embed, p->bytes, p->m->embedding.value, dropout_of_bytes(p), s->operand,
        p->embedded.data);
}

/* Weights in the experts' format, once when they change. */
static void quantise_weights(pass *p, block *b)
{
    if (!p->m->s.format || b->quantised == p->m->updates) return;
    quantise(&p->m->s, b->plain[0], &b->moe.experts.fc1.weight);
    quantise(&p->m->s, b->plain[1], &b->moe.experts.fc2.weight);
    b->quantised = p->m->updates;
}

typedef tegroup_status (*moe_call)(const tegroup_moe_plan *, const tegroup_moe_desc *, struct CUstream_st *,
    tegroup_error *);

static void run_moe(pass *p, block *b, moe_call call)
{
    tegroup_error error;
    const double start = seconds();
    b->moe.experts.options.workspace = p->workspace;
    b->moe.experts.options.workspace_bytes = p->workspace_bytes;
    b->moe.saved_by_dgrad = p->saved;
    b->moe.saved_by_dgrad_bytes = p->saved_bytes;
    must(call(&b->plan, &b->moe, p->m->s.stream, &error), &error);
    p->gemm_seconds += seconds() - start;
    p->gemm_flop += b->experts_flop;
}

/* stream[index + 1] = stream[index] + moe(norm(stream[index])) */
static void block_forward(pass *p, int index)
{
    const settings *s = &p->m->s;
    block *b = &p->block[index];
    STAGE(s, rms_norm, p->tokens, s->width, p->stream[index].data, b->weights->norm.value,
        dropout_of(p, index), s->operand, b->normed.data, b->inverse_rms.data);
    quantise_weights(p, b);
    multiply(p, &b->router.forward);
    run_moe(p, b, tegroup_moe_forward);
    STAGE(s, add, p->tokens * s->width, p->stream[index].data, p->stream[index + 1].data);
}

/* Logits from embedded windows. Bypassing leaves the blocks' contributions out of the stream. */
static void forward(pass *p, int bypass_blocks)
{
    const settings *s = &p->m->s;
    const tegroup_matrix *last = &p->stream[bypass_blocks ? 0 : s->blocks];
    multiply(p, &p->projection.forward);
    for (int b = 0; b < s->blocks && !bypass_blocks; b++) block_forward(p, b);
    STAGE(s, rms_norm, p->tokens, s->width, last->data, p->m->final_norm.value, dropout_of(p, s->blocks),
        s->operand, p->normed.data, p->inverse_rms.data);
    multiply(p, &p->head.forward);
}

/* The windows' losses, and `scale` times the gradient of their sum where scale is not 0. */
static void cross_entropy(pass *p, double scale)
{
    const settings *s = &p->m->s;
    void *grad_logits = scale != 0 ? p->grad.logits.data : NULL;
    STAGE(s, cross_entropy, p->tokens, BYTE_VALUES, p->logits.data, p->targets, scale, p->row_loss, s->operand,
        grad_logits);
}

static double total_loss(pass *p)
{
    double sum = 0;
    if (ON_GPU(&p->m->s)) copy(&p->m->s, p->row_loss_here, p->row_loss, (size_t)p->tokens * sizeof *p->row_loss);
    for (int64_t t = 0; t < p->tokens; t++) sum += p->row_loss_here[t];
    return sum;
}

static double balance_loss(const pass *p)
{
    double sum = 0;
    for (int b = 0; b < p->m->s.blocks; b++) sum += *p->block[b].balance_loss;
    return sum;
}

/* ---- Backward ---- */

static void norm_backward(pass *p, int index, tegroup_matrix inverse_rms, const parameter *gain)
{
    const settings *s = &p->m->s;
    const tegroup_matrix x = p->stream[index];
    STAGE(s, drop, p->tokens * s->width, dropout_of(p, index), p->grad.normed.data);
    STAGE(s, rms_norm_gain, p->tokens, s->width, x.data, inverse_rms.data, p->grad.normed.data, gain->grad);
    STAGE(s, rms_norm_input, p->tokens, s->width, x.data, gain->value, inverse_rms.data, p->grad.normed.data,
        p->grad.stream.data);
}

/* The stream's gradient, as products read it. */
static void narrow_gradient(pass *p)
{
    const settings *s = &p->m->s;
    if (s->operand != s->dtype)
        STAGE(s, narrow, p->tokens * s->width, p->grad.stream.data, s->operand, p->grad.narrowed.data);
}

/* The router's part of grad.normed is added to the experts'. `share` scales the load-balancing loss, as the logits'
 * gradient scales the other one. */
static void block_backward(pass *p, int index, double share)
{
    block *b = &p->block[index];
    narrow_gradient(p);
    b->moe.loss_scale = share;
    run_moe(p, b, tegroup_moe_dgrad);
    run_moe(p, b, tegroup_moe_wgrad);
    multiply(p, &b->router.wgrad);
    multiply(p, &b->router.dgrad);
    norm_backward(p, index, b->inverse_rms, &b->weights->norm);
}

/* Gradients of everything, added to what the parameters hold; cross_entropy must have left those of the logits. */
static void backward(pass *p, double share)
{
    const settings *s = &p->m->s;
    multiply(p, &p->head.wgrad);
    multiply(p, &p->head.dgrad);
    STAGE(s, clear, p->tokens * s->width, p->grad.stream.data);
    norm_backward(p, s->blocks, p->inverse_rms, &p->m->final_norm);
    for (int i = s->blocks - 1; i >= 0; i--) block_backward(p, i, share);
    narrow_gradient(p);
    multiply(p, &p->projection.wgrad);
    multiply(p, &p->projection.dgrad);
    STAGE(s, embed_backward, p->tokens * s->context, s->embed, p->bytes, p->grad.embedded.data,
        dropout_of_bytes(p), p->m->embedding.grad);
}
