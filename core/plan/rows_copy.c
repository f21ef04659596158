/* SPDX-License-Identifier: Apache-2.0 */
/* rows_copy.c: rows from one place and order to another, converted on the way where the types differ. */
#include "base/need.h"
#include "plan/element.h"

#include <attn/attn_merge.h>

enum { MAX_DIMS = 6, RUN = 64 };

/* What becomes of a run of elements. */
struct conversion {
    uint32_t from, to; /* ATTN_DTYPE_*; equal sizes of equal types are copied */
    int is_plain;
    int64_t from_bytes, to_bytes;
    double scale;
};

static int is_readable(uint32_t type) {
    return attni_element_is_float(type) || type == ATTN_DTYPE_FP8_E4M3 || type == ATTN_DTYPE_FP8_E5M2;
}

static int check_tensor(const DLTensor *t, const char *name, struct attni_place *place, attn_error_t *error) {
    ATTNI_NEED(t, name, error);
    if (t->ndim < 1 || t->ndim > MAX_DIMS || t->shape == NULL || t->strides == NULL)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s has %d dimensions or no shape or strides; expected 1 to %d dimensions", name,
                         (int)t->ndim, MAX_DIMS);
    if (t->dtype.bits % 8 != 0 || t->dtype.bits == 0 || t->dtype.lanes != 1)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s has elements of %d bits and %d lanes; expected whole bytes and one lane", name,
                         (int)t->dtype.bits, (int)t->dtype.lanes);
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++) {
        ATTNI_AT_LEAST(t->shape[i], 0, name, error);
        count *= t->shape[i] != 0;
    }
    if (count != 0) ATTNI_NEED(t->data, name, error);
    return attni_place_add(place, t, name, error);
}

/* from_rows and to_rows: sizes in the first dimension that need not be equal. */
static int check_pair(const DLTensor *from, const DLTensor *to, int first, struct attni_place *place,
                      attn_error_t *error) {
    int code = check_tensor(from, "from", place, error);
    if (code == ATTN_OK) code = check_tensor(to, "to", place, error);
    if (code != ATTN_OK) return code;
    if (from->ndim != to->ndim)
        return attn_fail(error, ATTN_E_INVALID, "to", "to has %d dimensions and from %d; give them one shape",
                         (int)to->ndim, (int)from->ndim);
    for (int i = first; i < to->ndim; i++)
        if (from->shape[i] != to->shape[i])
            return attn_fail(error, ATTN_E_INVALID, "to",
                             "to has size %lld in dimension %d and from %lld; give them one shape",
                             (long long)to->shape[i], i, (long long)from->shape[i]);
    return ATTN_OK;
}

static int plan_conversion(const DLTensor *from, const DLTensor *scale, const DLTensor *to,
                           struct attni_place *place, struct conversion *c, attn_error_t *error) {
    const int64_t one = 1;
    *c = (struct conversion){.from = attn_dtype_of(from->dtype),
                             .to = attn_dtype_of(to->dtype),
                             .from_bytes = from->dtype.bits / 8,
                             .to_bytes = to->dtype.bits / 8,
                             .scale = 1};
    c->is_plain = from->dtype.code == to->dtype.code && from->dtype.bits == to->dtype.bits;
    if (c->is_plain && scale != NULL)
        return attn_fail(error, ATTN_E_INVALID, "scale",
                         "scale is given, but from and to have one element type, which is copied; pass NULL");
    if (c->is_plain) return ATTN_OK;
    if (!is_readable(c->from) || !attni_element_is_float(c->to))
        return attn_fail(error, ATTN_E_UNSUPPORTED, is_readable(c->from) ? "to" : "from",
                         "from has element type %s and to %s; fp8_e4m3, fp8_e5m2 and the float types become "
                         "float types, everything else is only copied",
                         attn_dtype_name(c->from), attn_dtype_name(c->to));
    if (scale == NULL) return ATTN_OK;
    int code = attn_check_tensor(scale, "scale", ATTN_DTYPE_FLOAT32, 1, &one, error);
    if (code == ATTN_OK) code = attni_place_add(place, scale, "scale", error);
    if (code == ATTN_OK && place->type == kDLCPU) c->scale = *(const float *)attn_data(scale);
    return code;
}

static void convert(const struct conversion *c, const char *from, int64_t from_step, char *to,
                    int64_t to_step, int64_t n) {
    if (c->is_plain) {
        if (from_step == c->from_bytes && to_step == c->to_bytes)
            memcpy(to, from, (size_t)(n * c->to_bytes));
        else
            for (int64_t i = 0; i < n; i++)
                memcpy(to + i * to_step, from + i * from_step, (size_t)c->to_bytes);
        return;
    }
    const int is_dense = from_step == c->from_bytes && to_step == c->to_bytes;
    double part[RUN];
    for (int64_t at = 0; at < n;) {
        const int64_t run = !is_dense ? 1 : n - at < RUN ? n - at : RUN;
        attni_elements_load(c->from, from + at * from_step, run, part);
        for (int64_t i = 0; i < run; i++)
            part[i] *= c->scale;
        attni_elements_store(c->to, part, run, to + at * to_step);
        at += run;
    }
}

/* Dimensions dim .. of both tensors; from NULL: zeros. */
static void copy_dims(const struct conversion *c, const DLTensor *shape, const DLTensor *from, int dim,
                      const char *f, char *t, const DLTensor *to) {
    const int64_t n = shape->shape[dim], from_step = attn_byte_stride(from, dim),
                  to_step = attn_byte_stride(to, dim);
    if (dim + 1 == to->ndim && f != NULL) {
        convert(c, f, from_step, t, to_step, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        if (dim + 1 < to->ndim)
            copy_dims(c, shape, from, dim + 1, f != NULL ? f + i * from_step : NULL, t + i * to_step, to);
        else
            memset(t + i * to_step, 0, (size_t)c->to_bytes);
}

int attn_rows_copy(const DLTensor *from, const DLTensor *scale, const DLTensor *to, void *stream,
                   attn_error_t *error) {
    struct conversion c;
    struct attni_place place = {0};
    const attn_merge_table_t *table = NULL;
    int code = check_pair(from, to, 0, &place, error);
    if (code == ATTN_OK) code = plan_conversion(from, scale, to, &place, &c, error);
    if (code == ATTN_OK) code = attni_place_table(&place, &table, error);
    if (code == ATTN_OK && table != NULL) return table->rows_copy(from, scale, to, stream, error);
    if (code == ATTN_OK) copy_dims(&c, from, from, 0, attn_data(from), attn_data(to), to);
    return code;
}

/* One row, `row` of one tensor to `place` of the other; row -1: zeros. */
static void copy_row(const struct conversion *c, const DLTensor *from, int64_t row, const DLTensor *to,
                     int64_t place) {
    const char *f = row < 0 ? NULL : (const char *)attn_data(from) + row * attn_byte_stride(from, 0);
    char *t = (char *)attn_data(to) + place * attn_byte_stride(to, 0);
    if (to->ndim > 1)
        copy_dims(c, from, from, 1, f, t, to);
    else if (f != NULL)
        convert(c, f, c->from_bytes, t, c->to_bytes, 1);
    else
        memset(t, 0, (size_t)c->to_bytes);
}

/* rows [n] must fit both sides before anything is written. */
static int check_rows(const DLTensor *rows, const DLTensor *indexed, const char *indexed_name,
                      const DLTensor *other, const char *other_name, struct attni_place *place,
                      attn_error_t *error) {
    int code = attn_check_tensor(rows, "rows", ATTN_DTYPE_INT64, 1, NULL, error);
    if (code == ATTN_OK) code = attni_place_add(place, rows, "rows", error);
    if (code != ATTN_OK) return code;
    if (other->shape[0] < rows->shape[0])
        return attn_fail(error, ATTN_E_INVALID, other_name, "%s has %lld rows for the %lld entries of rows",
                         other_name, (long long)other->shape[0], (long long)rows->shape[0]);
    const int64_t *row = attn_data(rows);
    for (int64_t i = 0; i < rows->shape[0] && place->type == kDLCPU; i++)
        if (row[i] >= indexed->shape[0])
            return attn_fail(error, ATTN_E_INVALID, "rows", "rows[%lld] is %lld; %s has %lld rows",
                             (long long)i, (long long)row[i], indexed_name, (long long)indexed->shape[0]);
    return ATTN_OK;
}

int attn_rows_gather(const DLTensor *from, const DLTensor *rows, const DLTensor *scale, const DLTensor *to,
                     void *stream, attn_error_t *error) {
    struct conversion c;
    struct attni_place place = {0};
    const attn_merge_table_t *table = NULL;
    int code = check_pair(from, to, 1, &place, error);
    if (code == ATTN_OK) code = plan_conversion(from, scale, to, &place, &c, error);
    if (code == ATTN_OK) code = check_rows(rows, from, "from", to, "to", &place, error);
    if (code == ATTN_OK) code = attni_place_table(&place, &table, error);
    if (code != ATTN_OK) return code;
    if (table != NULL) return table->rows_gather(from, rows, scale, to, stream, error);
    const int64_t *row = attn_data(rows);
    for (int64_t i = 0; i < rows->shape[0]; i++)
        copy_row(&c, from, row[i] < 0 ? -1 : row[i], to, i);
    return ATTN_OK;
}

int attn_rows_scatter(const DLTensor *from, const DLTensor *rows, const DLTensor *scale, const DLTensor *to,
                      void *stream, attn_error_t *error) {
    struct conversion c;
    struct attni_place place = {0};
    const attn_merge_table_t *table = NULL;
    int code = check_pair(from, to, 1, &place, error);
    if (code == ATTN_OK) code = plan_conversion(from, scale, to, &place, &c, error);
    if (code == ATTN_OK) code = check_rows(rows, to, "to", from, "from", &place, error);
    if (code == ATTN_OK) code = attni_place_table(&place, &table, error);
    if (code != ATTN_OK) return code;
    if (table != NULL) return table->rows_scatter(from, rows, scale, to, stream, error);
    const int64_t *row = attn_data(rows);
    for (int64_t i = 0; i < rows->shape[0]; i++)
        if (row[i] >= 0) copy_row(&c, from, i, to, row[i]);
    return ATTN_OK;
}
