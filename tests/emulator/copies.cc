/* What goes on beside the threads: cp.async, bulk copies, TMA, and the mbarriers that tell of them. */
#include "warp.h"
#include <algorithm>

namespace emulator {
namespace {

/* ---- mbarrier ---- */

/* Bits 0 to 13: how many arrive; 14 to 27: how many are missing; 28: the phase; 32 to 63: bytes that are missing. */

struct phases {
    uint32_t arrivals, missing, phase;
    int32_t bytes;
};
phases read(const uint64_t *at) {
    return {(uint32_t)(*at & 0x3fff), (uint32_t)(*at >> 14 & 0x3fff), (uint32_t)(*at >> 28 & 1), (int32_t)(*at >> 32)};
}
void write(uint64_t *at, phases p) {
    if (p.missing == 0 && p.bytes == 0) p.phase ^= 1, p.missing = p.arrivals;
    *at = p.arrivals | (uint64_t)p.missing << 14 | (uint64_t)p.phase << 28 | (uint64_t)(uint32_t)p.bytes << 32;
}
/* The block of the cluster whose shared memory an address is in, and where it is there. */
block &owner(warp &w, uint64_t *address, const char *what) {
    const uint64_t number = (uint32_t)*address / CLUSTER_STEP;
    *address = (uint32_t)*address % CLUSTER_STEP;
    block *b = number ? w.of->together->blocks.at(number - 1) : w.of;
    if (!b) throw fault(std::string(what) + " of a block that has ended");
    return *b;
}
/* The same place in another block's shared memory, which is laid out as this one's. */
template <typename T> T *in_block(const warp &w, T *here, const block &there) {
    return (T *)(there.shared + ((unsigned char *)here - w.of->shared));
}
uint64_t *barrier_at(warp &w, const operand &o, int lane, const char *what) {
    uint64_t address = base(w, o, lane);
    const block &there = owner(w, &address, what);
    return in_block(w, (uint64_t *)checked_shared(w, address, 8, what), there);
}
void barrier_init(warp &w, const instruction &i, lanes mask) {
    EACH_LANE(l, mask) {
        const uint32_t n = (uint32_t)w.value(i.operands[1].value, l);
        if (n == 0 || n > 0x3fff) throw fault(format("an mbarrier of %u arrivals", n));
        write((uint64_t *)reach(w, i.operands[0], space::shared, l, 8, "mbarrier.init"), {n, n, 0, 0});
    }
}
void barrier_arrive(warp &w, const instruction &i, lanes mask) { /* number 1: bytes are expected, too; 2: no arrival */
    EACH_LANE(l, mask) {
        const size_t first = i.number == 2 ? 0 : 1;
        uint64_t *at = barrier_at(w, i.operands[first], l, "mbarrier.arrive");
        phases p = read(at);
        const uint32_t n = first + 1 < i.operands.size() ? (uint32_t)w.value(i.operands[first + 1].value, l) : 1;
        if (i.number) p.bytes += (int32_t)n;
        const uint32_t arrives = i.number == 2 ? 0 : i.number == 1 ? 1 : n;
        if (p.missing < arrives) throw fault("more arrivals than the mbarrier waits for");
        p.missing -= arrives;
        if (first) w.set(i.operands[0].value, l, *at);
        write(at, p);
    }
}
void barrier_bytes(uint64_t *at, size_t bytes) {
    phases p = read(at);
    p.bytes -= (int32_t)bytes;
    write(at, p);
}
/* Whether the phase of that parity is over. */
bool is_over(const uint64_t *barrier, uint32_t parity) { return read(barrier).phase != (parity & 1); }
void barrier_wait(warp &w, const instruction &i, lanes mask) { /* number 1: may suspend, so that it waits here */
    lanes over = 0;
    EACH_LANE(l, mask) {
        const uint64_t *at = (const uint64_t *)reach(w, i.operands[1], space::shared, l, 8, "mbarrier.try_wait");
        over |= (lanes)is_over(at, (uint32_t)w.value(i.operands[2].value, l)) << l;
    }
    lanes &d = *w.at<lanes>(i.d);
    d = (d & ~mask) | over;
    /* a lane may wait for what another one does behind its own wait: where nothing else goes on, the first are let
     * through */
    if (i.number && over != mask && !(over && w.of->of->impatient)) w.now().state = group::waits;
}

/* ---- cp.async: carried out when it is waited for, and no sooner ---- */

void copy_async(warp &w, const instruction &i, lanes mask) {
    const auto &o = i.operands;
    EACH_LANE(l, mask) {
        const size_t bytes = (size_t)w.value(o[2].value, l);
        size_t some = bytes;
        if (o.size() > 3)
            some =
                o[3].value.width == 1 ? (w.predicate(o[3].value) >> l & 1 ? 0 : bytes) : (size_t)w.value(o[3].value, l);
        unsigned char *to = (unsigned char *)reach(w, o[0], space::shared, l, bytes, "cp.async");
        const unsigned char *from =
            some ? (const unsigned char *)span(w, base(w, o[1], l), some, bytes, "cp.async") : nullptr;
        w.copies[l].open.push_back([=] {
            memset(to, 0, bytes);
            if (some) memcpy(to, from, some);
        });
    }
}
void copy_commit(warp &w, const instruction &, lanes mask) { EACH_LANE(l, mask) w.copies[l].commit(); }
void copy_wait(warp &w, const instruction &i, lanes mask) { /* number 1: all, committed or not */
    EACH_LANE(l, mask) {
        if (i.number) w.copies[l].commit();
        w.copies[l].wait(i.number ? 0 : (size_t)w.value(i.operands[0].value, l));
    }
}
/* Arrives when all copies before it are done. number 1: .noinc */
void copy_arrive(warp &w, const instruction &i, lanes mask) {
    EACH_LANE(l, mask) {
        uint64_t *at = (uint64_t *)reach(w, i.operands[0], space::shared, l, 8, "cp.async.mbarrier.arrive");
        if (!i.number) {
            phases p = read(at);
            p.missing++;
            write(at, p);
        }
        bulk copies = std::move(w.copies[l]);
        w.copies[l] = bulk();
        copies.commit();
        w.of->loads.push_back([at, copies]() mutable {
            copies.wait(0);
            phases p = read(at);
            if (!p.missing) throw fault("more arrivals than the mbarrier waits for");
            p.missing--;
            write(at, p);
        });
    }
}

/* ---- cp.async.bulk ---- */

void bulk_load(warp &w, const instruction &i, lanes mask) { /* [to], [from], bytes, [barrier] */
    EACH_LANE(l, mask) {
        const size_t bytes = (size_t)w.value(i.operands[2].value, l);
        if (bytes % 16) throw fault("a bulk copy of bytes that are no multiple of 16");
        if (!bytes) continue;
        unsigned char *to = (unsigned char *)shared_span(w, base(w, i.operands[0], l), bytes, 16, "cp.async.bulk");
        const unsigned char *from =
            (const unsigned char *)span(w, base(w, i.operands[1], l), bytes, 16, "cp.async.bulk");
        uint64_t *at = (uint64_t *)reach(w, i.operands[3], space::shared, l, 8, "cp.async.bulk");
        w.of->loads.push_back([=] {
            memcpy(to, from, bytes);
            barrier_bytes(at, bytes);
        });
    }
}
void bulk_store(warp &w, const instruction &i, lanes mask) { /* [to], [from], bytes */
    EACH_LANE(l, mask) {
        const size_t bytes = (size_t)w.value(i.operands[2].value, l);
        if (bytes % 16) throw fault("a bulk copy of bytes that are no multiple of 16");
        if (!bytes) continue;
        unsigned char *to = (unsigned char *)span(w, base(w, i.operands[0], l), bytes, 16, "cp.async.bulk");
        const unsigned char *from =
            (const unsigned char *)shared_span(w, base(w, i.operands[1], l), bytes, 16, "cp.async.bulk");
        w.stores[l].open.push_back([=] { memcpy(to, from, bytes); });
    }
}
void bulk_commit(warp &w, const instruction &, lanes mask) { EACH_LANE(l, mask) w.stores[l].commit(); }
void bulk_wait(warp &w, const instruction &i, lanes mask) {
    EACH_LANE(l, mask) w.stores[l].wait((size_t)w.value(i.operands[0].value, l));
}

/* A box of a tensor, element by element: where it lies in shared memory and, if it is part of the tensor, in global
 * memory. */
template <typename F> void each_element(const tensor_map &map, const int32_t *at, uint32_t shared, F f) {
    const size_t rank = map.rank;
    uint32_t n[5] = {0, 0, 0, 0, 0};
    const uint32_t chunk_bits = map.swizzle == 128 ? 7 : map.swizzle == 64 ? 3 : map.swizzle == 32 ? 1 : 0;
    for (uint32_t number = 0;; number++) {
        bool in = true;
        uint64_t address = map.address;
        for (size_t d = 0; d < rank; d++) {
            const int64_t x = (int64_t)at[d] + n[d];
            in &= x >= 0 && x < (int64_t)map.sizes[d];
            address += (uint64_t)x * (d ? map.strides[d - 1] : map.element_bytes);
        }
        uint32_t offset = shared + number * map.element_bytes;
        offset ^= (offset >> 7 & chunk_bits) << 4;
        f(offset, in, address);
        size_t d = 0;
        while (d < rank && ++n[d] == map.box[d]) n[d++] = 0;
        if (d == rank) break;
    }
}
size_t box_bytes(const tensor_map &map) {
    size_t bytes = map.element_bytes;
    for (size_t d = 0; d < map.rank; d++) bytes *= map.box[d];
    return bytes;
}
tensor_map map_at(warp &w, const operand &o, int lane) {
    tensor_map map;
    memcpy(&map, checked(w, base(w, o, lane), 64, "a tensor map"), sizeof map);
    if (map.rank < 1 || map.rank > 5) throw fault("a tensor map that nobody encoded");
    return map;
}
void coordinates(warp &w, const operand &o, const tensor_map &map, int lane, int32_t *at) {
    if (o.items.size() != map.rank)
        throw fault(format("%zu coordinates for a tensor map of rank %d", o.items.size(), map.rank));
    for (size_t d = 0; d < o.items.size(); d++) at[d] = (int32_t)w.value(o.items[d].value, lane);
}
void tensor_load(warp &w, const instruction &i, lanes mask) { /* [to], [map, coordinates], [barrier], and which blocks */
    EACH_LANE(l, mask) {
        const tensor_map map = map_at(w, i.operands[1], l);
        struct {
            int32_t x[5];
        } at;
        coordinates(w, i.operands[1], map, l, at.x);
        const uint32_t to = (uint32_t)base(w, i.operands[0], l);
        shared_span(w, to, box_bytes(map), 128, "a tensor's box");
        uint64_t *barrier = (uint64_t *)reach(w, i.operands[2], space::shared, l, 8, "a tensor's mbarrier");
        warp *own = &w;
        const instruction *what = &i;
        const lanes blocks = i.number ? (lanes)w.value(i.operands[3].value, l) : 1u << w.of->rank;
        EACH_LANE(rank, blocks) {
            uint64_t none = (rank + 1u) * CLUSTER_STEP;
            block &there = owner(w, &none, "a load to shared memory");
            unsigned char *shared = there.shared;
            uint64_t *tells = in_block(w, barrier, there);
            there.loads.push_back([=] {
                try {
                    each_element(map, at.x, to, [&](uint32_t offset, bool in, uint64_t address) {
                        if (in)
                            memcpy(shared + offset, checked(*own, address, map.element_bytes, "a tensor's load"),
                                   map.element_bytes);
                        else memset(shared + offset, 0, map.element_bytes);
                    });
                } catch (const fault &f) {
                    throw fault(std::string(f.what()) + "; " + place_of(*own, *what));
                }
                barrier_bytes(tells, box_bytes(map));
            });
        }
    }
}
void tensor_store(warp &w, const instruction &i, lanes mask) { /* [map, coordinates], [from]; number 1: adds FP32 */
    EACH_LANE(l, mask) {
        const tensor_map map = map_at(w, i.operands[0], l);
        struct {
            int32_t x[5];
        } at;
        coordinates(w, i.operands[0], map, l, at.x);
        const uint32_t from = (uint32_t)base(w, i.operands[1], l);
        shared_span(w, from, box_bytes(map), 128, "a tensor's box");
        const bool adds = i.number != 0;
        if (adds && map.element_bytes != 4) throw fault("an addition to elements that are not FP32");
        warp *own = &w;
        const unsigned char *shared = w.of->shared;
        w.stores[l].open.push_back([=] {
            each_element(map, at.x, from, [&](uint32_t offset, bool in, uint64_t address) {
                if (!in) return;
                void *to = checked(*own, address, map.element_bytes, "a tensor's store");
                if (!adds) memcpy(to, shared + offset, map.element_bytes);
                else {
                    float x, y;
                    memcpy(&x, to, 4);
                    memcpy(&y, shared + offset, 4);
                    x += y;
                    memcpy(to, &x, 4);
                }
            });
        });
    }
}
void replace_field(warp &w, const instruction &i, lanes mask) { /* number: 'a'ddress, 'd'imension, 's'tride */
    EACH_LANE(l, mask) {
        tensor_map *map = (tensor_map *)reach(w, i.operands[0], space::shared, l, 64, "tensormap.replace");
        if (i.number == 'a') map->address = w.value(i.operands[1].value, l);
        else {
            const uint64_t n = w.value(i.operands[1].value, l), x = w.value(i.operands[2].value, l);
            if (n >= map->rank || (i.number == 's' && n + 1 >= map->rank))
                throw fault("tensormap.replace of a dimension that there is not");
            if (i.number == 'd') map->sizes[n] = (uint32_t)x;
            else map->strides[n] = x;
        }
    }
}
void copy_map(warp &w, const instruction &i, lanes mask) {
    const int l = __builtin_ctz(mask);
    memcpy(checked(w, base(w, i.operands[0], l), 64, "a tensor map"),
           reach(w, i.operands[1], space::shared, l, 64, "a tensor map"), 128);
}

} // namespace

bool find_copies(instruction &i) {
    const std::string &text = i.text;
    const auto parts = parts_of(text);
    const std::string &op = parts[0];
    const auto has = [&](const char *part) { return std::find(parts.begin(), parts.end(), part) != parts.end(); };
    const auto set = [&](handler run, flow how = flow::plain) {
        i.run = run;
        i.how = how;
        return run != nullptr;
    };
    if (op == "mbarrier") {
        if (parts[1] == "init") return set(barrier_init);
        if (parts[1] == "inval") return set(nothing);
        if (parts[1] == "arrive") return i.number = has("expect_tx"), set(barrier_arrive);
        if (parts[1] == "expect_tx") return i.number = 2, set(barrier_arrive);
        if ((parts[1] == "try_wait" || parts[1] == "test_wait") && !has("parity")) return false;
        if (parts[1] == "try_wait") return i.number = 1, set(barrier_wait, flow::wait);
        if (parts[1] == "test_wait") return set(barrier_wait, flow::wait);
        return false;
    }
    if (starts(text, "cp.async.bulk.commit_group")) return set(bulk_commit);
    if (starts(text, "cp.async.bulk.wait_group")) return set(bulk_wait);
    if (starts(text, "cp.async.bulk.prefetch")) return set(nothing);
    if (starts(text, "cp.async.bulk.tensor."))
        return i.number = contains(text, ".multicast::cluster"),
               set(contains(text, ".shared::cluster.global") ? tensor_load
                   : contains(text, ".global.shared::cta")   ? tensor_store
                                                             : nullptr);
    if (starts(text, "cp.reduce.async.bulk.tensor.") && contains(text, ".add.")) return i.number = 1, set(tensor_store);
    if (starts(text, "cp.async.bulk."))
        return set(contains(text, ".shared::cluster.global") ? bulk_load
                   : contains(text, ".global.shared::cta")   ? bulk_store
                                                             : nullptr);
    if (starts(text, "cp.async.mbarrier.arrive")) return i.number = contains(text, ".noinc"), set(copy_arrive);
    if (text == "cp.async.commit_group") return set(copy_commit);
    if (text == "cp.async.wait_group") return set(copy_wait);
    if (text == "cp.async.wait_all") return i.number = 1, set(copy_wait);
    if (starts(text, "cp.async.c")) {
        if (contains(text, "cache_hint")) i.operands.pop_back();
        return set(copy_async);
    }
    if (starts(text, "tensormap.replace"))
        return i.number = contains(text, "global_address")  ? 'a'
                          : contains(text, "global_dim")    ? 'd'
                          : contains(text, "global_stride") ? 's'
                                                            : 0,
               set(i.number ? replace_field : nullptr);
    if (starts(text, "tensormap.cp_fenceproxy")) return set(copy_map, flow::together);
    return false;
}

} // namespace emulator
