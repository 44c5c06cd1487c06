/* ---- An activation in an epilogue ---- */

#pragma once
#include "core/gemm_types.h"
#include "core/activation_types.h"
#include "layer/mlp_types.h"

/* An activation in the epilogue of a forward product, or the gradient of one in that of a dgrad. */
typedef struct tegroup_impl_epilogue {
    tegroup_fused_kernel kernel;               /* of the product that has it */
    tegroup_activation_desc activation;        /* of D; a gradient's, of its input */
    const tegroup_gemm_desc *up;               /* forward: the product of the ups, whose weights and bias are b and bias
                                                  there; NULL: they are in the gates' */
    int keeps_d;                               /* forward: D is wanted, too */
    int activates_again;                       /* gradient: activation.output is wanted, too */
    tegroup_activation_backward_desc gradient; /* of D, whose memory holds sums for grad_row_scale instead */
} tegroup_impl_epilogue;
