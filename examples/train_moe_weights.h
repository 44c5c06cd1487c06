/* train_moe's weights as a safetensors file: 8 bytes of header length, a JSON header, then the tensors' bytes, all
 * little-endian (https://github.com/huggingface/safetensors, "Format"). */

enum { HEADER_BYTES = 16384 };

static void write_little_endian(FILE *file, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) putc((int)(value >> (8 * i) & 255), file);
}

/* Append to a buffer of HEADER_BYTES that is known to be large enough. */
static void append(char *header, int *length, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    *length += vsnprintf(header + *length, (size_t)(HEADER_BYTES - *length), format, arguments);
    va_end(arguments);
}

static void append_shape(char *header, int *length, const parameter *p)
{
    for (int i = 0; i < p->rank; i++) append(header, length, "%s%lld", i ? "," : "[", (long long)p->shape[i]);
    append(header, length, "]");
}

/* The JSON header, padded with spaces so that the tensors after it are aligned. */
static int format_header(const model *m, char *header)
{
    int length = 0;
    long long offset = 0;
    append(header, &length, "{\"__metadata__\":{\"context\":\"%lld\",\"experts\":\"%d\",\"choices\":\"%d\"}",
        (long long)m->s.context, (int)m->s.experts, (int)m->s.choices);
    for (int i = 0; i < m->count; i++) {
        const parameter *p = m->all[i];
        const long long end = offset + 4 * (long long)p->elements;
        append(header, &length, ",\"%s\":{\"dtype\":\"F32\",\"shape\":", p->name);
        append_shape(header, &length, p);
        append(header, &length, ",\"data_offsets\":[%lld,%lld]}", offset, end);
        offset = end;
    }
    append(header, &length, "}");
    while (length % 8) append(header, &length, " ");
    return length;
}

static void write_values(FILE *file, const settings *s, const parameter *p)
{
    memory here = { .space = TEGROUP_SPACE_HOST };
    float *values = allocate(&here, (size_t)p->elements * sizeof *values);
    copy(s, values, p->value, (size_t)p->elements * sizeof *values);
    for (int64_t i = 0; i < p->elements; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        write_little_endian(file, bits, 4);
    }
    release(&here);
}

/* Write an FP32 model to an open file and close it. Returns 0 when not all of it could be written. */
static int write_safetensors(const model *m, FILE *file)
{
    char header[HEADER_BYTES];
    const int length = format_header(m, header);
    write_little_endian(file, (uint64_t)length, 8);
    fwrite(header, 1, (size_t)length, file);
    for (int i = 0; i < m->count; i++) write_values(file, &m->s, m->all[i]);
    const int complete = !ferror(file);
    return fclose(file) == 0 && complete;
}
