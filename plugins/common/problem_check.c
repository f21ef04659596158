/* SPDX-License-Identifier: Apache-2.0 */
/* A problem against a capability table. */
#include "problem_check.h"

static int is_in(uint64_t set, uint32_t value) {
    return value < 64 && (set & ATTN_BIT(value)) != 0;
}

static int refuse_dtype(const attn_capabilities_t *table, const char *backend, uint32_t dtype,
                        attn_error_t *error) {
    char served[160] = "";
    for (uint32_t i = 0; i < 64; i++)
        if (is_in(table->dtypes, i)) {
            size_t used = strlen(served);
            snprintf(served + used, sizeof served - used, "%s%s", used != 0 ? ", " : "", attn_dtype_name(i));
        }
    return attn_fail(error, ATTN_E_UNSUPPORTED, "dtype", "dtype %u (%s) is not served by %s; it takes %s",
                     dtype, attn_dtype_name(dtype), backend, served);
}

static int check_table(const attn_problem_t *p, const attn_device_t *device, const attn_capabilities_t *table,
                       const char *backend, attn_error_t *error) {
    if (p->role >= ATTN_ROLE_COUNT_ || !is_in(table->roles, p->role))
        return attn_fail(error, ATTN_E_UNSUPPORTED, "role", "role %u (%s) is not served by %s", p->role,
                         attn_role_name(p->role), backend);
    if (!is_in(table->dtypes, p->dtype)) return refuse_dtype(table, backend, p->dtype, error);
    if (p->out_dtype != 0 && p->out_dtype != p->dtype && !is_in(table->out_dtypes, p->out_dtype))
        return attn_fail(error, ATTN_E_UNSUPPORTED, "out_dtype", "out_dtype %u (%s) is not served by %s",
                         p->out_dtype, attn_dtype_name(p->out_dtype), backend);
    if (p->kv_cache_dtype != 0 && !is_in(table->kv_cache_dtypes, p->kv_cache_dtype))
        return attn_fail(error, ATTN_E_UNSUPPORTED, "kv_cache_dtype",
                         "kv_cache_dtype %u (%s) is not served by %s", p->kv_cache_dtype,
                         attn_kv_name(p->kv_cache_dtype), backend);
    if (p->kv_layout > ATTN_LAYOUT_HND)
        return attn_fail(error, ATTN_E_INVALID, "kv_layout", "kv_layout is %u; expected 0 (any), NHD or HND",
                         p->kv_layout);
    uint64_t missing = attn_problem_features(p) & ~table->features;
    for (unsigned bit = 0; bit < 64; bit++)
        if (missing >> bit & 1) {
            const char *name = attn_feature_name(bit);
            return attn_fail(error, name != NULL ? ATTN_E_UNSUPPORTED : ATTN_E_TOO_NEW,
                             name != NULL ? name : "features", "feature %s (bit %u) is not served by %s",
                             name != NULL ? name : "unknown", bit, backend);
        }
    if (device != NULL && !is_in(table->device_types, (uint32_t)device->type))
        return attn_fail(error, ATTN_E_DEVICE, "device", "device type %d was given; %s runs on %s (%d)",
                         (int)device->type, backend,
                         is_in(table->device_types, kDLCPU) ? "CPUs" : "CUDA devices",
                         is_in(table->device_types, kDLCPU) ? (int)kDLCPU : (int)kDLCUDA);
    return ATTN_OK;
}

int problem_check(const attn_problem_t *p, const attn_device_t *device, const attn_capabilities_t *table,
                  const char *backend,
                  int (*supports)(const attn_problem_t *, const attn_device_t *, attn_reasons_t *),
                  attn_error_t *error) {
    attn_reason_t first;
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &first};
    int status = check_table(p, device, table, backend, error);
    if (status == ATTN_OK) status = supports(p, device, &reasons);
    if (status == ATTN_OK && reasons.count != 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, first.param, "%s (expected: %s)", first.text, first.want);
    return status;
}
