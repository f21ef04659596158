/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_plugin_util.h: optional inline helpers for plugin authors (and for the core): error and reason writing, structs in
 * and out by size, tensor addressing and checking, dtype names and sizes, fingerprints. Nothing here links to libattn.
 */
#ifndef ATTN_PLUGIN_UTIL_H
#define ATTN_PLUGIN_UTIL_H

#include <attn/attn_plugin.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ATTN_PRINTF(FMT, ARGS) __attribute__((format(printf, FMT, ARGS)))
#define ATTN_UNUSED __attribute__((unused))
#define ATTN_COLD __attribute__((cold))
#else
#define ATTN_PRINTF(FMT, ARGS)
#define ATTN_UNUSED
#define ATTN_COLD
#endif

/* ------------------------------------------------------------------- errors */

/* Fills *error (if given) and returns code, so that a check is one line:
 *     if (n < 0) return attn_fail(error, ATTN_E_INVALID, "num_reqs", "num_reqs is %d; it must not be negative", n); */
ATTN_UNUSED ATTN_COLD ATTN_PRINTF(4, 5) static int attn_fail(attn_error_t *error, int code, const char *param,
                                                              const char *format, ...) {
    if (error == NULL) return code;
    error->code = code;
    snprintf(error->param, sizeof error->param, "%s", param != NULL ? param : "");
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return code;
}

/* Appends one reason; counts it even where there is no room. text is a printf format. */
ATTN_UNUSED ATTN_PRINTF(6, 7) static void attn_add_reason(attn_reasons_t *reasons, int code, const char *param,
                                                          const char *have, const char *want, const char *format, ...) {
    if (reasons == NULL) return;
    uint32_t at = reasons->count++;
    if (at >= reasons->capacity || reasons->items == NULL) return;
    attn_reason_t *r = &reasons->items[at];
    r->code = code;
    snprintf(r->param, sizeof r->param, "%s", param);
    snprintf(r->have, sizeof r->have, "%s", have);
    snprintf(r->want, sizeof r->want, "%s", want);
    va_list args;
    va_start(args, format);
    vsnprintf(r->text, sizeof r->text, format, args);
    va_end(args);
}

/* --------------------------------------------------------- structs in and out */

/* Copies the known members of a struct of unknown length; missing ones become zero, more of them are left where they are.
 * For what offers or describes (attn_device_t, attn_host_t): it asks for nothing. known_size is sizeof(*dst). Returns
 * ATTN_OK, ATTN_E_INVALID (no or absurd size). */
static inline int attn_intake_known(void *dst, size_t known_size, const void *src, const char *name,
                                    attn_error_t *error) {
    if (src == NULL) return attn_fail(error, ATTN_E_INVALID, name, "%s is NULL; pass a filled struct", name);
    uint32_t size;
    memcpy(&size, src, sizeof size);
    if (size < sizeof size || size > 65536)
        return attn_fail(error, ATTN_E_INVALID, name, "%s.struct_size is %u; set it to sizeof(%s struct)", name,
                         (unsigned)size, name);
    if (size == known_size) { /* of a constant size, which every call of a step is worth */
        memcpy(dst, src, known_size);
        return ATTN_OK;
    }
    memset(dst, 0, known_size);
    memcpy(dst, src, size < known_size ? size : known_size);
    uint32_t known = (uint32_t)known_size;
    memcpy(dst, &known, sizeof known);
    return ATTN_OK;
}

/* The same for what asks for something (every other input): a longer struct is taken iff its unknown tail is zero, since
 * a member that is not read would be a wrong number. Also ATTN_E_TOO_NEW. */
static inline int attn_intake(void *dst, size_t known_size, const void *src, const char *name, attn_error_t *error) {
    int code = attn_intake_known(dst, known_size, src, name, error);
    if (code != ATTN_OK) return code;
    uint32_t size;
    memcpy(&size, src, sizeof size);
    for (size_t i = known_size; i < size; i++)
        if (((const unsigned char *)src)[i] != 0)
            return attn_fail(error, ATTN_E_TOO_NEW, name,
                             "%s has %u bytes and uses a member at byte %u; this build knows %u bytes: update the reader",
                             name, (unsigned)size, (unsigned)i, (unsigned)known_size);
    return ATTN_OK;
}

/* The way out, the counterpart of attn_intake: fills a caller's struct of unknown length (attn_kv_cache_shape_t,
 * attn_space_needed_t) from a filled one of known_size bytes. Writes the members that both know, keeps the caller's
 * struct_size and touches no byte behind either. Returns ATTN_OK, ATTN_E_INVALID (no struct, or no size in it). */
static inline int attn_give(void *dst, const void *src, size_t known_size, const char *name, attn_error_t *error) {
    if (dst == NULL) return attn_fail(error, ATTN_E_INVALID, name, "%s is NULL; pass a struct to fill", name);
    uint32_t size;
    memcpy(&size, dst, sizeof size);
    if (size < sizeof size)
        return attn_fail(error, ATTN_E_INVALID, name, "%s.struct_size is %u; set it to sizeof(%s struct)", name,
                         (unsigned)size, name);
    memcpy((char *)dst + sizeof size, (const char *)src + sizeof size,
           (size < known_size ? size : known_size) - sizeof size);
    return ATTN_OK;
}

/* True iff MEMBER lies within the struct that P points to (by its own struct_size). */
#define ATTN_HAS(P, TYPE, MEMBER) ((P)->struct_size >= offsetof(TYPE, MEMBER) + sizeof(((TYPE *)0)->MEMBER))

/* True iff operation OP exists in the ops table. */
#define ATTN_HAS_OP(OPS, OP) (ATTN_HAS(OPS, attn_backend_ops_t, OP) && (OPS)->OP != NULL)

/* ------------------------------------------------------------------- dtypes */

#define ATTN_DL_FLOAT8_E4M3FN 10 /* DLPack 1.1's type codes */
#define ATTN_DL_FLOAT8_E5M2 12
#define ATTN_DL_FLOAT4_E2M1FN 17

static inline DLDataType attn_dl_dtype(uint32_t dtype) {
    DLDataType t;
    t.lanes = 1;
    t.bits = 8;
    t.code = (uint8_t)kDLUInt;
    switch (dtype) {
    case ATTN_DTYPE_FLOAT64: t.code = (uint8_t)kDLFloat; t.bits = 64; break;
    case ATTN_DTYPE_FLOAT32: t.code = (uint8_t)kDLFloat; t.bits = 32; break;
    case ATTN_DTYPE_FLOAT16: t.code = (uint8_t)kDLFloat; t.bits = 16; break;
    case ATTN_DTYPE_BFLOAT16: t.code = (uint8_t)kDLBfloat; t.bits = 16; break;
    case ATTN_DTYPE_FP8_E4M3: t.code = ATTN_DL_FLOAT8_E4M3FN; break;
    case ATTN_DTYPE_FP8_E5M2: t.code = ATTN_DL_FLOAT8_E5M2; break;
    case ATTN_DTYPE_INT8: t.code = (uint8_t)kDLInt; break;
    case ATTN_DTYPE_INT32: t.code = (uint8_t)kDLInt; t.bits = 32; break;
    case ATTN_DTYPE_INT64: t.code = (uint8_t)kDLInt; t.bits = 64; break;
    default: break;
    }
    return t;
}

/* The ATTN_DTYPE_* of a DLPack type, 0 if there is none. */
static inline uint32_t attn_dtype_of(DLDataType t) {
    if (t.lanes != 1) return 0;
    for (uint32_t d = ATTN_DTYPE_FLOAT32; d <= ATTN_DTYPE_FLOAT64; d++) {
        DLDataType u = attn_dl_dtype(d);
        if (u.code == t.code && u.bits == t.bits) return d;
    }
    return 0;
}

static inline size_t attn_dtype_size(uint32_t dtype) { return attn_dl_dtype(dtype).bits / 8u; }

static inline const char *attn_dtype_name(uint32_t dtype) {
    static const char *const names[] = {"none",     "float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2",
                                        "int8",     "uint8",   "int32",   "int64",    "float64"};
    return dtype < sizeof names / sizeof names[0] ? names[dtype] : "unknown";
}

static inline const char *attn_kv_name(uint32_t kv) {
    static const char *const names[] = {"none",
                                        "auto",
                                        "float16",
                                        "bfloat16",
                                        "float32",
                                        "fp8_e4m3",
                                        "fp8_e5m2",
                                        "int8_per_token_head",
                                        "fp8_per_token_head",
                                        "int4_per_token_head",
                                        "nvfp4",
                                        "fp8_ds_mla",
                                        "turboquant_k8v4",
                                        "turboquant_4bit_nc",
                                        "turboquant_k3v4_nc",
                                        "turboquant_3bit_nc"};
    return kv < sizeof names / sizeof names[0] ? names[kv] : "unknown";
}

static inline const char *attn_role_name(uint32_t role) {
    static const char *const names[] = {"none", "decoder",     "encoder",    "encoder_only", "encoder_decoder",
                                        "mla",  "mla_prefill", "mla_sparse", "mm_encoder"};
    return role < sizeof names / sizeof names[0] ? names[role] : "unknown";
}

/* The element type that a cache format stores, for a model dtype. */
static inline uint32_t attn_kv_storage(uint32_t kv, uint32_t model_dtype) {
    switch (kv) {
    case 0:
    case ATTN_KV_AUTO: return model_dtype;
    case ATTN_KV_FLOAT16: return ATTN_DTYPE_FLOAT16;
    case ATTN_KV_BFLOAT16: return ATTN_DTYPE_BFLOAT16;
    case ATTN_KV_FLOAT32: return ATTN_DTYPE_FLOAT32;
    case ATTN_KV_FP8_E4M3:
    case ATTN_KV_FP8_PER_TOKEN_HEAD: return ATTN_DTYPE_FP8_E4M3;
    case ATTN_KV_FP8_E5M2: return ATTN_DTYPE_FP8_E5M2;
    case ATTN_KV_INT8_PER_TOKEN_HEAD: return ATTN_DTYPE_INT8;
    default: return ATTN_DTYPE_UINT8;
    }
}

/* Inline fp32 scale behind each K and each V row (semantics 3.4). */
static inline int attn_kv_is_per_token_head(uint32_t kv) {
    return kv == ATTN_KV_INT8_PER_TOKEN_HEAD || kv == ATTN_KV_FP8_PER_TOKEN_HEAD || kv == ATTN_KV_INT4_PER_TOKEN_HEAD;
}

/* "is quantized" of semantics 3.1. */
static inline int attn_kv_is_quantized(uint32_t kv) {
    return kv == ATTN_KV_FP8_E4M3 || kv == ATTN_KV_FP8_E5M2 || kv == ATTN_KV_FP8_DS_MLA || kv == ATTN_KV_NVFP4 ||
           attn_kv_is_per_token_head(kv);
}

static inline int attn_role_has_cache(uint32_t role) {
    return role == ATTN_ROLE_DECODER || role == ATTN_ROLE_ENCODER_DECODER || role == ATTN_ROLE_MLA ||
           role == ATTN_ROLE_MLA_SPARSE;
}

static inline int attn_role_is_mla(uint32_t role) {
    return role == ATTN_ROLE_MLA || role == ATTN_ROLE_MLA_PREFILL || role == ATTN_ROLE_MLA_SPARSE;
}

/* Name of one feature bit, NULL if the bit has none. */
static inline const char *attn_feature_name(unsigned bit) {
    static const char *const names[] = {
        "sliding_window", "soft_cap",       "alibi",          "alibi_sqrt",  "sink",      "mm_prefix",
        "mm_prefix_clamp", "chunked_local", "chunk_lookback", "rswa",        "non_causal", "per_request_causal",
        "qq_bias",        "diff_kv",        "lse",            "per_head_scales", "quant_query", "out_fp8_static",
        "out_fp8_group",  "separate_kv",    "cascade",        "static_sink", "batch_invariant", "capture",
        "dcp",            "pcp",            "kv_connector",   "contiguous_kv", "block_stride", "weights",
        "fp8_attention"};
    return bit < sizeof names / sizeof names[0] ? names[bit] : NULL;
}

/* The feature bits that a problem needs: those asked for, and those that its members imply. [pure] */
static inline uint64_t attn_problem_features(const attn_problem_t *p) {
    uint64_t f = p->features;
    if (p->sliding_window != 0) f |= ATTN_F_SLIDING_WINDOW;
    if (p->logits_soft_cap != 0) f |= ATTN_F_SOFT_CAP;
    if (p->rswa_window != 0) f |= ATTN_F_RSWA;
    if (p->head_size_v != 0 && p->head_size_v != p->head_size) f |= ATTN_F_DIFF_KV;
    if (p->mask == ATTN_MASK_PER_REQUEST) f |= ATTN_F_PER_REQUEST_CAUSAL;
    if (p->role == ATTN_ROLE_DECODER && p->mask == ATTN_MASK_FULL) f |= ATTN_F_NON_CAUSAL;
    if (p->query_dtype != 0 && p->query_dtype != p->dtype) f |= ATTN_F_QUANT_QUERY;
    if (p->dcp_world_size > 1) f |= ATTN_F_DCP;
    if (p->pcp_world_size > 1) f |= ATTN_F_PCP;
    return f;
}

/* ------------------------------------------------------------------ tensors */

static inline void *attn_data(const DLTensor *t) { return (char *)t->data + t->byte_offset; }

/* Byte stride of dimension i. */
static inline int64_t attn_byte_stride(const DLTensor *t, int i) { return t->strides[i] * (int64_t)(t->dtype.bits / 8u); }

/* Checks a tensor in one column of calls: given, rank, element type (dtype 0: any; 8-bit formats also match uint8),
 * sizes (-1: any), strides present, last dimension dense. name appears in the error. */
ATTN_UNUSED static int attn_check_tensor(const DLTensor *t, const char *name, uint32_t dtype, int ndim,
                                         const int64_t *shape, attn_error_t *error) {
    if (t == NULL) return attn_fail(error, ATTN_E_INVALID, name, "%s is not given; it is required here", name);
    if (t->ndim != ndim)
        return attn_fail(error, ATTN_E_INVALID, name, "%s has %d dimensions; %d were wanted", name, (int)t->ndim, ndim);
    if (t->shape == NULL || (t->strides == NULL && ndim > 0))
        return attn_fail(error, ATTN_E_INVALID, name, "%s has no shape or no strides; give both", name);
    DLDataType want = attn_dl_dtype(dtype), have = t->dtype;
    int is_code = have.code == want.code || (want.bits == 8 && have.code == (uint8_t)kDLUInt);
    if (dtype != 0 && (!is_code || have.bits != want.bits || have.lanes != 1))
        return attn_fail(error, ATTN_E_INVALID, name, "%s has element type %s; %s was wanted", name,
                         attn_dtype_name(attn_dtype_of(have)), attn_dtype_name(dtype));
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) {
        if (t->shape[i] < 0 || (shape != NULL && shape[i] >= 0 && t->shape[i] != shape[i]))
            return attn_fail(error, ATTN_E_INVALID, name, "%s has size %lld in dimension %d; %lld was wanted", name,
                             (long long)t->shape[i], i, shape != NULL ? (long long)shape[i] : 0LL);
        count *= t->shape[i] != 0 ? 1 : 0;
    }
    if (count != 0 && t->data == NULL) return attn_fail(error, ATTN_E_INVALID, name, "%s has no data", name);
    if (ndim > 0 && count != 0 && t->shape[ndim - 1] > 1 && t->strides[ndim - 1] != 1)
        return attn_fail(error, ATTN_E_INVALID, name, "%s has stride %lld in its last dimension; it must be dense (1)", name,
                         (long long)t->strides[ndim - 1]);
    return ATTN_OK;
}

/* -------------------------------------------------------------- fingerprint */

/* FNV-1a, 64 bit, over n bytes; start with h = 0 and feed the result back in. [pure] */
static inline uint64_t attn_fingerprint64(uint64_t h, const void *bytes, size_t n) {
    if (h == 0) h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* ------------------------------------------------------------- cache shapes */

/* Fills the shape of a dense packed cache (nb, Hkv, bs, content), content = K, K scale, V, V scale (semantics 3.4, 3.9),
 * in the given layout. The one function behind every dense in-tree backend; others are free to differ. [pure] */
ATTN_UNUSED static int attn_dense_cache_shape(const attn_problem_t *p, uint32_t layout, uint32_t block_size,
                                              int64_t num_blocks, attn_kv_cache_shape_t *out, attn_error_t *error) {
    uint32_t kv = p->kv_cache_dtype != 0 ? p->kv_cache_dtype : (uint32_t)ATTN_KV_AUTO;
    if (kv >= ATTN_KV_INT4_PER_TOKEN_HEAD)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "kv_cache_dtype", "kv_cache_dtype %s is not a dense packed format",
                         attn_kv_name(kv));
    uint32_t storage = attn_kv_storage(kv, p->dtype);
    int64_t size = (int64_t)attn_dtype_size(storage), inline_scale = attn_kv_is_per_token_head(kv) ? 4 : 0;
    int64_t heads = p->num_kv_heads != 0 ? p->num_kv_heads : p->num_heads;
    int64_t dk = p->head_size, dv = p->head_size_v != 0 ? p->head_size_v : p->head_size;
    int64_t content = dk + dv + 2 * inline_scale; /* per-token-head elements are bytes */
    attn_zero(out, sizeof *out);
    out->struct_size = (uint32_t)sizeof *out;
    out->ndim = 4;
    out->shape[0] = num_blocks;
    out->shape[1] = heads;
    out->shape[2] = block_size;
    out->shape[3] = content;
    out->axes[0] = ATTN_AXIS_BLOCK;
    out->axes[1] = ATTN_AXIS_HEAD;
    out->axes[2] = ATTN_AXIS_TOKEN;
    out->axes[3] = ATTN_AXIS_CONTENT;
    int hnd = layout == ATTN_LAYOUT_HND;
    static const uint32_t order[2][4] = {{0, 2, 1, 3}, {0, 1, 2, 3}};
    static const uint32_t order_layers[2][5] = {{1, 0, 3, 2, 4}, {1, 2, 0, 3, 4}};
    for (int i = 0; i < 4; i++) out->stride_order[i] = order[hnd][i];
    for (int i = 0; i < 5; i++) out->stride_order_layers[i] = order_layers[hnd][i];
    int64_t stride = size;
    for (int j = 3; j >= 0; j--) {
        out->byte_strides[order[hnd][j]] = stride;
        stride *= out->shape[order[hnd][j]];
    }
    out->page_bytes = heads * (int64_t)block_size * content * size;
    out->total_bytes = out->page_bytes * num_blocks;
    out->dtype = attn_dl_dtype(storage);
    out->kv_layout = hnd ? ATTN_LAYOUT_HND : ATTN_LAYOUT_NHD;
    out->alignment = 256;
    out->block_size = block_size;
    out->num_kv_heads = (uint32_t)heads;
    out->k_offset = 0;
    out->v_offset = dk * size + inline_scale;
    out->k_scale_offset = inline_scale != 0 ? dk * size : -1;
    out->v_scale_offset = inline_scale != 0 ? out->v_offset + dv * size : -1;
    out->layout_id = 1; /* dense packed */
    int64_t key[8] = {1, (int64_t)kv, (int64_t)storage, heads, block_size, dk, dv, (int64_t)out->kv_layout};
    out->fingerprint = attn_fingerprint64(0, key, sizeof key);
    return ATTN_OK;
}

/* Fills the shape of pages [block][token][content] whose tokens are one row of row_elements values of dtype each, layers
 * apart (semantics 3.9); layout_id, scale offsets and fingerprint are the caller's. [pure] */
static inline void attn_row_cache_shape(uint32_t dtype, int64_t row_elements, uint32_t block_size, int64_t num_blocks,
                                        attn_kv_cache_shape_t *out) {
    static const uint32_t axes[3] = {ATTN_AXIS_BLOCK, ATTN_AXIS_TOKEN, ATTN_AXIS_CONTENT};
    static const uint32_t order_layers[4] = {1, 0, 2, 3};
    int64_t size = (int64_t)attn_dtype_size(dtype);
    attn_zero(out, sizeof *out);
    out->struct_size = (uint32_t)sizeof *out;
    out->ndim = 3;
    out->shape[0] = num_blocks;
    out->shape[1] = block_size;
    out->shape[2] = row_elements;
    out->byte_strides[0] = block_size * row_elements * size;
    out->byte_strides[1] = row_elements * size;
    out->byte_strides[2] = size;
    for (uint32_t i = 0; i < 3; i++) {
        out->axes[i] = axes[i];
        out->stride_order[i] = i;
    }
    for (uint32_t i = 0; i < 4; i++) out->stride_order_layers[i] = order_layers[i];
    out->page_bytes = out->byte_strides[0];
    out->total_bytes = out->page_bytes * num_blocks;
    out->dtype = attn_dl_dtype(dtype);
    out->kv_layout = ATTN_LAYOUT_NHD;
    out->alignment = 256;
    out->block_size = block_size;
    out->num_kv_heads = 1;
    out->k_scale_offset = -1;
    out->v_scale_offset = -1;
}

#define ATTN_DS_MLA_ROW 656       /* bytes of a token in fp8_ds_mla: 512 e4m3, 4 float32 scales, 64 16-bit rope values */
#define ATTN_DS_MLA_SCALES_AT 512 /* its scales, one for each 128 values */
#define ATTN_DS_MLA_ROPE_AT 528

/* Fills the shape of a latent cache (nb, bs, L + R), or (nb, bs, 656) for fp8_ds_mla (semantics 3.5, 3.9), for the roles mla
 * and mla_sparse. The one function behind every latent in-tree backend; others are free to differ. [pure] */
ATTN_UNUSED static int attn_latent_cache_shape(const attn_problem_t *p, uint32_t block_size, int64_t num_blocks,
                                               attn_kv_cache_shape_t *out, attn_error_t *error) {
    uint32_t kv = p->kv_cache_dtype != 0 ? p->kv_cache_dtype : (uint32_t)ATTN_KV_AUTO;
    int is_ds = kv == ATTN_KV_FP8_DS_MLA;
    if (!is_ds && kv >= ATTN_KV_INT8_PER_TOKEN_HEAD)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "kv_cache_dtype", "kv_cache_dtype %s is not a latent format",
                         attn_kv_name(kv));
    uint32_t storage = attn_kv_storage(kv, p->dtype);
    int64_t row = is_ds ? ATTN_DS_MLA_ROW : (int64_t)p->kv_lora_rank + p->qk_rope_head_dim;
    attn_row_cache_shape(storage, row, block_size, num_blocks, out);
    if (is_ds) out->k_scale_offset = ATTN_DS_MLA_SCALES_AT;
    out->layout_id = 2; /* latent rows */
    int64_t key[6] = {2, (int64_t)kv, (int64_t)storage, block_size, p->kv_lora_rank, p->qk_rope_head_dim};
    out->fingerprint = attn_fingerprint64(0, key, sizeof key);
    return ATTN_OK;
}

#ifdef __cplusplus
}
#endif
#endif
