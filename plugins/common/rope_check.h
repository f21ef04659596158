/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of attn.draft.rope_write/0 that do not depend on who computes: defaults and limits of the
 * problem, and the arguments of a call but for the cache, which a backend checks as in update_kv_cache. */
#ifndef ROPE_CHECK_H
#define ROPE_CHECK_H

#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_rope_write.h>

/* What a rope knows of its problem. */
typedef struct rope_rules {
    uint32_t rotary_dim, style; /* complete */
    uint32_t dtype, heads, kv_heads, head_size, head_size_v;
    int device_type; /* DLPack's */
} rope_rules;

/* *attention: a complete copy of the group's problem. */
static inline int rope_check_problem(const attn_rope_problem_t *given, int device_type, rope_rules *r,
                                     attn_problem_t *attention, attn_error_t *error) {
    attn_rope_problem_t p;
    int status = attn_intake(&p, sizeof p, given, "problem", error);
    if (status == ATTN_OK)
        status = attn_intake(attention, sizeof *attention, p.attention, "attention", error);
    if (status != ATTN_OK) return status;
    *r = (rope_rules){.rotary_dim = p.rotary_dim ? p.rotary_dim : attention->head_size,
                      .style = p.style ? p.style : (uint32_t)ATTN_ROPE_NEOX,
                      .dtype = attention->dtype,
                      .heads = attention->num_heads,
                      .kv_heads = attention->num_kv_heads ? attention->num_kv_heads : attention->num_heads,
                      .head_size = attention->head_size,
                      .head_size_v = attention->head_size_v ? attention->head_size_v : attention->head_size,
                      .device_type = device_type};
    if (!attn_role_has_cache(attention->role) || attn_role_is_mla(attention->role))
        return attn_fail(error, ATTN_E_UNSUPPORTED, "role",
                         "role %s has no cache of keys and values; expected decoder or encoder_decoder",
                         attn_role_name(attention->role));
    if (r->rotary_dim % 2 != 0 || r->rotary_dim > r->head_size || r->rotary_dim == 0)
        return attn_fail(error, ATTN_E_INVALID, "rotary_dim",
                         "rotary_dim is %u; expected an even number up to head_size (%u)", r->rotary_dim,
                         r->head_size);
    if (r->style > ATTN_ROPE_INTERLEAVED)
        return attn_fail(error, ATTN_E_INVALID, "style", "style is %u; expected NEOX (1) or INTERLEAVED (2)",
                         r->style);
    return ATTN_OK;
}

/* At least `rows` rows of the rope's device. */
static inline int rope_check_rows(const rope_rules *r, const DLTensor *t, const char *name, uint32_t dtype,
                                  int ndim, int64_t rows, int64_t b, int64_t c, attn_error_t *error) {
    const int64_t shape[3] = {-1, b, c};
    int status = attn_check_tensor(t, name, dtype, ndim, shape, error);
    if (status != ATTN_OK) return status;
    if (t->shape[0] > 0 && (int)t->device.device_type != r->device_type &&
        !(r->device_type == (int)kDLCUDA && t->device.device_type == kDLCUDAManaged))
        return attn_fail(error, ATTN_E_INVALID, name, "%s is on device type %d; expected device type %d",
                         name, (int)t->device.device_type, r->device_type);
    if (t->shape[0] < rows)
        return attn_fail(error, ATTN_E_INVALID, name, "%s has %lld rows; expected %lld", name,
                         (long long)t->shape[0], (long long)rows);
    return ATTN_OK;
}

/* *update: the arguments of update_kv_cache that the call contains. */
static inline int rope_check_write(const rope_rules *r, const attn_rope_write_t *given, attn_rope_write_t *a,
                                   attn_kv_update_t *update, attn_error_t *error) {
    int status = attn_intake(a, sizeof *a, given, "args", error);
    if (status == ATTN_OK)
        status = attn_check_tensor(a->positions, "positions", ATTN_DTYPE_INT64, 1, NULL, error);
    if (status != ATTN_OK) return status;
    const int64_t n = a->positions->shape[0];
    status = rope_check_rows(r, a->positions, "positions", ATTN_DTYPE_INT64, 1, n, 0, 0, error);
    if (status == ATTN_OK)
        status = rope_check_rows(r, a->slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, n, 0, 0, error);
    if (status == ATTN_OK && a->slot_mapping->shape[0] != n)
        status = attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                           "slot_mapping has %lld entries; positions has %lld",
                           (long long)a->slot_mapping->shape[0], (long long)n);
    if (status == ATTN_OK && a->query != NULL)
        status = rope_check_rows(r, a->query, "query", r->dtype, 3, n, r->heads, r->head_size, error);
    if (status == ATTN_OK)
        status = rope_check_rows(r, a->key, "key", r->dtype, 3, n, r->kv_heads, r->head_size, error);
    if (status == ATTN_OK)
        status = rope_check_rows(r, a->value, "value", r->dtype, 3, n, r->kv_heads, r->head_size_v, error);
    if (status == ATTN_OK)
        status = rope_check_rows(r, a->cos_sin, "cos_sin", 0, 2, n > 0, r->rotary_dim, 0, error);
    if (status == ATTN_OK) {
        const uint32_t have = attn_dtype_of(a->cos_sin->dtype);
        if (have != ATTN_DTYPE_FLOAT32 && have != r->dtype)
            status = attn_fail(error, ATTN_E_INVALID, "cos_sin",
                               "cos_sin has element type %s; expected float32 or %s", attn_dtype_name(have),
                               attn_dtype_name(r->dtype));
    }
    *update = (attn_kv_update_t){.struct_size = sizeof *update,
                                 .key = a->key,
                                 .value = a->value,
                                 .kv_cache = a->kv_cache,
                                 .v_cache = a->v_cache,
                                 .slot_mapping = a->slot_mapping,
                                 .scales = a->scales};
    return status;
}

#endif
