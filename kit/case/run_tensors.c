/* SPDX-License-Identifier: Apache-2.0 */
/* run_tensors.c: the tensors of a running case, and how it reports what went wrong. */
#include "case_run.h"

#include <attn/attn_plugin_util.h>

#include <stdio.h>
#include <string.h>

int kit_run_stop(kit_run_t *x, const char *operation, int status) {
    if (status == ATTN_OK || x->result->status != ATTN_OK) return status;
    x->result->status = status;
    snprintf(x->result->operation, sizeof x->result->operation, "%s", operation);
    if (x->result->error.code == 0) { /* the operation gave no text */
        x->result->error.code = status;
        snprintf(x->result->error.text, sizeof x->result->error.text,
                 "%s failed with %d and without a message", operation, status);
    }
    return status;
}

int kit_run_no_memory(kit_run_t *x) {
    attn_fail(&x->result->error, ATTN_E_NO_MEMORY, "", "the kit could not allocate or copy a tensor");
    return kit_run_stop(x, "memory", ATTN_E_NO_MEMORY);
}

void kit_run_fault(kit_run_t *x, const char *what, int64_t at) {
    if (x->result->fault[0] != '\0') return;
    snprintf(x->result->fault, sizeof x->result->fault, "%s, at byte %lld", what, (long long)at);
}

kit_tensor_t *kit_run_rows(kit_run_t *x, const char *name, uint32_t dtype, int64_t n, int64_t heads,
                           int64_t size) {
    /* strides of values are not those of keys, nor those of an output its query's */
    const int is_other = strcmp(name, "value") == 0 || strcmp(name, "output") == 0;
    const int64_t shape[3] = {n, heads, size}, fused[3] = {(is_other ? 3 : 2) * heads * size, size, 1},
                  by_head[3] = {size, (n + (is_other ? 3 : 1)) * size, 1};
    const uint32_t flags = x->c->flags;
    const int64_t *strides = (flags & KIT_HEADS_FIRST) != 0 ? by_head
                             : (flags & KIT_STRIDED) != 0   ? fused
                                                            : NULL;
    return kit_tensor_make(&x->all, name, dtype, 3, shape, strides, strides != NULL ? 16 : 0);
}

kit_tensor_t *kit_run_floats(kit_run_t *x, const char *name, const float *values, int64_t n,
                             int64_t columns) {
    const int64_t flat[1] = {n}, two[2] = {n, columns};
    kit_tensor_t *t = kit_tensor_make(&x->all, name, ATTN_DTYPE_FLOAT32, columns != 0 ? 2 : 1,
                                      columns != 0 ? two : flat, NULL, 0);
    if (t == NULL) return NULL;
    memcpy(kit_tensor_at(t, 0, 0), values, (size_t)(n * (columns != 0 ? columns : 1)) * sizeof(float));
    kit_tensor_send(&x->all, t);
    return t;
}

kit_tensor_t *kit_run_ints(kit_run_t *x, const char *name, const void *values, uint32_t dtype, int64_t n,
                           int64_t columns, int64_t depth) {
    const int64_t shape[3] = {n, columns, depth};
    int ndim = depth != 0 ? 3 : columns != 0 ? 2 : 1;
    kit_tensor_t *t = kit_tensor_make(&x->all, name, dtype, ndim, shape, NULL, 0);
    if (t == NULL) return NULL;
    int64_t count = n * (columns != 0 ? columns : 1) * (depth != 0 ? depth : 1);
    memcpy(kit_tensor_at(t, 0, 0), values, (size_t)count * attn_dtype_size(dtype));
    kit_tensor_send(&x->all, t);
    return t;
}
