/* The GPU backends that the suite runs on, and whether this machine and this build have them. */
#ifndef TEGROUP_TESTS_BACKENDS_H
#define TEGROUP_TESTS_BACKENDS_H

#include "product.h"
#include <cublasLt.h>

enum { BACKENDS = 4 };
static const tegroup_backend backends[BACKENDS] = {TEGROUP_BACKEND_PORTABLE, TEGROUP_BACKEND_CUBLASLT_GROUPED, TEGROUP_BACKEND_CUBLASLT_LOOP, TEGROUP_BACKEND_SM90};

static int backend_bundled(tegroup_backend backend) { return backend == TEGROUP_BACKEND_PORTABLE || backend == TEGROUP_BACKEND_SM90; }

static void handle_make(void) {
    cublasLtHandle_t handle;
    if (mirror_cublaslt != NULL) return;
    if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS) exit(1);
    mirror_cublaslt = handle;
}

/* What explain says of a product that every backend can do. */
static tegroup_verdict backend_verdict(tegroup_backend backend) {
    tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1], none;
    tegroup_error error;
    product p;
    handle_make();
    memset(&p, 0, sizeof p);
    p.op = TEGROUP_OP_FORWARD;
    p.in = p.out = TEGROUP_DTYPE_BF16;
    p.groups = 2;
    p.rows = p.n = p.k = 16;
    product_make(&p, backend);
    memset(&none, 0, sizeof none);
    none.status = tegroup_explain(&p.desc, NULL, verdicts, &error);
    product_free(&p);
    for (int i = 0; none.status == TEGROUP_OK && i < TEGROUP_BACKEND_COUNT - 1; i++)
        if (verdicts[i].backend == backend) return verdicts[i];
    return none;
}

/* TEGROUP_TEST_BACKENDS=sm90,portable: these alone, for tools that break off inside the kernels of others. */
static int backend_here(tegroup_backend backend) {
    const char *wanted = getenv("TEGROUP_TEST_BACKENDS");
    if (wanted != NULL && strstr(wanted, tegroup_backend_name(backend)) == NULL) return 0;
    static int known[TEGROUP_BACKEND_COUNT]; /* 0 = not asked yet, 1 = no, 2 = yes */
    if (known[backend] == 0) known[backend] = backend_verdict(backend).status == TEGROUP_OK ? 2 : 1;
    return known[backend] == 2;
}

#endif
