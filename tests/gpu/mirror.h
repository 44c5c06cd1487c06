/* A test problem on the GPU: every buffer of support.h's list, guard bands included, has a twin in device memory; the
 * descriptor is the host's with each address replaced. After a run the twins are copied back, so that the host's
 * comparisons, guard checks and references serve as they are. */
#ifndef TEGROUP_TESTS_MIRROR_H
#define TEGROUP_TESTS_MIRROR_H

#include "support.h"
#include <cuda_runtime.h>

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t code_ = (call);                                                                                    \
        if (code_ != cudaSuccess) {                                                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code_));                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Device memory handed out from the bottom up and taken back all at once. */
static unsigned char *arena, *arena_copy;
static size_t arena_used;
static const size_t arena_bytes = (size_t)512 << 20;

static size_t arena_take(size_t bytes, size_t skew) {
    size_t at;
    if (arena == NULL) {
        MUST(cudaMalloc((void **)&arena, arena_bytes));
        MUST(cudaMemset(arena, 0, arena_bytes));
        arena_copy = (unsigned char *)malloc(arena_bytes);
    }
    at = (arena_used + GUARD_BYTES + 255) / 256 * 256 + skew;
    arena_used = at + bytes + GUARD_BYTES;
    if (arena_used > arena_bytes) {
        fprintf(stderr, "the arena is full\n");
        exit(1);
    }
    return at;
}

/* Where a node's twin begins in the arena: the node itself remembers nothing, so a table does. */
typedef struct twin {
    guarded_node *node;
    size_t at;
} twin;
static twin twins[65536];
static int twin_count;

static void *device_of(const void *host) {
    if (host == NULL) return NULL;
    for (int i = twin_count - 1; i >= 0; i--) {
        const unsigned char *data = twins[i].node->data;
        if ((const unsigned char *)host >= data && (const unsigned char *)host <= data + twins[i].node->bytes)
            return arena + twins[i].at + ((const unsigned char *)host - data);
    }
    fprintf(stderr, "no twin\n");
    exit(1);
}

static void mirror_up(void *mark) {
    arena_used = 0;
    twin_count = 0;
    for (guarded_node *node = guarded_top; node != (guarded_node *)mark; node = node->older) {
        twin *t = &twins[twin_count++];
        t->node = node;
        t->at = arena_take(node->bytes, (size_t)((uintptr_t)node->data % 256));
        memcpy(arena_copy + t->at - GUARD_BYTES, node->data - GUARD_BYTES, node->bytes + 2 * GUARD_BYTES);
    }
    MUST(cudaMemcpy(arena, arena_copy, arena_used, cudaMemcpyHostToDevice));
}

static void mirror_down(void) {
    MUST(cudaMemcpy(arena_copy, arena, arena_used, cudaMemcpyDeviceToHost));
    for (int i = 0; i < twin_count; i++) {
        guarded_node *node = twins[i].node;
        memcpy(node->data - GUARD_BYTES, arena_copy + twins[i].at - GUARD_BYTES, node->bytes + 2 * GUARD_BYTES);
    }
}

static void sizes_to_device(tegroup_sizes *sizes) {
    if (sizes->encoding == TEGROUP_ENCODING_UNSET) return;
    sizes->space = TEGROUP_SPACE_DEVICE;
    sizes->data = device_of(sizes->data);
    sizes->starts = device_of(sizes->starts);
}

static void shape_to_device(tegroup_shape *shape) {
    sizes_to_device(&shape->row_sizes);
    sizes_to_device(&shape->col_sizes);
    shape->offsets = (const int64_t *)device_of(shape->offsets);
    shape->snapshot = device_of(shape->snapshot);
}

static void tensor_to_device(tegroup_tensor *t) {
    if (t->dtype == TEGROUP_DTYPE_UNSET) return;
    shape_to_device(&t->shape);
    t->data = device_of(t->data);
    if (t->pointers_space == TEGROUP_SPACE_UNSET) return;
    size_t at = arena_take((size_t)t->shape.groups * sizeof(void *), 0);
    for (int32_t g = 0; g < t->shape.groups; g++) {
        void *address = device_of(t->pointers[g]);
        MUST(cudaMemcpy(arena + at + (size_t)g * sizeof(void *), &address, sizeof address, cudaMemcpyHostToDevice));
    }
    t->pointers = (void *const *)(arena + at);
    t->pointers_space = TEGROUP_SPACE_DEVICE;
}

static void scalars_to_device(tegroup_scalars *s) {
    if (s->space == TEGROUP_SPACE_UNSET || s->stride == 0) return; /* one for all stays on the host, as users have it */
    s->space = TEGROUP_SPACE_DEVICE;
    s->data = device_of(s->data);
}

static tegroup_gemm_desc desc_to_device(const tegroup_gemm_desc *host) {
    tegroup_gemm_desc desc = *host;
    desc.space = TEGROUP_SPACE_DEVICE;
    tensor_to_device(&desc.a);
    tensor_to_device(&desc.b);
    tensor_to_device(&desc.d);
    tensor_to_device(&desc.c);
    if (host->c.pointers == host->d.pointers) desc.c.pointers = host->c.dtype != TEGROUP_DTYPE_UNSET ? desc.d.pointers : NULL;
    tensor_to_device(&desc.bias);
    scalars_to_device(&desc.alpha);
    scalars_to_device(&desc.beta);
    desc.row_scale = device_of(desc.row_scale);
    desc.workspace = NULL;
    desc.workspace_bytes = 0;
    return desc;
}

static tegroup_status prepare_on_device(const grid *t, cudaStream_t stream, tegroup_error *error) {
    tegroup_prepare_desc desc;
    if (t->snapshot == NULL) return TEGROUP_OK;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.shape = t->tensor.shape;
    shape_to_device(&desc.shape);
    desc.ld = t->tensor.shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET ? t->tensor.ld : 0;
    desc.space = TEGROUP_SPACE_DEVICE;
    desc.snapshot = device_of(t->snapshot);
    desc.snapshot_bytes = guarded_find(t->snapshot)->bytes;
    return tegroup_prepare(&desc, stream, error);
}

static tegroup_status problem_prepare_on_device(problem *p, cudaStream_t stream) {
    const grid *grids[] = {&p->a, &p->b, &p->c, &p->d, &p->bias};
    for (int i = 0; i < 5; i++) {
        tegroup_status status = prepare_on_device(grids[i], stream, &p->error);
        if (status != TEGROUP_OK) return status;
    }
    return TEGROUP_OK;
}

/* Plan, prepare and run on the GPU, and bring everything back. */
static tegroup_status problem_run_on_device(problem *p) {
    tegroup_status status;
    mirror_up(p->mark);
    tegroup_gemm_desc desc = desc_to_device(&p->desc);
    status = tegroup_plan_make(&desc, NULL, &p->plan, &p->error);
    if (status == TEGROUP_OK) status = problem_prepare_on_device(p, NULL);
    if (status == TEGROUP_OK) status = tegroup_gemm(&p->plan, &desc, NULL, &p->error);
    MUST(cudaDeviceSynchronize());
    mirror_down();
    return status;
}

#endif
