/* ---- Router: a warp's batch of tokens ---- */

/* A warp takes a batch of tokens. LANES lanes work out a token's softmax in registers, quad q of its experts in those of lane
 * q % LANES, TURNS tokens one after another. To choose, each lane takes one token for itself and asks no other lane: the
 * token's probabilities lie in shared memory, above them the largest of each four, and so on up, so that the best expert is
 * found on the way down this tree, and only the nodes on that way change when it is taken out. */
enum { TEGROUP_IMPL_ROUTER_WARPS = 8, TEGROUP_IMPL_ROUTER_HISTOGRAM = 1024, TEGROUP_IMPL_ROUTER_LEVELS = 6 };

/* The tree's levels in shared memory, over so many leaf quads; at most eight nodes above them are the root's, in registers. */
static constexpr __host__ __device__ int tegroup_impl_router_levels(int quads) {
    return quads <= 8 ? 1 : 1 + tegroup_impl_router_levels((quads + 3) / 4);
}
static constexpr __host__ __device__ int tegroup_impl_router_root(int quads) {
    return quads <= 8 ? quads : tegroup_impl_router_root((quads + 3) / 4);
}

template <typename REAL> struct alignas(16) tegroup_impl_quad { REAL x[4]; };

static __device__ __forceinline__ float tegroup_impl_larger(float a, float b) { return fmaxf(a, b); }
static __device__ __forceinline__ double tegroup_impl_larger(double a, double b) { return fmax(a, b); }

template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_quad_max(const tegroup_impl_quad<REAL> &v) {
    return tegroup_impl_larger(tegroup_impl_larger(v.x[0], v.x[1]), tegroup_impl_larger(v.x[2], v.x[3]));
}

/* A whole quad from shared memory: what is read in parts is read in several steps. */
static __device__ __forceinline__ tegroup_impl_quad<float> tegroup_impl_quad_at(const float *from) {
    const float4 x = *(const float4 *)(const void *)from;
    const tegroup_impl_quad<float> v = {{x.x, x.y, x.z, x.w}};
    return v;
}
static __device__ __forceinline__ tegroup_impl_quad<double> tegroup_impl_quad_at(const double *from) {
    return *(const tegroup_impl_quad<double> *)(const void *)from;
}

/* The first of those that equal the largest. */
template <typename REAL>
static __device__ __forceinline__ int32_t tegroup_impl_quad_find(const tegroup_impl_quad<REAL> &v, REAL largest) {
    int32_t at = 3;
    if (v.x[2] == largest) at = 2;
    if (v.x[1] == largest) at = 1;
    if (v.x[0] == largest) at = 0;
    return at;
}

template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_quad_sum(const tegroup_impl_quad<REAL> &v) {
    return (v.x[0] + v.x[1]) + (v.x[2] + v.x[3]);
}

template <typename REAL, int LANES> static __device__ __forceinline__ REAL tegroup_impl_lanes_max(REAL x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x = tegroup_impl_larger(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

template <typename REAL, int LANES> static __device__ __forceinline__ REAL tegroup_impl_lanes_sum(REAL x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* e^x for the softmax, x at most 0, off by at most (1.5 |x| + 9) 2^-24 of it. The hardware's power of two flushes what is below
 * 2^-126, so it is asked for the square root. */
static __device__ __forceinline__ float tegroup_impl_softmax_exp(float x) {
    float root;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(__fmul_rn(x, 0.7213475204444817f)));
    return __fmul_rn(root, root);
}
static __device__ __forceinline__ double tegroup_impl_softmax_exp(double x) { return tegroup_impl_exp_f64(x); }

/* x / y without a branch, rounded as a division is where neither y, its reciprocal nor the result is denormal. */
static __device__ __forceinline__ float tegroup_impl_quotient(float x, float y) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
    const float q = __fmul_rn(x, r);
    return __fmaf_rn(__fmaf_rn(-q, y, x), r, q);
}
static __device__ __forceinline__ double tegroup_impl_quotient(double x, double y) { return x / y; }

/* As tegroup_impl_choice_grad_f32, with quotients that cost no branch. */
static __device__ __forceinline__ float tegroup_impl_choice_grad(float g, float dot, float chosen, int32_t normalize) {
    return normalize ? tegroup_impl_quotient(g - tegroup_impl_quotient(dot, chosen), chosen) : g;
}
static __device__ __forceinline__ double tegroup_impl_choice_grad(double g, double dot, double chosen,
                                                                  int32_t normalize) {
    return tegroup_impl_choice_grad_f64(g, dot, chosen, normalize);
}

/* How the rows of a matrix are read or written: element by element, or by four floats or halves at a time. */
typedef enum tegroup_impl_router_access {
    TEGROUP_IMPL_ROUTER_ELEMENTS,
    TEGROUP_IMPL_ROUTER_FLOATS,
    TEGROUP_IMPL_ROUTER_HALVES
} tegroup_impl_router_access;

/* What both router kernels are given besides the descriptor. */
typedef struct tegroup_impl_router_way {
    double per_count;                          /* backward: see tegroup_impl_router_per_count  */
    tegroup_impl_router_access in, out;        /* of the matrices of [tokens, experts]         */
    int32_t histogram;                         /* assignments are counted a block at a time    */
    int32_t block_bytes, token_bytes;          /* shared memory of a block, and of each token  */
    int32_t level[TEGROUP_IMPL_ROUTER_LEVELS]; /* where the tree's levels begin, leaves first */
} tegroup_impl_router_way;

static __device__ __forceinline__ char *tegroup_impl_router_memory() {
    extern __shared__ uint4 tegroup_impl_router_shared[];
    return (char *)tegroup_impl_router_shared;
}

/* A warp's batch of tokens, and a lane's part of it. Tokens of one turn lie TURNS apart, and the memory of each is an odd
 * number of quads long, so that neither lanes that share a token nor lanes that have one each meet in a bank. */
template <typename REAL, int LANES, int QUADS, int TURNS> struct tegroup_impl_router_batch {
    typedef tegroup_impl_quad<REAL> quad;
    enum { tokens = 32 / LANES * TURNS };

    int64_t first;
    quad v[TURNS][QUADS];

    static __device__ __forceinline__ int32_t part() { return (int32_t)threadIdx.x % LANES; }
    static __device__ __forceinline__ int32_t quad_of(int j) { return j * LANES + part(); }
    static __device__ __forceinline__ int32_t place(int turn) {
        return (int32_t)threadIdx.x % 32 / LANES * TURNS + turn;
    }
    /* Past the last token the last one is repeated, and nothing is written. */
    __device__ __forceinline__ int64_t row_of(const tegroup_matrix &m, int turn) const {
        return tegroup_impl_min(first + place(turn), m.rows - 1) * m.ld;
    }

    /* Set the loads of the batch from `from` going. Halves stay halves, in half of a quad; elements stay where they are. */
    __device__ __forceinline__ void load(const tegroup_matrix &m, tegroup_impl_router_access access, int64_t from) {
        first = from;
        if (first >= m.rows) return;
        if (access == TEGROUP_IMPL_ROUTER_FLOATS) {
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++) {
                const float4 *row = (const float4 *)((const float *)m.data + row_of(m, turn)) + part();
#pragma unroll
                for (int j = 0; j < QUADS; j++) {
                    if (4 * quad_of(j) >= m.cols) continue;
                    const float4 x = row[j * LANES];
                    v[turn][j].x[0] = (REAL)x.x;
                    v[turn][j].x[1] = (REAL)x.y;
                    v[turn][j].x[2] = (REAL)x.z;
                    v[turn][j].x[3] = (REAL)x.w;
                }
            }
        } else if (access == TEGROUP_IMPL_ROUTER_HALVES) {
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++) {
                const uint2 *row = (const uint2 *)((const uint16_t *)m.data + row_of(m, turn)) + part();
#pragma unroll
                for (int j = 0; j < QUADS; j++) {
                    if (4 * quad_of(j) >= m.cols) continue;
                    const uint2 x = row[j * LANES];
                    v[turn][j].x[0] = (REAL)__uint_as_float(x.x);
                    v[turn][j].x[1] = (REAL)__uint_as_float(x.y);
                }
            }
        }
    }

    /* What load() left where it was, by way of the batch's memory; past the last column `rest`. */
    __device__ __forceinline__ void settle(const tegroup_matrix &m, const tegroup_impl_router_way &way, char *memory,
                                           REAL rest) {
        if (way.in == TEGROUP_IMPL_ROUTER_ELEMENTS) {
            const int32_t bytes = tegroup_impl_bits(m.dtype) / 8, cols = (int32_t)m.cols;
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++) {
                const char *row = (const char *)m.data + row_of(m, turn) * bytes;
                REAL *to = (REAL *)(memory + place(turn) * way.token_bytes);
#pragma unroll 1
                for (int32_t e = part(); e < (cols + 3) / 4 * 4; e += LANES)
                    to[e] = e < cols ? tegroup_impl_load_as(m.dtype, row, e, rest) : rest;
                __syncwarp();
#pragma unroll
                for (int j = 0; j < QUADS; j++)
                    if (4 * quad_of(j) < cols) v[turn][j] = ((const quad *)to)[quad_of(j)];
            }
        }
        if (m.cols > (LANES * QUADS - 1) * 4) return;
#pragma unroll
        for (int j = 0; j < QUADS; j++)
            if (4 * quad_of(j) >= m.cols)
#pragma unroll
                for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
                    for (int i = 0; i < 4; i++) v[turn][j].x[i] = rest;
    }

    /* Halves become numbers. */
    __device__ __forceinline__ void widen(bool bf16) {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                const uint32_t low = __float_as_uint((float)v[turn][j].x[0]),
                               high = __float_as_uint((float)v[turn][j].x[1]);
                v[turn][j].x[0] = (REAL)tegroup_impl_low_half(low, bf16);
                v[turn][j].x[1] = (REAL)tegroup_impl_high_half(low, bf16);
                v[turn][j].x[2] = (REAL)tegroup_impl_low_half(high, bf16);
                v[turn][j].x[3] = (REAL)tegroup_impl_high_half(high, bf16);
            }
    }
};

/* The slots of a warp's batch, taken by its lanes one after another: token of the batch, and choice. */
struct tegroup_impl_router_slots {
    int32_t place, choice, k, places_on, choices_on;

    __device__ __forceinline__ explicit tegroup_impl_router_slots(int32_t k_)
        : place((int32_t)threadIdx.x % 32 / k_), choice((int32_t)threadIdx.x % 32 % k_), k(k_), places_on(32 / k_),
          choices_on(32 % k_) {}
    __device__ __forceinline__ void advance() {
        place += places_on;
        choice += choices_on;
        if (choice >= k) {
            choice -= k;
            place++;
        }
    }
};
