/* ---- cpu/gemm ---- */
