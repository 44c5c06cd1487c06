/* ---- Gated activations ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"

/* Gated kinds take pairs of gate and up, [rows, 2 width] -> [rows, width]; the others [rows, width] -> [rows, width],
 * and their input is called gate here, too. sigmoid(x) = 1 / (1 + exp(-x)); Phi is the standard normal distribution
 * function.
 *
 * Sources: GLU variants: Shazeer 2020, arXiv:2002.05202. GELU and its tanh form: Hendrycks and Gimpel,
 * arXiv:1606.08415. Squared ReLU: So et al. 2021, arXiv:2109.08668. Clamped SwiGLU: swiglu in gpt_oss/torch/model.py of
 * github.com/openai/gpt-oss, which interleaves gate and up; limited SwiGLU: DeepSeek-V4 and GLM-5.3, as swiglu_limit in
 * their configurations; SiTU-GLU: Kimi-K3, github.com/sgl-project/DeepGEMM pull request 67. Derivatives are torch
 * autograd's: ReLU's is 0 at 0, a clamp's 1 at its limits and 0 beyond.
 *
 * At an infinite gate its function and the derivative are their limits: gate and 1 at infinity, 0 and 0 at minus
 * infinity (of RELU_SQUARED infinity and infinity, of IDENTITY gate and 1, of SITU_GLU at infinity alpha and 0). What
 * is multiplied then, up, row_scale and gradients, is multiplied as IEEE 754 says: 0 times infinity is NaN. A NaN among
 * gate and up shows in the output. */
typedef enum tegroup_activation {
    TEGROUP_ACTIVATION_UNSET          = 0,
    TEGROUP_ACTIVATION_SWIGLU         = 1, /* gate sigmoid(gate) up                                                   */
    TEGROUP_ACTIVATION_GEGLU          = 2, /* gate Phi(gate) up, Phi(x) = (1 + erf(x / sqrt(2))) / 2                  */
    TEGROUP_ACTIVATION_GEGLU_TANH     = 3, /* gate (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) / 2 up           */
    TEGROUP_ACTIVATION_REGLU          = 4, /* max(gate, 0) up                                                         */
    TEGROUP_ACTIVATION_SWIGLU_CLAMPED = 5, /* g sigmoid(alpha g) (u + 1), g = min(gate, limit),
                                              u = min(max(up, -limit), limit)                                         */
    TEGROUP_ACTIVATION_SWIGLU_LIMITED = 6, /* g sigmoid(alpha g) u, g and u as of SWIGLU_CLAMPED                      */
    TEGROUP_ACTIVATION_SITU_GLU       = 7, /* alpha tanh(gate / alpha) sigmoid(gate) limit tanh(up / limit)           */
    TEGROUP_ACTIVATION_SILU           = 8, /* those without up: gate sigmoid(gate)                                    */
    TEGROUP_ACTIVATION_GELU           = 9, /* gate Phi(gate)                                                          */
    TEGROUP_ACTIVATION_GELU_TANH      = 10, /* as GEGLU_TANH                                                          */
    TEGROUP_ACTIVATION_RELU           = 11, /* max(gate, 0)                                                           */
    TEGROUP_ACTIVATION_RELU_SQUARED   = 12, /* max(gate, 0)^2                                                         */
    TEGROUP_ACTIVATION_IDENTITY       = 13 /* gate: what row_scale alone does                                         */
} tegroup_activation;

/* output[r] = row_scale[r] * activation(gate[r], up[r]), for rows that the shape's groups own (all rows when it has no
 * snapshot). Other rows are untouched. */
typedef struct tegroup_activation_desc {
    size_t             struct_size; /* sizeof(tegroup_activation_desc)                                            */
    tegroup_space      space;       /* required                                                                   */
    tegroup_activation activation;  /* required                                                                   */
    int32_t            interleaved; /* gated kinds: 0: input is [gate | up] halves; 1: gate, up, gate, up ...     */
    double             alpha;       /* SWIGLU_CLAMPED: 0 = 1.702; SWIGLU_LIMITED: 0 = 1; SITU_GLU: 2^-60 to 2^60,
                                       0 = 4; others: 0                                                           */
    double             limit;       /* SWIGLU_CLAMPED: 0 = 7; SWIGLU_LIMITED: 0 = 10; SITU_GLU: 2^-60 to 2^60,
                                       0 = 25; INFINITY = none; others: 0                                         */
    const void        *snapshot;    /* rows that are valid; NULL = all                                            */
    tegroup_matrix     input;       /* in  [rows, 2 width], not gated [rows, width]; F16, BF16, F32 or F64        */
    tegroup_matrix     row_scale;   /* in  [rows, 1], F32 or F64; absent = 1                                      */
    tegroup_matrix     output;      /* out [rows, width]; not gated: may be input itself, with its ld and dtype   */
    int32_t            threads;     /* on the host, at most so many; 0 = all that OpenMP gives, 1 without OpenMP.
                                       Only time depends on it                                                    */
} tegroup_activation_desc;

/* Gradient of the above. */
typedef struct tegroup_activation_backward_desc {
    size_t             struct_size; /* sizeof(tegroup_activation_backward_desc)                                   */
    tegroup_space      space;
    tegroup_activation activation;     /* with the next three as in the forward call                              */
    int32_t            interleaved;
    double             alpha, limit;
    const void        *snapshot;
    tegroup_matrix     input;          /* in  [rows, 2 width] or [rows, width], as the forward call read it       */
    tegroup_matrix     row_scale;      /* in  [rows, 1]; absent = 1                                               */
    tegroup_matrix     grad_output;    /* in  [rows, width]                                                       */
    tegroup_matrix     grad_input;     /* out as large as input and laid out alike; may be input itself, with its ld
                                          and dtype, and grad_output where not gated */
    tegroup_matrix     grad_row_scale; /* out [rows, 1], F32 or F64; absent = not wanted                          */
    int32_t            threads;        /* likewise                                                                */
} tegroup_activation_backward_desc;
