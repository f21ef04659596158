/* SPDX-License-Identifier: Apache-2.0 */
/* rope_reference.c: attn.draft.rope_write/0 in plain C: rotation in float32 as the header says, then the
 * cache write of update_kv_cache. */
#include "../common/rope_check.h"
#include "ref_mla.h"
#include "ref_rows.h"
#include "rope_reference.h"

#include <stdlib.h>

struct attn_rope {
    rope_rules rules;
    attn_instance_t *instance;
};

static int rope_open(const attn_rope_problem_t *problem, const attn_device_t *device,
                     const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                     attn_rope_t **rope, attn_error_t *error) {
    rope_rules rules;
    attn_problem_t attention;
    attn_instance_t *instance;
    int status = rope_check_problem(problem, (int)kDLCPU, &rules, &attention, error);
    if (status == ATTN_OK)
        status = ref_open(&attention, device, options, num_options, host, &instance, error);
    if (status != ATTN_OK) return status;
    attn_rope_t *r = malloc(sizeof *r);
    if (r == NULL) {
        ref_close(instance);
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a rope of %zu bytes", sizeof *r);
    }
    *r = (attn_rope_t){.rules = rules, .instance = instance};
    *rope = r;
    return ATTN_OK;
}

static void rope_close(attn_rope_t *r) {
    if (r == NULL) return;
    ref_close(r->instance);
    free(r);
}

/* One value of a row as float32, and back; every element type holds what it gives. */
static float value_at(const char *row, uint32_t dtype, uint32_t i) {
    double x;
    ref_load_row(row + i * attn_dtype_size(dtype), dtype, 1, &x);
    return (float)x;
}
static void set_value(char *row, uint32_t dtype, uint32_t i, float x) {
    double exact = x;
    ref_store_row(row + i * attn_dtype_size(dtype), dtype, 1, &exact);
}

static void rotate_rows(const rope_rules *r, const DLTensor *rows, uint32_t heads,
                        const attn_rope_write_t *a) {
    const uint32_t half = r->rotary_dim / 2, table_dtype = attn_dtype_of(a->cos_sin->dtype);
    for (int64_t t = 0; t < a->positions->shape[0]; t++) {
        const int64_t position = *(const int64_t *)(const void *)((const char *)attn_data(a->positions) +
                                                                  t * attn_byte_stride(a->positions, 0));
        const char *table = (const char *)attn_data(a->cos_sin) + position * attn_byte_stride(a->cos_sin, 0);
        for (uint32_t h = 0; h < heads; h++) {
            char *row = ref_at2(rows, t, h);
            for (uint32_t i = 0; i < half; i++) {
                const uint32_t at = r->style == ATTN_ROPE_NEOX ? i : 2 * i;
                const uint32_t other = r->style == ATTN_ROPE_NEOX ? half + i : 2 * i + 1;
                const float c = value_at(table, table_dtype, i), s = value_at(table, table_dtype, half + i);
                const float x = value_at(row, r->dtype, at), y = value_at(row, r->dtype, other);
                set_value(row, r->dtype, at, x * c - y * s);
                set_value(row, r->dtype, other, y * c + x * s);
            }
        }
    }
}

static int rope_write(attn_rope_t *r, const attn_rope_write_t *args, void *stream, attn_error_t *error) {
    attn_rope_write_t a;
    attn_kv_update_t update;
    int is_raw[2]; /* never: rope_check_write asks for the dtype */
    const call_cache_t c = ref_cache_of(r->instance);
    int status = rope_check_write(&r->rules, args, &a, &update, error);
    if (status == ATTN_OK) status = call_check_update(&c, &update, r->rules.dtype, is_raw, error);
    for (int64_t t = 0; status == ATTN_OK && t < a.positions->shape[0]; t++) {
        const int64_t position = *(const int64_t *)(const void *)((const char *)attn_data(a.positions) +
                                                                  t * attn_byte_stride(a.positions, 0));
        if (position < 0 || position >= a.cos_sin->shape[0])
            status = attn_fail(error, ATTN_E_INVALID, "positions",
                               "positions[%lld] is %lld; cos_sin has %lld rows", (long long)t,
                               (long long)position, (long long)a.cos_sin->shape[0]);
    }
    if (status != ATTN_OK) return status;
    if (a.query != NULL) rotate_rows(&r->rules, a.query, r->rules.heads, &a);
    rotate_rows(&r->rules, a.key, r->rules.kv_heads, &a);
    return ref_update_kv_cache(r->instance, &update, stream, error);
}

const attn_rope_extension_t ref_rope_extension = {.struct_size = sizeof(attn_rope_extension_t),
                                                  .open = rope_open,
                                                  .close = rope_close,
                                                  .write = rope_write};
