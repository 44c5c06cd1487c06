/* ---- Names and texts ---- */

TEGROUP_API int32_t tegroup_version(void) { return TEGROUP_VERSION; }

TEGROUP_API const char *tegroup_status_name(tegroup_status status) {
#define TEGROUP_IMPL_CASE(name, value, text)                                                                           \
    case TEGROUP_##name: return #name;
    switch (status) { TEGROUP_STATUS_LIST(TEGROUP_IMPL_CASE) default : return "?"; }
#undef TEGROUP_IMPL_CASE
}

TEGROUP_API const char *tegroup_status_string(tegroup_status status) {
#define TEGROUP_IMPL_CASE(name, value, text)                                                                           \
    case TEGROUP_##name: return text;
    switch (status) { TEGROUP_STATUS_LIST(TEGROUP_IMPL_CASE) default : return "?"; }
#undef TEGROUP_IMPL_CASE
}

TEGROUP_API const char *tegroup_dtype_name(tegroup_dtype dtype) {
#define TEGROUP_IMPL_CASE(name, value, bits)                                                                           \
    case TEGROUP_DTYPE_##name: return #name;
    switch (dtype) { TEGROUP_DTYPE_LIST(TEGROUP_IMPL_CASE) default : return "?"; }
#undef TEGROUP_IMPL_CASE
}

TEGROUP_IMPL_HD int32_t tegroup_impl_bits(tegroup_dtype dtype) {
#define TEGROUP_IMPL_CASE(name, value, bits)                                                                           \
    case TEGROUP_DTYPE_##name: return bits;
    switch (dtype) { TEGROUP_DTYPE_LIST(TEGROUP_IMPL_CASE) default : return 0; }
#undef TEGROUP_IMPL_CASE
}

TEGROUP_API int32_t tegroup_dtype_bits(tegroup_dtype dtype) { return tegroup_impl_bits(dtype); }

TEGROUP_API const char *tegroup_op_name(tegroup_op op) {
    switch (op) {
    case TEGROUP_OP_FORWARD: return "forward";
    case TEGROUP_OP_DGRAD: return "dgrad";
    case TEGROUP_OP_WGRAD: return "wgrad";
    default: return "?";
    }
}

TEGROUP_API const char *tegroup_backend_name(tegroup_backend backend) {
    switch (backend) {
    case TEGROUP_BACKEND_AUTO: return "auto";
    case TEGROUP_BACKEND_SM90: return "sm90";
    case TEGROUP_BACKEND_CUBLASLT_GROUPED: return "cublaslt_grouped";
    case TEGROUP_BACKEND_PORTABLE: return "portable";
    case TEGROUP_BACKEND_CUBLASLT_LOOP: return "cublaslt_loop";
    case TEGROUP_BACKEND_CPU: return "cpu";
    default: return "?";
    }
}

TEGROUP_API int tegroup_error_text(const tegroup_error *error, char *buffer, size_t size) {
    if (!error || error->status == TEGROUP_OK) return snprintf(buffer, size, "ok");
    return snprintf(buffer, size, "%s: %s %s (expected %lld, got %lld)", tegroup_status_string(error->status),
                    error->field, error->rule, (long long)error->expected, (long long)error->got);
}

TEGROUP_API int tegroup_verdict_text(const tegroup_verdict *verdict, char *buffer, size_t size) {
    const char *name;
    if (!verdict) return snprintf(buffer, size, "?");
    name = tegroup_backend_name(verdict->backend);
    if (verdict->status == TEGROUP_OK)
        return snprintf(buffer, size, "%-16s %s, workspace %llu bytes", name, verdict->chosen ? "CHOSEN" : "could run",
                        (unsigned long long)verdict->workspace_bytes);
    return snprintf(buffer, size, "%-16s %s: %s %s (expected %lld, got %lld)", name,
                    verdict->status == TEGROUP_ERROR_NOT_BUILT ? "not built" : "refused", verdict->field, verdict->rule,
                    (long long)verdict->expected, (long long)verdict->got);
}

TEGROUP_API int tegroup_layout_text(const tegroup_layout *layout, char *buffer, size_t size) {
    int length = 0, i;
    if (!layout) return snprintf(buffer, size, "?");
    for (i = 0; i <= layout->count; i++) { /* the last line is the total */
        size_t used = (size_t)length < size ? (size_t)length : size;
        size_t room = buffer ? size - used : 0;
        char none = 0, *at = buffer ? buffer + used : &none; /* gcc -O3 warns of a NULL even where nothing is written */
        length += i == layout->count
                      ? snprintf(at, room, "%12llu bytes in all\n", (unsigned long long)layout->total_bytes)
                      : snprintf(at, room, "%12llu bytes at %12llu  %s\n", (unsigned long long)layout->items[i].bytes,
                                 (unsigned long long)layout->items[i].offset_bytes, layout->items[i].name);
    }
    return length;
}
