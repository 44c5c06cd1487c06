/* Runs a grid: blocks, warps and groups of lanes take turns, in an order that a seed decides (EMULATOR_SEED). */
#include "warp.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

namespace emulator {

/* ---- memory ---- */

static std::map<uintptr_t, size_t> allocations;
static uint64_t last, last_bytes; /* the allocation that was touched last, where the next access mostly is, too */

void add_memory(void *at, size_t bytes) { allocations[(uintptr_t)at] = bytes; }
void remove_memory(void *at) {
    allocations.erase((uintptr_t)at);
    last_bytes = 0;
}

static bool inside(const void *memory, size_t size, uint64_t address, size_t bytes) {
    return address >= (uintptr_t)memory && address - (uintptr_t)memory + bytes <= size;
}

void *checked(warp &w, uint64_t address, size_t bytes, const char *what) {
    return span(w, address, bytes, bytes & -bytes, what);
}
void *checked_shared(warp &w, uint64_t offset, size_t bytes, const char *what) {
    return shared_span(w, offset, bytes, bytes & -bytes, what);
}

void *span(warp &w, uint64_t address, size_t bytes, size_t align, const char *what) {
    if (address % align)
        throw fault(format("%s at 0x%llx, which is no multiple of %zu", what, (unsigned long long)address, align));
    if (address >= last && address - last + bytes <= last_bytes) return (void *)address;
    const block &b = *w.of;
    if (inside(b.shared, b.of->shared_end, address, bytes))
        return shared_span(w, address - (uintptr_t)b.shared, bytes, align, what);
    for (const frame *f = w.groups.empty() ? nullptr : &w.top(); f; f = f->caller.get())
        if (inside(f->areas.data(), f->areas.size(), address, bytes)) return (void *)address;
    if (inside(b.of->parameters, b.of->parameter_bytes, address, bytes)) return (void *)address;
    if (inside(b.of->barrier_memory.data(), b.of->barrier_memory.size(), address, bytes)) return (void *)address;
    auto next = allocations.upper_bound((uintptr_t)address);
    if (next != allocations.begin()) {
        --next;
        if (inside((void *)next->first, next->second, address, bytes)) {
            last = next->first, last_bytes = next->second;
            return (void *)address;
        }
        throw fault(format("%s of %zu bytes at 0x%llx, %lld bytes behind the end of %zu bytes at 0x%llx", what, bytes,
                           (unsigned long long)address, (long long)(address - next->first - next->second), next->second,
                           (unsigned long long)next->first));
    }
    throw fault(format("%s of %zu bytes at 0x%llx, where no memory is", what, bytes, (unsigned long long)address));
}

void *shared_span(warp &w, uint64_t offset, size_t bytes, size_t align, const char *what) {
    const block &b = *w.of;
    if (offset % align)
        throw fault(format("%s at 0x%llx of shared memory, which is no multiple of %zu", what,
                           (unsigned long long)offset, align));
    for (const place &p : b.of->shared)
        if (offset >= p.offset && offset + bytes <= p.offset + p.bytes) return b.shared + offset;
    throw fault(format("%s of %zu bytes at 0x%llx of shared memory, in none of its variables", what, bytes,
                       (unsigned long long)offset));
}

/* ---- one step of a group ---- */

std::string place_of(const warp &w, const instruction &i) {
    const auto &files = w.of->of->what->from->files;
    const auto file = files.find(i.file);
    return file == files.end()
               ? format("%s, PTX line %d", i.text.c_str(), i.line)
               : format("%s, %s:%d, PTX line %d", i.text.c_str(), file->second.c_str(), i.source, i.line);
}

static void enter(warp &w) { /* the current group's frame */
    frame &f = *w.now().top;
    w.registers = f.registers.data();
    w.areas = f.areas.data();
    w.constants = const_cast<unsigned char *>(f.of->constants.data());
}

static std::shared_ptr<frame> new_frame(const function *of, std::shared_ptr<frame> caller, int32_t back) {
    frame *f;
    if (of->spare.empty()) {
        f = new frame;
        f->of = of;
        f->registers.assign(of->register_bytes, 0xEE); /* what no instruction wrote */
        f->areas.resize(of->area_bytes * 32);
    } else {
        f = of->spare.back();
        of->spare.pop_back();
    }
    std::fill(f->areas.begin(), f->areas.end(), 0xEE);
    f->depth = caller ? caller->depth + 1 : 0;
    f->caller = std::move(caller);
    f->back = back;
    return std::shared_ptr<frame>(f, [of](frame *old) {
        old->caller.reset();
        of->spare.push_back(old);
    });
}

static void leave(warp &w, lanes which) { /* lanes end */
    EACH_LANE(lane, which) {
        w.copies[lane].wait(0);
        if (!w.stores[lane].groups.empty() || !w.stores[lane].open.empty())
            throw fault("a thread ends, and its bulk stores may still read shared memory");
    }
    w.living &= ~which;
    w.of->living -= (uint32_t)__builtin_popcount(which);
    group &g = w.now();
    g.mask &= ~which;
    if (!g.mask) w.groups.erase(w.groups.begin() + (long)w.current), w.current = 0;
}

/* Groups at one place become one. Returns whether the current one has grown. */
static bool merge(warp &w) {
    bool grown = false;
    for (size_t i = 0; i < w.groups.size();) {
        group &g = w.now(), &other = w.groups[i];
        if (i != w.current && other.top == g.top && other.pc == g.pc
            && (other.state == group::runs || other.state == group::apart || other.state == group::ahead)) {
            g.mask |= other.mask;
            w.groups.erase(w.groups.begin() + (long)i);
            if (i < w.current) w.current--;
            grown = true;
        } else i++;
    }
    return grown;
}

/* Whether other lanes of the warp may still come to where the current group is. As hardware does, lanes that went
 * apart meet again before they call a function or stop at a barrier; PTX does not say where, so that it is whoever
 * is further back in the code. */
static bool is_ahead(const warp &w) {
    const group &g = w.groups[w.current];
    for (const group &other : w.groups) {
        if (&other == &g) continue;
        int32_t pc = other.pc;
        const frame *f = other.top.get();
        while (f && f != g.top.get()) pc = f->back, f = f->caller.get();
        if (f && pc <= g.pc) return true;
    }
    return false;
}

static bool release_block(block &b, barrier &at) {
    const uint32_t expected = at.expected ? at.expected : b.living;
    if (!at.arrived || at.arrived < expected) return false;
    const size_t number = (size_t)(&at - b.barriers);
    for (warp &w : b.warps)
        for (group &g : w.groups)
            if (g.state == group::at_block_barrier && g.number == number) g.state = group::runs;
    for (const auto &tell : at.results) tell(at.any);
    at = barrier();
    return true;
}

/* Lanes at a warp's barrier go on when all of its mask that live are there. */
static void release_warp(warp &w) {
    for (group &g : w.groups) {
        if (g.state != group::at_warp_barrier) continue;
        lanes there = 0;
        for (const group &other : w.groups)
            if (other.needs == g.needs && (other.state == group::at_warp_barrier || other.released))
                there |= other.mask;
        g.released = !(g.needs & w.living & ~there);
    }
    for (group &g : w.groups) {
        if (g.released) g.state = group::runs;
        g.released = false;
    }
}

/* Runs the current group until it has to wait, or for `quantum` instructions. Returns how many it ran. merges: joins
 * others that it meets. */
static int slice(warp &w, int quantum, bool merges) {
    enter(w);
    int ran = 0;
    for (; ran < quantum; ran++) {
        if (merges && w.groups.size() > 1) merge(w);
        group &g = w.now();
        const function &f = *g.top->of;
        const instruction &i = f.code[(size_t)g.pc];
        const lanes all = g.mask;
        const lanes mask = i.guard.width ? all & w.predicate(i.guard) : all;
        try {
            switch (i.how) {
            case flow::plain:
                if (mask) i.run(w, i, mask);
                g.pc++;
                break;
            case flow::branch:
                if (mask == all) g.pc = i.target;
                else if (!mask) g.pc++;
                else {
                    group other = g; /* stays behind: those that do not branch */
                    other.mask = all & ~mask;
                    other.pc = g.pc + 1;
                    g.mask = mask;
                    g.pc = i.target;
                    w.groups.push_back(other);
                    return ran + 1;
                }
                if (w.groups.size() > 1) return ran + 1;
                break;
            case flow::call: {
                if (mask != all) throw fault("a call by some of the lanes");
                if (w.groups.size() > 1 && !w.of->of->impatient && is_ahead(w)) return g.state = group::ahead, ran + 1;
                const function &callee = *i.callee;
                if (!callee.has_body) throw fault("a call of " + callee.name + ", which has no body");
                auto next = new_frame(&callee, g.top, g.pc + 1);
                const auto &from = i.operands[1].items;
                EACH_LANE(lane, mask)
                for (size_t p = 0; p < from.size(); p++)
                    memcpy(&next->areas[(size_t)lane * callee.area_bytes + callee.parameters[p].offset],
                           &g.top->areas[(size_t)lane * f.area_bytes + (size_t)from[p].parameter],
                           callee.parameters[p].bytes);
                g.top = next;
                g.pc = 0;
                enter(w);
                break;
            }
            case flow::leave: {
                if (!mask) {
                    g.pc++;
                    break;
                }
                if (mask != all) {
                    group other = g;
                    other.mask = all & ~mask;
                    other.pc = g.pc + 1;
                    g.mask = mask;
                    w.groups.push_back(other);
                    continue;
                }
                const auto caller = g.top->caller;
                const function &from = *caller->of;
                const instruction &called = from.code[(size_t)g.top->back - 1];
                const auto &to = called.operands[0].items;
                EACH_LANE(lane, mask)
                for (size_t r = 0; r < to.size(); r++)
                    memcpy(&caller->areas[(size_t)lane * from.area_bytes + (size_t)to[r].parameter],
                           &g.top->areas[(size_t)lane * f.area_bytes + f.results[r].offset], f.results[r].bytes);
                g.pc = g.top->back;
                g.top = caller;
                enter(w);
                if (w.groups.size() > 1) return ran + 1;
                break;
            }
            case flow::exit:
                if (mask == all) return leave(w, mask), ran + 1;
                if (mask) leave(w, mask);
                w.now().pc++;
                break;
            case flow::together: {
                const auto members = [&](int lane) { return i.mask.width ? (lanes)w.value(i.mask, lane) : ~0u; };
                lanes need = 0;
                EACH_LANE(lane, mask) {
                    if (!(members(lane) >> lane & 1)) throw fault(format("lane %d is not in its own mask", lane));
                    need |= members(lane) & w.living;
                }
                if (need & ~all) {
                    g.state = group::apart; /* until the others are here */
                    g.needs = need;
                    return ran + 1;
                }
                for (lanes left = mask; left;) { /* those of one mask at a time */
                    lanes same = 0;
                    EACH_LANE(lane, left) if (members(lane) == members(__builtin_ctz(left))) same |= 1u << lane;
                    i.run(w, i, same);
                    left &= ~same;
                }
                g.pc++;
                break;
            }
            case flow::warp_barrier: {
                if (!mask) {
                    g.pc++;
                    break;
                }
                if (mask != all) throw fault("a barrier by some of the lanes");
                const group before = g;
                w.groups.erase(w.groups.begin() + (long)w.current);
                for (lanes left = all; left;) { /* those of one mask at a time */
                    group waiting = before;
                    waiting.pc = before.pc + 1;
                    waiting.state = group::at_warp_barrier;
                    waiting.needs = (lanes)w.value(i.mask, __builtin_ctz(left));
                    waiting.mask = 0;
                    EACH_LANE(lane, left) if ((lanes)w.value(i.mask, lane) == waiting.needs) waiting.mask |= 1u << lane;
                    left &= ~waiting.mask;
                    w.groups.push_back(waiting);
                }
                w.current = w.groups.size() - 1;
                release_warp(w);
                if (w.now().state != group::runs || w.groups.size() > 1) return ran + 1;
                break;
            }
            case flow::block_barrier: {
                if (!mask) {
                    g.pc++;
                    break;
                }
                if (mask != all) throw fault("a barrier by some of the lanes");
                block &b = *w.of;
                const uint32_t number = (uint32_t)w.value(i.a, 0), expected = i.b.width ? (uint32_t)w.value(i.b, 0) : 0;
                if (number > 15) throw fault(format("barrier %u", number));
                if (expected % 32) throw fault(format("a barrier of %u threads, no multiple of 32", expected));
                if (w.groups.size() > 1 && !w.of->of->impatient && is_ahead(w)) return g.state = group::ahead, ran + 1;
                barrier &at = b.barriers[number];
                if (at.arrived && at.expected != expected)
                    throw fault(format("barrier %u of %u and of %u threads", number, at.expected, expected));
                at.arrived += (uint32_t)__builtin_popcount(all);
                at.expected = expected;
                if (i.d.width) { /* bar.red.or */
                    at.any |= (w.predicate(i.c) & all) != 0;
                    const auto own = g.top;
                    const slot to = i.d;
                    at.results.push_back([own, to, all](bool any) {
                        lanes &p = *(lanes *)(own->registers.data() + to.at);
                        p = any ? p | all : p & ~all;
                    });
                }
                g.state = group::at_block_barrier;
                g.number = number;
                g.pc++;
                if (expected) release_block(b, at); /* at once: threads of the next round must not count for this one */
                return ran + 1;
            }
            case flow::wait: /* until an mbarrier's phase is over */
                i.run(w, i, mask);
                if (g.state == group::waits) return ran + 1;
                g.pc++;
                break;
            }
        } catch (const fault &what) {
            throw fault(format("%s; %s, block (%u, %u, %u), warp %d, lanes 0x%08x", what.what(), place_of(w, i).c_str(),
                               w.of->id[0], w.of->id[1], w.of->id[2], w.number, mask));
        }
    }
    return ran;
}

/* ---- a grid ---- */

static void begin(grid &g, block &b, uint64_t number) {
    const launch &how = g.how;
    b.of = &g;
    b.id[0] = (uint32_t)(number % how.grid[0]);
    b.id[1] = (uint32_t)(number / how.grid[0] % how.grid[1]);
    b.id[2] = (uint32_t)(number / how.grid[0] / how.grid[1]);
    const size_t threads = (size_t)how.block[0] * how.block[1] * how.block[2];
    if (g.memories.empty()) b.shared = (unsigned char *)aligned_alloc(1024, (g.shared_end + 1023) / 1024 * 1024);
    else b.shared = g.memories.back(), g.memories.pop_back();
    for (const place &p : g.shared) memset(b.shared + p.offset, 0xEE, p.bytes);
    b.living = (uint32_t)threads;
    b.rank = b.id[0] % how.cluster;
    b.warps = std::vector<warp>((threads + 31) / 32);
    for (size_t i = 0; i < b.warps.size(); i++) {
        warp &w = b.warps[i];
        w.of = &b;
        w.number = (int32_t)i;
        const size_t count = std::min<size_t>(32, threads - i * 32);
        w.living = count == 32 ? ~0u : (1u << count) - 1;
        group all;
        all.mask = w.living;
        all.top = new_frame(g.what->entry, nullptr, 0);
        w.groups.push_back(all);
    }
}

/* Gives the warp a turn. Returns whether anything happened. */
static bool turn(warp &w, std::mt19937 &chance) {
    for (size_t i = 0; i < w.groups.size(); i++) /* others may have come, or ended */
        if (w.groups[i].state == group::apart) {
            w.current = i;
            const bool grown = merge(w);
            i = w.current;
            if (grown || !(w.groups[i].needs & w.living & ~w.groups[i].mask)) w.groups[i].state = group::runs;
        }
    release_warp(w); /* others may have ended */
    for (size_t i = 0; i < w.groups.size(); i++)
        if (w.groups[i].state == group::ahead) {
            w.current = i;
            merge(w);
            i = w.current;
            if (w.of->of->impatient || !is_ahead(w)) w.groups[i].state = group::runs;
        }
    std::vector<size_t> ready;
    for (size_t i = 0; i < w.groups.size(); i++)
        if (w.groups[i].state == group::runs || w.groups[i].state == group::waits) ready.push_back(i);
    /* the innermost and least advanced first, so that lanes meet again; sometimes another, whatever the others wait
     * for */
    std::sort(ready.begin(), ready.end(), [&](size_t x, size_t y) {
        const group &a = w.groups[x], &b = w.groups[y];
        return a.top->depth != b.top->depth ? a.top->depth > b.top->depth : a.pc < b.pc;
    });
    if (ready.size() > 1 && chance() % 8 == 0) std::swap(ready[0], ready[chance() % ready.size()]);
    for (const size_t i : ready) {
        w.current = i;
        group &g = w.groups[i];
        g.state = group::runs;
        const int32_t pc = g.pc;
        const lanes mask = g.mask;
        bool merges = true;
        if (chance() % 8 == 0) { /* some lanes go first, as hardware may have it */
            const lanes first = mask & (lanes)chance();
            if (first && first != mask) {
                group rest = g;
                rest.mask = mask & ~first;
                g.mask = first;
                w.groups.push_back(rest);
                merges = false;
            }
        }
        const size_t count = w.groups.size();
        if (slice(w, 1 + (int)(chance() % 400), merges) > 1 || w.groups.size() != count || w.now().pc != pc
            || w.now().mask != mask
            || (w.now().state != group::waits && w.now().state != group::apart && w.now().state != group::ahead))
            return true;
    }
    return false;
}

static std::string where(const block &b) {
    std::string text;
    for (const warp &w : b.warps)
        for (const group &g : w.groups) {
            const instruction &i = g.top->of->code[(size_t)std::max(
                0, g.pc - (g.state == group::at_block_barrier || g.state == group::at_warp_barrier))];
            if (text.size() < 900) text += format("; warp %d lanes 0x%08x at ", w.number, g.mask) + place_of(w, i);
        }
    return text;
}

static void run_all(grid &g) {
    const launch &how = g.how;
    const uint64_t total = (uint64_t)how.grid[0] * how.grid[1] * how.grid[2];
    const char *limit = getenv("EMULATOR_BLOCKS");
    const uint64_t most = how.cooperative ? total : limit ? std::max(1ull, strtoull(limit, nullptr, 10)) : 8;
    std::deque<std::unique_ptr<block>> resident;
    uint64_t started = 0;
    while (started < total || !resident.empty()) {
        while (started < total && resident.size() + how.cluster <= std::max<uint64_t>(most, how.cluster)) {
            const auto together = std::make_shared<cluster>();
            for (uint32_t i = 0; i < how.cluster; i++) {
                resident.push_back(std::make_unique<block>());
                begin(g, *resident.back(), started++);
                resident.back()->together = together;
                together->blocks.push_back(resident.back().get());
            }
        }
        bool progress = false;
        for (size_t n = 0; n < resident.size(); n++) {
            block &b = *resident[n];
            const size_t count = b.warps.size(), first = g.chance() % count;
            for (size_t i = 0; i < count; i++) {
                warp &w = b.warps[(first + i) % count];
                if (w.groups.empty()) continue;
                progress |= turn(w, g.chance);
                if (!b.loads.empty() && g.chance() % 4 == 0) { /* TMA carries one out, in no order */
                    const size_t which = g.chance() % b.loads.size();
                    const later load = std::move(b.loads[which]);
                    b.loads.erase(b.loads.begin() + (long)which);
                    load();
                    progress = true;
                }
            }
            for (barrier &at : b.barriers) progress |= release_block(b, at);
            progress |= b.together->release(); /* others may have ended */
            if (!b.loads.empty() && !progress) {
                const later load = std::move(b.loads.back());
                b.loads.pop_back();
                load();
                progress = true;
            }
        }
        for (size_t n = 0; n < resident.size();)
            if (resident[n]->living == 0) {
                if (!resident[n]->loads.empty())
                    throw fault("a block has ended, and something is still loaded into its shared memory");
                resident[n]->together->blocks[resident[n]->rank] = nullptr;
                g.memories.push_back(resident[n]->shared);
                resident[n]->shared = nullptr;
                resident.erase(resident.begin() + (long)n);
                progress = true;
            } else n++;
        if (!progress && g.impatient) throw fault("no thread can go on" + where(*resident.front()));
        g.impatient = !progress;
    }
}

std::string run(const kernel *entry, const launch &how, const unsigned char *parameters) {
    static uint32_t launches = 0;
    const char *seed = getenv("EMULATOR_SEED");
    grid g;
    g.what = entry;
    g.how = how;
    const auto &places = entry->entry->parameters;
    g.parameter_bytes = places.empty() ? 0 : places.back().offset + places.back().bytes;
    std::vector<unsigned char> copy(g.parameter_bytes + 64); /* tensor maps lie at multiples of 64 */
    unsigned char *aligned = (unsigned char *)(((uintptr_t)copy.data() + 63) / 64 * 64);
    if (!places.empty()) memcpy(aligned, parameters, g.parameter_bytes);
    g.parameters = aligned;
    g.barrier_memory.assign(64, 0);
    g.chance.seed((seed ? (uint32_t)strtoul(seed, nullptr, 10) : 1u) * 1000003u + launches++);
    g.shared = entry->shared;
    g.shared_end = STATIC_BEGIN + entry->from->shared_bytes;
    if (how.dynamic_shared) g.shared.insert(g.shared.begin(), {DYNAMIC_BEGIN, how.dynamic_shared});
    std::string said;
    try {
        run_all(g);
    } catch (const fault &what) {
        said = what.what();
    }
    for (unsigned char *memory : g.memories) free(memory);
    return said;
}

/* ---- what the runtime asks ---- */

/* What the function and those that it calls have in shared memory, and the most that one of them has in local
 * memory. */
static void visit(const module &m, const function *f, std::map<size_t, size_t> *shared, size_t *local,
                  std::vector<const function *> *seen) {
    if (std::find(seen->begin(), seen->end(), f) != seen->end()) return;
    seen->push_back(f);
    *local = std::max(*local, f->local_bytes);
    for (const std::string &name : f->shared)
        if (m.shared_sizes.count(name)) (*shared)[m.shared.at(name)] = m.shared_sizes.at(name);
    for (const instruction &i : f->code)
        if (i.callee) visit(m, i.callee, shared, local, seen);
}

kernel *find(module *from, const char *name) {
    const auto f = from->functions.find(name);
    if (f == from->functions.end() || !f->second->is_entry) return nullptr;
    kernel *k = new kernel{from, f->second.get(), {}};
    std::map<size_t, size_t> shared;
    std::vector<const function *> seen;
    size_t local = 0;
    visit(*from, k->entry, &shared, &local, &seen);
    for (const auto &s : shared) k->shared.push_back({s.first, s.second});
    k->entry->local_bytes = local;
    return k;
}
void *variable(module *from, const char *name, size_t *bytes) {
    const auto v = from->variables.find(name);
    if (v == from->variables.end()) return nullptr;
    if (bytes) *bytes = v->second.bytes;
    return v->second.memory;
}
const std::vector<place> &parameters_of(const kernel *entry) { return entry->entry->parameters; }
const char *name_of(const kernel *entry) { return entry->entry->name.c_str(); }

facts facts_of(const kernel *entry) {
    facts found = {0, entry->entry->local_bytes, 0, entry->entry->most_threads};
    for (const place &s : entry->shared) found.static_shared += s.bytes;
    return found;
}

} // namespace emulator
