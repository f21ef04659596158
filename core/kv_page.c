/* SPDX-License-Identifier: Apache-2.0 */
/* kv_page.c: bytes of one cache page in every format (semantics 3.4 to 3.7, 3.10). */
#include "plan_arith.h"

#include <attn/attn_plan.h>

static int mul(int64_t a, int64_t b, int64_t *product, attn_error_t *error) {
    if (!__builtin_mul_overflow(a, b, product)) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, "block_size",
                     "a page of this spec has more bytes than 64 bits count");
}

/* Bytes of one token and head: key and value data, and what each format keeps beside them. */
static int dense_row_bytes(const attn_kv_spec_t *s, int64_t *bytes, attn_error_t *error) {
    int64_t k = s->head_size, v = s->head_size_v != 0 ? s->head_size_v : s->head_size;
    int64_t element = (int64_t)attn_dtype_size(attn_kv_storage(s->kv_cache_dtype, s->dtype));
    switch (s->kv_cache_dtype) {
    case ATTN_KV_NVFP4: /* two values a byte and one fp8 scale for 16 of them */
        if (k % 16 != 0 || v % 16 != 0)
            return attn_fail(
                error, ATTN_E_INVALID, "head_size",
                "head_size %lld with head_size_v %lld is not made of groups of 16, which nvfp4 needs",
                (long long)k, (long long)v);
        *bytes = k / 2 + k / 16 + v / 2 + v / 16;
        return ATTN_OK;
    case ATTN_KV_INT4_PER_TOKEN_HEAD:
        if (k % 2 != 0 || v % 2 != 0)
            return attn_fail(error, ATTN_E_INVALID, "head_size",
                             "head_size %lld with head_size_v %lld is odd; int4 rows hold two values a byte",
                             (long long)k, (long long)v);
        *bytes = k / 2 + v / 2 + 8;
        return ATTN_OK;
    case ATTN_KV_INT8_PER_TOKEN_HEAD:
    case ATTN_KV_FP8_PER_TOKEN_HEAD:
        *bytes = k + v + 8;
        return ATTN_OK;
    case ATTN_KV_FP8_DS_MLA:
        return attn_fail(error, ATTN_E_INVALID, "kv_cache_dtype",
                         "kv_cache_dtype fp8_ds_mla is a format of MLA layers");
    default:
        *bytes = (k + v) * element;
        return ATTN_OK;
    }
}

/* The TurboQuant slot of one token and head (semantics 3.7). */
static int64_t turboquant_slot(uint32_t kv, int64_t d) {
    int64_t key_bits = kv == ATTN_KV_TURBOQUANT_K8V4 ? 8 : kv == ATTN_KV_TURBOQUANT_4BIT_NC ? 4 : 3;
    int64_t value_bits = kv == ATTN_KV_TURBOQUANT_3BIT_NC ? 3 : 4;
    int64_t key = key_bits == 8 ? d : attni_cdiv(d * key_bits, 8) + 2; /* fp16 norm behind the indices */
    int64_t value = attni_cdiv(d * value_bits, 8) + 4;                 /* fp16 scale and minimum */
    return (key + value + 1) / 2 * 2;
}

/* fp8_ds_mla: 656 bytes for head size 576 (512 latent + 64 rope); 584 for head size 512 (448 + 64), semantics 3.5. */
static int mla_row_bytes(const attn_kv_spec_t *s, int64_t *bytes, attn_error_t *error) {
    if (s->kv_cache_dtype > ATTN_KV_FP8_E5M2 && s->kv_cache_dtype != ATTN_KV_FP8_DS_MLA)
        return attn_fail(
            error, ATTN_E_INVALID, "kv_cache_dtype",
            "kv_cache_dtype %s has no form for latent rows; they are 16-bit, float32, fp8 or fp8_ds_mla",
            attn_kv_name(s->kv_cache_dtype));
    if (s->kv_cache_dtype != ATTN_KV_FP8_DS_MLA) {
        *bytes =
            (int64_t)s->head_size * (int64_t)attn_dtype_size(attn_kv_storage(s->kv_cache_dtype, s->dtype));
        return ATTN_OK;
    }
    if (s->head_size != 576 && s->head_size != 512)
        return attn_fail(error, ATTN_E_INVALID, "head_size", "head_size is %u; fp8_ds_mla has 576 or 512",
                         (unsigned)s->head_size);
    *bytes = s->head_size == 576 ? 656 : 584;
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
    if (s.kv_cache_dtype > ATTN_KV_TURBOQUANT_3BIT_NC)
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
    int turboquant = s.kv_cache_dtype >= ATTN_KV_TURBOQUANT_K8V4;
    if (s.kind == ATTN_SPEC_MLA) {
        code = mla_row_bytes(&s, &row, error);
    } else if (turboquant) { /* keys and values have one size here, whatever else the layer is */
        row = turboquant_slot(s.kv_cache_dtype, s.head_size);
    } else {
        code = dense_row_bytes(&s, &row, error);
    }
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
