/* SPDX-License-Identifier: Apache-2.0 */
/* hook_inspect.c: what the check hook finds in tensors. */
#include "hook/hook_inspect.h"

#include "base/arith.h"
#include "base/tensor_values.h"

#include <math.h>

/* A device list must say what the exact host list says. */
int attni_inspect_list(const DLTensor *t, const int32_t *host, int64_t n, const char *name,
                       attn_error_t *error) {
    if (t == NULL || host == NULL) return ATTN_OK;
    for (int64_t i = 0; i < n; i++) {
        int32_t have;
        memcpy(&have, (const char *)attn_data(t) + i * attn_byte_stride(t, 0), sizeof have);
        if (have != host[i])
            WRONG(name, "%s[%lld] is %d in the tensor and %d in %s_host; both must agree", name, (long long)i,
                  (int)have, (int)host[i], name);
    }
    return ATTN_OK;
}

/* Selected tokens of sparse attention: -1 or a position that exists. */
int attni_inspect_topk(const DLTensor *t, int64_t rows, int64_t longest, attn_error_t *error) {
    if (t == NULL) return ATTN_OK;
    int code = attn_check_tensor(t, "topk_indices", ATTN_DTYPE_INT32, 2, NULL, error);
    if (code != ATTN_OK) return code;
    for (int64_t i = 0; i < rows && i < t->shape[0]; i++) {
        const int32_t *row =
            (const int32_t *)(const void *)((const char *)attn_data(t) + i * attn_byte_stride(t, 0));
        for (int64_t j = 0; j < t->shape[1]; j++)
            if (row[j] < -1 || row[j] >= longest)
                WRONG("topk_indices", "topk_indices[%lld][%lld] is %d; expected -1 or a position below %lld",
                      (long long)i, (long long)j, (int)row[j], (long long)longest);
    }
    return ATTN_OK;
}

struct watch {
    const char *name;
    int is_output, allow_infinity;
    attn_error_t *error;
};

static int watch_row(void *user, const DLTensor *t, const char *row, int64_t index) {
    const struct watch *w = user;
    attn_error_t *error = w->error;
    int64_t n = t->shape[t->ndim - 1], step = attn_byte_stride(t, t->ndim - 1);
    for (int64_t i = 0; i < n; i++) {
        float v = attni_value(t->dtype, row + i * step);
        if (!isnan(v) && (w->allow_infinity || !isinf(v))) continue;
        if (w->is_output)
            BROKEN(w->name, "%s holds %g at row %lld, element %lld", w->name, (double)v, (long long)index,
                   (long long)i);
        WRONG(w->name, "%s holds %g at row %lld, element %lld; an earlier step went wrong", w->name,
              (double)v, (long long)index, (long long)i);
    }
    return ATTN_OK;
}

int attni_inspect_values(const DLTensor *t, int64_t rows, const char *name, int is_output,
                         attn_error_t *error) {
    struct watch w = {name, is_output, 0, error};
    if (t == NULL || !attni_is_floating(t->dtype)) return ATTN_OK;
    if (t->ndim < 1 || t->shape == NULL || t->strides == NULL || t->data == NULL)
        WRONG(name, "%s has %d dimensions or no data, shape or strides", name, (int)t->ndim);
    return attni_each_row(t, rows, watch_row, &w);
}

/* lse is [heads, tokens]: the rows are heads, and -inf is the value of an empty row. */
int attni_inspect_lse(const DLTensor *lse, int64_t tokens, attn_error_t *error) {
    if (lse == NULL) return ATTN_OK;
    int code = attn_check_tensor(lse, "lse", ATTN_DTYPE_FLOAT32, 2, NULL, error);
    if (code != ATTN_OK) return code;
    int64_t shape[2] = {lse->shape[0], attni_min64(tokens, lse->shape[1])};
    DLTensor used = *lse;
    used.shape = shape;
    struct watch w = {"lse", 1, 1, error};
    return attni_each_row(&used, -1, watch_row, &w);
}

static int print_row(void *user, const DLTensor *t, const char *row, int64_t index) {
    uint64_t *hash = user;
    (void)index;
    *hash = attn_fingerprint64(*hash, row, (size_t)(t->shape[t->ndim - 1] * t->dtype.bits / 8));
    return 0;
}

/* What is in the rows of the output that forward must not touch. */
uint64_t attni_inspect_padding(const DLTensor *out, int64_t tokens) {
    uint64_t hash = 0;
    if (out == NULL || out->shape[0] <= tokens) return 0;
    int64_t shape[3] = {out->shape[0] - tokens, out->shape[1], out->shape[2]};
    DLTensor rest = *out;
    rest.shape = shape;
    rest.byte_offset += (uint64_t)(tokens * attn_byte_stride(out, 0));
    attni_each_row(&rest, -1, print_row, &hash);
    return hash;
}
