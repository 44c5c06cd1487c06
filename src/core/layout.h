/* ---- Workspace layouts ---- */

/* Where each part of a workspace lies. Size, check and carving all read the same layout; print it to see what
 * each byte is for. Offsets are multiples of TEGROUP_ALIGNMENT; there is no slack. */
#define TEGROUP_LAYOUT_MAX_ITEMS 32

typedef struct tegroup_layout_item {
    const char *name; /* static string         */
    size_t      offset_bytes;
    size_t      bytes;
} tegroup_layout_item;

typedef struct tegroup_layout {
    int32_t             count;
    size_t              total_bytes;
    tegroup_layout_item items[TEGROUP_LAYOUT_MAX_ITEMS];
} tegroup_layout;

/* Items of the set-up workspace of a grouped cuBLASLt matmul, in order, [groups] entries each: of 8 bytes, the last two
 * floats. Its A is the descriptor's b and its B the descriptor's a: counting by columns it makes the transpose of D. */
typedef enum tegroup_setup_item {
    TEGROUP_SETUP_A, TEGROUP_SETUP_B, TEGROUP_SETUP_C, TEGROUP_SETUP_D, /* addresses of the matrices            */
    TEGROUP_SETUP_ALPHA, TEGROUP_SETUP_BETA,                            /* addresses of each group's scalar     */
    TEGROUP_SETUP_A_SCALE, TEGROUP_SETUP_B_SCALE,                       /* addresses of each group's scales     */
    TEGROUP_SETUP_A_ROWS, TEGROUP_SETUP_A_COLS, TEGROUP_SETUP_A_LD,     /* int64, column-major as cuBLASLt counts */
    TEGROUP_SETUP_B_ROWS, TEGROUP_SETUP_B_COLS, TEGROUP_SETUP_B_LD,
    TEGROUP_SETUP_C_LD,
    TEGROUP_SETUP_D_ROWS, TEGROUP_SETUP_D_COLS, TEGROUP_SETUP_D_LD,     /* C has D's rows and columns            */
    TEGROUP_SETUP_ALPHA_VALUE, TEGROUP_SETUP_BETA_VALUE,                /* float: the scalars themselves         */
    TEGROUP_SETUP_COUNT
} tegroup_setup_item;
