/* A test problem on the GPU: every buffer of support.h's list, guard bands included, has a twin in device memory; the
 * descriptor is the host's with each address replaced. After a run the twins are copied back, so that the host's
 * comparisons, guard checks and references serve as they are. Sizes, snapshots and lists go along, but for a backend that
 * reads them on the host. */
#ifndef TEGROUP_TESTS_MIRROR_H
#define TEGROUP_TESTS_MIRROR_H

#include "support.h"
#include "inside.h"

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t code_ = (call);                                                                                    \
        if (code_ != cudaSuccess) {                                                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code_));                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Copies to device memory. cudaMemcpy may return before memory that is not pinned has arrived, and streams that do not
 * wait for the default one may be next. */
static void copy_up(void *to, const void *from, size_t bytes) {
    MUST(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    MUST(cudaStreamSynchronize(NULL));
}

/* 1: each buffer is an allocation of its own, exactly as long as it needs to be, and what the library is to write first has
 * never been written: so memcheck sees every step outside and initcheck every early read. */
static int mirror_exact;
static struct cublasLtContext *mirror_cublaslt; /* the handle that descriptors get */
static int mirror_loop_scalars; /* 1: those of each group go to the device for CUBLASLT_LOOP, too */
enum { MIRROR_PLANNED_TILE = -1, MIRROR_ANY_TILE = -2 }; /* the one that a plan takes by itself; one that the problem's seed draws */
static int32_t mirror_tile = MIRROR_PLANNED_TILE, mirror_tiles; /* of a bundled backend's table the tile to take; how many it offered last */

/* Device memory handed out from the bottom up and taken back all at once. */
static unsigned char *arena, *arena_copy;
static size_t arena_used;
static const size_t arena_bytes = (size_t)512 << 20;
static unsigned char *exact_list[65536];
static int exact_count;

static unsigned char *arena_take(size_t bytes, size_t skew) {
    size_t at;
    if (mirror_exact) {
        unsigned char *base;
        MUST(cudaMalloc((void **)&base, bytes + skew + (bytes == 0)));
        exact_list[exact_count++] = base;
        return base + skew;
    }
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
    return arena + at;
}

/* Where a node's twin begins: the node itself remembers nothing, so a table does. */
typedef struct twin {
    guarded_node *node;
    unsigned char *at;
} twin;
static twin twins[65536];
static int twin_count;

static void *device_of(const void *host) {
    if (host == NULL) return NULL;
    for (int i = twin_count - 1; i >= 0; i--) {
        const unsigned char *data = twins[i].node->data;
        if ((const unsigned char *)host >= data && (const unsigned char *)host <= data + twins[i].node->bytes)
            return twins[i].at + ((const unsigned char *)host - data);
    }
    fprintf(stderr, "no twin\n");
    exit(1);
}

static void mirror_up(void *mark) {
    while (exact_count > 0) MUST(cudaFree(exact_list[--exact_count]));
    arena_used = 0;
    twin_count = 0;
    for (guarded_node *node = guarded_top; node != (guarded_node *)mark; node = node->older) {
        twin *t = &twins[twin_count++];
        t->node = node;
        t->at = arena_take(node->bytes, (size_t)((uintptr_t)node->data % 256));
        if (!mirror_exact)
            memcpy(arena_copy + (t->at - arena) - GUARD_BYTES, node->data - GUARD_BYTES, node->bytes + 2 * GUARD_BYTES);
        else if (!node->scratch) copy_up(t->at, node->data, node->bytes);
    }
    if (arena_used > 0) copy_up(arena, arena_copy, arena_used);
}

static void mirror_down(void) {
    if (arena_used > 0) MUST(cudaMemcpy(arena_copy, arena, arena_used, cudaMemcpyDeviceToHost));
    for (int i = 0; i < twin_count; i++) {
        guarded_node *node = twins[i].node;
        if (!mirror_exact)
            memcpy(node->data - GUARD_BYTES, arena_copy + (twins[i].at - arena) - GUARD_BYTES, node->bytes + 2 * GUARD_BYTES);
        else if (!node->scratch) MUST(cudaMemcpy(node->data, twins[i].at, node->bytes, cudaMemcpyDeviceToHost));
    }
}

/* A poisoned workspace between guard bands, kept from call to call. What goes up on the default stream is over then: streams
 * that do not wait for it may be next. */
static unsigned char *workspace_memory;
static size_t workspace_room, workspace_used;

static void *workspace_of(size_t bytes) {
    workspace_used = bytes;
    MUST(cudaDeviceSynchronize());
    if (bytes == 0) return NULL;
    if (mirror_exact) return arena_take(bytes, 0);
    if (bytes > workspace_room) {
        MUST(cudaFree(workspace_memory));
        workspace_room = bytes;
        MUST(cudaMalloc((void **)&workspace_memory, bytes + 2 * GUARD_BYTES));
    }
    MUST(cudaMemset(workspace_memory, 0xF3, bytes + 2 * GUARD_BYTES));
    MUST(cudaDeviceSynchronize());
    return workspace_memory + GUARD_BYTES;
}

static int64_t workspace_guards_changed(void) {
    unsigned char bands[2 * GUARD_BYTES];
    int64_t changed = 0;
    if (workspace_used == 0 || mirror_exact) return 0;
    MUST(cudaMemcpy(bands, workspace_memory, GUARD_BYTES, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(bands + GUARD_BYTES, workspace_memory + GUARD_BYTES + workspace_used, GUARD_BYTES, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < sizeof bands; i++) changed += bands[i] != 0xF3;
    return changed;
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

/* A list of twins, in device memory unless the backend reads it on the host. */
static void *const *list_to_device(void *const *list, int32_t groups, int host_sizes) {
    const size_t bytes = (size_t)groups * sizeof(void *);
    if (list == NULL) return NULL;
    void **twins_of = (void **)scratch(bytes);
    for (int32_t g = 0; g < groups; g++) twins_of[g] = device_of(list[g]);
    if (host_sizes) return twins_of;
    void *const *up = (void *const *)arena_take(bytes, 0);
    copy_up((void *)up, twins_of, bytes);
    return up;
}

static void tensor_to_device(tegroup_tensor *t, int host_sizes) {
    if (t->dtype == TEGROUP_DTYPE_UNSET) return;
    if (!host_sizes) shape_to_device(&t->shape);
    t->data = device_of(t->data);
    t->columnwise_data = device_of(t->columnwise_data);
    t->scale_inv = device_of(t->scale_inv);
    t->columnwise_scale_inv = device_of(t->columnwise_scale_inv);
    t->global_scale_inv = (float *)device_of(t->global_scale_inv);
    if (t->pointers_space == TEGROUP_SPACE_UNSET) return;
    t->pointers = list_to_device(t->pointers, t->shape.groups, host_sizes);
    t->columnwise_pointers = list_to_device(t->columnwise_pointers, t->shape.groups, host_sizes);
    t->scale_pointers = list_to_device(t->scale_pointers, t->shape.groups, host_sizes);
    t->columnwise_scale_pointers = list_to_device(t->columnwise_scale_pointers, t->shape.groups, host_sizes);
    if (!host_sizes) t->pointers_space = TEGROUP_SPACE_DEVICE;
}

static void scalars_to_device(tegroup_scalars *s) {
    if (s->space == TEGROUP_SPACE_UNSET || s->stride == 0) return; /* one for all stays on the host, as users have it */
    s->space = TEGROUP_SPACE_DEVICE;
    s->data = device_of(s->data);
}

/* The backend that reads sizes, snapshots, lists and scalars on the host. */
static int has_host_sizes(const tegroup_gemm_desc *desc) { return desc->options.backend == TEGROUP_BACKEND_CUBLASLT_LOOP; }

/* Streams for it to fork onto. */
static cudaStream_t fork_streams[3];
static cudaEvent_t fork_events[4];

static tegroup_gemm_desc desc_to_device(const tegroup_gemm_desc *host) {
    tegroup_gemm_desc desc = *host;
    int host_sizes = has_host_sizes(host);
    desc.space = TEGROUP_SPACE_DEVICE;
    tensor_to_device(&desc.a, host_sizes);
    tensor_to_device(&desc.b, host_sizes);
    tensor_to_device(&desc.d, host_sizes);
    tensor_to_device(&desc.c, host_sizes);
    if (host->c.pointers == host->d.pointers) desc.c.pointers = host->c.dtype != TEGROUP_DTYPE_UNSET ? desc.d.pointers : NULL;
    tensor_to_device(&desc.bias, host_sizes);
    if (!host_sizes || mirror_loop_scalars) scalars_to_device(&desc.alpha);
    if (!host_sizes || mirror_loop_scalars) scalars_to_device(&desc.beta);
    desc.row_scale = device_of(desc.row_scale);
    desc.gather_a.slot_of_row = (const int64_t *)device_of(desc.gather_a.slot_of_row);
    desc.gather_b.slot_of_row = (const int64_t *)device_of(desc.gather_b.slot_of_row);
    desc.options.workspace = NULL;
    desc.options.workspace_bytes = 0;
    desc.options.cublaslt = mirror_cublaslt;
    if (host_sizes && host->d.shape.cols % 2 == 1) {
        for (int i = 0; i < 3 && fork_streams[i] == NULL; i++) MUST(cudaStreamCreateWithFlags(&fork_streams[i], cudaStreamNonBlocking));
        for (int i = 0; i < 4 && fork_events[i] == NULL; i++) MUST(cudaEventCreateWithFlags(&fork_events[i], cudaEventDisableTiming));
        desc.options.streams = fork_streams;
        desc.options.events = fork_events;
        desc.options.stream_count = 3;
    }
    return desc;
}

static tegroup_status prepare_on_device(const grid *t, cudaStream_t stream, tegroup_error *error) {
    tegroup_prepare_desc desc;
    if (t->snapshot == NULL) return TEGROUP_OK;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.shape = t->tensor.shape;
    shape_to_device(&desc.shape);
    desc.ld = t->tensor.shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET && t->tensor.pointers == NULL ? t->tensor.ld : 0; /* lists need none */
    desc.space = TEGROUP_SPACE_DEVICE;
    desc.snapshot = device_of(t->snapshot);
    desc.snapshot_bytes = guarded_find(t->snapshot)->bytes;
    return tegroup_prepare(&desc, stream, error);
}

static tegroup_status problem_prepare_on_device(problem *p, cudaStream_t stream) {
    const grid *grids[] = {&p->a, &p->b, &p->c, &p->d, &p->bias};
    if (has_host_sizes(&p->desc)) return problem_prepare(p);
    for (int i = 0; i < 5; i++) {
        tegroup_status status = prepare_on_device(grids[i], stream, &p->error);
        if (status != TEGROUP_OK) return status;
    }
    return TEGROUP_OK;
}

/* Can SM90's kernels run here, and does this run of the suite want them? */
static inline int hopper_here(void) {
    const char *wanted = getenv("TEGROUP_TEST_BACKENDS");
    int device, major, minor;
    if (wanted != NULL && strstr(wanted, "sm90") == NULL) return 0;
    MUST(cudaGetDevice(&device));
    MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    MUST(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return major == 9 && minor == 0 && sm90_is_compiled();
}

/* > 0: a plan is made for ragged buffers of so many rows, and a few more in each operand. Where columns are ragged, too,
 * and the buffer holds no element, such a plan is refused, so that rows stay. */
static int mirror_planned_rows;

/* What runs a product that is planned and prepared, all of it in device memory. */
static tegroup_status mirror_gemm(tegroup_plan *plan, const tegroup_gemm_desc *desc, tegroup_error *error) { return tegroup_gemm(plan, desc, NULL, error); }
static tegroup_status (*mirror_run)(tegroup_plan *, const tegroup_gemm_desc *, tegroup_error *) = mirror_gemm;

/* Plan, prepare and run on the GPU with the backend that p->desc names, and bring everything back. */
static tegroup_status problem_run_on_device(problem *p) {
    tegroup_status status;
    mirror_up(p->mark);
    tegroup_gemm_desc desc = desc_to_device(&p->desc), planned = desc;
    tegroup_tensor *const tensors[] = {&planned.a, &planned.b, &planned.c, &planned.d};
    for (int i = 0; i < 4 && mirror_planned_rows > 0; i++)
        if (tensors[i]->dtype != TEGROUP_DTYPE_UNSET && tensors[i]->shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET
            && (tensors[i]->shape.elements > 0 || tensors[i]->shape.col_sizes.encoding == TEGROUP_ENCODING_UNSET))
            tensors[i]->shape.rows = mirror_planned_rows + i;
    status = tegroup_plan_make(&planned, NULL, &p->plan, &p->error);
    if (status == TEGROUP_OK && mirror_tile != MIRROR_PLANNED_TILE) {
        mirror_tiles = plan_tiles(&p->plan);
        const int32_t tile = mirror_tile == MIRROR_ANY_TILE ? (int32_t)(p->s.seed % (uint64_t)mirror_tiles) : mirror_tile;
        if (!plan_take_tile(&p->plan, tile)) status = TEGROUP_ERROR_UNSUPPORTED;
    }
    if (status == TEGROUP_OK) {
        desc.options.workspace_bytes = p->plan.workspace_bytes;
        desc.options.workspace = workspace_of(desc.options.workspace_bytes);
        status = problem_prepare_on_device(p, NULL);
    }
    if (status == TEGROUP_OK) status = mirror_run(&p->plan, &desc, &p->error);
    MUST(cudaDeviceSynchronize());
    mirror_down();
    return status;
}

#endif
