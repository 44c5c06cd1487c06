/* What must not change a bit of a result of the bundled backends: the rows that come along, how they are grouped, the tile, a
 * wrong expectation, other work on the GPU; and right results for any number of groups. Link with cuBLASLt. */
#define TEGROUP_EXTERN
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "backends.h"
#include "test.h"

static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};
static const tegroup_dtype halves[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16};

#define EACH_BUNDLED(b)                                                                                                \
    for (int b = 0; b < BACKENDS; b++)                                                                                 \
        if (backend_bundled(backends[b]) && backend_here(backends[b]))

static int64_t at_least(int64_t least, int64_t x) { return x < least ? least : x; }
static int64_t at_most(int64_t most, int64_t x) { return x > most ? most : x; }

/* ---- every tile ------------------------------------------------------------------------------------------------------- */

/* Runs with every tile: one hash of all of D, and the right one. */
static void run_every_tile(product *p, const tegroup_plan *plan, rng *r, int32_t samples) {
    uint64_t hash = 0;
    int taken = 0;
    for (int32_t i = 0; i < plan_tiles(plan); i++) {
        tegroup_plan tiled = *plan;
        if (!plan_take_tile(&tiled, i)) continue;
        product_poison(p, NULL);
        const tegroup_status status = product_run(p, &tiled, NULL);
        if (status != TEGROUP_OK) fprintf(stderr, "%s: %s %s\n", tegroup_backend_name(plan->backend), p->error.field, p->error.rule);
        ASSERT_EQ(TEGROUP_OK, status);
        const uint64_t now = product_hash(p, NULL);
        if (taken++ == 0) {
            int64_t disturbed;
            const verdict v = product_sample(p, samples, r, &disturbed);
            ASSERT_TRUE(v.worst <= 1);
            ASSERT_EQ(0, disturbed);
            hash = now;
        }
        if (now != hash) fprintf(stderr, "%s: tile %d x %d gives other bits\n", tegroup_backend_name(plan->backend), (int)tiled.tile_m, (int)tiled.tile_n);
        ASSERT_EQ(hash, now);
        ASSERT_EQ(0, product_bands_changed(p));
    }
    ASSERT_GT(taken, 0);
}

/* ---- in any company --------------------------------------------------------------------------------------------------- */

/* Rows that the tensors have. Never more than were made. */
static void set_capacity(product *p, int64_t rows) {
    p->desc.a.shape.rows = rows;
    if (p->op == TEGROUP_OP_WGRAD) p->desc.b.shape.rows = rows;
    else p->desc.d.shape.rows = rows;
}

static int64_t bytes_different(const product *p, const void *x, const void *y, int64_t bytes) {
    unsigned long long count;
    MUST(cudaMemset(p->number, 0, sizeof *p->number));
    count_different<<<512, 256>>>((const unsigned char *)x, (const unsigned char *)y, bytes, p->number);
    MUST(cudaMemcpy(&count, p->number, sizeof count, cudaMemcpyDeviceToHost));
    return (int64_t)count;
}

/* The same rows and weights alone, in one group of up to 8,192, and as a group of 1 to so many among others: first, in the
 * middle and last, in tensors with room or without, by every tile. A weight gradient: of the same rows, whatever the others. */
static void in_any_company(rng *r, tegroup_backend backend, tegroup_op op, tegroup_dtype in, tegroup_dtype out, int extra) {
    static const int64_t sizes[] = {8192, 4096, 1000, 300, 129, 128, 65, 64, 63, 16, 7, 3, 2, 1};
    static const int32_t companies[] = {3, 7, 40};
    enum { ROOM = 800 };
    const int wgrad = op == TEGROUP_OP_WGRAD;
    const int64_t most = at_most(8192, at_least(129, scaled(8192))), widest = at_most(90, at_least(12, scaled(90)));
    product alone, among;
    unsigned char *want;
    memset(&alone, 0, sizeof alone);
    alone.op = op;
    alone.in = in;
    alone.out = out;
    alone.bias = extra && op == TEGROUP_OP_FORWARD;
    alone.accumulate = extra && wgrad;
    alone.groups = 1;
    alone.rows = most;
    alone.n = 8 * rng_int(r, 1, widest);
    alone.k = 8 * rng_int(r, 1, widest);
    alone.seed = rng_next(r) >> 8;
    among = alone;
    among.groups = companies[rng_int(r, 0, 2)];
    among.rows = most + ROOM;
    product_make(&alone, backend);
    product_make(&among, backend);
    ASSERT_EQ(TEGROUP_OK, product_plan(&alone));
    ASSERT_EQ(TEGROUP_OK, product_plan(&among));
    const int64_t element = (int64_t)size_of(out), cols = alone.desc.d.shape.cols;
    MUST(cudaMalloc((void **)&want, (size_t)(alone.d_count * element)));
    int known = 0;
    for (int s = 0; s < 14; s++) {
        const int64_t rows = sizes[s];
        if (rows > most) continue;
        if (wgrad || !known) {
            const int64_t all = wgrad ? rows : most;
            int64_t disturbed;
            product_counts(&alone, &all);
            product_poison(&alone, NULL);
            ASSERT_EQ(TEGROUP_OK, product_run(&alone, &alone.plan, NULL));
            const verdict v = product_sample(&alone, 300, r, &disturbed);
            ASSERT_TRUE(v.worst <= 1);
            ASSERT_EQ(0, disturbed);
            MUST(cudaMemcpy(want, alone.desc.d.data, (size_t)(alone.d_count * element), cudaMemcpyDeviceToDevice));
            known = 1;
        }
        for (int place = 0; place < 3; place++) {
            const int32_t g = place == 0 ? 0 : place == 1 ? among.groups / 2 : among.groups - 1;
            int64_t counts[40];
            for (int32_t i = 0; i < among.groups; i++) counts[i] = rng_chance(r, 50) ? 0 : rng_int(r, 1, at_most(300, ROOM / among.groups));
            counts[g] = rows;
            product_counts(&among, counts);
            among.moved = g;
            among.moved_row = wgrad ? 0 : rng_int(r, 0, most - rows);
            among.moved_matrix = 0;
            product_fill(&among, NULL);
            set_capacity(&among, rng_chance(r, 50) ? among.filled : among.rows);
            among.desc.options.expected_rows = rng_chance(r, 50) ? 0 : among.filled;
            tegroup_plan plan;
            ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&among.desc, NULL, &plan, &among.error));
            ASSERT_LE(plan.workspace_bytes, among.desc.options.workspace_bytes);
            ASSERT_EQ(alone.plan.numerics_id, plan.numerics_id);
            run_every_tile(&among, &plan, r, 64);
            if (test_failed) fprintf(stderr, "%ld rows as group %d of %d\n", (long)rows, (int)g, (int)among.groups);
            ASSERT_PASSING();
            const int64_t at = product_element(&among, g, 0, 0) * element, from = among.moved_row * cols * element,
                          bytes = product_lines(&among, g) * cols * element;
            const int64_t different = bytes_different(&among, (unsigned char *)among.desc.d.data + at, want + from, bytes);
            if (different != 0)
                fprintf(stderr, "%s op %d in %d out %d extra %d n %ld k %ld: %ld rows as group %d of %d have other bits\n", tegroup_backend_name(backend), (int)op, (int)in,
                        (int)out, extra, (long)among.n, (long)among.k, (long)rows, (int)g, (int)among.groups);
            ASSERT_EQ(0, different);
        }
    }
    MUST(cudaFree(want));
    product_free(&alone);
    product_free(&among);
}

TEST(contract, line6_rows_in_any_company) {
    rng r = rng_seed(6001);
    EACH_BUNDLED(b)
    for (int64_t i = scaled(24); i > 0; i--) { /* forward with a bias and without, and dgrad, of both types to both results */
        const int which = (int)(i % 12);
        const tegroup_dtype in = halves[which & 1], out = which & 2 ? in : TEGROUP_DTYPE_F32;
        in_any_company(&r, backends[b], which < 8 ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD, in, out, which < 4);
        ASSERT_PASSING();
    }
}

TEST(contract, line6_gradients_in_any_company) {
    rng r = rng_seed(6002);
    EACH_BUNDLED(b)
    for (int64_t i = scaled(12); i > 0; i--) { /* of both types to both results, and added to FP32 */
        const int which = (int)(i % 6);
        const tegroup_dtype in = halves[which & 1], out = which < 2 ? in : TEGROUP_DTYPE_F32;
        in_any_company(&r, backends[b], TEGROUP_OP_WGRAD, in, out, which >= 4);
        ASSERT_PASSING();
    }
}

/* ---- a wrong expectation ---------------------------------------------------------------------------------------------- */

/* It chooses another tile, and that is all. */
TEST(contract, line6_expectations_cost_speed_only) {
    static const int64_t expected[][2] = {{0, 0}, {0, 1}, {0, INT64_MAX}, {1, 0}, {1, 1}, {1, INT64_MAX}, {1000, 600}, {100000, 1}, {100000, 100000},
                                          {INT64_C(1) << 40, 0}, {INT64_C(1) << 40, INT64_C(1) << 40}, {INT64_C(1) << 40, INT64_MAX}, {INT64_MAX, INT64_MAX}};
    enum { HINTS = sizeof expected / sizeof expected[0], GROUPS = 6, ROWS = 1500 };
    rng r = rng_seed(6003);
    int different_tiles = 0;
    EACH_BUNDLED(b)
    for (int64_t i = scaled(30); i > 0; i--) {
        const int kind = (int)(i % 5); /* forward, with a bias, dgrad, wgrad, added to FP32 */
        const int64_t most = at_most(ROWS, at_least(60, scaled(ROWS))), widest = at_most(90, at_least(12, scaled(90)));
        int64_t counts[GROUPS], left = most, disturbed;
        product p;
        uint64_t hash = 0;
        int32_t tile = -1;
        memset(&p, 0, sizeof p);
        p.op = ops[kind < 2 ? 0 : kind == 2 ? 1 : 2];
        p.in = halves[i / 5 % 2];
        p.out = kind == 4 || rng_chance(&r, 50) ? TEGROUP_DTYPE_F32 : p.in;
        p.bias = kind == 1;
        p.accumulate = kind == 4;
        p.groups = GROUPS;
        p.rows = most;
        p.n = 8 * rng_int(&r, widest / 3, widest);
        p.k = 8 * rng_int(&r, widest / 3, widest);
        p.seed = rng_next(&r) >> 8;
        for (int g = 0; g < GROUPS; g++) left -= counts[g] = rng_chance(&r, 20) ? 0 : rng_int(&r, 0, left / 2);
        product_make(&p, backends[b]);
        product_counts(&p, counts);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        const tegroup_plan usual = p.plan;
        for (int h = 0; h < HINTS; h++) {
            tegroup_plan plan;
            p.desc.options.expected_rows = expected[h][0];
            p.desc.options.expected_rows_max = expected[h][1];
            ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&p.desc, NULL, &plan, &p.error));
            ASSERT_EQ(usual.numerics_id, plan.numerics_id);
            ASSERT_EQ(usual.workspace_bytes, plan.workspace_bytes);
            different_tiles += tile >= 0 && tile != plan.tile_m * 1000 + plan.tile_n;
            tile = plan.tile_m * 1000 + plan.tile_n;
            for (int made_for = 0; made_for < 2; made_for++) { /* this expectation's plan, and one made for another */
                product_poison(&p, NULL);
                ASSERT_EQ(TEGROUP_OK, product_run(&p, made_for == 0 ? &plan : &usual, NULL));
                const uint64_t now = product_hash(&p, NULL);
                if (h == 0 && made_for == 0) hash = now;
                if (now != hash)
                    fprintf(stderr, "%s kind %d n %ld k %ld: other bits where %ld rows are expected, %ld at the most\n", tegroup_backend_name(backends[b]), kind, (long)p.n,
                            (long)p.k, (long)expected[h][0], (long)expected[h][1]);
                ASSERT_EQ(hash, now);
            }
            const verdict v = product_sample(&p, 200, &r, &disturbed);
            ASSERT_TRUE(v.worst <= 1);
            ASSERT_EQ(0, disturbed);
        }
        product_free(&p);
    }
    if (scaled(30) >= 5) ASSERT_GT(different_tiles, 0);
}

/* ---- beside other work ------------------------------------------------------------------------------------------------ */

/* Keeps multiprocessors busy until it is told to stop, or for so long: with copies, or where there is nothing to copy with
 * arithmetic. *stopped counts the blocks that were told. */
static __global__ void __launch_bounds__(1024) keep_busy(const uint4 *from, uint4 *to, int64_t count, const volatile int *stop, volatile int *begun, unsigned long long limit_ns,
                                 unsigned long long *stopped, float *never) {
    enum { PIECE = 8192 };
    __shared__ int over;
    unsigned long long begin, now;
    float x = (float)threadIdx.x;
    int64_t at = blockIdx.x * (int64_t)PIECE;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    if (blockIdx.x == 0 && threadIdx.x == 0) *begun = 1;
    do {
        if (count > 0) {
            if (at + PIECE > count) at = blockIdx.x * (int64_t)PIECE;
#pragma unroll
            for (int i = 0; i < PIECE; i += 1024) to[at + i + threadIdx.x] = from[at + i + threadIdx.x];
            at += gridDim.x * (int64_t)PIECE;
        } else {
#pragma unroll 16
            for (int i = 0; i < 1024; i++) x = fmaf(x, 0.999f, 1.0f);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
            over = *stop ? 1 : now - begin > limit_ns ? 2 : 0;
        }
        __syncthreads();
    } while (over == 0);
    if (x == -1) *never = x;
    if (threadIdx.x == 0 && over == 1) atomicAdd(stopped, 1ull);
}

/* A thousand runs on an idle GPU, a thousand beside a kernel that computes on a third of it and a thousand beside one that
 * copies there, the tiles in turns: one hash. Between begin and end of the other kernel nothing may wait for the whole GPU. */
static void beside_other_work(int b) {
    enum { LONG = SM90_DRIFTING_K + 8 };
    static const int64_t counts[8] = {700, 0, 3, 420, 64, 1, 511, 300};
    const int64_t runs = scaled(1000), words = (int64_t)8 << 20; /* of 16 bytes: more than L2 holds */
    const unsigned long long limit_ns = (unsigned long long)scaled(10000) * 1000000;
    rng r = rng_seed(6004);
    int multiprocessors, device;
    int *flags; /* on the host, seen by the device: stop, begun */
    uint4 *from, *to;
    unsigned long long *sums, *stopped, *seen = (unsigned long long *)malloc((size_t)runs * sizeof *seen);
    cudaStream_t stream, other;
    MUST(cudaGetDevice(&device));
    MUST(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    const int blocks = multiprocessors / 3 + 1;
    MUST(cudaHostAlloc((void **)&flags, 2 * sizeof *flags, cudaHostAllocMapped));
    MUST(cudaMalloc((void **)&from, (size_t)words * sizeof *from));
    MUST(cudaMalloc((void **)&to, (size_t)words * sizeof *to));
    MUST(cudaMemset(from, 1, (size_t)words * sizeof *from));
    MUST(cudaMalloc((void **)&sums, (size_t)runs * sizeof *sums));
    MUST(cudaMalloc((void **)&stopped, 2 * sizeof *stopped)); /* the second is what `never` points to */
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    MUST(cudaMemset(stopped, 0, 2 * sizeof *stopped));
    MUST(cudaDeviceSynchronize());
    flags[0] = 1;
    keep_busy<<<1, 1024, 0, other>>>(from, to, words, flags, flags + 1, limit_ns, stopped, (float *)(stopped + 1)); /* kernels are loaded when they first run */
    MUST(cudaDeviceSynchronize());
    for (int kind = 0; kind < 4; kind++) { /* forward, dgrad, wgrad, added to FP32 */
        tegroup_plan tiled[16];
        int32_t count = 0;
        product p;
        memset(&p, 0, sizeof p);
        p.op = ops[kind < 2 ? kind : 2];
        p.in = halves[kind % 2];
        p.out = kind == 1 || kind == 2 ? p.in : TEGROUP_DTYPE_F32;
        p.accumulate = kind == 3;
        p.groups = 8;
        p.rows = 2048;
        p.n = kind == 1 ? LONG : 512; /* a forward product and a dgrad with sums so long that blocks keep step */
        p.k = kind == 0 ? LONG : 776;
        p.seed = 78;
        product_make(&p, backends[b]);
        product_counts(&p, counts);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        ASSERT_LE(plan_tiles(&p.plan), 16);
        for (int32_t i = 0; i < plan_tiles(&p.plan); i++) {
            tiled[count] = p.plan;
            count += plan_take_tile(&tiled[count], i);
        }
        ASSERT_GT(count, 0);
        for (int32_t i = 0; i < count; i++) ASSERT_EQ(TEGROUP_OK, product_run(&p, &tiled[i], NULL));
        unsigned long long want = 0;
        for (int beside = 0; beside < 3; beside++) {
            unsigned long long told = 0;
            int64_t disturbed, different = 0;
            MUST(cudaMemset(sums, 0, (size_t)runs * sizeof *sums));
            MUST(cudaMemset(stopped, 0, 2 * sizeof *stopped));
            MUST(cudaDeviceSynchronize());
            flags[0] = flags[1] = 0;
            if (beside > 0) {
                keep_busy<<<blocks, 1024, 0, other>>>(from, to, beside == 1 ? 0 : words, flags, flags + 1, limit_ns, stopped, (float *)(stopped + 1));
                MUST(cudaGetLastError());
                while (((volatile int *)flags)[1] == 0 && cudaStreamQuery(other) == cudaErrorNotReady) {}
            }
            int refused = 0;
            for (int64_t i = 0; i < runs; i++) {
                product_poison(&p, stream);
                refused += product_run(&p, &tiled[i % count], stream) != TEGROUP_OK;
                add_hash<<<512, 256, 0, stream>>>((const uint16_t *)p.desc.d.data, p.d_count * (int64_t)size_of(p.out) / 2, sums + i);
            }
            MUST(cudaStreamSynchronize(stream));
            ((volatile int *)flags)[0] = 1;
            MUST(cudaStreamSynchronize(other));
            MUST(cudaMemcpy(seen, sums, (size_t)runs * sizeof *sums, cudaMemcpyDeviceToHost));
            MUST(cudaMemcpy(&told, stopped, sizeof told, cudaMemcpyDeviceToHost));
            ASSERT_EQ(0, refused);
            if (beside == 0) want = seen[0];
            for (int64_t i = 0; i < runs; i++) different += seen[i] != want;
            if (different != 0)
                fprintf(stderr, "%s kind %d beside %d: %ld of %ld runs have other bits\n", tegroup_backend_name(backends[b]), kind, beside, (long)different, (long)runs);
            ASSERT_EQ(0, different);
            const verdict v = product_sample(&p, 1000, &r, &disturbed);
            ASSERT_TRUE(v.worst <= 1);
            ASSERT_EQ(0, disturbed);
            if (beside > 0 && runs >= 1000) ASSERT_EQ(blocks, (int)told); /* it was busy until the last run was over */
        }
        product_free(&p);
    }
    MUST(cudaStreamDestroy(stream));
    MUST(cudaStreamDestroy(other));
    MUST(cudaFree(from));
    MUST(cudaFree(to));
    MUST(cudaFree(sums));
    MUST(cudaFree(stopped));
    MUST(cudaFreeHost(flags));
    free(seen);
}

TEST(contract, line6_beside_other_work) {
    EACH_BUNDLED(b) {
        beside_other_work(b);
        ASSERT_PASSING();
    }
}

/* ---- blocks that keep step -------------------------------------------------------------------------------------------- */

/* Long sums of groups that end within tiles: alone, two at a time, and on a few multiprocessors. */
TEST(gpu, long_sums_in_step) {
    static const int64_t counts[6] = {1700, 129, 0, 900, 1, 1270};
    enum { LONG = 2 * SM90_DRIFTING_K + 72, TWO = 2 };
    rng r = rng_seed(6006);
    cudaStream_t streams[TWO];
    for (int i = 0; i < TWO; i++) MUST(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    EACH_BUNDLED(b)
    for (int kind = 0; kind < 4; kind++) {
        product p[TWO];
        uint64_t hash[TWO];
        for (int i = 0; i < TWO; i++) {
            int64_t some[6], disturbed;
            memset(&p[i], 0, sizeof p[i]);
            p[i].op = ops[kind % 2];
            p[i].in = halves[kind / 2];
            p[i].out = i == 0 ? p[i].in : TEGROUP_DTYPE_F32;
            p[i].groups = 6;
            const int64_t width = at_least(264, scaled(2056) / 8 * 8); /* rows of whole 16 bytes */
            p[i].n = kind % 2 ? LONG : width;
            p[i].k = kind % 2 ? width : LONG;
            p[i].seed = rng_next(&r) >> 8;
            for (int g = 0; g < 6; g++) {
                some[g] = counts[g] > 1 ? at_least(130 + g, scaled(counts[g])) : counts[g];
                p[i].rows += some[g];
            }
            product_make(&p[i], backends[b]);
            product_counts(&p[i], some);
            ASSERT_EQ(TEGROUP_OK, product_plan(&p[i]));
            run_every_tile(&p[i], &p[i].plan, &r, 500);
            ASSERT_PASSING();
            hash[i] = product_hash(&p[i], NULL);
            const verdict v = product_sample(&p[i], 500, &r, &disturbed);
            ASSERT_TRUE(v.worst <= 1);
        }
        for (int32_t limit = 0; limit <= 5; limit += 5)
            for (int32_t tile = 0; tile < plan_tiles(&p[0].plan); tile++) {
                tegroup_plan plan[TWO];
                int taken = 1;
                for (int i = 0; i < TWO; i++) {
                    p[i].desc.options.sm_limit = limit;
                    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&p[i].desc, NULL, &plan[i], &p[i].error));
                    taken = plan_take_tile(&plan[i], tile) && taken;
                    product_poison(&p[i], NULL);
                }
                if (!taken) continue;
                MUST(cudaDeviceSynchronize());
                for (int64_t runs = at_least(1, scaled(10)); runs > 0; runs--)
                    for (int i = 0; i < TWO; i++) ASSERT_EQ(TEGROUP_OK, product_run(&p[i], &plan[i], streams[i]));
                MUST(cudaDeviceSynchronize());
                for (int i = 0; i < TWO; i++) ASSERT_EQ(hash[i], product_hash(&p[i], NULL));
                ASSERT_EQ(0, product_steps_left());
            }
        for (int i = 0; i < TWO; i++) product_free(&p[i]);
    }
    for (int i = 0; i < TWO; i++) MUST(cudaStreamDestroy(streams[i]));
}

/* ---- any number of groups --------------------------------------------------------------------------------------------- */

/* Most of them empty, all of them, all but the last. Tiles are found 32 groups at a time. */
TEST(gpu, groups_0_to_4096) {
    static const int32_t groups[] = {33, 4096, 0, 1, 31, 32, 1000, 4095};
    static int64_t counts[TEGROUP_MAX_GROUPS];
    rng r = rng_seed(6005);
    EACH_BUNDLED(b)
    for (int64_t i = 0; i < at_least(3, scaled(72)); i++) {
        const int round = (int)(i / 8), filled = round / 3 % 3;
        product p;
        memset(&p, 0, sizeof p);
        p.groups = groups[i % 8];
        p.op = ops[(i % 8 + round) % 3];
        p.in = halves[rng_int(&r, 0, 1)];
        p.out = rng_chance(&r, 50) ? TEGROUP_DTYPE_F32 : p.in;
        p.bias = p.op == TEGROUP_OP_FORWARD && rng_chance(&r, 50);
        p.n = 8 * rng_int(&r, 1, 10);
        p.k = 8 * rng_int(&r, 1, 10);
        p.seed = rng_next(&r) >> 8;
        for (int32_t g = 0; g < p.groups; g++) {
            const int64_t some = rng_chance(&r, 2) ? rng_int(&r, 100, 300) : rng_int(&r, 1, 40);
            counts[g] = filled == 0 ? (rng_chance(&r, 85) ? 0 : some) : filled == 1 ? 0 : g == p.groups - 1 ? some : 0;
            p.rows += counts[g];
        }
        p.rows += rng_int(&r, 1, 40);
        product_make(&p, backends[b]);
        product_counts(&p, counts);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        run_every_tile(&p, &p.plan, &r, 2000);
        if (test_failed)
            fprintf(stderr, "%s op %d groups %d n %ld k %ld rows %ld\n", tegroup_backend_name(backends[b]), (int)p.op, (int)p.groups, (long)p.n, (long)p.k, (long)p.filled);
        ASSERT_PASSING();
        product_free(&p);
    }
}

TEST_MAIN()
