#if !defined(TEGROUP_NO_CUBLASLT)
