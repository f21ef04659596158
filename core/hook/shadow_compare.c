/* SPDX-License-Identifier: Apache-2.0 */
/* shadow_compare.c: two tensors, element by element, against the table of semantics 10.2. */
#include "hook/shadow_compare.h"
#include "base/arith.h"
#include "base/tensor_values.h"

#include <math.h>

enum { LONG = 2048 }; /* a plain float32 sum over more keys loses a little more */

struct attni_tolerance attni_tolerance_of(const attn_problem_t *p) {
    const uint32_t kv = attn_role_has_cache(p->role) ? p->kv_cache_dtype : (uint32_t)ATTN_KV_AUTO;
    const int is_fp8_out = p->out_dtype == ATTN_DTYPE_FP8_E4M3 || p->out_dtype == ATTN_DTYPE_FP8_E5M2;
    const uint32_t out = p->out_dtype != 0 ? p->out_dtype : p->dtype;
    const int has_f16 = p->dtype == ATTN_DTYPE_FLOAT16 || out == ATTN_DTYPE_FLOAT16 || kv == ATTN_KV_FLOAT16;
    struct attni_tolerance t = {.atol = out == ATTN_DTYPE_FLOAT64 ? 1e-9 : 2e-5};
    if (has_f16) t.atol = 3e-3;
    if (p->dtype == ATTN_DTYPE_BFLOAT16 || out == ATTN_DTYPE_BFLOAT16 || kv == ATTN_KV_BFLOAT16)
        t.atol = 1.5e-2;
    t.rtol = t.atol;
    if (attn_kv_is_lossy(kv)) t.atol = 6e-2, t.rtol = 1e-1;
    if (p->query_dtype != p->dtype) t.atol = t.rtol = 1.5e-1;
    if (is_fp8_out) t.atol = t.rtol = 2e-1;
    /* errors of float32 scores grow with them */
    const double scores = fabs(p->scale) * sqrt((double)attn_query_size(p));
    if (scores > 4) t.atol *= scores < 8 ? scores / 4 : 2;
    return t;
}

static int compare_row(void *user, const DLTensor *t, const char *row, int64_t index) {
    struct attni_comparison *c = user;
    int64_t n = t->shape[t->ndim - 1], step = attn_byte_stride(t, t->ndim - 1), size = t->dtype.bits / 8;
    const char *other = c->other + index * n * size;
    for (int64_t i = 0; i < n; i++) {
        double a = attni_value(t->dtype, row + i * step), b = attni_value(t->dtype, other + i * size);
        if (a == b || (isnan(a) && isnan(b))) continue;
        double difference = isfinite(a) && isfinite(b) ? fabs(a - b) : INFINITY;
        double multiple =
            isfinite(difference) ? difference / (c->allowed.atol + c->allowed.rtol * fabs(b)) : INFINITY;
        if (difference > c->largest) c->largest = difference;
        if (multiple > c->worst) c->worst = multiple, c->a = a, c->b = b;
    }
    return 0;
}

int attni_compare(const struct attni_host_read *read, const DLTensor *engine, const DLTensor *mine,
                  const char *name, const struct attni_tolerance *allowed, int64_t longest,
                  struct attni_host_copy seen[2], struct attni_comparison *found, attn_error_t *error) {
    const DLTensor *a, *b;
    *found = (struct attni_comparison){.allowed = *allowed};
    int code = attni_host_copy(read, engine, name, &seen[0], &a, error);
    if (code == ATTN_OK) code = attni_host_copy(read, mine, name, &seen[1], &b, error);
    if (code == ATTN_OK && (a == NULL || b == NULL || a->ndim > ATTNI_HOST_COPY_DIMS))
        code = attn_fail(error, ATTN_E_UNSUPPORTED, name, "%s is on a device that cannot be read", name);
    if (code != ATTN_OK) return code;
    DLTensor used = *a;
    int64_t shape[ATTNI_HOST_COPY_DIMS];
    for (int i = 0; i < a->ndim; i++)
        shape[i] = i == read->dim ? attni_min64(read->most, a->shape[i]) : a->shape[i];
    used.shape = shape;
    found->other = attn_data(b);
    if (longest > LONG) found->allowed.rtol += (double)longest * 0x1p-26;
    attni_each_row(&used, -1, compare_row, found);
    return ATTN_OK;
}
