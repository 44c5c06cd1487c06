/* ---- Gated activations ---- */

typedef enum tegroup_activation {
    TEGROUP_ACTIVATION_UNSET  = 0,
    TEGROUP_ACTIVATION_SWIGLU = 1 /* silu(gate) * up, silu(x) = x / (1 + exp(-x)): Shazeer 2020, "GLU Variants Improve Transformer" */
} tegroup_activation;

/* output[r] = row_scale[r] * activation(gate[r], up[r]), for rows that the shape's groups own (all rows when it has no
 * snapshot). Other rows are untouched. */
typedef struct tegroup_activation_desc {
    size_t             struct_size; /* sizeof(tegroup_activation_desc)                                            */
    tegroup_space      space;       /* required                                                                   */
    tegroup_activation activation;  /* required                                                                   */
    int32_t            interleaved; /* 0: input is [gate | up] halves; 1: gate, up, gate, up ...                  */
    const void        *snapshot;    /* rows that are valid; NULL = all                                            */
    tegroup_matrix     input;       /* in  [rows, 2 width], F16, BF16, F32 or F64                                 */
    tegroup_matrix     row_scale;   /* in  [rows, 1], F32 or F64; absent = 1                                      */
    tegroup_matrix     output;      /* out [rows, width]                                                          */
} tegroup_activation_desc;

/* Gradient of the above. */
typedef struct tegroup_activation_backward_desc {
    size_t             struct_size; /* sizeof(tegroup_activation_backward_desc)                                   */
    tegroup_space      space;
    tegroup_activation activation;
    int32_t            interleaved;
    const void        *snapshot;
    tegroup_matrix     input;          /* in  [rows, 2 width], as the forward call read it                        */
    tegroup_matrix     row_scale;      /* in  [rows, 1]; absent = 1                                               */
    tegroup_matrix     grad_output;    /* in  [rows, width]                                                       */
    tegroup_matrix     grad_input;     /* out [rows, 2 width], laid out as input; may be input itself             */
    tegroup_matrix     grad_row_scale; /* out [rows, 1], F32 or F64; absent = not wanted                          */
} tegroup_activation_backward_desc;
