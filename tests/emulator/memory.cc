/* Loads, stores and atomics; addresses and special registers; votes and shuffles; barriers of a warp and of a block. */
#include "warp.h"
#include <algorithm>
#include <cstdlib>

namespace emulator {
namespace {

/* ---- addresses ---- */

bool has(const std::vector<std::string> &parts, const char *part) {
    return std::find(parts.begin(), parts.end(), part) != parts.end();
}
space space_of(const std::vector<std::string> &parts) {
    for (const std::string &p : parts) {
        if (p.rfind("shared", 0) == 0) return space::shared;
        if (p == "global") return space::global;
        if (p == "local") return space::local;
        if (p.rfind("param", 0) == 0) return space::param;
        if (p == "const") return space::constant;
    }
    return space::generic;
}
int type_bytes(const std::string &type) { return atoi(type.c_str() + 1) / 8; }

/* ---- ld, st ---- number: bytes of an element; more: 1 = signed. c.at: the space. */

template <bool STORES, int BYTES> void access(warp &w, const instruction &i, lanes mask) {
    const operand &address = i.operands[STORES ? 0 : 1], &values = i.operands[STORES ? 1 : 0];
    const size_t count = values.kind == operand::is_list ? values.items.size() : 1;
    unsigned char *at[32];
    const space where = (space)i.c.at;
    each(mask, [&](int l) {
        at[l] = (unsigned char *)reach(w, address, where, l, BYTES * count, STORES ? "a store" : "a load");
    });
    for (size_t n = 0; n < count; n++) {
        const slot s = values.kind == operand::is_list ? values.items[n].value : values.value;
        each(mask, [&](int l) {
            uint64_t x = 0;
            if (STORES) {
                x = w.value(s, l);
                memcpy(at[l] + n * BYTES, &x, BYTES);
            } else {
                memcpy(&x, at[l] + n * BYTES, BYTES);
                if (i.more && BYTES < 8) x = (uint64_t)((int64_t)(x << (64 - 8 * BYTES)) >> (64 - 8 * BYTES));
                w.set(s, l, x);
            }
        });
    }
}
template <bool STORES> handler access_of(int bytes) {
    return bytes == 1   ? access<STORES, 1>
           : bytes == 2 ? access<STORES, 2>
           : bytes == 4 ? access<STORES, 4>
           : bytes == 8 ? access<STORES, 8>
                        : nullptr;
}

/* ---- atom, red ---- */

enum operation { ADD, MIN, MAX, AND, OR, XOR, EXCHANGE, COMPARE_AND_SWAP, INCREMENT, DECREMENT };
template <typename T> T combined(operation o, T x, T y, T z) {
    switch (o) {
    case ADD: return (T)(x + y);
    case MIN: return y < x ? y : x;
    case MAX: return y > x ? y : x;
    case EXCHANGE: return y;
    case COMPARE_AND_SWAP: return x == y ? z : x;
    default: break;
    }
    if constexpr (std::is_integral<T>::value) {
        if (o == AND) return x & y;
        if (o == OR) return x | y;
        if (o == XOR) return x ^ y;
        if (o == INCREMENT) return x >= y ? 0 : (T)(x + 1);
        if (o == DECREMENT) return x == 0 || x > y ? y : (T)(x - 1);
    }
    throw fault("an atomic operation that its type does not have");
}
template <typename T, bool RETURNS> void atomic(warp &w, const instruction &i, lanes mask) {
    const size_t first = RETURNS ? 1 : 0;
    EACH_LANE(l, mask) {
        T *at = (T *)reach(w, i.operands[first], (space)i.c.at, l, sizeof(T), "an atomic access"), x, y, z = 0;
        const auto number = [&](size_t n, T *to) {
            const uint64_t bits = n < i.operands.size() ? w.value(i.operands[n].value, l) : 0;
            memcpy(to, &bits, sizeof(T));
        };
        number(first + 1, &y);
        number(first + 2, &z);
        memcpy(&x, at, sizeof x);
        const T after = combined((operation)i.number, x, y, z);
        memcpy(at, &after, sizeof after);
        if (RETURNS) {
            uint64_t bits = 0;
            memcpy(&bits, &x, sizeof x);
            w.set(i.operands[0].value, l, bits);
        }
    }
}
template <bool RETURNS> handler atomic_of(const std::string &type) {
    return type == "u32" || type == "b32"   ? atomic<uint32_t, RETURNS>
           : type == "s32"                  ? atomic<int32_t, RETURNS>
           : type == "u64" || type == "b64" ? atomic<uint64_t, RETURNS>
           : type == "s64"                  ? atomic<int64_t, RETURNS>
           : type == "f32"                  ? atomic<float, RETURNS>
           : type == "f64"                  ? atomic<double, RETURNS>
                                            : nullptr;
}

/* ---- addresses as values ---- */

void copy_value(warp &w, const instruction &i, lanes mask) { EACH_LANE(l, mask) w.set(i.d, l, w.value(i.a, l)); }
void shared_to_generic(warp &w, const instruction &i, lanes mask) {
    EACH_LANE(l, mask) w.set(i.d, l, (uint64_t)(uintptr_t)w.of->shared + w.value(i.a, l));
}
void generic_to_shared(warp &w, const instruction &i, lanes mask) {
    EACH_LANE(l, mask) w.set(i.d, l, w.value(i.a, l) - (uint64_t)(uintptr_t)w.of->shared);
}
void local_address(warp &w, const instruction &i, lanes mask) {
    EACH_LANE(l, mask)
    w.set(i.d, l, (uint64_t)(uintptr_t)w.areas + (uint64_t)l * w.top().of->area_bytes + (uint64_t)i.number);
}
void parameter_address(warp &w, const instruction &i, lanes mask) {
    EACH_LANE(l, mask) w.set(i.d, l, (uint64_t)(uintptr_t)w.of->of->parameters + (uint64_t)i.number);
}
void dynamic_address(warp &w, const instruction &i, lanes mask) {
    EACH_LANE(l, mask) w.set(i.d, l, DYNAMIC_BEGIN + (uint64_t)i.number);
}

enum special {
    TID,
    NTID,
    CTAID,
    NCTAID,
    LANE,
    WARP,
    LANES_EQ,
    LANES_LT,
    LANES_LE,
    LANES_GT,
    LANES_GE,
    CLOCK,
    SM,
    SMS,
    TOGETHER,
    SHARED_BYTES,
    RANK,
    RANKS,
    ZERO
};
uint32_t special_value(warp &w, special what, int d, int lane) {
    const launch &how = w.of->of->how;
    const uint32_t t = (uint32_t)w.number * 32 + (uint32_t)lane;
    switch (what) {
    case TID:
        return d == 0 ? t % how.block[0] : d == 1 ? t / how.block[0] % how.block[1] : t / how.block[0] / how.block[1];
    case NTID: return how.block[d];
    case CTAID: return w.of->id[d];
    case NCTAID: return how.grid[d];
    case LANE: return (uint32_t)lane;
    case WARP: return (uint32_t)w.number;
    case LANES_EQ: return 1u << lane;
    case LANES_LT: return (1u << lane) - 1;
    case LANES_LE: return 2u << lane ? (2u << lane) - 1 : ~0u;
    case LANES_GT: return lane == 31 ? 0 : ~0u << (lane + 1);
    case LANES_GE: return ~0u << lane;
    case TOGETHER: return (uint32_t)((uintptr_t)w.of->of->barrier_memory.data() >> (d ? 32 : 0));
    case RANK: return w.of->rank;
    case RANKS: return how.cluster;
    case SHARED_BYTES: return (uint32_t)how.dynamic_shared;
    default: return 0;
    }
}
void special_register(warp &w, const instruction &i, lanes mask) {
    static uint64_t clock;
    if (i.number == CLOCK) {
        clock += 1000;
        EACH_LANE(l, mask) w.set(i.d, l, clock);
    } else EACH_LANE(l, mask) w.set(i.d, l, special_value(w, (special)i.number, (int)i.more, l));
}
bool find_special(instruction &i) {
    static const struct {
        const char *name;
        special what;
        int d;
    } all[] = {{"%tid.x", TID, 0},
               {"%tid.y", TID, 1},
               {"%tid.z", TID, 2},
               {"%ntid.x", NTID, 0},
               {"%ntid.y", NTID, 1},
               {"%ntid.z", NTID, 2},
               {"%ctaid.x", CTAID, 0},
               {"%ctaid.y", CTAID, 1},
               {"%ctaid.z", CTAID, 2},
               {"%nctaid.x", NCTAID, 0},
               {"%nctaid.y", NCTAID, 1},
               {"%nctaid.z", NCTAID, 2},
               {"%laneid", LANE, 0},
               {"%warpid", WARP, 0},
               {"%lanemask_eq", LANES_EQ, 0},
               {"%lanemask_lt", LANES_LT, 0},
               {"%lanemask_le", LANES_LE, 0},
               {"%lanemask_gt", LANES_GT, 0},
               {"%lanemask_ge", LANES_GE, 0},
               {"%clock", CLOCK, 0},
               {"%clock64", CLOCK, 0},
               {"%globaltimer", CLOCK, 0},
               {"%globaltimer_lo", CLOCK, 0},
               {"%envreg2", TOGETHER, 0},
               {"%envreg1", TOGETHER, 1},
               {"%dynamic_smem_size", SHARED_BYTES, 0},
               {"%cluster_ctarank", RANK, 0},
               {"%cluster_nctarank", RANKS, 0},
               {"%smid", SM, 0},
               {"%nsmid", SMS, 0}};
    for (const auto &s : all)
        if (i.text == std::string("special") + s.name) {
            i.number = s.what, i.more = s.d;
            i.run = special_register;
            return true;
        }
    return false;
}

/* ---- clusters ---- */

void map_address(warp &w, const instruction &i, lanes mask) { /* d, a, rank */
    EACH_LANE(l, mask) {
        const uint32_t rank = (uint32_t)w.value(i.b, l);
        if (rank >= w.of->of->how.cluster) throw fault(format("block %u of a cluster of %u", rank, w.of->of->how.cluster));
        w.set(i.d, l, (uint32_t)w.value(i.a, l) % CLUSTER_STEP + (rank + 1) * CLUSTER_STEP);
    }
}
void cluster_arrive(warp &w, const instruction &, lanes mask) {
    cluster &c = *w.of->together;
    EACH_LANE(l, mask) w.cluster_round[l] = c.rounds;
    c.arrived += (uint32_t)__builtin_popcount(mask);
    c.release();
}
void cluster_wait(warp &w, const instruction &, lanes mask) {
    EACH_LANE(l, mask)
    if (w.cluster_round[l] == w.of->together->rounds) w.now().state = group::waits;
}

/* ---- lanes that tell each other ---- */

template <int MODE> void shuffle(warp &w, const instruction &i, lanes mask) { /* 'u'p, 'd'own, 'b'utterfly, 'i'ndex */
    uint32_t from[32], results[32];
    lanes valid = 0;
    memcpy(from, w.at<uint32_t>(i.a), sizeof from);
    const lanes there = w.now().mask & mask;
    EACH_LANE(l, mask) {
        const int b = (int)w.value(i.b, l) & 31, c = (int)w.value(i.c, l), segment = c >> 8 & 31, clamp = c & 31;
        const int most = (l & segment) | (clamp & ~segment), least = l & segment;
        int j = MODE == 'u' ? l - b : MODE == 'd' ? l + b : MODE == 'b' ? (l ^ b) : (least | (b & ~segment));
        const bool in = MODE == 'u' ? j >= most : j <= most;
        if (!in) j = l;
        valid |= (lanes)in << l;
        results[l] = there >> j & 1 ? from[j] : 0xEEEEEEEEu;
    }
    EACH_LANE(l, mask) w.at<uint32_t>(i.d)[l] = results[l];
    if (i.operands[0].second.width) {
        lanes &p = *w.at<lanes>(i.operands[0].second);
        p = (p & ~mask) | (valid & mask);
    }
}
template <int MODE> void vote(warp &w, const instruction &i, lanes mask) {
    const lanes p = w.predicate(i.a) & mask & (lanes)w.value(i.b, __builtin_ctz(mask));
    if (MODE == 'b') {
        EACH_LANE(l, mask) w.at<uint32_t>(i.d)[l] = p;
        return;
    }
    const bool result = MODE == 'a' ? p == (mask & (lanes)w.value(i.b, __builtin_ctz(mask))) : p != 0;
    lanes &d = *w.at<lanes>(i.d);
    d = result ? d | mask : d & ~mask;
}
void match_any(warp &w, const instruction &i, lanes mask) {
    lanes results[32];
    EACH_LANE(l, mask) {
        results[l] = 0;
        for (int m = 0; m < 32; m++)
            if (mask >> m & 1 && w.value(i.a, m) == w.value(i.a, l)) results[l] |= 1u << m;
    }
    EACH_LANE(l, mask) w.set(i.d, l, results[l]);
}
template <typename T, operation O> void reduce(warp &w, const instruction &i, lanes mask) {
    bool first = true;
    T sum = 0;
    EACH_LANE(l, mask) {
        const T x = (T)w.at<uint32_t>(i.a)[l];
        sum = first ? x : combined<T>(O, sum, x, 0);
        first = false;
    }
    EACH_LANE(l, mask) w.at<uint32_t>(i.d)[l] = (uint32_t)sum;
}
void active(warp &w, const instruction &i, lanes mask) { EACH_LANE(l, mask) w.set(i.d, l, mask); }
void zero(warp &w, const instruction &i, lanes mask) { EACH_LANE(l, mask) w.set(i.d, l, 0); }
void trap(warp &, const instruction &, lanes) { throw fault("a trap"); }

} // namespace

bool find_memory(instruction &i) {
    const std::string &text = i.text;
    const auto parts = parts_of(text);
    const std::string &op = parts[0];
    const auto set = [&](handler run, flow how = flow::plain) {
        i.run = run;
        i.how = how;
        return run != nullptr;
    };
    const auto operand_slot = [&](size_t n) { return n < i.operands.size() ? i.operands[n].value : slot(); };

    if (starts(text, "special")) return find_special(i);
    if (text == "address.local") return set(local_address);
    if (text == "address.param") return set(parameter_address);
    if (text == "address.dynamic") return set(dynamic_address);
    if (op == "ld" || op == "st") {
        const std::string &type = parts.back();
        const int bytes = type_bytes(type);
        i.more = type[0] == 's';
        i.c.at = (int32_t)space_of(parts);
        return set(op == "st" ? access_of<true>(bytes) : access_of<false>(bytes));
    }
    if (op == "atom" || op == "red") {
        if (has(parts, "v2") || has(parts, "v4") || has(parts, "v8")) return false;
        static const struct {
            const char *name;
            operation o;
        } all[] = {{"add", ADD},       {"min", MIN},      {"max", MAX},       {"and", AND},
                   {"or", OR},         {"xor", XOR},      {"exch", EXCHANGE}, {"cas", COMPARE_AND_SWAP},
                   {"inc", INCREMENT}, {"dec", DECREMENT}};
        i.c.at = (int32_t)space_of(parts);
        for (const auto &o : all)
            if (has(parts, o.name)) {
                i.number = o.o;
                return set(op == "atom" ? atomic_of<true>(parts.back()) : atomic_of<false>(parts.back()));
            }
        return false;
    }
    if (op == "cvta") {
        if (has(parts, "shared")) return set(has(parts, "to") ? generic_to_shared : shared_to_generic);
        return set(copy_value);
    }
    if (op == "shfl") {
        i.mask = operand_slot(4);
        return set(has(parts, "up")     ? shuffle<'u'>
                   : has(parts, "down") ? shuffle<'d'>
                   : has(parts, "bfly") ? shuffle<'b'>
                                        : shuffle<'i'>,
                   flow::together);
    }
    if (op == "vote") {
        i.mask = operand_slot(2);
        return set(has(parts, "ballot") ? vote<'b'>
                   : has(parts, "all")  ? vote<'a'>
                   : has(parts, "any")  ? vote<'o'>
                                        : nullptr,
                   flow::together);
    }
    if (starts(text, "match.any")) {
        i.mask = operand_slot(2);
        return set(match_any, flow::together);
    }
    if (op == "redux") {
        i.mask = operand_slot(2);
        const bool is_signed = parts.back() == "s32";
        return set(has(parts, "max")   ? (is_signed ? reduce<int32_t, MAX> : reduce<uint32_t, MAX>)
                   : has(parts, "min") ? (is_signed ? reduce<int32_t, MIN> : reduce<uint32_t, MIN>)
                   : has(parts, "add") ? reduce<uint32_t, ADD>
                   : has(parts, "or")  ? reduce<uint32_t, OR>
                   : has(parts, "and") ? reduce<uint32_t, AND>
                                       : nullptr,
                   flow::together);
    }
    if (op == "activemask") return set(active);
    if (text == "bar.warp.sync") {
        i.mask = operand_slot(0);
        return set(nothing, flow::warp_barrier);
    }
    if (starts(text, "mapa.shared::cluster.u32")) {
        i.d = operand_slot(0), i.a = operand_slot(1), i.b = operand_slot(2);
        return set(map_address);
    }
    if (starts(text, "barrier.cluster.arrive")) return set(cluster_arrive, has(parts, "aligned") ? flow::together : flow::plain);
    if (starts(text, "barrier.cluster.wait")) return set(cluster_wait, flow::wait);
    if (op == "bar" || op == "barrier") {
        i.how = flow::block_barrier;
        i.run = nothing;
        if (text == "bar.red.or.pred" || text == "barrier.red.or.pred"
            || text == "barrier.red.or.aligned.pred") { /* p, barrier, q */
            if (i.operands.size() != 3) return false;
            i.d = operand_slot(0), i.a = operand_slot(1), i.c = operand_slot(2), i.b = slot();
            return true;
        }
        if (!has(parts, "sync")) return false;
        i.d = slot(), i.a = operand_slot(0), i.b = operand_slot(1);
        return true;
    }
    if (op == "createpolicy") return set(zero);
    if (op == "trap") return set(trap);
    if (op == "fence" || op == "membar" || op == "setmaxnreg" || op == "nanosleep" || op == "prefetch"
        || op == "prefetchu" || op == "griddepcontrol" || op == "discard" || op == "applypriority"
        || text == "wgmma.fence.sync.aligned")
        return set(nothing);
    return false;
}

} // namespace emulator
