/* ldmatrix, stmatrix, mma and wgmma. Sums are FP32, one after another along k, so that an element's bits depend on its
 * row and its column alone. wgmma is carried out when it is waited for, and no sooner. */
#include "warp.h"
#include <bit>
#include <cstdlib>

namespace emulator {

namespace {

enum element { F16, BF16, E4M3, E5M2 };

float decoded(element type, uint32_t code) {
    return type == F16    ? float_of_f16(code)
           : type == BF16 ? float_of_bf16(code)
           : type == E4M3 ? from_e4m3(code)
                          : from_e5m2(code);
}
/* All codes' values, made once. */
const float *values_of(element type) {
    static std::vector<float> all[4];
    if (all[type].empty()) {
        const uint32_t count = type == F16 || type == BF16 ? 65536 : 256;
        all[type].resize(count);
        for (uint32_t c = 0; c < count; c++) all[type][c] = decoded(type, c);
    }
    return all[type].data();
}

/* ---- ldmatrix, stmatrix: number = matrices; more = 1: transposed ---- */

template <bool STORES> void matrix(warp &w, const instruction &i, lanes) {
    const operand &address = i.operands[STORES ? 0 : 1], &values = i.operands[STORES ? 1 : 0];
    for (int m = 0; m < (int)i.number; m++) {
        uint16_t *rows[8];
        for (int r = 0; r < 8; r++) {
            const int lane = m * 8 + r;
            rows[r] = (uint16_t *)checked_shared(w, w.value(address.value, lane) + (uint64_t)address.offset, 16,
                                                 STORES ? "stmatrix" : "ldmatrix");
        }
        const slot s = values.kind == operand::is_list ? values.items[(size_t)m].value : values.value;
        for (int l = 0; l < 32; l++) {
            const int r = l / 4, c = l % 4 * 2;
            uint16_t *low = i.more ? &rows[c][r] : &rows[r][c], *high = i.more ? &rows[c + 1][r] : &rows[r][c + 1];
            uint32_t &x = w.at<uint32_t>(s)[l];
            if (STORES) *low = (uint16_t)x, *high = (uint16_t)(x >> 16);
            else x = *low | (uint32_t)*high << 16;
        }
    }
}

/* D[rows x cols] += A[rows x depth] B[depth x cols] */
void multiply(float *d, const float *a, const float *b, int rows, int cols, int depth) {
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < depth; k++) {
            const float x = a[r * depth + k];
            for (int c = 0; c < cols; c++) d[r * cols + c] += x * b[k * cols + c];
        }
}

/* The same as Hopper's wgmma of FP8 does it: products and the sum before are aligned to the largest of them, and cut 13
 * bits below its first one (DeepSeek-V3 technical report, section 3.3.2: some 14 bits; an H100 was seen to err as much). */
void multiply_cut(float *d, const float *a, const float *b, int rows, int cols, int depth) {
    const auto exponent = [](float x) { return (int)(std::bit_cast<uint32_t>(x) >> 23 & 255); };
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            float &sum = d[r * cols + c], terms[33];
            int largest = exponent(sum);
            terms[depth] = sum;
            for (int k = 0; k < depth; k++) {
                terms[k] = a[r * depth + k] * b[k * cols + c]; /* exact */
                largest = std::max(largest, exponent(terms[k]));
            }
            if (largest == 255 || largest < 30) { /* infinite, NaN, or zeros and what no FP8 makes */
                for (int k = 0; k < depth; k++) sum += terms[k];
                continue;
            }
            const float unit = std::bit_cast<float>((uint32_t)(largest - 13) << 23);
            int64_t units = 0;
            for (int k = 0; k <= depth; k++) units += (int64_t)(terms[k] / unit);
            sum = (float)units * unit;
        }
}

/* ---- mma.m16n8k16, of halves, and m16n8k32, of codes of 8 bits ---- */

template <element A, element B> void mma(warp &w, const instruction &i, lanes) {
    const int each = A == F16 || A == BF16 ? 2 : 4, depth = 8 * each; /* elements a register */
    const float *as = values_of(A), *bs = values_of(B);
    const uint32_t mask = each == 2 ? 0xffff : 0xff;
    float a[16 * 32], b[32 * 8], d[16 * 8];
    for (int l = 0; l < 32; l++) {
        const int row = l / 4, part = l % 4;
        for (int r = 0; r < 4; r++) {
            const uint32_t x = w.at<uint32_t>(i.operands[1].items[(size_t)r].value)[l];
            for (int e = 0; e < each; e++)
                a[(row + r % 2 * 8) * depth + r / 2 * depth / 2 + part * each + e] = as[x >> (32 / each * e) & mask];
        }
        for (int r = 0; r < 2; r++) {
            const uint32_t x = w.at<uint32_t>(i.operands[2].items[(size_t)r].value)[l];
            for (int e = 0; e < each; e++)
                b[(r * depth / 2 + part * each + e) * 8 + row] = bs[x >> (32 / each * e) & mask];
        }
        for (int r = 0; r < 4; r++)
            d[(row + r / 2 * 8) * 8 + part * 2 + r % 2] = w.at<float>(i.operands[3].items[(size_t)r].value)[l];
    }
    multiply(d, a, b, 16, 8, depth);
    for (int l = 0; l < 32; l++)
        for (int r = 0; r < 4; r++)
            w.at<float>(i.operands[0].items[(size_t)r].value)[l] = d[(l / 4 + r / 2 * 8) * 8 + l % 4 * 2 + r % 2];
}

/* ---- wgmma ---- */

/* Where element (x, k) of an operand in shared memory lies: x is its row of A or its column of B. The descriptor's
 * fields and the layouts are those of the PTX ISA, "Matrix-Descriptor" and "Shared Memory Matrix Layout". */
uint32_t element_at(uint64_t descriptor, bool contiguous_in_x, int x, int k, int bytes) {
    const uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
                   stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    const uint32_t mode = (uint32_t)(descriptor >> 62), span = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 16;
    uint32_t at = start;
    if (contiguous_in_x) {
        const int across = (int)span / bytes;
        if (mode == 0)
            at += (uint32_t)(x / across) * stride + (uint32_t)(x % across * bytes) + (uint32_t)(k % 8) * 16
                  + (uint32_t)(k / 8) * leading;
        else
            at += (uint32_t)(x / across) * leading + (uint32_t)(x % across * bytes) + (uint32_t)(k % 8) * span
                  + (uint32_t)(k / 8) * stride;
    } else {
        const uint32_t along = (uint32_t)(k * bytes);
        if (mode == 0) at += (uint32_t)(x / 8) * stride + (uint32_t)(x % 8) * 16 + along / 16 * leading + along % 16;
        else at += (uint32_t)(x / 8) * stride + (uint32_t)(x % 8) * span + along;
    }
    const uint32_t bits = mode == 1 ? 7 : mode == 2 ? 3 : mode == 3 ? 1 : 0;
    return at ^ (at >> 7 & bits) << 4;
}

struct product {
    element a, b;
    int cols, depth;
};

/* a_at: the descriptor of A; in_registers: a warp's 16 lines of A, as mma has them. */
void wgmma_now(warp &w, const std::shared_ptr<frame> &own, const std::vector<operand> &o, product p, uint64_t a_at,
               bool in_registers, uint64_t b_at, bool adds, bool negates_a, bool negates_b, bool a_turned,
               bool b_turned) {
    static std::vector<float> a, b, d;
    const int bytes = p.a == F16 || p.a == BF16 ? 2 : 1;
    const float *as = values_of(p.a), *bs = values_of(p.b);
    const auto fetch = [&](const float *values, uint32_t at) {
        if (bytes == 1) return values[*(const uint8_t *)checked_shared(w, at, 1, "wgmma")];
        return values[*(const uint16_t *)checked_shared(w, at, 2, "wgmma")];
    };
    a.resize((size_t)(16 * p.depth)), b.resize((size_t)(p.depth * p.cols)), d.assign((size_t)(16 * p.cols), 0.0f);
    const int first = w.number % 4 * 16;
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < p.depth; k++) {
            float &to = a[(size_t)(r * p.depth + k)];
            if (!in_registers) to = fetch(as, element_at(a_at, a_turned, first + r, k, bytes));
            else { /* halves: two neighbours in k a register */
                const slot s = o[1].items[(size_t)(r / 8 + k / 8 * 2)].value;
                const uint32_t x = ((const uint32_t *)(own->registers.data() + s.at))[r % 8 * 4 + k % 8 / 2];
                to = as[x >> k % 2 * 16 & 0xffff];
            }
            if (negates_a) to = -to;
        }
    for (int c = 0; c < p.cols; c++)
        for (int k = 0; k < p.depth; k++)
            b[(size_t)(k * p.cols + c)] = (negates_b ? -1.0f : 1.0f) * fetch(bs, element_at(b_at, b_turned, c, k, bytes));
    const auto sums = [&](auto f) {
        for (int r = 0; r < p.cols / 2; r++) {
            float *x = (float *)(own->registers.data() + o[0].items[(size_t)r].value.at);
            for (int l = 0; l < 32; l++)
                f(d[(size_t)((l / 4 + r / 2 % 2 * 8) * p.cols + r / 4 * 8 + l % 4 * 2 + r % 2)], x[l]);
        }
    };
    if (adds) sums([](float &to, float &from) { to = from; });
    (bytes == 1 ? multiply_cut : multiply)(d.data(), a.data(), b.data(), 16, p.cols, p.depth);
    sums([](float &from, float &to) { to = from; });
}

template <element A, element B> void wgmma(warp &w, const instruction &i, lanes mask) {
    /* {d}, a's descriptor, b's, whether it adds, signs of a and b[, a transposed, b transposed] */
    const auto &o = i.operands;
    const int lane = __builtin_ctz(mask);
    const product p = {A, B, (int)i.number, A == F16 || A == BF16 ? 16 : 32};
    const bool in_registers = o[1].kind == operand::is_list;
    const uint64_t a_at = in_registers ? 0 : w.value(o[1].value, lane), b_at = w.value(o[2].value, lane);
    const bool adds = w.predicate(o[3].value) >> lane & 1;
    const auto flag = [&](size_t n) { return n < o.size() ? (int64_t)w.value(o[n].value, lane) : 0; };
    const bool negates_a = (int32_t)flag(4) == -1, negates_b = (int32_t)flag(5) == -1,
               a_turned = !in_registers && flag(6) == 1, b_turned = flag(in_registers ? 6 : 7) == 1;
    const auto own = w.now().top;
    warp *at = &w;
    const instruction *what = &i;
    w.products.open.push_back(
        [=] {
            wgmma_now(*at, own, what->operands, p, a_at, in_registers, b_at, adds, negates_a, negates_b, a_turned,
                      b_turned);
        });
}
void wgmma_commit(warp &w, const instruction &, lanes) { w.products.commit(); }
void wgmma_wait(warp &w, const instruction &i, lanes mask) {
    w.products.wait((size_t)w.value(i.operands[0].value, __builtin_ctz(mask)));
}

} // namespace

bool find_matrices(instruction &i) {
    const std::string &text = i.text;
    const auto set = [&](handler run) {
        i.run = run;
        i.how = flow::together;
        return run != nullptr;
    };
    if (starts(text, "ldmatrix") || starts(text, "stmatrix")) {
        if (!contains(text, ".m8n8.")) return false;
        i.number = contains(text, ".x4") ? 4 : contains(text, ".x2") ? 2 : 1;
        i.more = contains(text, ".trans");
        return set(text[0] == 's' ? matrix<true> : matrix<false>);
    }
    if (starts(text, "wgmma.commit_group")) return set(wgmma_commit);
    if (starts(text, "wgmma.wait_group")) return set(wgmma_wait);
    const std::string wide = "wgmma.mma_async.sync.aligned.", narrow = "mma.sync.aligned.";
    const bool is_wgmma = starts(text, wide.c_str());
    if ((!is_wgmma && !starts(text, narrow.c_str())) || !contains(text, ".f32.")) return false;
    if (is_wgmma) i.number = atoi(text.c_str() + wide.size() + strlen("m64n"));
    const std::string types = text.substr(text.find(".f32.") + 5);
    const bool has_codes = types[0] == 'e'; /* of 8 bits */
    const std::string shape = is_wgmma ? "m64n" + std::to_string(i.number) + (has_codes ? "k32" : "k16")
                                       : std::string("m16n8") + (has_codes ? "k32" : "k16") + ".row.col";
    if (!starts(text, ((is_wgmma ? wide : narrow) + shape + ".f32.").c_str())) return false;
    static const struct {
        const char *types;
        handler wide, narrow;
    } all[] = {{"bf16.bf16", wgmma<BF16, BF16>, mma<BF16, BF16>}, {"f16.f16", wgmma<F16, F16>, mma<F16, F16>},
               {"e4m3.e4m3", wgmma<E4M3, E4M3>, mma<E4M3, E4M3>}, {"e4m3.e5m2", wgmma<E4M3, E5M2>, mma<E4M3, E5M2>},
               {"e5m2.e4m3", wgmma<E5M2, E4M3>, mma<E5M2, E4M3>}, {"e5m2.e5m2", wgmma<E5M2, E5M2>, mma<E5M2, E5M2>}};
    for (const auto &t : all)
        if (types == t.types || types == std::string(t.types) + ".f32")
            return !(is_wgmma && has_codes && i.operands[1].kind == operand::is_list) /* codes in registers */
                   && set(is_wgmma ? t.wide : t.narrow);
    return false;
}

} // namespace emulator
