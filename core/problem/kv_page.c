/* SPDX-License-Identifier: Apache-2.0 */
/* kv_page.c: bytes of one cache page in every format (semantics 3.4 to 3.7, 3.10). */
#include "base/arith.h"
#include "base/need.h"

#include <attn/attn_plan.h>

static int mul(int64_t a, int64_t b, int64_t *product, attn_error_t *error) {
    if (!__builtin_mul_overflow(a, b, product)) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, "block_size",
                     "a page of this spec has more bytes than 64 bits can count");
}

/* Bytes of one token and head: key and value data, and what each format keeps beside them. */
static int dense_row_bytes(const attn_kv_spec_t *s, const attn_kv_format_t *f, int64_t *bytes,
                           attn_error_t *error) {
    int64_t k = s->head_size, v = s->head_size_v != 0 ? s->head_size_v : s->head_size;
    if (f->row_multiple > 1) v = k; /* a slot of K and V has one size, whatever else the layer is */
    if ((f->roles & ATTN_KV_DENSE_ROLES) == 0)
        return attn_fail(error, ATTN_E_INVALID, "kv_cache_dtype",
                         "kv_cache_dtype %s is a format of MLA layers", f->name);
    if (!attn_kv_has_size(f, k) || !attn_kv_has_size(f, v))
        return attn_fail(error, ATTN_E_INVALID, "head_size",
                         "head_size is %lld and head_size_v %lld; %s rows hold %s", (long long)k,
                         (long long)v, f->name, attn_kv_size_rule(f));
    *bytes = attn_kv_row_bytes(f, s->dtype, k, v);
    return ATTN_OK;
}

static int latent_row_bytes(const attn_kv_spec_t *s, const attn_kv_format_t *f, int64_t *bytes,
                            attn_error_t *error) {
    if ((f->roles & ATTN_KV_LATENT_ROLES) == 0)
        return attn_fail(
            error, ATTN_E_INVALID, "kv_cache_dtype",
            "kv_cache_dtype %s does not exist for latent rows; they are 16-bit, float32, fp8 or fp8_ds_mla",
            f->name);
    *bytes = attn_kv_latent_row_bytes(f, s->dtype, s->head_size);
    if (*bytes == 0)
        return attn_fail(error, ATTN_E_INVALID, "head_size", "head_size is %u; fp8_ds_mla has 576 or 512",
                         (unsigned)s->head_size);
    return ATTN_OK;
}

int attn_kv_spec_page_bytes(const attn_kv_spec_t *spec, int64_t *bytes, attn_error_t *error) {
    attn_kv_spec_t s;
    int code = attn_intake(&s, sizeof s, spec, "spec", error);
    if (code != ATTN_OK) return code;
    ATTNI_NEED(bytes, "bytes", error);
    if (s.kind < ATTN_SPEC_FULL || s.kind > ATTN_SPEC_RSWA)
        return attn_fail(error, ATTN_E_INVALID, "kind", "kind is %u; it must be one of ATTN_SPEC_*",
                         (unsigned)s.kind);
    if (s.kind != ATTN_SPEC_ENCODER_ONLY) ATTNI_AT_LEAST(s.block_size, 1, "block_size", error);
    ATTNI_AT_LEAST(s.num_kv_heads, 1, "num_kv_heads", error);
    ATTNI_AT_LEAST(s.head_size, 1, "head_size", error);
    if (s.kv_cache_dtype >= ATTN_KV_COUNT_)
        return attn_fail(error, ATTN_E_INVALID, "kv_cache_dtype",
                         "kv_cache_dtype is %u; it must be one of ATTN_KV_*", (unsigned)s.kv_cache_dtype);
    if (s.dtype < ATTN_DTYPE_FLOAT32 || s.dtype > ATTN_DTYPE_FLOAT64)
        return attn_fail(error, ATTN_E_INVALID, "dtype", "dtype is %u; it must be one of ATTN_DTYPE_*",
                         (unsigned)s.dtype);
    int64_t ratio = s.compress_ratio != 0 ? s.compress_ratio : 1, row = 0, page = 0;
    if (s.block_size % ratio != 0)
        return attn_fail(error, ATTN_E_INVALID, "compress_ratio",
                         "compress_ratio %lld does not divide block_size %u", (long long)ratio,
                         (unsigned)s.block_size);
    const attn_kv_format_t *f = attn_kv_format(s.kv_cache_dtype);
    code =
        s.kind == ATTN_SPEC_MLA ? latent_row_bytes(&s, f, &row, error) : dense_row_bytes(&s, f, &row, error);
    if (code == ATTN_OK) code = mul(row, s.num_kv_heads, &row, error);
    if (code == ATTN_OK) code = mul(row, s.block_size / ratio, &page, error);
    if (code != ATTN_OK) return code;
    if (s.page_bytes_padded != 0 && s.page_bytes_padded < page)
        return attn_fail(error, ATTN_E_INVALID, "page_bytes_padded",
                         "page_bytes_padded is %lld; the page itself has %lld bytes",
                         (long long)s.page_bytes_padded, (long long)page);
    if (s.page_bytes_padded != 0) page = s.page_bytes_padded;
    ATTNI_AT_LEAST(s.alignment, 0, "alignment", error);
    if (s.alignment > 0) code = mul(attni_cdiv(page, s.alignment), s.alignment, &page, error);
    if (code == ATTN_OK) *bytes = page;
    return code;
}
