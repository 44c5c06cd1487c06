/* ---- Decoding operands before they are multiplied ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/rules.h"
#include "core/layout.h"
#include "core/field_names.h"
#include "core/problem.h"
#include "core/quantised.h"
#include "cuda/decoded.h"
#include "cuda/launch.h"
#include "cuda/call.h"
#include "cuda/quantize_walk.h"
#include "cuda/quantize_launch.h"
#include "cuda/dequantize.h"

/* The scales of groups, of F32, that the kernels of BF16 do not look for: in alpha. */
static __global__ void tegroup_impl_decoded_alpha_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                                         float *alpha) {
    const tegroup_gemm_desc &desc = call.desc;
    for (int32_t g = (int32_t)threadIdx.x; g < desc.a.shape.groups; g += (int32_t)blockDim.x)
        alpha[g] = tegroup_impl_scaled_alpha(&desc, g, (double)call.alpha);
}

/* Enqueues the decoding of one operand to `decoded`, by the kernel of tegroup_dequantize. Values of scalings whose
 * scales are of F32, or take the place of such, are left as they are: those multiply sums. Weights of a group without
 * rows are left out, as nobody reads them. */
static inline tegroup_status tegroup_impl_decode_operand(const tegroup_gemm_desc *desc, tegroup_impl_operand operand,
                                                         const tegroup_tensor *decoded, unsigned most,
                                                         struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_tensor *t = operand == TEGROUP_IMPL_A ? &desc->a : &desc->b;
    tegroup_impl_quantize_launch launch = tegroup_impl_cuda_quantize_launch(t);
    launch.copies = 1 << tegroup_impl_reads_columnwise(desc, operand);
    launch.desc.input = *decoded;
    launch.desc.output.global_scale_inv = NULL; /* It is in alpha. */
    if (launch.facts.scale_dtype == TEGROUP_DTYPE_F32) launch.scale_dtype = TEGROUP_DTYPE_UNSET;
    if (operand == TEGROUP_IMPL_B && desc->op != TEGROUP_OP_WGRAD) launch.used = tegroup_impl_cuda_view(&desc->a).rows;
    return tegroup_impl_cuda_dequantize_copy(launch, most, stream, error);
}

/* Enqueues the decoding of `operands`, bit 0 for A and bit 1 for B, to where `layout`, of the plan's workspace, says.
 * decoded: the product that is left, with operands as they are read; its bias gradient is not that of a quantised dY,
 * which tegroup_impl_formats_bias_grad makes of `read`, the call before that. */
static inline tegroup_status tegroup_impl_decode(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                 const tegroup_layout *layout, uint32_t operands,
                                                 tegroup_gemm_desc *decoded, tegroup_impl_gpu_call *read,
                                                 struct CUstream_st *stream, tegroup_error *error) {
    tegroup_tensor *const tensors[2] = {&decoded->a, &decoded->b};
    void *const workspace = desc->options.workspace;
    int multiprocessors = 0, i;
    *decoded = *desc;
    decoded->a = tegroup_impl_as_read(desc, TEGROUP_IMPL_A);
    decoded->b = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    *read = tegroup_impl_gpu_call_of(decoded);
    if (operands == 0) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_status(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, plan->device),
                                 "plan.device", "must be readable", error));
    if (tegroup_impl_sums_bias(desc) && tegroup_impl_biased(desc)->scaling != TEGROUP_SCALING_NONE)
        decoded->bias.dtype = TEGROUP_DTYPE_UNSET;
    if (decoded->a.global_scale_inv || decoded->b.global_scale_inv) {
        float *const alpha = (float *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_DECODED_ALPHA, workspace);
        decoded->a.global_scale_inv = decoded->b.global_scale_inv = NULL; /* They are in alpha. */
        decoded->alpha.data = alpha;
        decoded->alpha.dtype = TEGROUP_DTYPE_F32;
        decoded->alpha.space = TEGROUP_SPACE_DEVICE;
        decoded->alpha.stride = 1;
        if (desc->d.shape.groups > 0)
            TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
                tegroup_impl_launch(tegroup_impl_decoded_alpha_kernel, 1, 256, 0, stream, *read, alpha), "stream",
                "the kernel must launch", error));
    }
    for (i = 0; i < 2; i++) {
        if (!(operands >> i & 1u) || tensors[i]->scaling == TEGROUP_SCALING_NONE) continue;
        *tensors[i] = tegroup_impl_decoded(tensors[i], tegroup_impl_layout_at(layout, i, workspace));
        if (desc->d.shape.groups > 0)
            TEGROUP_IMPL_TRY(tegroup_impl_decode_operand(
                desc, (tegroup_impl_operand)i, tensors[i],
                plan->sm_limit < multiprocessors ? (unsigned)plan->sm_limit : 0, stream, error));
    }
    return TEGROUP_OK;
}
