/* ---- Types by their bits ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "base/arithmetic.h"

/* Bits of an element; 0 of no type. From a table of logarithms in one number, four bits each: kernels have this in many
 * places, where a switch would be ten comparisons. */
TEGROUP_IMPL_HD int32_t tegroup_impl_bits(tegroup_dtype dtype) {
#define TEGROUP_IMPL_LOGARITHM(name, value, bits)                                                                      \
    | (uint64_t)(1 + ((bits) > 4) + ((bits) > 8) + ((bits) > 16) + ((bits) > 32)) << 4 * (value)
    const uint64_t logarithms = 0 TEGROUP_DTYPE_LIST(TEGROUP_IMPL_LOGARITHM);
#undef TEGROUP_IMPL_LOGARITHM
    return (uint32_t)dtype < TEGROUP_DTYPE_COUNT ? (2 << (logarithms >> 4 * (uint32_t)dtype & 7u)) & ~3 : 0;
}
