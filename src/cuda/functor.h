/* ---- A functor in the epilogue ---- */

#pragma once
#include "base/version.h"

/* Where an element of d is that a caller's functor is given: see tegroup_gemm_with. */
typedef struct tegroup_element {
    int32_t group;
    int64_t row; /* among the rows of all groups, also where they have buffers of their own: in a FORWARD or DGRAD it is
                    the snapshot's start[group] and the row in the group, in a WGRAD group * d.shape.rows and that */
    int64_t col; /* of the group's part of d */
} tegroup_element;

/* The built-in store. */
struct tegroup_impl_as_is {
    __device__ __forceinline__ float operator()(float x, const tegroup_element &) const { return x; }
};

/* A functor adds its bias itself: a kernel that could add another, too, would have no registers left for it. */
template <typename FUNCTOR> struct tegroup_impl_adds_bias { static constexpr bool value = false; };
template <> struct tegroup_impl_adds_bias<tegroup_impl_as_is> { static constexpr bool value = true; };
