/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_formats.h: element types, and the table of KV-cache formats: what a row of each holds and where its
 * scales are. Everything that differs between formats only by these numbers reads them here: shapes, page
 * bytes, scales, names, the kit's cases, the command. Data and inline functions for plugins and engines;
 * nothing here links to libattn. "Semantics n.m" is a section of doc/semantics.md.
 */
#ifndef ATTN_FORMATS_H
#define ATTN_FORMATS_H

#include <attn/attn_types.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------- dtypes */

#define ATTN_DL_FLOAT8_E4M3FN 10 /* DLPack 1.1's type codes */
#define ATTN_DL_FLOAT8_E5M2 12
#define ATTN_DL_FLOAT8_E8M0FNU 14

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

/* ----------------------------------------------------------- KV-cache formats */

/* Where the scales of a format are. */
enum {
    ATTN_KV_SCALE_NONE = 0,
    /* with the call, attn_scales_t: one for the tensor, or one for each KV head (ATTN_F_PER_HEAD_SCALES)
     * (semantics 3.2) */
    ATTN_KV_SCALE_STATIC = 1,
    /* one for each token and head, behind the elements of its row (semantics 3.4, 3.7) */
    ATTN_KV_SCALE_ROW_INLINE = 2,
    ATTN_KV_SCALE_GROUP_INLINE = 3, /* one for each group of a row, inside the row (semantics 3.5) */
    /* one for each group of a row, behind all rows of the page's K or V; and one with the call, as
     * ATTN_KV_SCALE_STATIC (semantics 3.6) */
    ATTN_KV_SCALE_GROUP_APART = 4,
    /* of K one for each token and head, behind the rows of K and V; V has none (semantics 3.8) */
    ATTN_KV_SCALE_K_APART = 5,
    /* the same; and V one for each head and channel with the call (semantics 3.8) */
    ATTN_KV_SCALE_K_APART_V_CHANNEL = 6
};

#define ATTN_KV_MODEL_BITS 255 /* of a value: as many as the model's dtype has */

#define ATTN_KV_DENSE_ROLES (ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER_DECODER))
#define ATTN_KV_LATENT_ROLES (ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE))

/* One cache format. A row is what one token and head (latent: one token) keeps of K, or of V. */
typedef struct attn_kv_format {
    uint32_t kv;                 /* ATTN_KV_* */
    const char *name;            /* as engines and configurations spell it */
    const char *alias;           /* another spelling, or NULL */
    uint32_t storage;            /* ATTN_DTYPE_* of an element of the cache tensor; 0: the model's dtype */
    uint32_t k_bits, v_bits;     /* of a value; 0: those of storage; ATTN_KV_MODEL_BITS */
    uint32_t group;              /* values that share a scale; 0: the row, or whatever `scale` says */
    uint32_t scale;              /* ATTN_KV_SCALE_* */
    uint32_t scale_dtype;        /* ATTN_DTYPE_* of a scale that the cache keeps, else 0 */
    /* bytes beside the values of a row, or of each group: scale, norm, minimum */
    uint32_t k_beside, v_beside;
    uint32_t row_multiple;       /* bytes that the K and V rows of a token and head are padded to */
    uint32_t size_multiple;      /* head sizes are multiples of this, */
    uint32_t power_of_two;       /* and powers of two up to 1024, because rows are Hadamard-transformed */
    uint32_t is_quantized;       /* "is quantized" of semantics 3.1 */
    uint64_t roles;              /* ATTN_BIT(ATTN_ROLE_*) that can keep such a cache */
    uint64_t features;           /* ATTN_F_* that go with it */
} attn_kv_format_t;

/* The row of the table; of ATTN_KV_AUTO for 0 (not given), and one with the name "unknown", no role and no
 * size for a value that this header does not know. Never NULL. [pure] */
static inline const attn_kv_format_t *attn_kv_format(uint32_t kv) {
#define ANY_ (ATTN_KV_DENSE_ROLES | ATTN_KV_LATENT_ROLES)
#define DENSE_ ATTN_KV_DENSE_ROLES
#define SPARSE_ ATTN_BIT(ATTN_ROLE_MLA_SPARSE)
#define HEADS_ ATTN_F_PER_HEAD_SCALES
#define FP8_ ATTN_DTYPE_FP8_E4M3
#define U8_ ATTN_DTYPE_UINT8
#define F32_ ATTN_DTYPE_FLOAT32
#define F16_ ATTN_DTYPE_FLOAT16
    /* clang-format off */
    static const attn_kv_format_t table[ATTN_KV_COUNT_] = {
        /*                                                                                  beside  size,
         *                                                                                  power of two
           kv, name, alias, storage, bits K V, group, scale, its dtype,                      K  V pad  |  |
           quantised, roles, features */
        {0, "unknown", NULL, U8_, 0, 0, 0, ATTN_KV_SCALE_NONE, 0, 0, 0, 1, 1, 0, 0, 0, 0},
        {ATTN_KV_AUTO, "auto", NULL, 0, 0, 0, 0, ATTN_KV_SCALE_NONE, 0, 0, 0, 1, 1, 0, 0, ANY_, 0},
        {ATTN_KV_FLOAT16, "float16", "fp16", F16_, 0, 0, 0, ATTN_KV_SCALE_NONE, 0, 0, 0, 1, 1, 0, 0, ANY_, 0},
        {ATTN_KV_BFLOAT16, "bfloat16", "bf16", ATTN_DTYPE_BFLOAT16, 0, 0, 0,
         ATTN_KV_SCALE_NONE, 0, 0, 0, 1, 1, 0, 0, ANY_, 0},
        {ATTN_KV_FLOAT32, "float32", "fp32", F32_, 0, 0, 0, ATTN_KV_SCALE_NONE, 0, 0, 0, 1, 1, 0, 0, ANY_, 0},
        {ATTN_KV_FP8_E4M3, "fp8_e4m3", "fp8", FP8_, 0, 0, 0, ATTN_KV_SCALE_STATIC, 0, 0, 0, 1, 1, 0, 1, ANY_,
         HEADS_ | ATTN_F_QUANT_QUERY},
        {ATTN_KV_FP8_E5M2, "fp8_e5m2", NULL, ATTN_DTYPE_FP8_E5M2, 0, 0, 0,
         ATTN_KV_SCALE_STATIC, 0, 0, 0, 1, 1, 0, 1, ANY_, HEADS_},
        {ATTN_KV_INT8_PER_TOKEN_HEAD, "int8_per_token_head", NULL, ATTN_DTYPE_INT8, 0, 0, 0,
         ATTN_KV_SCALE_ROW_INLINE, F32_, 4, 4, 1, 1, 0, 1, DENSE_, 0},
        {ATTN_KV_FP8_PER_TOKEN_HEAD, "fp8_per_token_head", NULL, FP8_, 0, 0, 0,
         ATTN_KV_SCALE_ROW_INLINE, F32_, 4, 4, 1, 1, 0, 1, DENSE_, 0},
        {ATTN_KV_INT4_PER_TOKEN_HEAD, "int4_per_token_head", NULL, U8_, 4, 4, 0,
         ATTN_KV_SCALE_ROW_INLINE, F32_, 4, 4, 1, 2, 1, 1, DENSE_, 0},
        {ATTN_KV_NVFP4, "nvfp4", NULL, U8_, 4, 4, 16,
         ATTN_KV_SCALE_GROUP_APART, FP8_, 1, 1, 1, 16, 0, 1, DENSE_, HEADS_ | ATTN_F_QUANT_QUERY},
        {ATTN_KV_FP8_DS_MLA, "fp8_ds_mla", NULL, U8_, 8, 8, 128,
         ATTN_KV_SCALE_GROUP_INLINE, F32_, 4, 0, 1, 1, 0, 1, SPARSE_, 0},
        {ATTN_KV_TURBOQUANT_K8V4, "turboquant_k8v4", NULL, U8_, 8, 4, 0,
         ATTN_KV_SCALE_ROW_INLINE, F16_, 0, 4, 2, 8, 0, 0, DENSE_, 0},
        {ATTN_KV_TURBOQUANT_4BIT_NC, "turboquant_4bit_nc", NULL, U8_, 4, 4, 0,
         ATTN_KV_SCALE_ROW_INLINE, F16_, 2, 4, 2, 8, 1, 0, DENSE_, 0},
        {ATTN_KV_TURBOQUANT_K3V4_NC, "turboquant_k3v4_nc", NULL, U8_, 3, 4, 0,
         ATTN_KV_SCALE_ROW_INLINE, F16_, 2, 4, 2, 8, 1, 0, DENSE_, 0},
        {ATTN_KV_TURBOQUANT_3BIT_NC, "turboquant_3bit_nc", NULL, U8_, 3, 3, 0,
         ATTN_KV_SCALE_ROW_INLINE, F16_, 2, 4, 2, 8, 1, 0, DENSE_, 0},
        {ATTN_KV_INT8_STATIC_V, "int8_static_v", NULL, U8_, 8, 8, 0,
         ATTN_KV_SCALE_K_APART_V_CHANNEL, F32_, 4, 0, 1, 4, 0, 1, DENSE_, 0},
        {ATTN_KV_INT8_K_ONLY, "int8_k_only", NULL, U8_, 8, ATTN_KV_MODEL_BITS, 0,
         ATTN_KV_SCALE_K_APART, F32_, 4, 0, 1, 4, 0, 1, DENSE_, 0},
    };
    /* clang-format on */
#undef ANY_
#undef DENSE_
#undef SPARSE_
#undef HEADS_
#undef FP8_
#undef U8_
#undef F32_
#undef F16_
    return &table[kv == 0 ? (uint32_t)ATTN_KV_AUTO : kv < ATTN_KV_COUNT_ ? kv : 0];
}

/* The formats whose caches one of these roles (ATTN_BIT(ATTN_ROLE_*)) can keep, as a set of
 * ATTN_BIT(ATTN_KV_*): what a loop over formats takes instead of the order of their numbers. [pure] */
static inline uint64_t attn_kv_formats_of(uint64_t roles) {
    uint64_t set = 0;
    for (uint32_t kv = 1; kv < ATTN_KV_COUNT_; kv++)
        if (attn_kv_format(kv)->roles & roles) set |= ATTN_BIT(kv);
    return set;
}

/* The name of a format; "none" for 0, "unknown" for a value without one. [pure] */
static inline const char *attn_kv_name(uint32_t kv) { return kv == 0 ? "none" : attn_kv_format(kv)->name; }

/* The ATTN_DTYPE_* of an element of the cache tensor, for a model dtype. [pure] */
static inline uint32_t attn_kv_storage(uint32_t kv, uint32_t model_dtype) {
    const attn_kv_format_t *f = attn_kv_format(kv);
    return f->storage != 0 ? f->storage : model_dtype;
}

/* Rows of K and of V carry their own scale, so that the call gives none (semantics 3.4, 3.7). [pure] */
static inline int attn_kv_is_per_token_head(uint32_t kv) {
    return attn_kv_format(kv)->scale == ATTN_KV_SCALE_ROW_INLINE;
}

/* Values are divided by the k_scale and v_scale of the call (semantics 3.2, 3.6). [pure] */
static inline int attn_kv_has_static_scales(uint32_t kv) {
    const uint32_t scale = attn_kv_format(kv)->scale;
    return scale == ATTN_KV_SCALE_STATIC || scale == ATTN_KV_SCALE_GROUP_APART;
}

/* A page is one piece in which scales are kept apart from rows, as attn_kv_page says; strides inside it are
 * not free (semantics 3.6, 3.9). [pure] */
static inline int attn_kv_is_whole_page(uint32_t kv) {
    return attn_kv_format(kv)->scale >= ATTN_KV_SCALE_GROUP_APART;
}

/* Queries are rounded to int8 inside forward, a scale for each token and head (semantics 3.8). [pure] */
static inline int attn_kv_rounds_query(uint32_t kv) {
    return attn_kv_format(kv)->scale >= ATTN_KV_SCALE_K_APART;
}

/* V is divided by the v_scale of the call, [Hkv, Dv] or one number, which must be given (semantics 3.8).
 * [pure] */
static inline int attn_kv_has_channel_scales(uint32_t kv) {
    return attn_kv_format(kv)->scale == ATTN_KV_SCALE_K_APART_V_CHANNEL;
}

/* "is quantized" of semantics 3.1. [pure] */
static inline int attn_kv_is_quantized(uint32_t kv) { return attn_kv_format(kv)->is_quantized != 0; }

/* TurboQuant: K and V of one head size share a slot (semantics 3.7). [pure] */
static inline int attn_kv_is_turboquant(uint32_t kv) {
    return attn_kv_format(kv)->scale_dtype == ATTN_DTYPE_FLOAT16;
}

/* K and V have one head size (semantics 3.6, 3.7). [pure] */
static inline int attn_kv_has_one_size(uint32_t kv) {
    return attn_kv_is_turboquant(kv) || attn_kv_format(kv)->scale == ATTN_KV_SCALE_GROUP_APART;
}

/* Values are rounded to fewer bits than the model's, by a writer that has ties to break: what tolerances go
 * by. [pure] */
static inline int attn_kv_is_lossy(uint32_t kv) { return attn_kv_format(kv)->scale != ATTN_KV_SCALE_NONE; }

/* 1 if rows of this head size exist in the format; the rule as text, to go behind "rows hold". [pure] */
static inline int attn_kv_has_size(const attn_kv_format_t *f, int64_t size) {
    return size > 0 && size % f->size_multiple == 0 &&
           (!f->power_of_two || (size <= 1024 && (size & (size - 1)) == 0));
}
static inline const char *attn_kv_size_rule(const attn_kv_format_t *f) {
    return f->power_of_two && f->size_multiple == 8
               ? "a power of two from 8 to 1024 values (keys are Hadamard-transformed)"
           : f->power_of_two        ? "a power of two up to 1024 values (they are Hadamard-transformed)"
           : f->size_multiple == 16 ? "a multiple of 16 values (groups that share a scale)"
           : f->size_multiple == 4  ? "a multiple of 4 values (float32 scales lie behind them)"
           : f->size_multiple == 8  ? "a multiple of 8 values (packed in whole bytes)"
           : f->size_multiple == 2  ? "an even number of values (two in a byte)"
                                    : "any number of values";
}

/* Bytes of the values of a row of K (is_value 0) or V, without what is beside them. [pure] */
static inline int64_t attn_kv_data_bytes(const attn_kv_format_t *f, uint32_t model_dtype, int64_t size,
                                         int is_value) {
    const int64_t own = is_value ? f->v_bits : f->k_bits;
    const uint32_t type = f->storage != 0 && own != ATTN_KV_MODEL_BITS ? f->storage : model_dtype;
    const int64_t bits =
        own != 0 && own != ATTN_KV_MODEL_BITS ? own : 8 * (int64_t)attn_dtype_size(type);
    return (size * bits + 7) / 8;
}

/* Bytes of one token and head of a dense cache: K, V and what is beside them. [pure] */
static inline int64_t attn_kv_row_bytes(const attn_kv_format_t *f, uint32_t model_dtype, int64_t head_size,
                                        int64_t head_size_v) {
    const int64_t k_groups = f->group != 0 ? head_size / f->group : 1,
                  v_groups = f->group != 0 ? head_size_v / f->group : 1, pad = f->row_multiple;
    const int64_t bytes = attn_kv_data_bytes(f, model_dtype, head_size, 0) + k_groups * f->k_beside +
                          attn_kv_data_bytes(f, model_dtype, head_size_v, 1) + v_groups * f->v_beside;
    return (bytes + pad - 1) / pad * pad;
}

/* Where the rows of a page lie whose format is attn_kv_is_whole_page: the row of a head and token begins at
 * at + head * its number + token * its number. */
typedef struct attn_kv_part {
    int64_t at, head, token, row; /* bytes; row: of one row */
} attn_kv_part_t;
typedef struct attn_kv_page {
    attn_kv_part_t values[2], scales[2]; /* of K, of V */
    int64_t bytes;
} attn_kv_page_t;

/* The parts of a page. nvfp4: K, its scales, V, its scales, each of all heads. int8: K, V, the scales of K;
 * with layout HND for one head after the other. layout: ATTN_LAYOUT_NHD or _HND. [pure] */
static inline attn_kv_page_t attn_kv_page(const attn_kv_format_t *f, uint32_t model_dtype, uint32_t layout,
                                          int64_t num_kv_heads, int64_t block_size, int64_t head_size,
                                          int64_t head_size_v) {
    static const int orders[2][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}}; /* K, its scales, V, its scales */
    const int hnd = layout == ATTN_LAYOUT_HND, is_int8 = f->scale >= ATTN_KV_SCALE_K_APART;
    const int64_t heads_together = is_int8 && hnd ? 1 : num_kv_heads;
    attn_kv_page_t page;
    int64_t at = 0;
    for (int i = 0; i < 4; i++) {
        const int is_value = orders[is_int8][i] / 2, is_scale = orders[is_int8][i] % 2;
        const int64_t size = is_value ? head_size_v : head_size,
                      beside = is_value ? f->v_beside : f->k_beside;
        attn_kv_part_t *part = is_scale ? &page.scales[is_value] : &page.values[is_value];
        part->row = is_scale ? (f->group != 0 ? size / f->group : 1) * beside
                             : attn_kv_data_bytes(f, model_dtype, size, is_value);
        part->at = at;
        part->head = hnd ? block_size * part->row : part->row;
        part->token = hnd ? part->row : num_kv_heads * part->row;
        at += heads_together * block_size * part->row;
    }
    for (int i = 0; i < 2 && is_int8 && hnd; i++)
        page.values[i].head = page.scales[i].head = at;
    page.bytes = num_kv_heads / heads_together * at;
    return page;
}

/* bytes of a token in fp8_ds_mla: 512 e4m3, 4 float32 scales, 64 16-bit rope values */
#define ATTN_DS_MLA_ROW 656
#define ATTN_DS_MLA_SCALES_AT 512 /* its scales, one for each 128 values */
#define ATTN_DS_MLA_ROPE_AT 528

/* Bytes of one token of a latent cache, L + R values; 0 if the format has no such rows. fp8_ds_mla has those
 * of ATTN_DS_MLA_ROW for 576 values and rows of 584 bytes for 512 (semantics 3.5). [pure] */
static inline int64_t attn_kv_latent_row_bytes(const attn_kv_format_t *f, uint32_t model_dtype,
                                               int64_t head_size) {
    if ((f->roles & ATTN_KV_LATENT_ROLES) == 0) return 0;
    if (f->scale != ATTN_KV_SCALE_GROUP_INLINE) return attn_kv_data_bytes(f, model_dtype, head_size, 0);
    return head_size == 576 ? ATTN_DS_MLA_ROW : head_size == 512 ? 584 : 0;
}

#ifdef __cplusplus
}
#endif
#endif
