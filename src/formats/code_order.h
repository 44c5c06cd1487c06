/* ---- Orders of codes ---- */

#pragma once
#include "base/version.h"
#include "base/arithmetic.h"

/* Interleaved codes of F4E2M1. Of 64 codes along a line, wgmma takes those numbered 16 s + 8 h + 2 q + e (s of 0 to 3,
 * h and e of 0 and 1) from the lane of a warp that is q of four, e = 1 in the upper half of the register that has e = 0
 * in its lower half (PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of wgmma). So a lane's 16 codes are
 * two words of the block's eight: word 2 q + u has s = 2 u and 2 u + 1, as pairs p = 2 (s mod 2) + h. A pair's bits
 * are, in either half, where BF16 has sign, low exponent and mantissa once the word is shifted to the left by 3 p; the
 * fourth pair takes what is left:
 *
 *   bit       15 14 13 12 11 10  9  8  7  6  5  4  3  2  1  0      e, f: the exponent's bits, m: the mantissa's
 *   of pair    0  3  3  1  3  3  2  0  0  0  1  1  1  2  2  2
 *              s  m  s  s  e  f  s  e  f  m  e  f  m  e  f  m */
enum { TEGROUP_IMPL_INTERLEAVED_BYTES = 32, TEGROUP_IMPL_INTERLEAVED_WORDS = 8 };

/* Where a pair's code has its bits in a half of a word, and the code that has them there. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_interleaved_half(int32_t pair, uint32_t code) {
    return pair == 3 ? (code >> 3 & 1u) << 13 | (code >> 1 & 3u) << 10 | (code & 1u) << 14
                     : (code >> 3 & 1u) << (15 - 3 * pair) | (code & 7u) << (6 - 3 * pair);
}
TEGROUP_IMPL_HD uint32_t tegroup_impl_code_of_half(int32_t pair, uint32_t half) {
    return pair == 3 ? (half >> 13 & 1u) << 3 | (half >> 10 & 3u) << 1 | (half >> 14 & 1u)
                     : (half >> (15 - 3 * pair) & 1u) << 3 | (half >> (6 - 3 * pair) & 7u);
}

/* Interleaves 64 codes that are in order, or puts them in order, in place: words as memory has them, the first byte
 * lowest. In order, byte 16 u + 4 p + q has the pair p of word 2 q + u. */
TEGROUP_IMPL_HD void tegroup_impl_interleave(uint32_t block[TEGROUP_IMPL_INTERLEAVED_WORDS]) {
    uint32_t to[TEGROUP_IMPL_INTERLEAVED_WORDS];
    int32_t w, p;
    for (w = 0; w < TEGROUP_IMPL_INTERLEAVED_WORDS; w++) {
        to[w] = 0;
        for (p = 0; p < 4; p++) {
            const uint32_t byte = block[w % 2 * 4 + p] >> w / 2 * 8;
            to[w] |=
                tegroup_impl_interleaved_half(p, byte & 15u) | tegroup_impl_interleaved_half(p, byte >> 4 & 15u) << 16;
        }
    }
    for (w = 0; w < TEGROUP_IMPL_INTERLEAVED_WORDS; w++) block[w] = to[w];
}
TEGROUP_IMPL_HD void tegroup_impl_put_in_order(uint32_t block[TEGROUP_IMPL_INTERLEAVED_WORDS]) {
    uint32_t to[TEGROUP_IMPL_INTERLEAVED_WORDS];
    int32_t w, q;
    for (w = 0; w < TEGROUP_IMPL_INTERLEAVED_WORDS; w++) {
        to[w] = 0;
        for (q = 0; q < 4; q++) {
            const uint32_t from = block[2 * q + w / 4];
            to[w] |= (tegroup_impl_code_of_half(w % 4, from) | tegroup_impl_code_of_half(w % 4, from >> 16) << 4)
                     << 8 * q;
        }
    }
    for (w = 0; w < TEGROUP_IMPL_INTERLEAVED_WORDS; w++) block[w] = to[w];
}

/* The same bytes as words, wherever they begin. */
TEGROUP_IMPL_HD void tegroup_impl_load_codes(const uint8_t *from, uint32_t block[TEGROUP_IMPL_INTERLEAVED_WORDS]) {
    int32_t w;
    for (w = 0; w < TEGROUP_IMPL_INTERLEAVED_WORDS; w++)
        block[w] = from[4 * w] | (uint32_t)from[4 * w + 1] << 8 | (uint32_t)from[4 * w + 2] << 16
                   | (uint32_t)from[4 * w + 3] << 24;
}
TEGROUP_IMPL_HD void tegroup_impl_store_codes(const uint32_t block[TEGROUP_IMPL_INTERLEAVED_WORDS], uint8_t *to) {
    int32_t i;
    for (i = 0; i < TEGROUP_IMPL_INTERLEAVED_BYTES; i++) to[i] = (uint8_t)(block[i / 4] >> i % 4 * 8);
}
