/* ---- cpu/gemm_kernel ---- */
