#endif /* TEGROUP_IMPLEMENTATION_INCLUDED */

#if defined(__CUDACC__) && !defined(TEGROUP_NO_CUDA)
#include "tegroup_cuda.cuh"
#endif
