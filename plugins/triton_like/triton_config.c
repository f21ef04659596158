/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles, warps and alignments of the kernels for one problem. The sizes of shared memory repeat formulas of
 * the kernels, which check them when they are compiled. */
#include "triton_config.h"

#include <attn/attn_plugin_util.h>

int triton_smem_of_block(int cc) {
    switch (cc) {
    case 75:
        return 64 * 1024;
    case 80:
    case 87:
        return 163 * 1024;
    case 90:
    case 100:
    case 101:
    case 103:
    case 110:
        return 227 * 1024;
    default:
        return 99 * 1024;
    }
}

int triton_smem_of_sm(int cc) {
    return triton_smem_of_block(cc) + 1024;
}

static int round_up(int n, int to) {
    return (n + to - 1) / to * to;
}
static int greatest(int a, int b) {
    return a > b ? a : b;
}
static int alignment(int a, int b) { /* greatest power of two up to 16 that divides both */
    int n = 16;
    while (a % n != 0 || b % n != 0)
        n /= 2;
    return n;
}
static int odd16(int bytes) {
    return bytes / 16 % 2 ? bytes : bytes + 16;
}

static int bytes_of(int type) { /* E2M1: of the unit of its strides */
    return type == TRITON_F32 ? 4 : type == TRITON_F16 || type == TRITON_BF16 ? 2 : 1;
}

static int type_of(uint32_t dtype) {
    switch (dtype) {
    case ATTN_DTYPE_FLOAT16:
        return TRITON_F16;
    case ATTN_DTYPE_BFLOAT16:
        return TRITON_BF16;
    case ATTN_DTYPE_FP8_E4M3:
        return TRITON_E4M3;
    case ATTN_DTYPE_FP8_E5M2:
        return TRITON_E5M2;
    case ATTN_DTYPE_INT8:
        return TRITON_I8;
    case ATTN_DTYPE_UINT8:
        return TRITON_BYTES;
    default:
        return TRITON_F32;
    }
}

static int packed_of(uint32_t kv) {
    switch (kv) {
    case ATTN_KV_INT4_PER_TOKEN_HEAD:
        return TRITON_INT4;
    case ATTN_KV_TURBOQUANT_K8V4:
        return TRITON_K8V4;
    case ATTN_KV_TURBOQUANT_4BIT_NC:
        return TRITON_C4V4;
    case ATTN_KV_TURBOQUANT_K3V4_NC:
        return TRITON_C3V4;
    case ATTN_KV_TURBOQUANT_3BIT_NC:
        return TRITON_C3V3;
    default:
        return 0;
    }
}

/* Bytes of `n` values in a row of the cache. */
static int row_of(int type, int n) {
    return type == TRITON_E2M1 ? n / 2 : n * bytes_of(type);
}

static int terms_of(const triton_config_t *c) { /* float32s of a key: K's scale, V's, V's addend */
    return c->packed ? 3 : c->token_head ? 2 : c->k_apart;
}
/* As ROW_UNITS in triton_rows.cuh: rows of queries have a factor of their own. */
static int has_row_units(const triton_config_t *c) {
    return (c->packed && c->packed != TRITON_K8V4) || (c->q == TRITON_BF16 && c->kv != TRITON_BF16);
}
static int bytes_a_query(const triton_config_t *c) { /* of prefill: what it sees, its scale or factor */
    return c->k_apart || has_row_units(c) ? 12 : 8;
}

static int prefill_smem(const triton_config_t *c) {
    int dp = round_up(c->d, 16), dvp = round_up(c->dv, 16), rows = c->warps * 16 * c->m_tiles;
    int krs = dp * 2 + 16, vrs = dvp * 2 + 16, ors = dvp * bytes_of(c->out) + 16;
    return rows * greatest(krs, ors) + c->keys * (krs + vrs) + terms_of(c) * c->keys * 4 +
           rows * bytes_a_query(c) + 16;
}

/* Of packed rows. */
static int k_bytes(const triton_config_t *c) {
    const int bits = c->packed == TRITON_K8V4 ? 8 : c->packed >= TRITON_C3V4 ? 3 : 4;
    return c->d * bits / 8 + (c->packed == TRITON_INT4 ? 4 : c->packed >= TRITON_C4V4 ? 2 : 0);
}
static int v_bytes(const triton_config_t *c) {
    return c->dv * (c->packed == TRITON_C3V3 ? 3 : 4) / 8 + 4;
}

static int wgmma_smem(const triton_config_t *c) {
    int k_row = c->k_apart ? round_up(c->d, 128) : round_up(c->d, 64) * 2, v_row = round_up(c->dv, 64) * 2,
        rows = c->warps * 16;
    int keys = c->ring * c->keys * (k_row + v_row + terms_of(c) * 4);
    if (c->copiers && !c->k_apart) /* rows of two tiles as they are */
        keys += 2 * c->keys *
                (c->packed              ? k_bytes(c) + v_bytes(c)
                 : c->joint             ? c->d + c->dv + 8
                 : c->kv == TRITON_E2M1 ? (c->d + c->dv) * 9 / 16
                                        : c->d + c->dv);
    return 1024 + rows * k_row + keys + rows * bytes_a_query(c) + 16;
}

/* The ring's row for `bytes` of a packed row that begins up to `shift` bytes behind a multiple of 16. */
static int packed_row(int bytes, int shift) {
    return ((bytes + shift + 15) / 16 | 1) * 16;
}

/* triton_decode.cuh: rings of blocks of 16 tokens, rotated queries, a table of centroids. */
static int packed_smem(const triton_config_t *c) {
    const int align = c->packed == TRITON_INT4 ? 4 : 2, has_table = c->packed >= TRITON_C4V4, k = k_bytes(c),
              v = v_bytes(c), dvp = round_up(c->dv, c->packed == TRITON_C3V3 ? 128 : 64);
    const int row = c->joint ? packed_row(k + v, c->packed == TRITON_INT4 ? 8 : 14)
                             : packed_row(k, 16 - align) + packed_row(v, 16 - align);
    return c->decode_warps * greatest(16 * c->stages * row, c->n_tiles * 8 * (dvp + 4) * 4) +
           c->n_tiles * 8 * (c->d + 8) * 2 + (has_table ? c->packed == TRITON_C4V4 ? 32768 : 16384 : 0);
}

static int decode_smem(const triton_config_t *c) {
    if (c->packed) return packed_smem(c);
    int dp = round_up(c->d, bytes_of(c->kv) == 1 ? 32 : 16),
        dvp = round_up(c->dv, bytes_of(c->v) == 1 ? 32 : 16);
    int row = c->joint     ? round_up(128 + c->d + dvp, 128)
              : c->swizzle ? round_up(row_of(c->kv, dp) + row_of(c->v, dvp), 128)
                           : odd16(row_of(c->kv, dp)) + odd16(row_of(c->v, dvp));
    const int scales = c->kv == TRITON_E2M1 ? greatest((c->d + c->dv) / 16, c->dense ? 32 : 0)
                       : (c->token_head && !c->joint) || c->k_apart ? 8
                                                                    : 0;
    int ring = 16 * c->stages * (row + scales);
    if (c->tight) ring = 16 * greatest(c->stages * (c->d + c->dv + 8), 2 * row);
    return c->decode_warps * greatest(ring, c->n_tiles * 8 * (dvp + 4) * 4);
}

static int configure_exact(triton_config_t *c) {
    c->keys = c->d > 256 || c->dv > 256 ? 16 : 32;
    int ds = round_up(c->d, 4) + 4;
    c->prefill_smem = (16 * ds + c->keys * (ds + c->dv + 2) + 16 * (c->keys + 2)) * 4;
    c->decode_smem = c->prefill_smem;
    c->prefill_rows = c->decode_rows = 16;
    c->decode_blocks = 1;
    c->prefill_threads = c->decode_threads = 128;
    c->has_decode = c->page > 0;
    c->decode_ctas = triton_smem_of_sm(c->cc) / (c->decode_smem + 1024);
    return c->prefill_smem <= triton_smem_of_block(c->cc) ? 0 : -1;
}

/* FlashAttention-2's tiles: what 255 registers hold of O and S, two CTAs on a multiprocessor up to head size
 * 128. */
static int configure_prefill(triton_config_t *c) {
    int size = greatest(round_up(c->d, 16), round_up(c->dv, 16)), limit = triton_smem_of_block(c->cc);
    c->warps = size <= 128 ? 4 : 8;
    c->m_tiles = size <= 128 ? 2 : 1;
    c->keys = 64;
    c->ctas = size <= 128 ? 2 : 1;
    while ((c->prefill_smem = prefill_smem(c)) > limit) {
        if (c->keys > 32)
            c->keys /= 2;
        else if (c->m_tiles > 1)
            c->m_tiles /= 2;
        else if (c->warps > 2)
            c->warps /= 2;
        else
            return -1;
    }
    while (c->ctas > 1 && c->ctas * (c->prefill_smem + 1024) > triton_smem_of_sm(c->cc))
        c->ctas--;
    c->prefill_rows = c->warps * 16 * c->m_tiles;
    c->prefill_threads = c->warps * 32;
    return 0;
}

/* Warpgroups of 64 rows, and what the registers hold of O, S and P; as measured (triton-notes.md). Up to head
 * size 80 half of the registers will do, and two CTAs on a multiprocessor run under each other's waits. */
static int configure_wgmma(triton_config_t *c) {
    int size = greatest(c->d, c->dv);
    c->wgmma = 1;
    c->warps = size > 80 && size <= 96 ? 12 : 8;
    c->m_tiles = 1;
    c->ctas = size <= 80 ? 2 : 1;
    c->keys = size <= 80 ? 64 : size <= 96 ? 96 : size <= 128 ? 128 : size <= 192 ? 80 : 64;
    c->early = size > 64 && size <= 192 && bytes_of(c->v) == 2;
    const int is_bytes = bytes_of(c->kv) == 1 && !c->token_head && c->kv_vec == 16 && c->page > 0;
    const int is_split = c->d == 128   ? c->k_apart || is_bytes || c->joint
                         : c->d == 64  ? !c->k_apart && (is_bytes || c->joint)
                         : c->d == 256 ? c->joint
                                       : 0;
    c->copiers = is_split && c->d == c->dv ? 4 : 0;
    c->ring = 2;
    if (c->copiers) { /* what 152 registers and shared memory hold */
        c->warps = c->d == 256 ? 8 : 12;
        c->keys = c->d == 256 ? 48 : c->d == 64 ? 96 : c->rel_bias || c->packed ? 64 : 80;
        c->ring = c->d == 256 ? 2 : !c->k_apart && c->keys >= 80 ? 3 : 4;
    }
    c->prefill_smem = wgmma_smem(c);
    c->prefill_rows = c->warps * 16;
    c->prefill_threads = (c->warps + c->copiers) * 32;
    return c->prefill_smem <= triton_smem_of_block(c->cc) ? 0 : -1;
}

static int has_wide_table(const triton_config_t *c) { /* of the pairs of 4-bit centroids */
    return c->packed == TRITON_C4V4;
}
static void fit_decode(triton_config_t *c, int most) {
    const int fit = triton_smem_of_sm(c->cc) / (c->decode_smem + 2048);
    c->decode_ctas = fit < 1 ? 1 : fit < most ? fit : most;
}

static int configure_decode(triton_config_t *c, int n_tiles) {
    int is_small = bytes_of(c->kv) == 1;
    c->swizzle = c->kv_vec == 16 && !c->joint;
    c->dense = c->dense && c->swizzle && c->page % 16 == 0 && c->d == c->dv;
    /* cp.async moves at least 4 bytes; of packed rows it moves what they lie in, and a lane takes 16 codes of
     * 3 bits */
    c->has_decode = c->packed              ? c->d >= 64 || c->packed < TRITON_C3V4
                    : c->kv == TRITON_E2M1 ? c->d % 64 == 0
                                           : c->page > 0 && c->kv_vec >= 4;
    if (!c->has_decode) return 0;
    c->n_tiles = n_tiles;
    c->decode_warps = is_small ? 4 : 8;
    c->stages = 3;
    while ((c->decode_smem = decode_smem(c)) > triton_smem_of_block(c->cc) - 2048) {
        c->decode_warps /= 2;
        if (c->decode_warps == 0) return -1;
    }
    const int most =
        is_small && c->n_tiles == 1 && c->d <= 128 ? c->joint && !c->packed && !c->tight ? 3 : 4 : 1;
    fit_decode(c, most);
    if (has_wide_table(c) && most > 1 && c->decode_ctas < most) { /* twice the warps for one table */
        triton_config_t wide = *c;
        wide.decode_warps *= 2, wide.decode_smem = decode_smem(&wide);
        fit_decode(&wide, most / 2);
        if (wide.decode_smem <= triton_smem_of_block(c->cc) - 2048 &&
            wide.decode_ctas * wide.decode_warps > c->decode_ctas * c->decode_warps)
            *c = wide;
    }
    c->decode_rows = c->n_tiles * 8;
    /* keys of fewer bits are widened four times in less time than a tile of 128 rows takes */
    c->decode_blocks = is_small ? 4 : c->d <= 64 ? 2 : 1;
    c->decode_threads = c->decode_warps * 32;
    return 0;
}

static int small_int(uint32_t n) {
    return n > (1u << 30) ? 1 << 30 : (int)n;
}

uint32_t triton_layout(const attn_problem_t *p) {
    const uint32_t kv = p->kv_cache_dtype;
    if (p->kv_layout != 0) return p->kv_layout;
    const int is_row = packed_of(kv) != 0 && !(attn_problem_features(p) & ATTN_F_SEPARATE_KV);
    return attn_kv_is_whole_page(kv) || is_row || kv == ATTN_KV_INT4_PER_TOKEN_HEAD ||
                   kv == ATTN_KV_INT8_PER_TOKEN_HEAD || kv == ATTN_KV_FP8_PER_TOKEN_HEAD
               ? ATTN_LAYOUT_HND
               : ATTN_LAYOUT_NHD;
}

int triton_configure(const attn_problem_t *p, int cc, triton_config_t *c) {
    uint64_t f = attn_problem_features(p);
    memset(c, 0, sizeof *c);
    c->cc = cc;
    c->model = type_of(p->dtype);
    c->q = type_of(p->query_dtype ? p->query_dtype : p->dtype);
    c->out_group = (f & (ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4)) != 0;
    c->out = type_of(p->out_dtype && !c->out_group ? p->out_dtype : p->dtype);
    c->kv = type_of(attn_kv_storage(attn_role_has_cache(p->role) ? p->kv_cache_dtype : 0, p->dtype));
    c->k_apart = attn_role_has_cache(p->role) && attn_kv_rounds_query(p->kv_cache_dtype);
    c->v_channels = attn_role_has_cache(p->role) && attn_kv_has_channel_scales(p->kv_cache_dtype);
    c->dense = attn_role_has_cache(p->role) && attn_kv_is_whole_page(p->kv_cache_dtype) &&
               triton_layout(p) == ATTN_LAYOUT_HND && !(f & ATTN_F_SEPARATE_KV);
    if (c->k_apart) c->kv = TRITON_I8;
    if (attn_role_has_cache(p->role) && p->kv_cache_dtype == ATTN_KV_NVFP4) c->kv = TRITON_E2M1;
    c->v = c->k_apart && !c->v_channels ? c->model : c->kv;
    c->d = (int)p->head_size;
    c->dv = (int)(p->head_size_v ? p->head_size_v : p->head_size);
    c->group = (int)(p->num_heads / (p->num_kv_heads ? p->num_kv_heads : p->num_heads));
    c->page = attn_role_has_cache(p->role) ? (int)(p->block_size ? p->block_size : 16) : 0;
    c->token_head = c->page > 0 && attn_kv_is_per_token_head(p->kv_cache_dtype);
    c->packed = c->page > 0 ? packed_of(p->kv_cache_dtype) : 0;
    c->causal = p->mask == ATTN_MASK_CAUSAL ? 1 : p->mask == ATTN_MASK_PER_REQUEST ? 2 : 0;
    c->window = small_int(p->sliding_window);
    c->chunk = small_int(p->chunk_size);
    c->lookback = -1;
    c->lookback_chunk = 1;
    if ((f & ATTN_F_CHUNK_LOOKBACK) && c->window) {
        c->lookback = (int)p->chunk_lookback;
        c->lookback_chunk = c->window / (c->lookback + 1);
    }
    c->rswa = small_int(p->rswa_window);
    c->spans = (f & ATTN_F_MM_PREFIX) != 0;
    c->span_clamp = (f & ATTN_F_MM_PREFIX_CLAMP) != 0;
    c->alibi = f & ATTN_F_ALIBI_SQRT ? 2 : f & ATTN_F_ALIBI ? 1 : 0;
    c->qq_bias = (f & ATTN_F_QQ_BIAS) != 0;
    c->sinks = (f & ATTN_F_SINK) != 0;
    c->rel_bias = (f & ATTN_F_REL_BIAS) != 0;
    c->device_lengths = (f & ATTN_F_DEVICE_LENGTHS) != 0;
    c->is_invariant = (f & ATTN_F_BATCH_INVARIANT) != 0;
    c->scale = p->scale;
    c->cap = p->logits_soft_cap;
    int k_row = row_of(c->kv, c->d), v_row = row_of(c->v, c->dv), tail = c->token_head ? 4 : 0;
    c->q_vec = alignment(c->d * bytes_of(c->q), 16);
    c->kv_vec = alignment(alignment(k_row, v_row), alignment(k_row + tail, v_row + tail));
    c->exact = c->model == TRITON_F32 || c->kv == TRITON_F32 || c->d > 256 || c->dv > 256;
    c->joint = c->token_head && !c->exact && !(f & ATTN_F_SEPARATE_KV) &&
               (c->packed || (c->d % 16 == 0 && c->dv % 16 == 0));
    c->tight =
        c->joint && !c->packed && triton_layout(p) == ATTN_LAYOUT_HND && c->d % 32 == 0 && c->dv % 32 == 0;
    if (c->packed) c->kv_vec = c->packed == TRITON_INT4 ? 4 : 2;
    c->kv_align = c->packed ? c->kv_vec : c->joint ? 8 : c->kv_vec;
    if (c->joint && c->packed == TRITON_INT4) c->kv_align = 8;
    c->out_vec = alignment(c->dv * bytes_of(c->out), 16);
    c->new_vec = alignment(c->d * bytes_of(c->model), c->dv * bytes_of(c->model));
    c->eights = c->packed || c->kv == TRITON_E2M1 || c->k_apart ||
                (!c->exact && bytes_of(c->kv) == 1 && c->kv_vec >= 4) ||
                (c->kv == c->model && c->v == c->model && bytes_of(c->kv) == 2 && c->kv_vec == 16);
    if (c->exact) return configure_exact(c);
    if (cc == 90 ? configure_wgmma(c) : configure_prefill(c)) return -1;
    return configure_decode(c, c->group <= 8 ? 1 : 2);
}

int triton_config_wide(const triton_config_t *c, triton_config_t *wide) {
    *wide = *c;
    if (c->exact || !c->has_decode || c->n_tiles > 1 || bytes_of(c->kv) > 1 || c->is_invariant) return -1;
    return configure_decode(wide, 2);
}

int triton_config_cuts(const triton_config_t *c) {
    return !c->exact && c->page > 0 && c->window == 0 && c->chunk == 0 && c->lookback < 0 && c->rswa == 0 &&
           !c->spans && !c->device_lengths;
}

int triton_config_grain(const triton_config_t *c) {
    const int keys = c->keys > 0 ? c->keys : 64, page = c->page > 0 ? c->page : 1;
    int grain = keys;
    while (grain % page != 0)
        grain += keys;
    return grain < 128 ? (127 + grain) / grain * grain : grain;
}

int triton_config_macros(const triton_config_t *c, char *text, size_t size) {
    int n = snprintf(
        text, size,
        "-DTL_Q=%d\n-DTL_OUT=%d\n-DTL_KV=%d\n-DTL_Q2=%d\n-DTL_D=%d\n-DTL_DV=%d\n-DTL_GROUP=%d\n-DTL_PAGE=%d\n"
        "-DTL_TOKEN_HEAD=%d\n-DTL_CAUSAL=%d\n-DTL_WINDOW=%d\n-DTL_CHUNK=%d\n-DTL_LOOKBACK=%d\n-DTL_LOOKBACK_"
        "CHUNK=%d\n"
        "-DTL_RSWA=%d\n-DTL_SPANS=%d\n-DTL_SPAN_CLAMP=%d\n-DTL_ALIBI=%d\n-DTL_QQ=%d\n-DTL_SINKS=%d\n-DTL_"
        "SCALE=%.9ef\n"
        "-DTL_CAP=%.9ef\n-DTL_QVEC=%d\n-DTL_KVEC=%d\n-DTL_OVEC=%d\n-DTL_SVEC=%d\n-DTL_WARPS=%d\n-DTL_MT=%d\n-"
        "DTL_BN=%d\n"
        "-DTL_CTAS=%d\n-DTL_EARLY=%d\n-DTL_JOINT=%d\n-DTL_SWIZZLE=%d\n-DTL_DWARPS=%d\n-DTL_NT=%d\n-DTL_DCTAS="
        "%d\n-DTL_PREFILL_SMEM=%d\n-DTL_DECODE_SMEM=%d\n"
        "-DTL_MAX_PIECES=%d\n-DTL_OUT_GROUP=%d\n-DATTN_WGMMA_S=%d\n-DATTN_WGMMA_O=%d\n"
        "-DTL_ROPE=%d\n-DTL_PAIRS=%d\n-DTL_PACKED=%d\n-DTL_REL=%d\n-DTL_DEVICE_LENGTHS=%d\n"
        "-DTL_V=%d\n-DTL_K_APART=%d\n-DTL_V_CHANNELS=%d\n-DTL_FP4=%d\n-DTL_S8=%d\n-DTL_STAGES=%d\n-DTL_DENSE="
        "%d\n-DTL_EIGHTS=%d\n-DTL_COPIERS=%d\n-DTL_RING=%d\n-DTL_TIGHT=%d\n",
        c->q, c->out, c->kv, c->model, c->d, c->dv, c->group, c->page, c->token_head, c->causal, c->window,
        c->chunk, c->lookback, c->lookback_chunk, c->rswa, c->spans, c->span_clamp, c->alibi, c->qq_bias,
        c->sinks, c->scale, c->cap, c->q_vec, c->kv_vec, c->out_vec, c->new_vec, c->warps, c->m_tiles,
        c->keys, c->ctas, c->early, c->joint, c->swizzle, c->decode_warps, c->n_tiles, c->decode_ctas,
        c->prefill_smem, c->decode_smem, TRITON_MAX_PIECES, c->out_group, c->keys, round_up(c->dv, 16),
        c->rope, c->pairs, c->packed, c->rel_bias, c->device_lengths, c->v, c->k_apart, c->v_channels,
        c->kv == TRITON_E2M1, c->k_apart && c->wgmma, c->stages, c->dense, c->eights, c->copiers, c->ring,
        c->tight);
    return n > 0 && (size_t)n < size ? n : -1;
}
