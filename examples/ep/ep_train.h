/* ep_mpi --train: a small language model on bytes, the experts of whose one MoE layer are shared out over the ranks.
 *
 *     x = embeddings of the CONTEXT bytes before        h = x + MoE(x)        P(next byte) = softmax(h head)
 *
 * Every rank has windows of text of its own, and a copy of all parameters but the experts'; their gradients are summed over
 * ranks by MPI. An expert's gradient is the sum over all ranks' rows as it is. At the end the held-out tenth of the text
 * has to be predicted better than by a byte bigram. */
#ifndef EP_TRAIN_H
#define EP_TRAIN_H

#include <errno.h>
#include <math.h>
#include "ep_check.h"
#include "../train_moe_text.h"

enum { CONTEXT = 8, EMBED = 16, BYTES = 256, TRAIN_EXPERTS = 8, BATCH = 1024, LOOKS = 10 };

typedef struct parameter {
    float *value, *grad;
    double *mean, *square; /* Adam's (Kingma and Ba 2014, "Adam", algorithm 1) */
    int64_t count;
    int shared; /* all ranks have a copy */
} parameter;
enum { EMBEDDING, ROUTER, HEAD, FC1, FC2, PARAMETERS };

typedef struct trainer {
    ep_layer *layer;
    ep_transport transport;
    text text;
    parameter parameters[PARAMETERS];
    int64_t tokens, width;
    uint8_t *context; /* [tokens, CONTEXT] */
    uint8_t *next;    /* [tokens] */
    float *hidden, *logits, *grad_hidden;
} trainer;

static float *floats(int64_t count) { return (float *)ep_memory(sizeof(float) * (size_t)count); }

static parameter parameter_of(float *value, float *grad, int64_t count, int shared) {
    parameter p = {value, grad, NULL, NULL, count, shared};
    p.mean = (double *)ep_memory(sizeof(double) * (size_t)count);
    p.square = (double *)ep_memory(sizeof(double) * (size_t)count);
    return p;
}

/* y [m, n] += x [m, k] w [k, n] */
static void multiply(int64_t m, int64_t n, int64_t k, const float *x, const float *w, float *y) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < k; j++)
            for (int64_t c = 0; c < n; c++) y[i * n + c] += x[i * k + j] * w[j * n + c];
}
/* dw [k, n] += x^T dy, and dx [m, k] += dy w^T */
static void multiply_back(int64_t m, int64_t n, int64_t k, const float *x, const float *w, const float *dy, float *dw,
                          float *dx) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < k; j++) {
            float sum = 0;
            for (int64_t c = 0; c < n; c++) {
                dw[j * n + c] += x[i * k + j] * dy[i * n + c];
                sum += dy[i * n + c] * w[j * n + c];
            }
            dx[i * k + j] += sum;
        }
}

/* Windows of text from [begin, end), another choice for each seed. */
static void draw(trainer *t, int64_t begin, int64_t end, uint64_t seed) {
    for (int64_t i = 0; i < t->tokens; i++) {
        const float at = (ep_number(seed, 9, t->layer->size.rank * t->tokens + i, 1) + 1) / 2;
        const float finer = (ep_number(seed, 10, t->layer->size.rank * t->tokens + i, 1) + 1) / 2;
        int64_t start = begin + (int64_t)(((double)at + (double)finer / 4096) * (double)(end - begin - CONTEXT - 1));
        start = start < begin ? begin : start > end - CONTEXT - 1 ? end - CONTEXT - 1 : start;
        memcpy(t->context + i * CONTEXT, t->text.bytes + start, CONTEXT);
        t->next[i] = t->text.bytes[start + CONTEXT];
    }
}

/* The sum of this rank's losses; logits become their gradient. */
static double predict(trainer *t, struct CUstream_st *stream) {
    ep_layer *l = t->layer;
    float *x = (float *)l->dispatch.tokens.data, *route = (float *)l->router.logits.data;
    const float *moe = (const float *)l->combine.tokens.data;
    double loss = 0;
    for (int64_t i = 0; i < t->tokens * CONTEXT; i++)
        memcpy(x + i * EMBED, t->parameters[EMBEDDING].value + t->context[i] * EMBED, sizeof(float) * EMBED);
    memset(route, 0, sizeof *route * (size_t)(t->tokens * TRAIN_EXPERTS));
    multiply(t->tokens, TRAIN_EXPERTS, t->width, x, t->parameters[ROUTER].value, route);
    ep_forward(l, &t->transport, stream);
    ep_look(l);
    for (int64_t i = 0; i < t->tokens * t->width; i++) t->hidden[i] = x[i] + moe[i];
    memset(t->logits, 0, sizeof *t->logits * (size_t)(t->tokens * BYTES));
    multiply(t->tokens, BYTES, t->width, t->hidden, t->parameters[HEAD].value, t->logits);
    for (int64_t i = 0; i < t->tokens; i++) {
        float *row = t->logits + i * BYTES, most = row[0], sum = 0;
        for (int c = 1; c < BYTES; c++) most = row[c] > most ? row[c] : most;
        for (int c = 0; c < BYTES; c++) sum += expf(row[c] - most);
        loss += log((double)sum) - (double)(row[t->next[i]] - most);
        for (int c = 0; c < BYTES; c++) row[c] = (expf(row[c] - most) / sum - (c == t->next[i] ? 1.0f : 0.0f)) / BATCH;
    }
    return loss;
}

/* The gradients of this rank's tokens; of its experts, of everybody's. */
static void differentiate(trainer *t, struct CUstream_st *stream) {
    ep_layer *l = t->layer;
    const float *x = (const float *)l->dispatch.tokens.data;
    float *grad = (float *)l->dispatch_grad.tokens.data, *grad_x = t->grad_hidden;
    for (int p = 0; p < FC1; p++) memset(t->parameters[p].grad, 0, sizeof(float) * (size_t)t->parameters[p].count);
    memset(grad, 0, sizeof *grad * (size_t)(t->tokens * t->width));
    multiply_back(t->tokens, BYTES, t->width, t->hidden, t->parameters[HEAD].value, t->logits, t->parameters[HEAD].grad,
                  grad);
    ep_dgrad(l, &t->transport, stream);
    ep_wgrad(l, stream);
    for (int64_t i = 0; i < t->tokens * t->width; i++)
        grad_x[i] = grad[i] + ((const float *)l->combine_grad.tokens.data)[i];
    multiply_back(t->tokens, TRAIN_EXPERTS, t->width, x, t->parameters[ROUTER].value,
                  (const float *)l->router_backward.grad_logits.data, t->parameters[ROUTER].grad, grad_x);
    for (int64_t i = 0; i < t->tokens * CONTEXT; i++)
        for (int e = 0; e < EMBED; e++)
            t->parameters[EMBEDDING].grad[t->context[i] * EMBED + e] += grad_x[i * EMBED + e];
}

static void descend(parameter *p, int step, double rate) {
    const double first = 1 - pow(0.9, step), second = 1 - pow(0.98, step);
    for (int64_t i = 0; i < p->count; i++) {
        const double g = (double)p->grad[i];
        p->mean[i] += 0.1 * (g - p->mean[i]);
        p->square[i] += 0.02 * (g * g - p->square[i]);
        p->value[i] -= (float)(rate * (p->mean[i] / first) / (sqrt(p->square[i] / second) + 1e-9));
    }
}

/* Returns the exit status. The sums are over ranks, in place. */
static int train(ep_layer *l, ep_transport transport, const char *path, int steps, void (*sum_floats)(float *, int64_t),
                 void (*sum_doubles)(double *, int64_t)) {
    static trainer t;
    const ep_size *s = &l->size;
    double loss = 0, held_out = 0;
    int since = 0; /* steps since the last line */
    t.layer = l;
    t.transport = transport;
    t.tokens = s->tokens;
    t.width = s->width;
    if (!text_load(&t.text, path)) give_up("no text to train on");
    t.context = (uint8_t *)ep_memory((size_t)(t.tokens * CONTEXT));
    t.next = (uint8_t *)ep_memory((size_t)t.tokens);
    t.hidden = floats(t.tokens * t.width);
    t.grad_hidden = floats(t.tokens * t.width);
    t.logits = floats(t.tokens * BYTES);
    const int64_t counts[FC1] = {BYTES * EMBED, t.width * TRAIN_EXPERTS, t.width * BYTES}, each = t.width * s->hidden;
    const float spreads[FC1] = {1, 0.1f, 0.1f};
    for (int p = 0; p < FC1; p++) {
        t.parameters[p] = parameter_of(floats(counts[p]), floats(counts[p]), counts[p], 1);
        ep_fill(t.parameters[p].value, TEGROUP_DTYPE_F32, 5, 20 + p, 0, counts[p], spreads[p]);
    }
    const int64_t here = s->experts / s->ranks, first = s->rank * here;
    ep_fill(l->mlp.fc1.weight.data, TEGROUP_DTYPE_F32, 5, EP_OF_FC1, first * 2 * each, here * 2 * each, 0.15f);
    ep_fill(l->mlp.fc2.weight.data, TEGROUP_DTYPE_F32, 5, EP_OF_FC2, first * each, here * each, 0.15f);
    t.parameters[FC1] =
        parameter_of((float *)l->mlp.fc1.weight.data, (float *)l->mlp.fc1.main_grad.data, here * 2 * each, 0);
    t.parameters[FC2] =
        parameter_of((float *)l->mlp.fc2.weight.data, (float *)l->mlp.fc2.main_grad.data, here * each, 0);
    for (int step = 1; step <= steps; step++) {
        draw(&t, 0, t.text.train_end, (uint64_t)step);
        double now = predict(&t, NULL);
        differentiate(&t, NULL);
        for (int p = 0; p < PARAMETERS; p++) {
            if (t.parameters[p].shared) sum_floats(t.parameters[p].grad, t.parameters[p].count);
            descend(&t.parameters[p], step, 4e-3 * (1 - 0.9 * step / steps));
        }
        sum_doubles(&now, 1);
        loss += now / BATCH;
        since++;
        if (since < (steps + LOOKS - 1) / LOOKS && step < steps) continue;
        if (s->rank == 0) printf("step %4d  loss %.3f nats a byte\n", step, loss / since), fflush(stdout);
        loss = since = 0;
    }
    for (int look = 0; look < LOOKS; look++) {
        draw(&t, t.text.train_end, t.text.size, 1000000 + (uint64_t)look);
        held_out += predict(&t, NULL);
    }
    sum_doubles(&held_out, 1);
    held_out /= LOOKS * BATCH;
    const double bigram = bigram_loss(&t.text);
    if (s->rank == 0)
        printf("%d ranks, %d experts each: held-out %.3f nats a byte, a byte bigram %.3f\n", s->ranks,
               s->experts / s->ranks, held_out, bigram);
    return held_out < bigram ? 0 : 1;
}

#endif
