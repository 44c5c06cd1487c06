/* ---- What decides the bits of a result ---- */

#pragma once
#include "base/version.h"
#include "formats/scaling_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"

/* FNV-1a. */
#define TEGROUP_IMPL_HASH UINT64_C(14695981039346656037)
TEGROUP_IMPL_STATIC uint64_t tegroup_impl_hash(uint64_t hash, const void *bytes, size_t count) {
    size_t i;
    for (i = 0; i < count; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(1099511628211);
    return hash;
}

/* Of what decides the order of a sum and the rounding of its terms; rows and groups are not in it. */
TEGROUP_IMPL_STATIC uint64_t tegroup_impl_numerics_id(const tegroup_problem *p, tegroup_backend backend, int32_t sm) {
    int64_t parts[10];
    parts[0] = backend;
    parts[1] = p->op;
    parts[2] = p->compute;
    parts[3] = p->op == TEGROUP_OP_WGRAD ? 0 : p->n;
    parts[4] = p->op == TEGROUP_OP_WGRAD ? 0 : p->k;
    parts[5] = p->a;
    parts[6] = p->b;
    parts[7] = p->d;
    parts[8] = p->a_scaling * TEGROUP_SCALING_COUNT + p->b_scaling;
    parts[9] = sm;
    return tegroup_impl_hash(TEGROUP_IMPL_HASH, parts, sizeof parts);
}

TEGROUP_IMPL_STATIC int tegroup_impl_uses_cublaslt(tegroup_backend backend) {
    return backend == TEGROUP_BACKEND_CUBLASLT_GROUPED || backend == TEGROUP_BACKEND_CUBLASLT_LOOP;
}
