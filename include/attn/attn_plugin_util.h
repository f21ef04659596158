/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_plugin_util.h: optional inline helpers for plugin authors (and for the core): error and reason
 * writing, structs in and out by size, tensor addressing and checking, cache shapes, fingerprints. Element
 * types and cache formats are in attn_formats.h, which comes along. Nothing here links to libattn.
 * "semantics n.m" is a section of doc/semantics.md (installed in share/doc/libattn).
 */
#ifndef ATTN_PLUGIN_UTIL_H
#define ATTN_PLUGIN_UTIL_H

#include <attn/attn_formats.h>
#include <attn/attn_plugin.h>

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ATTN_PRINTF(FMT, ARGS) __attribute__((format(printf, FMT, ARGS)))
#define ATTN_UNUSED            __attribute__((unused))
#define ATTN_COLD              __attribute__((cold))
#else
#define ATTN_PRINTF(FMT, ARGS)
#define ATTN_UNUSED
#define ATTN_COLD
#endif

/* ------------------------------------------------------------------- errors */

/* Fills *error, if given, within the struct_size that its owner set (a struct too short for any text is left
 * alone), and returns code, so that a check is one line:
 *     if (n < 0) return attn_fail(error, ATTN_E_INVALID, "num_reqs", "num_reqs is %d; it must not be
 *     negative", n);
 * param: the parameter at fault, or "". [any thread] */
ATTN_UNUSED ATTN_COLD ATTN_PRINTF(4, 5) static int attn_fail(attn_error_t *error, int code, const char *param,
                                                             const char *format, ...) {
    const size_t before_text = offsetof(attn_error_t, text);
    if (error == NULL || error->struct_size < before_text + 2) return code;
    error->code = code;
    snprintf(error->param, sizeof error->param, "%s", param != NULL ? param : "");
    va_list args;
    va_start(args, format);
    vsnprintf(error->text,
              error->struct_size < sizeof *error ? error->struct_size - before_text : sizeof error->text,
              format, args);
    va_end(args);
    return code;
}

/* Appends one reason; counts it even where there is no room. text is a printf format. */
ATTN_UNUSED ATTN_PRINTF(6, 7) static void attn_add_reason(attn_reasons_t *reasons, int code,
                                                          const char *param, const char *have,
                                                          const char *want, const char *format, ...) {
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

/* Copies the known members of a struct of unknown length; missing ones become zero, more of them are left
 * where they are. For what offers or describes (attn_device_t, attn_host_t) and requests nothing. known_size
 * is sizeof(*dst). Returns ATTN_OK, ATTN_E_INVALID (no or absurd size). */
static inline int attn_intake_known(void *dst, size_t known_size, const void *src, const char *name,
                                    attn_error_t *error) {
    if (src == NULL) return attn_fail(error, ATTN_E_INVALID, name, "%s is NULL; pass a filled struct", name);
    uint32_t size;
    memcpy(&size, src, sizeof size);
    if (size < sizeof size || size > 65536)
        return attn_fail(error, ATTN_E_INVALID, name, "%s.struct_size is %u; set it to sizeof(%s struct)",
                         name, (unsigned)size, name);
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

/* The same for what requests something (every other input): a longer struct is accepted iff its unknown tail
 * is zero, since a member that is not read would be a wrong number. Also ATTN_E_TOO_NEW. */
static inline int attn_intake(void *dst, size_t known_size, const void *src, const char *name,
                              attn_error_t *error) {
    int code = attn_intake_known(dst, known_size, src, name, error);
    if (code != ATTN_OK) return code;
    uint32_t size;
    memcpy(&size, src, sizeof size);
    for (size_t i = known_size; i < size; i++)
        if (((const unsigned char *)src)[i] != 0)
            return attn_fail(
                error, ATTN_E_TOO_NEW, name,
                "%s has %u bytes and uses a member at byte %u; this build knows %u bytes: update the reader",
                name, (unsigned)size, (unsigned)i, (unsigned)known_size);
    return ATTN_OK;
}

/* The way out, the counterpart of attn_intake: fills a caller's struct of unknown length
 * (attn_kv_cache_shape_t, attn_space_needed_t) from a filled one of known_size bytes. Writes the members that
 * both know, keeps the caller's struct_size and touches no byte behind either. Returns ATTN_OK,
 * ATTN_E_INVALID (no struct, or no size in it). */
static inline int attn_give(void *dst, const void *src, size_t known_size, const char *name,
                            attn_error_t *error) {
    if (dst == NULL) return attn_fail(error, ATTN_E_INVALID, name, "%s is NULL; pass a struct to fill", name);
    uint32_t size;
    memcpy(&size, dst, sizeof size);
    if (size < sizeof size)
        return attn_fail(error, ATTN_E_INVALID, name, "%s.struct_size is %u; set it to sizeof(%s struct)",
                         name, (unsigned)size, name);
    memcpy((char *)dst + sizeof size, (const char *)src + sizeof size,
           (size < known_size ? size : known_size) - sizeof size);
    return ATTN_OK;
}

/* True iff MEMBER lies within the struct that P points to (by its own struct_size). */
#define ATTN_HAS(P, TYPE, MEMBER) ((P)->struct_size >= offsetof(TYPE, MEMBER) + sizeof(((TYPE *)0)->MEMBER))

/* True iff operation OP exists in the ops table. */
#define ATTN_HAS_OP(OPS, OP) (ATTN_HAS(OPS, attn_backend_ops_t, OP) && (OPS)->OP != NULL)

/* -------------------------------------------------------- roles and features */

static inline const char *attn_role_name(uint32_t role) {
    static const char *const names[] = {"none",         "decoder",         "encoder",
                                        "encoder_only", "encoder_decoder", "mla",
                                        "mla_prefill",  "mla_sparse",      "mm_encoder"};
    return role < sizeof names / sizeof names[0] ? names[role] : "unknown";
}

static inline int attn_role_has_cache(uint32_t role) {
    return role == ATTN_ROLE_DECODER || role == ATTN_ROLE_ENCODER_DECODER || role == ATTN_ROLE_MLA ||
           role == ATTN_ROLE_MLA_SPARSE;
}

static inline int attn_role_is_mla(uint32_t role) {
    return role == ATTN_ROLE_MLA || role == ATTN_ROLE_MLA_PREFILL || role == ATTN_ROLE_MLA_SPARSE;
}

/* 1: the layer projects queries and outputs with kv_b_proj (semantics 7.4); 0 also where the caller does so
 * (ATTN_F_LATENT). [pure] */
static inline int attn_problem_projects(const attn_problem_t *p) {
    return (p->role == ATTN_ROLE_MLA || p->role == ATTN_ROLE_MLA_SPARSE) &&
           (p->features & ATTN_F_LATENT) == 0;
}

/* Elements that one head has in a row of query, and of output. [pure] */
static inline uint32_t attn_query_size(const attn_problem_t *p) {
    return p->role == ATTN_ROLE_MLA_PREFILL || attn_problem_projects(p)
               ? p->qk_nope_head_dim + p->qk_rope_head_dim
               : p->head_size;
}
static inline uint32_t attn_output_size(const attn_problem_t *p) {
    if (p->role == ATTN_ROLE_MLA_PREFILL || attn_problem_projects(p)) return p->v_head_dim;
    if (attn_role_is_mla(p->role)) return p->kv_lora_rank;
    return p->head_size_v != 0 ? p->head_size_v : p->head_size;
}

/* Elements of the tensor output for each head: bytes of two values with ATTN_F_OUT_NVFP4. [pure] */
static inline uint32_t attn_output_columns(const attn_problem_t *p) {
    const uint32_t size = attn_output_size(p);
    return (p->features & ATTN_F_OUT_NVFP4) != 0 ? size / 2 : size;
}

/* Name of one feature bit, NULL if the bit has none. */
static inline const char *attn_feature_name(unsigned bit) {
    static const char *const names[] = {"sliding_window",
                                        "soft_cap",
                                        "alibi",
                                        "alibi_sqrt",
                                        "sink",
                                        "mm_prefix",
                                        "mm_prefix_clamp",
                                        "chunked_local",
                                        "chunk_lookback",
                                        "rswa",
                                        "non_causal",
                                        "per_request_causal",
                                        "qq_bias",
                                        "diff_kv",
                                        "lse",
                                        "per_head_scales",
                                        "quant_query",
                                        "out_fp8_static",
                                        "out_fp8_group",
                                        "separate_kv",
                                        "cascade",
                                        "static_sink",
                                        "batch_invariant",
                                        "capture",
                                        "dcp",
                                        NULL,
                                        "kv_connector",
                                        "contiguous_kv",
                                        "block_stride",
                                        "weights",
                                        "fp8_attention",
                                        "latent",
                                        "key_lengths",
                                        "device_lengths",
                                        "rel_bias",
                                        "out_nvfp4",
                                        "out_scale_ue8m0",
                                        "write_in_forward"};
    return bit < sizeof names / sizeof names[0] ? names[bit] : NULL;
}

/* The feature bits that a problem needs: those requested, and those that its members imply. [pure] */
static inline uint64_t attn_problem_features(const attn_problem_t *p) {
    uint64_t f = p->features;
    if (p->sliding_window != 0) f |= ATTN_F_SLIDING_WINDOW;
    if (p->logits_soft_cap != 0) f |= ATTN_F_SOFT_CAP;
    if (p->rswa_window != 0) f |= ATTN_F_RSWA;
    if (p->head_size_v != 0 && p->head_size_v != p->head_size) f |= ATTN_F_DIFF_KV;
    if (p->mask == ATTN_MASK_PER_REQUEST) f |= ATTN_F_PER_REQUEST_CAUSAL;
    if ((p->role == ATTN_ROLE_DECODER || p->role == ATTN_ROLE_MLA) && p->mask == ATTN_MASK_FULL)
        f |= ATTN_F_NON_CAUSAL;
    if (attn_problem_projects(p)) f |= ATTN_F_WEIGHTS;
    if (p->query_dtype != 0 && p->query_dtype != p->dtype) f |= ATTN_F_QUANT_QUERY;
    if (p->dcp_world_size > 1) f |= ATTN_F_DCP;
    return f;
}

/* What is wrong with the quantised output that a problem asks for, in the words of a reason. */
typedef struct attn_output_fault {
    const char *param; /* the name of a feature, or out_dtype */
    const char *have, *want, *text;
} attn_output_fault_t;

/* Fault number index of a problem, of the rules of semantics 7.7 in one order; 0: it has no more. [pure] */
ATTN_UNUSED static int attn_output_fault(const attn_problem_t *p, uint32_t index,
                                         attn_output_fault_t *fault) {
    const int is_static = (p->features & ATTN_F_OUT_FP8_STATIC) != 0,
              is_group = (p->features & ATTN_F_OUT_FP8_GROUP) != 0,
              is_fp4 = (p->features & ATTN_F_OUT_NVFP4) != 0;
    const uint64_t size = attn_output_size(p), row = p->num_heads * size;
    const char *dtype = attn_dtype_name(p->out_dtype);
    const struct {
        int is_broken;
        attn_output_fault_t fault;
    } rules[] = {
        {is_static && is_group,
         {"out_fp8_group", "with out_fp8_static", "one of the two",
          "output is quantised with one static scale or with group scales, not both"}},
        {is_fp4 && (is_static || is_group),
         {"out_nvfp4", "with fp8", "one of the two", "output is quantised to 4 or to 8 bits, not both"}},
        {(p->features & ATTN_F_OUT_SCALE_UE8M0) != 0 && !is_group,
         {"out_scale_ue8m0", "without out_fp8_group", "with out_fp8_group",
          "powers of two are scales of groups of fp8 values"}},
        {is_fp4 != (p->out_dtype == ATTN_DTYPE_UINT8),
         {"out_dtype", dtype, "uint8 exactly with out_nvfp4",
          "out_dtype uint8, of bytes of two values, and feature out_nvfp4 belong together"}},
        {(is_static || is_group) != (p->out_dtype == ATTN_DTYPE_FP8_E4M3),
         {"out_dtype", dtype, "fp8_e4m3 exactly with out_fp8_static or out_fp8_group",
          "out_dtype fp8_e4m3 and one of the features out_fp8_static, out_fp8_group belong together"}},
        {is_group && row % 64 != 0,
         {"out_fp8_group", "a row that is not a multiple of 64", "num_heads * head_size_v a multiple of 64",
          "group scales cover 64 or 128 values of a row"}},
        {is_fp4 && (size % 2 != 0 || row % 16 != 0),
         {"out_nvfp4", size % 2 != 0 ? "an odd head_size_v" : "a row that is not a multiple of 16",
          "even head_size_v, num_heads * head_size_v a multiple of 16",
          "a byte has two values of a head, and a scale covers 16 of a row"}}};
    for (uint32_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (rules[i].is_broken && index-- == 0) {
            *fault = rules[i].fault;
            return 1;
        }
    return 0;
}

/* ------------------------------------------------------------------ tensors */

static inline void *attn_data(const DLTensor *t) {
    return (char *)t->data + t->byte_offset;
}

/* Byte stride of dimension i. */
static inline int64_t attn_byte_stride(const DLTensor *t, int i) {
    return t->strides[i] * (int64_t)(t->dtype.bits / 8u);
}

/* Checks a tensor in one column of calls: given, rank, element type (dtype 0: any; 8-bit formats also match
 * uint8), sizes (-1: any), strides present, last dimension dense. name appears in the error. */
ATTN_UNUSED static int attn_check_tensor(const DLTensor *t, const char *name, uint32_t dtype, int ndim,
                                         const int64_t *shape, attn_error_t *error) {
    if (t == NULL)
        return attn_fail(error, ATTN_E_INVALID, name, "%s is not given; it is required here", name);
    if (t->ndim != ndim)
        return attn_fail(error, ATTN_E_INVALID, name, "%s has %d dimensions; expected %d", name, (int)t->ndim,
                         ndim);
    if (t->shape == NULL || (t->strides == NULL && ndim > 0))
        return attn_fail(error, ATTN_E_INVALID, name, "%s has no shape or no strides; give both", name);
    DLDataType want = attn_dl_dtype(dtype), have = t->dtype;
    int is_code = have.code == want.code || (want.bits == 8 && have.code == (uint8_t)kDLUInt);
    if (dtype != 0 && (!is_code || have.bits != want.bits || have.lanes != 1))
        return attn_fail(error, ATTN_E_INVALID, name, "%s has element type %s; expected %s", name,
                         attn_dtype_name(attn_dtype_of(have)), attn_dtype_name(dtype));
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) {
        if (t->shape[i] < 0 || (shape != NULL && shape[i] >= 0 && t->shape[i] != shape[i]))
            return attn_fail(error, ATTN_E_INVALID, name, "%s has size %lld in dimension %d; expected %lld",
                             name, (long long)t->shape[i], i, shape != NULL ? (long long)shape[i] : 0LL);
        count *= t->shape[i] != 0 ? 1 : 0;
    }
    if (count != 0 && t->data == NULL) return attn_fail(error, ATTN_E_INVALID, name, "%s has no data", name);
    if (ndim > 0 && count != 0 && t->shape[ndim - 1] > 1 && t->strides[ndim - 1] != 1)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s has stride %lld in its last dimension; it must be dense (1)", name,
                         (long long)t->strides[ndim - 1]);
    return ATTN_OK;
}

/* -------------------------------------------------------------- fingerprint */

/* FNV-1a, 64 bit, over n bytes; start with h = 0 and feed the result back in. [pure] */
static inline uint64_t attn_fingerprint64(uint64_t h, const void *bytes, size_t n) {
    if (h == 0) h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* ------------------------------------------------------------- cache shapes */

/* Fills the shape of a dense cache in the given layout: packed rows (nb, Hkv, bs, content), content = K, K's
 * scale, V, V's scale (semantics 3.4, 3.9); or pages with scales apart, of bytes
 * whose strides say the size and order of a page, and the offsets where its parts begin: attn_kv_page has the
 * rest (semantics 3.6, 3.8). The one function behind every dense in-tree backend; others are free to differ.
 * Returns ATTN_OK, ATTN_E_UNSUPPORTED (a format that is no dense one, or that has no rows of this head
 * size). [pure] */
ATTN_UNUSED static int attn_dense_cache_shape(const attn_problem_t *p, uint32_t layout, uint32_t block_size,
                                              int64_t num_blocks, attn_kv_cache_shape_t *out,
                                              attn_error_t *error) {
    const attn_kv_format_t *f = attn_kv_format(p->kv_cache_dtype);
    if ((f->roles & ATTN_BIT(ATTN_ROLE_DECODER)) == 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "kv_cache_dtype",
                         "kv_cache_dtype %s is not a dense format", f->name);
    uint32_t storage = attn_kv_storage(f->kv, p->dtype);
    int64_t size = (int64_t)attn_dtype_size(storage);
    int64_t heads = p->num_kv_heads != 0 ? p->num_kv_heads : p->num_heads;
    int64_t dk = p->head_size, dv = p->head_size_v != 0 ? p->head_size_v : p->head_size;
    if (!attn_kv_has_size(f, dk) || !attn_kv_has_size(f, dv))
        return attn_fail(error, ATTN_E_UNSUPPORTED, attn_kv_has_size(f, dk) ? "head_size_v" : "head_size",
                         "head sizes are %lld and %lld; %s rows hold %s", (long long)dk, (long long)dv,
                         f->name, attn_kv_size_rule(f));
    if (attn_kv_has_one_size(f->kv) && dk != dv)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "head_size_v",
                         "head sizes are %lld and %lld; the rows of K and V of %s have one size",
                         (long long)dk, (long long)dv, f->name);
    const int is_whole = attn_kv_is_whole_page(f->kv), hnd = layout == ATTN_LAYOUT_HND;
    int64_t k_data = attn_kv_data_bytes(f, p->dtype, dk, 0), v_data = attn_kv_data_bytes(f, p->dtype, dv, 1);
    const int rows = f->scale == ATTN_KV_SCALE_GROUP_APART ? 2 : 1; /* K and V on the axis of heads */
    int64_t content = attn_kv_row_bytes(f, p->dtype, dk, dv) / size / rows;
    attn_zero(out, sizeof *out);
    out->struct_size = (uint32_t)sizeof *out;
    out->ndim = 4;
    out->shape[0] = num_blocks;
    out->shape[1] = rows * heads;
    out->shape[2] = block_size;
    out->shape[3] = content;
    out->axes[0] = ATTN_AXIS_BLOCK;
    out->axes[1] = ATTN_AXIS_HEAD;
    out->axes[2] = ATTN_AXIS_TOKEN;
    out->axes[3] = ATTN_AXIS_CONTENT;
    static const uint32_t order[2][4] = {{0, 2, 1, 3}, {0, 1, 2, 3}};
    static const uint32_t order_layers[2][5] = {{1, 0, 3, 2, 4}, {1, 2, 0, 3, 4}};
    static const uint32_t whole_layers[2][5] = {{1, 0, 3, 2, 4}, {1, 0, 2, 3, 4}};
    for (int i = 0; i < 4; i++)
        out->stride_order[i] = order[hnd][i];
    for (int i = 0; i < 5; i++)
        out->stride_order_layers[i] = (is_whole ? whole_layers : order_layers)[hnd][i];
    int64_t stride = size;
    for (int j = 3; j >= 0; j--) {
        out->byte_strides[order[hnd][j]] = stride;
        stride *= out->shape[order[hnd][j]];
    }
    out->page_bytes = out->byte_strides[0];
    out->total_bytes = out->page_bytes * num_blocks;
    out->dtype = attn_dl_dtype(storage);
    out->kv_layout = hnd ? ATTN_LAYOUT_HND : ATTN_LAYOUT_NHD;
    out->alignment = 256;
    out->block_size = block_size;
    out->num_kv_heads = (uint32_t)heads;
    out->k_offset = 0;
    out->v_offset = k_data + f->k_beside;
    out->k_scale_offset = f->k_beside != 0 ? k_data : -1;
    out->v_scale_offset = f->v_beside != 0 ? out->v_offset + v_data : -1;
    out->layout_id = 1; /* dense packed */
    if (is_whole) {
        const attn_kv_page_t page = attn_kv_page(f, p->dtype, out->kv_layout, heads, block_size, dk, dv);
        out->v_offset = page.values[1].at;
        out->k_scale_offset = page.scales[0].at;
        out->v_scale_offset = f->v_beside != 0 ? page.scales[1].at : -1;
        out->layout_id = 4; /* dense, scales apart, in their plain order */
    }
    int64_t key[8] = {out->layout_id,         (int64_t)f->kv, (int64_t)storage, heads, block_size, dk, dv,
                      (int64_t)out->kv_layout};
    out->fingerprint = attn_fingerprint64(0, key, sizeof key);
    return ATTN_OK;
}

/* Fills the shape of pages [block][token][content] whose tokens are one row of row_elements values of dtype
 * each, layers apart (semantics 3.9); layout_id, scale offsets and fingerprint are the caller's. [pure] */
static inline void attn_row_cache_shape(uint32_t dtype, int64_t row_elements, uint32_t block_size,
                                        int64_t num_blocks, attn_kv_cache_shape_t *out) {
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
    for (uint32_t i = 0; i < 4; i++)
        out->stride_order_layers[i] = order_layers[i];
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

/* Fills the shape of a latent cache (nb, bs, L + R), or (nb, bs, 656) for fp8_ds_mla (semantics 3.5, 3.9),
 * for the roles mla and mla_sparse. The one function behind every latent in-tree backend; others are free to
 * differ. [pure] */
ATTN_UNUSED static int attn_latent_cache_shape(const attn_problem_t *p, uint32_t block_size,
                                               int64_t num_blocks, attn_kv_cache_shape_t *out,
                                               attn_error_t *error) {
    const attn_kv_format_t *f = attn_kv_format(p->kv_cache_dtype);
    int is_ds = f->kv == ATTN_KV_FP8_DS_MLA;
    if ((f->roles & ATTN_KV_LATENT_ROLES) == 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "kv_cache_dtype",
                         "kv_cache_dtype %s is not a latent format", f->name);
    uint32_t storage = attn_kv_storage(f->kv, p->dtype);
    int64_t row = is_ds ? ATTN_DS_MLA_ROW : (int64_t)p->kv_lora_rank + p->qk_rope_head_dim;
    attn_row_cache_shape(storage, row, block_size, num_blocks, out);
    if (is_ds) out->k_scale_offset = ATTN_DS_MLA_SCALES_AT;
    out->layout_id = 2; /* latent rows */
    int64_t key[6] = {2, (int64_t)f->kv, (int64_t)storage, block_size, p->kv_lora_rank, p->qk_rope_head_dim};
    out->fingerprint = attn_fingerprint64(0, key, sizeof key);
    return ATTN_OK;
}

/* ------------------------------------------------------------- number formats */

/* Exact conversions between double and the small formats: float16, bfloat16, fp8 e4m3 (the "fn" form without
 * infinity), fp8 e5m2 and e2m1. A float converts to double without loss, so these serve floats too. Integer
 * arithmetic alone: neither compiler nor rounding mode matters. Rounding is to nearest, ties to even; float16
 * and bfloat16 overflow to infinity, fp8 saturates at its largest finite value (semantics 3.2), infinities
 * included, and its NaN is 0x7f. Names that end in _ are not for use. [pure] */
#define ATTN_E4M3_MAX 448.0
#define ATTN_E5M2_MAX 57344.0

static inline uint64_t attn_double_bits_(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline double attn_double_of_bits_(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* 2^e for -1022 <= e <= 1023. */
static inline double attn_power_of_two_(int e) {
    return attn_double_of_bits_((uint64_t)(e + 1023) << 52);
}

/* Magnitude of |x| as the code (exponent and mantissa bits, no sign) of a format with man_bits mantissa bits
 * and smallest normal exponent emin. x is finite; a code above the format's largest means overflow. Codes of
 * neighbouring values are neighbouring integers, so a carry out of the mantissa needs no special case. */
static inline uint64_t attn_round_code_(double x, int man_bits, int emin) {
    uint64_t u = attn_double_bits_(x) & UINT64_C(0x7fffffffffffffff);
    int e = (int)(u >> 52) - 1023;
    if (e == -1023) return 0; /* zero and subnormal doubles lie far below every format here */
    uint64_t m = (u & UINT64_C(0xfffffffffffff)) | UINT64_C(1) << 52;
    int floor_e = e > emin ? e : emin;
    int shift = 52 - man_bits + (floor_e - e);
    if (shift > 54) return 0;
    uint64_t n = m >> shift, rest = m & ((UINT64_C(1) << shift) - 1), half = UINT64_C(1) << (shift - 1);
    if (rest > half || (rest == half && (n & 1))) n++;
    return ((uint64_t)(floor_e - emin) << man_bits) + n;
}

/* Value of a code without sign, for formats whose largest exponent field is handled by the caller. */
static inline double attn_code_value_(uint32_t code, int man_bits, int emin) {
    uint32_t field = code >> man_bits, man = code & ((1u << man_bits) - 1);
    if (field == 0) return (double)man * attn_power_of_two_(emin - man_bits);
    return (double)(man | 1u << man_bits) * attn_power_of_two_((int)field - 1 + emin - man_bits);
}

static inline int attn_is_nan_(double x) {
    return (attn_double_bits_(x) & UINT64_C(0x7fffffffffffffff)) > UINT64_C(0x7ff0000000000000);
}

static inline int attn_is_infinite_(double x) {
    return (attn_double_bits_(x) & UINT64_C(0x7fffffffffffffff)) == UINT64_C(0x7ff0000000000000);
}

/* IEEE formats of 16 bits: everything at or above the first code of the last exponent field is infinity. */
static inline uint16_t attn_to_ieee16_(double x, int man_bits, int emin) {
    uint16_t sign = (uint16_t)(attn_double_bits_(x) >> 48 & 0x8000);
    uint64_t infinity = (UINT64_C(0x7fff) >> man_bits) << man_bits;
    if (attn_is_nan_(x)) return (uint16_t)(sign | infinity | UINT64_C(1) << (man_bits - 1));
    uint64_t code = attn_is_infinite_(x) ? infinity : attn_round_code_(x, man_bits, emin);
    return (uint16_t)(sign | (code < infinity ? code : infinity));
}

static inline double attn_from_ieee16_(uint16_t h, int man_bits, int emin) {
    uint32_t code = h & 0x7fffu, infinity = (0x7fffu >> man_bits) << man_bits;
    uint64_t sign = (uint64_t)(h & 0x8000u) << 48;
    if (code >= infinity) /* NaN keeps its payload's top bits */
        return attn_double_of_bits_(sign | UINT64_C(0x7ff) << 52 |
                                    (uint64_t)(code - infinity) << (52 - man_bits));
    return attn_double_of_bits_(sign | attn_double_bits_(attn_code_value_(code, man_bits, emin)));
}

static inline uint16_t attn_to_f16(double x) {
    return attn_to_ieee16_(x, 10, -14);
}
static inline double attn_from_f16(uint16_t h) {
    return attn_from_ieee16_(h, 10, -14);
}
static inline uint16_t attn_to_bf16(double x) {
    return attn_to_ieee16_(x, 7, -126);
}
static inline double attn_from_bf16(uint16_t h) {
    return attn_from_ieee16_(h, 7, -126);
}

static inline uint8_t attn_to_small_(double x, int man_bits, int emin, uint32_t largest) {
    uint8_t sign = (uint8_t)(attn_double_bits_(x) >> 56 & 0x80);
    if (attn_is_nan_(x)) return 0x7f;
    uint64_t code = attn_is_infinite_(x) ? largest : attn_round_code_(x, man_bits, emin);
    return (uint8_t)(sign | (code < largest ? code : largest));
}

/* Largest finite values: e4m3 0x7e = 448, e5m2 0x7b = 57344 (OCP 8-bit floating point specification, 2023).
 * */
static inline uint8_t attn_to_e4m3(double x) {
    return attn_to_small_(x, 3, -6, 0x7e);
}
static inline uint8_t attn_to_e5m2(double x) {
    return attn_to_small_(x, 2, -14, 0x7b);
}

static inline double attn_from_e4m3(uint8_t b) {
    uint64_t sign = (uint64_t)(b & 0x80u) << 56;
    uint32_t code = b & 0x7fu;
    if (code == 0x7f) return attn_double_of_bits_(sign | UINT64_C(0x7ff8000000000000));
    return attn_double_of_bits_(sign | attn_double_bits_(attn_code_value_(code, 3, -6)));
}

/* e5m2 is float16 without its lower mantissa byte. */
static inline double attn_from_e5m2(uint8_t b) {
    return attn_from_f16((uint16_t)(b << 8));
}

/* e2m1, the 4-bit element of nvfp4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives in the low 4 bits; no
 * infinity, no NaN (OCP microscaling formats specification 1.0, 2023). Saturates at 6; NaN becomes 6, as it
 * has no pattern. */
static inline uint8_t attn_to_e2m1(double x) {
    uint8_t sign = (uint8_t)(attn_double_bits_(x) >> 60 & 8);
    if (attn_is_nan_(x) || attn_is_infinite_(x)) return (uint8_t)(attn_is_nan_(x) ? 7 : sign | 7);
    uint64_t code = attn_round_code_(x, 1, 0);
    return (uint8_t)(sign | (code < 7 ? code : 7));
}

static inline double attn_from_e2m1(uint8_t b) {
    return attn_double_of_bits_((uint64_t)(b & 8u) << 60 | attn_double_bits_(attn_code_value_(b & 7u, 1, 0)));
}

#ifdef __cplusplus
}
#endif
#endif
