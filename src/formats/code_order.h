/* ---- Orders of codes ---- */

#pragma once
#include "base/version.h"
#include "core/tensor_types.h"
#include "base/arithmetic.h"

/* Interleaved codes of F4E2M1 and F8E4M3. Of 64 codes along a line, wgmma takes those numbered 16 s + 8 h + 2 q + e (s
 * of 0 to 3, h and e of 0 and 1) from the lane of a warp that is q of four, e = 1 in the upper half of the register
 * that has e = 0 in its lower half (PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of wgmma). So a
 * lane's 16 codes lie together, and two of e = 0 and 1 are a pair, whose bits lie in either half of a word alike: those
 * of one pair where BF16 has sign, low exponent and mantissa, those of others where a shift or two take them there.
 *
 *   of 4 bits, word 2 q + s / 2 has four pairs, number 2 (s mod 2) + h:
 *
 *   bit       15 14 13 12 11 10  9  8  7  6  5  4  3  2  1  0      s: sign, 2 to 0: the other bits of a code
 *   of pair    0  3  3  1  3  3  2  0  0  0  1  1  1  2  2  2
 *              s  0  s  s  2  1  s  2  1  0  2  1  0  2  1  0
 *
 *   of 8 bits, word 4 q + s has two pairs, number h:
 *
 *   of pair    0  1  1  1  1  0  0  0  0  0  0  0  1  1  1  1
 *              s  6  5  4  s  6  5  4  3  2  1  0  3  2  1  0 */
enum { TEGROUP_IMPL_INTERLEAVED_WORDS = 16 }; /* of 64 codes, at most */

/* Where a code has its bits in a half of a word, and the code that has them there. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_interleaved_half(int32_t bits, int32_t pair, uint32_t code) {
    const uint32_t sign = code >> (bits - 1);
    if (bits == 8)
        return pair == 0 ? sign << 15 | (code & 127u) << 4 : (code >> 4 & 7u) << 12 | sign << 11 | (code & 15u);
    return pair == 3 ? sign << 13 | (code >> 1 & 3u) << 10 | (code & 1u) << 14
                     : sign << (15 - 3 * pair) | (code & 7u) << (6 - 3 * pair);
}
TEGROUP_IMPL_HD uint32_t tegroup_impl_code_of_half(int32_t bits, int32_t pair, uint32_t half) {
    if (bits == 8)
        return pair == 0 ? (half >> 15 & 1u) << 7 | (half >> 4 & 127u)
                         : (half >> 11 & 1u) << 7 | (half >> 12 & 7u) << 4 | (half & 15u);
    return pair == 3 ? (half >> 13 & 1u) << 3 | (half >> 10 & 3u) << 1 | (half >> 14 & 1u)
                     : (half >> (15 - 3 * pair) & 1u) << 3 | (half >> (6 - 3 * pair) & 7u);
}

/* The 64 codes from `from` on, of so many bits, in the other order: interleaved, or in order. `to` may be `from`. */
TEGROUP_IMPL_HD void tegroup_impl_reorder(int32_t bits, int interleave, const uint8_t *from, uint8_t *to) {
    const uint32_t mask = (1u << bits) - 1;
    uint32_t words[2][TEGROUP_IMPL_INTERLEAVED_WORDS]; /* in order, interleaved; the first byte lowest */
    int32_t k, i;
    for (i = 0; i < 2 * bits; i++) {
        words[!interleave][i] = from[4 * i] | (uint32_t)from[4 * i + 1] << 8 | (uint32_t)from[4 * i + 2] << 16
                                | (uint32_t)from[4 * i + 3] << 24;
        words[interleave][i] = 0;
    }
    for (k = 0; k < TEGROUP_INTERLEAVED_CODES; k++) {
        const int32_t s = k / 16, h = k / 8 % 2, q = k / 2 % 4, upper = k % 2 * 16, at = k * bits / 32,
                      shift = k * bits % 32, word = bits == 8 ? 4 * q + s : 2 * q + s / 2,
                      pair = bits == 8 ? h : 2 * (s % 2) + h;
        if (interleave)
            words[1][word] |= tegroup_impl_interleaved_half(bits, pair, words[0][at] >> shift & mask) << upper;
        else words[0][at] |= tegroup_impl_code_of_half(bits, pair, words[1][word] >> upper & 0xffffu) << shift;
    }
    for (i = 0; i < 8 * bits; i++) to[i] = (uint8_t)(words[interleave][i / 4] >> i % 4 * 8);
}
