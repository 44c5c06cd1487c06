/* ---- Names and texts ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"

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

/* One number of an error as its reader knows it; a set as "F32, F16 or BF16". `text` has room for every name there
 * is. */
#define TEGROUP_IMPL_READ_CHARS 128
TEGROUP_IMPL_STATIC const char *tegroup_impl_read(char text[TEGROUP_IMPL_READ_CHARS], tegroup_reading reading,
                                                  int is_set, int64_t number) {
    const int dtypes = reading == TEGROUP_READING_DTYPE || reading == TEGROUP_READING_DTYPES;
    const int32_t count = dtypes ? (int32_t)TEGROUP_DTYPE_COUNT : (int32_t)TEGROUP_SCALING_COUNT;
    int32_t i, length = 0;
    if (reading == TEGROUP_READING_REAL) {
        double real;
        memcpy(&real, &number, sizeof real);
        snprintf(text, TEGROUP_IMPL_READ_CHARS, "%.15g", real);
        return text;
    }
    if (reading == TEGROUP_READING_NUMBER || (!is_set && (number < 0 || number >= count))) {
        snprintf(text, TEGROUP_IMPL_READ_CHARS, "%lld", (long long)number);
        return text;
    }
    text[0] = 0;
    for (i = 0; i < count; i++) {
        const int64_t left = number >> i >> 1;
        if (is_set ? !(number >> i & 1) : i != number) continue;
        length += snprintf(text + length, (size_t)(TEGROUP_IMPL_READ_CHARS - length), "%s%s",
                           length == 0           ? ""
                           : is_set && left == 0 ? " or "
                                                 : ", ",
                           !dtypes  ? tegroup_scaling_info((tegroup_scaling)i)->name
                           : i == 0 ? "UNSET"
                                    : tegroup_dtype_name((tegroup_dtype)i));
    }
    return text;
}

/* "(expected I32 or I64, got F32)" after its field and rule. within NULL: the field is the whole path. */
TEGROUP_IMPL_STATIC int tegroup_impl_rule_text(const char *within, const char *field, const char *rule,
                                               tegroup_reading reading, int64_t expected, int64_t got, const char *head,
                                               char *buffer, size_t size) {
    char wanted[TEGROUP_IMPL_READ_CHARS], came[TEGROUP_IMPL_READ_CHARS];
    const int is_set = reading == TEGROUP_READING_DTYPES || reading == TEGROUP_READING_SCALINGS;
    return snprintf(buffer, size, "%s: %s%s%s %s (expected %s, got %s)", head, within ? within : "", within ? "." : "",
                    field, rule, tegroup_impl_read(wanted, reading, is_set, expected),
                    tegroup_impl_read(came, reading, 0, got));
}

TEGROUP_API int tegroup_error_text(const tegroup_error *error, char *buffer, size_t size) {
    if (!error || error->status == TEGROUP_OK) return snprintf(buffer, size, "ok");
    return tegroup_impl_rule_text(error->within, error->field, error->rule, error->reading, error->expected, error->got,
                                  tegroup_status_string(error->status), buffer, size);
}

TEGROUP_API int tegroup_verdict_text(const tegroup_verdict *verdict, char *buffer, size_t size) {
    const char *name;
    char head[40];
    if (!verdict) return snprintf(buffer, size, "?");
    name = tegroup_backend_name(verdict->backend);
    if (verdict->status == TEGROUP_OK && !verdict->tile_why)
        return snprintf(buffer, size, "%-16s %s, workspace %llu bytes", name, verdict->chosen ? "CHOSEN" : "could run",
                        (unsigned long long)verdict->workspace_bytes);
    if (verdict->status == TEGROUP_OK) {
        char predicted[40] = "", beside[120] = "";
        if (verdict->predicted_us > 0) snprintf(predicted, sizeof predicted, " (%.0f us)", verdict->predicted_us);
        if (verdict->quantised_us > 0)
            snprintf(beside, sizeof beside, "; with its quantise %.0f us, in BF16 %.0f us: %s", verdict->quantised_us,
                     verdict->bf16_us,
                     verdict->bf16_us < verdict->quantised_us ? "BF16 is faster" : "faster than BF16");
        return snprintf(buffer, size, "%-16s %s, workspace %llu bytes, tile %d x %d x %d: %s%s%s", name,
                        verdict->chosen ? "CHOSEN" : "could run", (unsigned long long)verdict->workspace_bytes,
                        (int)verdict->tile_m, (int)verdict->tile_n, (int)verdict->tile_k, verdict->tile_why, predicted,
                        beside);
    }
    snprintf(head, sizeof head, "%-16s %s", name, verdict->status == TEGROUP_ERROR_NOT_BUILT ? "not built" : "refused");
    return tegroup_impl_rule_text(NULL, verdict->field, verdict->rule, verdict->reading, verdict->expected,
                                  verdict->got, head, buffer, size);
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
