/* What runs: blocks of warps, whose lanes may have gone apart. */
#ifndef TEGROUP_EMULATOR_WARP_H
#define TEGROUP_EMULATOR_WARP_H

#include "program.h"
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>

namespace emulator {

/* A function's registers and areas, of all lanes that called it together. */
struct frame {
    const function *of;
    std::shared_ptr<frame> caller;
    int32_t back = 0; /* where the caller goes on */
    int32_t depth = 0;
    std::vector<unsigned char> registers, areas; /* areas: 32 times area_bytes */
};

/* Lanes that are at one place. */
struct group {
    enum {
        runs,
        at_block_barrier,
        at_warp_barrier,
        apart, /* at an instruction of several lanes, which are not all here */
        ahead, /* of lanes that may still come here */
        waits  /* for an mbarrier */
    } state = runs;
    lanes mask = 0;
    int32_t pc = 0;
    std::shared_ptr<frame> top;
    lanes needs = 0;       /* apart, at_warp_barrier: lanes that must be there, too */
    uint32_t number = 0;   /* at_block_barrier: which */
    bool released = false; /* used while a warp's barrier is looked at */
};

typedef std::function<void()> later;
struct bulk { /* what a lane has under way, or a warp's wgmma */
    std::deque<std::vector<later>> groups;
    std::vector<later> open; /* the group that is not committed yet */

    void commit() {
        groups.push_back(std::move(open));
        open.clear();
    }
    void wait(size_t most) { /* carries out all groups but so many */
        for (; groups.size() > most; groups.pop_front())
            for (const later &f : groups.front()) f();
    }
};

struct block;
struct warp {
    block *of;
    int32_t number;
    lanes living;
    std::vector<group> groups;
    size_t current = 0;
    unsigned char *registers, *constants; /* of the current group's frame */
    unsigned char *areas;
    bulk copies[32], stores[32], products;
    uint32_t cluster_round[32] = {}; /* in which a lane has arrived at the cluster's barrier */
    lanes carry = 0; /* CC.CF, which instructions with .cc write and addc, subc and madc read */

    template <typename T> T *at(slot s) { return (T *)(s.at >= 0 ? registers + s.at : constants + ~s.at); }
    group &now() { return groups[current]; }
    const frame &top() { return *groups[current].top; }
    lanes predicate(slot s) {
        const lanes p = *at<lanes>(s);
        return s.negated ? ~p : p;
    }
    uint64_t value(slot s, int lane) { return s.width == 64 ? at<uint64_t>(s)[lane] : at<uint32_t>(s)[lane]; }
    void set(slot s, int lane, uint64_t x) {
        if (s.width == 64) at<uint64_t>(s)[lane] = x;
        else if (s.width) at<uint32_t>(s)[lane] = (uint32_t)(s.width == 16 ? x & 0xffff : x);
    }
};

struct barrier {
    uint32_t arrived = 0, expected = 0;             /* expected: 0 = all living threads */
    bool any = false;                               /* of bar.red.or's predicates */
    std::vector<std::function<void(bool)>> results; /* who is told */
};

/* Blocks that can reach each other's shared memory: one, unless the launch says more. */
struct cluster {
    std::vector<block *> blocks; /* by rank; NULL: it has ended */
    uint32_t arrived = 0, rounds = 0;

    bool release(); /* its barrier, if all living threads have arrived */
};

struct grid;
struct block {
    grid *of;
    std::shared_ptr<cluster> together;
    uint32_t id[3], rank = 0;
    unsigned char *shared = nullptr; /* aligned to 1024; offsets from it are shared addresses */
    std::vector<warp> warps;
    uint32_t living;
    barrier barriers[16];
    std::vector<later> loads; /* that TMA has not carried out yet */
    ~block() { free(shared); }
};

inline bool cluster::release() {
    uint32_t living = 0;
    for (const block *b : blocks) living += b ? b->living : 0;
    if (!arrived || arrived < living) return false;
    arrived = 0;
    rounds++;
    return true;
}

struct grid {
    const kernel *what;
    launch how;
    std::vector<place> shared; /* what a block may touch of its shared memory */
    size_t shared_end;
    std::vector<unsigned char *> memories; /* of blocks that have ended */
    const unsigned char *parameters;
    size_t parameter_bytes;
    std::vector<unsigned char> barrier_memory; /* of a cooperative grid */
    std::mt19937 chance;
    bool impatient = false; /* nothing else can go on: lanes no longer wait for those behind them */
};

/* Memory that a lane may touch at a generic address. Throws a fault that names it otherwise. */
void *checked(warp &, uint64_t address, size_t bytes, const char *what);
void *checked_shared(warp &, uint64_t offset, size_t bytes, const char *what);
/* As many bytes from an address on that is a multiple of `align`. */
void *span(warp &, uint64_t address, size_t bytes, size_t align, const char *what);
void *shared_span(warp &, uint64_t offset, size_t bytes, size_t align, const char *what);

/* An instruction, where it stands in the source. */
std::string place_of(const warp &, const instruction &);

/* An operand's address for a lane, and where it leads. */
inline uint64_t base(warp &w, const operand &o, int lane) { return w.value(o.value, lane) + (uint64_t)o.offset; }

inline void *reach(warp &w, const operand &o, space where, int lane, size_t bytes, const char *what) {
    if (o.parameter >= 0) return w.areas + (size_t)lane * w.top().of->area_bytes + (size_t)o.parameter + o.offset;
    if (o.own) return const_cast<unsigned char *>(w.of->of->parameters) + o.offset;
    const uint64_t at = base(w, o, lane);
    if (where == space::shared) return checked_shared(w, o.value.width == 32 ? (uint32_t)at : at, bytes, what);
    if (where == space::global && at - (uintptr_t)w.of->shared < w.of->of->shared_end)
        throw fault(std::string(what) + " of shared memory as if it were global");
    return checked(w, at, bytes, what);
}

/* A function of a lane, for each of the mask. */
template <typename F> inline void each(lanes mask, F f) {
    if (mask == ~0u)
        for (int lane = 0; lane < 32; lane++) f(lane);
    else
        for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
}
#define EACH_LANE(lane, mask)                                                                                          \
    for (lanes left_ = (mask); left_; left_ &= left_ - 1)                                                              \
        if (const int lane = __builtin_ctz(left_); true)

} // namespace emulator
#endif
