/* Experts in FP8 and narrower: a format is what their weights, rows and gradients are quantised as. The weights are
 * quantised here when they have changed, rows and gradients by tegroup's MoE layer. Other products stay in BF16. */
#ifndef TRAIN_MOE_FORMATS_H
#define TRAIN_MOE_FORMATS_H

typedef struct format {
    const char          *name;
    tegroup_scaling      rows, weights;
    tegroup_dtype        forward, backward;
    tegroup_scale_preset preset;
    tegroup_columnwise_order order; /* of rows' copies for weight gradients: codes, or values as they were */
} format;

static const format formats[] = {
    { "fp8-block", TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2,
        TEGROUP_SCALE_TE_BLOCK, TEGROUP_COLUMNWISE_TRANSPOSED },
    { "fp8-mixed", TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2,
        TEGROUP_SCALE_TE_BLOCK, TEGROUP_COLUMNWISE_BF16 },
    { "fp8-row", TEGROUP_SCALING_ROW, TEGROUP_SCALING_ROW, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2,
        TEGROUP_SCALE_TE_CURRENT, TEGROUP_COLUMNWISE_TRANSPOSED },
    { "fp8-tensor", TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_TENSOR, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2,
        TEGROUP_SCALE_TE_CURRENT, TEGROUP_COLUMNWISE_TRANSPOSED },
    { "mxfp8", TEGROUP_SCALING_MXFP8, TEGROUP_SCALING_MXFP8_32X32, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2,
        TEGROUP_SCALE_TE_MXFP8, TEGROUP_COLUMNWISE_TRANSPOSED },
    { "nvfp4", TEGROUP_SCALING_NVFP4, TEGROUP_SCALING_NVFP4_16X16, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F4E2M1,
        TEGROUP_SCALE_TE_NVFP4, TEGROUP_COLUMNWISE_TRANSPOSED },
};
#define FORMAT_NAMES "f32, bf16, fp8-block, fp8-mixed, fp8-row, fp8-tensor, mxfp8 or nvfp4"

static const format *format_of(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0) return &formats[i];
    return NULL;
}

/* A tensor like another, in a scaling: both copies, the columnwise one transposed, as Hopper's kernels of FP8 read it, their
 * scales, and what is one number an expert. */
static tegroup_tensor make_quantised(memory *owner, tegroup_tensor t, tegroup_scaling scaling, tegroup_dtype dtype)
{
    tegroup_error error;
    tegroup_layout layout;
    t.scaling = scaling;
    t.dtype = dtype;
    t.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
    must(tegroup_tensor_layout(&t, TEGROUP_COPIES_BOTH, &layout, &error), &error);
    t.data = allocate(owner, layout.items[0].bytes);
    t.scale_inv = allocate(owner, layout.items[1].bytes);
    t.columnwise_data = allocate(owner, layout.items[2].bytes);
    t.columnwise_scale_inv = allocate(owner, layout.items[3].bytes);
    if (layout.items[4].bytes) t.global_scale_inv = allocate(owner, layout.items[4].bytes);
    t.amax = allocate(owner, (size_t)t.shape.groups * sizeof *t.amax);
    return t;
}

static void quantise(const settings *s, tegroup_tensor from, const tegroup_tensor *to)
{
    tegroup_error error;
    const tegroup_quantize_desc desc = {
        .struct_size = sizeof desc, .space = s->space, .input = from, .output = *to,
        .rule = tegroup_scale_rule_of(s->format->preset), .threads = s->threads
    };
    must(tegroup_quantize(&desc, s->stream, &error), &error);
}

#endif
