/* ---- Types by their bits ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "base/arithmetic.h"

TEGROUP_IMPL_HD int32_t tegroup_impl_bits(tegroup_dtype dtype) {
#define TEGROUP_IMPL_CASE(name, value, bits)                                                                           \
    case TEGROUP_DTYPE_##name: return bits;
    switch (dtype) { TEGROUP_DTYPE_LIST(TEGROUP_IMPL_CASE) default : return 0; }
#undef TEGROUP_IMPL_CASE
}
