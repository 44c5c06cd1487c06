/* cc -I. tools/backends_doc.c -o backends_doc -lm && ./backends_doc > docs/backends.md */

/* Write docs/backends.md from the tables that dispatch reads. A test compares the committed page with this output. */
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

#define ALL_BUILT (((1u << TEGROUP_BACKEND_COUNT) - 1u) & ~1u)

/* ---- Words for numbers ---- */

static void print_version(int32_t version) { /* cublasLtGetVersion(): 10000 * major + 100 * minor + patch */
    printf("%d.%d", version / 10000, version / 100 % 100);
    if (version % 100) printf(".%d", version % 100);
}

static void print_sm_range(int32_t low, int32_t high) {
    if (low == 0 && high == 0) printf("no GPU");
    else if (low == high) printf("%d", low);
    else if (high >= 999) printf("%d and later", low);
    else printf("%d to %d", low, high);
}

static void print_versions(int32_t from, int32_t below) {
    if (from > 0) { printf("from "); print_version(from); }
    if (from > 0 && below < 999999) printf(", ");
    if (below < 999999) { printf("below "); print_version(below); }
    if (from == 0 && below >= 999999) printf("all");
}

static void print_dtypes(uint32_t bits) {
    const char *comma = "";
    for (int d = 1; d < TEGROUP_DTYPE_COUNT; d++)
        if (bits >> d & 1u) { printf("%s%s", comma, tegroup_dtype_name((tegroup_dtype)d)); comma = ", "; }
}

static void print_scalings(uint32_t bits) {
    const char *comma = "";
    for (int s = 0; s < TEGROUP_SCALING_COUNT; s++)
        if (bits >> s & 1u) { printf("%s%s", comma, tegroup_scaling_info((tegroup_scaling)s)->name); comma = ", "; }
}

/* ---- Tables ---- */

static const struct feature { uint32_t bit; const char *name, *meaning; } features[] = {
    {TEGROUP_FEATURE_HOST_MEMORY, "host memory", "operands, results and workspace are in host memory; else in device memory"},
    {TEGROUP_FEATURE_HOST_SIZES, "host sizes", "group sizes may be in host memory"},
    {TEGROUP_FEATURE_DEVICE_SIZES, "device sizes", "group sizes may be in device memory"},
    {TEGROUP_FEATURE_GROUP_SCALARS, "group scalars", "alpha and beta may differ by group"},
    {TEGROUP_FEATURE_IRREGULAR, "irregular", "n and k may differ by group"},
    {TEGROUP_FEATURE_LISTS, "lists", "a, b, c and d may be lists of pointers"},
    {TEGROUP_FEATURE_BIAS, "bias", "bias, scaled bias and the bias gradient"},
    {TEGROUP_FEATURE_TAIL, "tail", "TEGROUP_TAIL_ZERO and TEGROUP_TAIL_POISON"},
    {TEGROUP_FEATURE_F64, "F64", "TEGROUP_COMPUTE_F64"},
    {TEGROUP_FEATURE_GATHER, "gather", "rows of a, and in a wgrad of b, may be picked by an index: `gather_a`, `gather_b`"},
    {TEGROUP_FEATURE_FUNCTOR, "functor", "a [functor](prototyping.md) of the caller's, where a and b are F16 or BF16"},
    {TEGROUP_FEATURE_MIXED, "mixed", "a of F32 may meet weights of F16 or BF16 in b, forward and dgrad; else a and b have one type"},
    {TEGROUP_FEATURE_SM_LIMIT, "SM limit", "`sm_limit` is kept to by the product's kernel; elsewhere on a GPU it must be 0"},
};
enum { FEATURES = sizeof features / sizeof *features };

static void print_backends(const tegroup_verdict *verdicts) { /* in order of preference */
    static const char *const what[TEGROUP_BACKEND_COUNT] = {
        "", "bundled kernels for Hopper: TMA and wgmma", "cuBLASLt's grouped matmul, sizes on the device",
        "bundled kernels for SM80 and later: cp.async and mma.sync", "one cublasLtMatmul a group, sizes on the host",
        "plain C on any machine; the reference for the others"};
    printf("| backend | what it is | in a C build | in a build by nvcc |\n|---|---|---|---|\n");
    for (int i = 0; i < TEGROUP_BACKEND_COUNT - 1; i++)
        printf("| `%s` | %s | %s | %s |\n", tegroup_backend_name(verdicts[i].backend), what[verdicts[i].backend],
               verdicts[i].status == TEGROUP_ERROR_NOT_BUILT ? "not built" : "works",
               verdicts[i].backend == TEGROUP_BACKEND_SM90 ? "works, with code for `sm_90a`" : "works");
}

static void print_rules(void) {
    int32_t count;
    const tegroup_backend_rule *rules = tegroup_backend_rules(&count);
    printf("| backend | SM | cuBLAS from | operands | results | scaling | alignment | features | known from |\n|---|---|---|---|---|---|---|---|---|\n");
    for (int32_t i = 0; i < count; i++) {
        const char *comma = "";
        printf("| `%s` | ", tegroup_backend_name(rules[i].backend));
        print_sm_range(rules[i].sm_min, rules[i].sm_max);
        printf(" | ");
        if (rules[i].cublaslt_min) print_version(rules[i].cublaslt_min); else printf("-");
        printf(" | ");
        print_dtypes(rules[i].operand_dtypes);
        printf(" | ");
        print_dtypes(rules[i].result_dtypes);
        printf(" | ");
        print_scalings(rules[i].scalings);
        if (rules[i].ld_alignment_bytes) printf(" | %d bytes | ", rules[i].ld_alignment_bytes); else printf(" | element | ");
        for (int f = 0; f < FEATURES; f++)
            if (rules[i].features & features[f].bit) { printf("%s%s", comma, features[f].name); comma = ", "; }
        printf(" | %s |\n", rules[i].note);
    }
    printf("\n");
    for (int f = 0; f < FEATURES; f++) printf("- *%s*: %s.\n", features[f].name, features[f].meaning);
}

static void print_quirks(void) {
    static const char *const when[] = {"every problem", "wgrad", "a leading dimension is not a multiple of 16 bytes", "d's columns are not a multiple of 16 bytes", "alpha or beta in device memory or by group", "accumulate, d of 16 bits", "c or accumulate, d of 16 bits", "NVFP4", "wgrad of MXFP8"};
    static const char *const action[] = {"", "refused", "forward, dgrad and wgrad each get a cuBLASLt workspace of their own", "calls it so that this does not happen"};
    int32_t count;
    const tegroup_quirk *quirks = tegroup_quirks(&count);
    printf("| q | backend | cuBLAS | SM | when | what goes wrong | what tegroup does | known from |\n|---|---|---|---|---|---|---|---|\n");
    for (int32_t q = 0; q < count; q++) {
        printf("| %d | `%s` | ", q, tegroup_backend_name(quirks[q].backend));
        print_versions(quirks[q].cublaslt_from, quirks[q].cublaslt_below);
        printf(" | ");
        print_sm_range(quirks[q].sm_min, quirks[q].sm_max);
        printf(" | %s | %s | %s | %s |\n", when[quirks[q].when], quirks[q].text, action[quirks[q].action], quirks[q].provenance);
    }
}

/* ---- Machines ---- */

/* Eight experts, a buffer of 4,096 rows, n = 1,024. */
static tegroup_gemm_desc problem(tegroup_op op, tegroup_space space, tegroup_dtype dtype, tegroup_scaling scaling, int64_t k) {
    tegroup_gemm_desc gemm = {.struct_size = sizeof gemm, .op = op, .space = space, .options.cublas_workspace_bytes = 0};
    tegroup_tensor *ragged[2] = {&gemm.a, op == TEGROUP_OP_WGRAD ? &gemm.b : &gemm.d}, *weights = op == TEGROUP_OP_WGRAD ? &gemm.d : &gemm.b;
    gemm.a.dtype = gemm.b.dtype = dtype;
    gemm.a.scaling = gemm.b.scaling = scaling;
    gemm.d.dtype = dtype == TEGROUP_DTYPE_F32 ? dtype : TEGROUP_DTYPE_BF16;
    for (int i = 0; i < 2; i++) {
        ragged[i]->shape.groups = 8;
        ragged[i]->shape.rows = 4096;
        ragged[i]->shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
        ragged[i]->shape.row_sizes.dtype = TEGROUP_DTYPE_I64;
        ragged[i]->shape.row_sizes.space = space;
    }
    weights->shape.groups = 8;
    weights->shape.rows = 1024;
    weights->shape.cols = k;
    gemm.a.shape.cols = op == TEGROUP_OP_FORWARD ? k : 1024;
    ragged[1]->shape.cols = op == TEGROUP_OP_WGRAD ? k : 1024;
    return gemm;
}

static int print_machine(const char *title, tegroup_gemm_desc gemm, int32_t sm, int32_t cublaslt, uint32_t built, tegroup_verdict *verdicts) {
    tegroup_target target = {.struct_size = sizeof target, .sm = sm, .cublaslt_version = cublaslt, .threads = 2};
    tegroup_error error;
    char text[512];
    target.built = built;
    if (sm == 90) target.memory_bits = 6016; /* an H200; 0 would be an H100 */
    if (tegroup_explain(&gemm, &target, verdicts, &error)) {
        tegroup_error_text(&error, text, sizeof text);
        fprintf(stderr, "backends_doc: %s: %s\n", title, text);
        return 1;
    }
    if (!title) return 0;
    printf("\n%s\n\n```text\n", title);
    for (int i = 0; i < TEGROUP_BACKEND_COUNT - 1; i++) {
        tegroup_verdict_text(&verdicts[i], text, sizeof text);
        printf("%s\n", text);
    }
    printf("```\n");
    return 0;
}

int main(void) {
    tegroup_verdict v[TEGROUP_BACKEND_COUNT - 1];
    tegroup_gemm_desc host = problem(TEGROUP_OP_FORWARD, TEGROUP_SPACE_HOST, TEGROUP_DTYPE_F32, TEGROUP_SCALING_NONE, 1024);
    tegroup_gemm_desc forward = problem(TEGROUP_OP_FORWARD, TEGROUP_SPACE_DEVICE, TEGROUP_DTYPE_BF16, TEGROUP_SCALING_NONE, 1024);
    tegroup_gemm_desc wgrad = problem(TEGROUP_OP_WGRAD, TEGROUP_SPACE_DEVICE, TEGROUP_DTYPE_BF16, TEGROUP_SCALING_NONE, 1024);
    tegroup_gemm_desc unaligned = problem(TEGROUP_OP_FORWARD, TEGROUP_SPACE_DEVICE, TEGROUP_DTYPE_BF16, TEGROUP_SCALING_NONE, 260);
    tegroup_gemm_desc mixed = problem(TEGROUP_OP_FORWARD, TEGROUP_SPACE_DEVICE, TEGROUP_DTYPE_F32, TEGROUP_SCALING_NONE, 1024);
    tegroup_gemm_desc mxfp8 = problem(TEGROUP_OP_FORWARD, TEGROUP_SPACE_DEVICE, TEGROUP_DTYPE_F8E4M3, TEGROUP_SCALING_MXFP8, 1024);
    tegroup_gemm_desc blocks = mxfp8;
    int failed = print_machine(NULL, host, 0, 0, 0, v);
    printf("# Backends\n\n"
           "Written by `tools/backends_doc.c` from the tables that `tegroup_plan_make` and `tegroup_explain` read: do not edit.\n\n"
           "A plan takes the first backend of this list that can run the problem on the machine, or the one that `options.backend`\n"
           "names. Where groups have numbers of columns of their own in d, `portable` comes before `cublaslt_grouped`, which would\n"
           "give NaN to some; and where `sm90` would have to copy weights for few rows a group, `portable` comes before it. A\n"
           "backend that is not built is refused. This page comes from a plain C build. `sm90` is in code for\n"
           "`sm_90a` alone (`-gencode arch=compute_90a,code=sm_90a`); `TEGROUP_NO_SM90` leaves it out, as `TEGROUP_NO_PORTABLE`\n"
           "and `TEGROUP_NO_CUBLASLT` do with theirs. `TEGROUP_NO_F16`, `TEGROUP_NO_BACKWARD` and `TEGROUP_NO_FP8` leave out\n"
           "kernels of `sm90` and `portable`, and explain names them; the tables below are of whole builds. The two of cuBLASLt\n"
           "call the one that the process has loaded (or `options.cublaslt_functions`), with the handle `options.cublaslt`: link\n"
           "with `-lcublasLt`, or load it, as torch does, and give the handle of `cublasLtCreate` to the plan and to each call. On\n"
           "the machine itself they are refused where either is missing.\n\n");
    print_backends(v);
    printf("\n## What each backend can do, and where\n\n"
           "A backend can run a problem when one of its rows admits it. SM is the compute capability, 10 * major + minor. cuBLAS is\n"
           "what `cublasLtGetVersion` says at run time. Alignment is asked of leading dimensions and addresses; below the table\n"
           "stands what is asked besides. Rows of backends that are not built say what they will be held to.\n\n"
           "`sm90` asks 16 bytes of leading dimensions, of the distance between uniform groups and of data: the first two when the\n"
           "plan is made, so that another backend is chosen, the last of each call, unless `data_alignment_bytes` says less before.\n"
           "A list's entries are in device memory, where its kernel looks at them: from an a, b or c elsewhere comes NaN, and to\n"
           "such a d goes nothing. Rows, n and k can be 2^31 - 512 at the most. For short groups it may take `portable`'s kernel,\n"
           "whose products have the same bits on Hopper, and which takes lists' entries at any address; with `TEGROUP_NO_PORTABLE`\n"
           "it takes one of its own. Its kernels want 232 registers a thread, which ptxas gives them in whole-program builds alone:\n"
           "with `-rdc=true` or `-G` they are right, and slow. Rows of a or b whose leading dimension is off 16 bytes are copied\n"
           "into workspace by each call, unless they are gathered, or ragged in a list. Weights are worth that for 256 rows a\n"
           "group or more, or where an ld is odd; else `portable` comes first. Either's products then have the same bits, and\n"
           "the same `numerics_id`. Operands with scales of 8 bits (MXFP8, MXFP4, NVFP4) it decodes to BF16 in\n"
           "[workspace](formats.md#decoded-on-hopper) first, so that alignment is asked of the others alone, and of\n"
           "[weights that it decodes in registers](formats.md#weights-in-registers), which a build with `-rdc=true` does not.\n\n"
           "`cublaslt_grouped` asks 16 bytes of addresses and, by quirks 4 and 6, of leading dimensions and of the columns of d: of\n"
           "data pointers and common widths it is checked; a group of a list that starts elsewhere, or whose own number of columns\n"
           "is another, gets NaN, unless `ignore_quirks` says that cuBLASLt is to have it all the same. Groups at `shape.offsets`\n"
           "may begin anywhere: for them it is not taken, unless `data_alignment_bytes` vouches for 16 bytes. That says at plan\n"
           "time, too, that data will lie at multiples of more bytes: cuBLASLt is then asked for algorithms that may rely on as many\n"
           "of them as the distances of rows and groups keep, and a call with data elsewhere is refused rather than given other\n"
           "bits.\n\n"
           "Of quantised operands it reads what cuBLASLt's documentation describes: scales of the scaling's own type in the default\n"
           "packing, one grid a group, at addresses that are multiples of 16 bytes unless it is one scale. Except for MXFP8, both\n"
           "are read along contiguous elements: in a dgrad b, and in a wgrad a and b, are copies with `columnwise_order`\n"
           "TRANSPOSED, which must be there even where the rowwise ones have the same values. Rows of any number, of which 1x128\n"
           "scales are padded to 4, are tested on Hopper. Beside a of E5M2, b is E4M3; beside a of 128x128, b is 1x128. Sums are\n"
           "promoted to FP32 every 128 of k. MXFP8 and NVFP4 are compiled, and were never run as products: what the set-up kernel\n"
           "hands to the library is tested on the CPU, where it is read as cuBLAS documents it, and on Hopper against the CPU's.\n"
           "k must then be a multiple of 32, NVFP4 has no wgrad, as rows need not fill blocks, and that of MXFP8 is\n"
           "kept back by a quirk.\n\n"
           "The sums of the two cuBLASLt backends are ordered by the algorithm that the plan holds, and `numerics_id` covers it and\n"
           "the library's version: one plan gives the same bits each time, but plans for other row counts may hold other algorithms.\n"
           "That of `cublaslt_loop` is the one that the library offers for a group of the mean size, so that a row's bits do not\n"
           "follow the rows that come with it; one for each size of a group, as the library's own callers may keep them, would be\n"
           "faster for some and not do that. Where data are not aligned to 16 bytes, or a group has a shape that it cannot do,\n"
           "another one runs, whose bits may differ.\n\n");
    print_rules();
    printf("\n## Quirks\n\n"
           "Combinations of library, machine and case that are known to go wrong. `ignore_quirks` with bit q set takes the risk of\n"
           "quirk q, unless tegroup avoids it by the way in which it calls the library.\n\n");
    print_quirks();
    printf("\n## What explain prints\n\n"
           "`tegroup_explain` answers for any machine, present or not: describe it in a `tegroup_target`. `target.built` is the set\n"
           "of backends in the build; 0 means this build. Below: eight experts, a buffer of 4,096 rows, n = k = 1,024, two CPU\n"
           "threads.\n");
    failed |= print_machine("F32 in host memory, no GPU, this build:", host, 0, 0, 0, v);
    failed |= print_machine("BF16 forward in device memory on an H200 (SM 90) with cuBLAS 13.10, this build: nothing can run it.", forward, 90, 131000, 0, v);
    failed |= print_machine("The same with every backend built:", forward, 90, 131000, ALL_BUILT, v);
    failed |= print_machine("The same with cuBLAS 13.1, every backend built:", forward, 90, 130100, ALL_BUILT, v);
    failed |= print_machine("The same with cuBLAS 13.10 and k = 260 (rows of 520 bytes), every backend built:", unaligned, 90, 131000, ALL_BUILT, v);
    failed |= print_machine("BF16 forward on an A100 (SM 80) with cuBLAS 12.8, every backend built:", forward, 80, 120800, ALL_BUILT, v);
    failed |= print_machine("BF16 wgrad on a B200 (SM 100) with cuBLAS 13.8.1, every backend built:", wgrad, 100, 130801, ALL_BUILT, v);
    failed |= print_machine("BF16 wgrad on a B300 (SM 103) with cuBLAS 13.7, every backend built:", wgrad, 103, 130700, ALL_BUILT, v);
    mixed.b.dtype = TEGROUP_DTYPE_BF16;
    failed |= print_machine("F32 forward with BF16 weights on an H200 (SM 90) with cuBLAS 13.10, every backend built:", mixed, 90, 131000, ALL_BUILT, v);
    failed |= print_machine("MXFP8 forward on an H200 (SM 90) with cuBLAS 13.10, every backend built: `sm90` decodes rows and weights.", mxfp8, 90, 131000, ALL_BUILT, v);
    failed |= print_machine("MXFP8 forward on a B200 (SM 100) with cuBLAS 13.10, every backend built:", mxfp8, 100, 131000, ALL_BUILT, v);
    blocks.a.scaling = TEGROUP_SCALING_BLOCK_1X128;
    blocks.b.scaling = TEGROUP_SCALING_BLOCK_128X128;
    failed |= print_machine("E4M3 in blocks of 1x128 and 128x128, forward on an H200 (SM 90) with cuBLAS 13.10, every backend built:", blocks, 90, 131000, ALL_BUILT, v);
    return failed;
}
