/* ---- Data types ---- */

#pragma once

/* Name, number (stable), bits an element. FP8 and FP4: OCP 8-bit Floating Point 1.0, OCP Microscaling 1.0. */
#define TEGROUP_DTYPE_LIST(X)                                                                        \
    X(F64, 1, 64)                                                                                    \
    X(F32, 2, 32)                                                                                    \
    X(F16, 3, 16)      /* IEEE 754 binary16               */                                         \
    X(BF16, 4, 16)     /* the upper half of a binary32    */                                         \
    X(F8E4M3, 5, 8)    /* no infinity, largest value 448  */                                         \
    X(F8E5M2, 6, 8)                                                                                  \
    X(F4E2M1, 7, 4)    /* two a byte, low nibble first    */                                         \
    X(F8E8M0, 8, 8)    /* scales only: 2^(byte - 127)     */                                         \
    X(I32, 9, 32)                                                                                    \
    X(I64, 10, 64)

#define TEGROUP_IMPL_ENUMERATE(name, value, bits) TEGROUP_DTYPE_##name = (value),
typedef enum tegroup_dtype {
    TEGROUP_DTYPE_UNSET = 0, /* an error where a type is required; "absent" for an optional tensor */
    TEGROUP_DTYPE_LIST(TEGROUP_IMPL_ENUMERATE)
    TEGROUP_DTYPE_COUNT
} tegroup_dtype;
#undef TEGROUP_IMPL_ENUMERATE

/* Where memory is. */
typedef enum tegroup_space {
    TEGROUP_SPACE_UNSET  = 0,
    TEGROUP_SPACE_HOST   = 1,
    TEGROUP_SPACE_DEVICE = 2
} tegroup_space;
