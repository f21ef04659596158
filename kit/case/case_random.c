/* SPDX-License-Identifier: Apache-2.0 */
/* case_random.c: makes cases, plain and random, and prints them as one line. */
#include "attn_case.h"
#include "case_families.h"

#include <attn/attn_plugin_util.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

uint64_t kit_random(uint64_t *state) { /* splitmix64: Steele, Lea, Flood, Fast splittable generators, 2014 */
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

int64_t kit_random_in(uint64_t *state, int64_t low, int64_t high) {
    return low + (int64_t)(kit_random(state) % (uint64_t)(high - low + 1));
}

double kit_random_normal(uint64_t *state) { /* Box and Muller 1958 */
    double u = 1.0 - (double)(kit_random(state) >> 11) * 0x1p-53,
           v = (double)(kit_random(state) >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

void kit_case_start(kit_case_t *c, uint32_t role, uint64_t seed) {
    memset(c, 0, sizeof *c);
    attn_problem_t *p = &c->problem;
    p->struct_size = sizeof *p;
    p->role = role;
    p->mask = role == ATTN_ROLE_DECODER ? ATTN_MASK_CAUSAL : ATTN_MASK_FULL;
    p->dtype = ATTN_DTYPE_FLOAT32;
    p->num_heads = 4;
    p->num_kv_heads = 2;
    p->head_size = 32;
    p->block_size = attn_role_has_cache(role) ? 16 : 0;
    p->scale = 1.0 / sqrt(32.0);
    p->max_num_seqs = 300;
    p->max_num_batched_tokens = 4096;
    p->max_model_len = 8192;
    c->padded_tokens = 3;
    c->seed = seed;
}

void kit_case_set_mla(kit_case_t *c, uint32_t heads, uint32_t latent, uint32_t rope, uint32_t nope,
                      uint32_t value, uint32_t topk) {
    attn_problem_t *p = &c->problem;
    p->mask = ATTN_MASK_CAUSAL;
    p->num_heads = heads;
    p->num_kv_heads = 0;
    p->kv_lora_rank = latent;
    p->qk_rope_head_dim = rope;
    p->qk_nope_head_dim = nope;
    p->v_head_dim = value;
    p->head_size = p->role == ATTN_ROLE_MLA_PREFILL ? nope + rope : latent + rope;
    p->head_size_v = 0;
    p->scale = 1.0 / sqrt((double)(nope + rope));
    p->topk = topk;
}

void kit_case_set_latent(kit_case_t *c) {
    c->problem.features |= ATTN_F_LATENT;
    c->problem.qk_nope_head_dim = c->problem.v_head_dim = 0;
}

kit_sizes_t kit_sizes(const attn_problem_t *p) {
    kit_sizes_t s = {.heads = p->num_heads,
                     .kv_heads = p->num_kv_heads != 0 ? p->num_kv_heads : p->num_heads,
                     .query = p->head_size,
                     .key = p->head_size,
                     .value = p->head_size_v != 0 ? p->head_size_v : p->head_size};
    s.output = s.value;
    s.query_dtype = p->query_dtype != 0 ? p->query_dtype : p->dtype;
    if (!attn_role_is_mla(p->role)) return s;
    s.query = attn_query_size(p);
    s.output = attn_output_size(p);
    s.is_latent = p->role != ATTN_ROLE_MLA_PREFILL;
    if (s.is_latent) s.kv_heads = 1;
    if (attn_problem_projects(p)) s.query_dtype = p->dtype;
    s.key = s.is_latent ? p->kv_lora_rank : s.query;
    s.value = s.is_latent ? p->qk_rope_head_dim : s.output;
    return s;
}

int kit_has_context(const kit_case_t *c) {
    return attn_role_has_cache(c->problem.role) || (c->problem.features & ATTN_F_KEY_LENGTHS) != 0;
}

int kit_case_add(kit_case_t *c, int32_t query_len, int32_t seq_len) {
    if (c->num_reqs >= KIT_MAX_REQS) return -1;
    int r = c->num_reqs++;
    c->query_lens[r] = query_len;
    c->seq_lens[r] = kit_has_context(c) ? seq_len : query_len;
    c->causal[r] = 1;
    return r;
}

/* One of the set bits of a set, or 0 if it is empty. */
enum { DRAWN_SPANS = 4 }; /* of a request */

static uint32_t pick_bit(uint64_t *state, uint64_t set) {
    if (set == 0) return 0;
    for (;;) {
        uint32_t bit = (uint32_t)kit_random_in(state, 0, 63);
        if (set >> bit & 1) return bit;
    }
}

static uint32_t pick_range(uint64_t *state, const attn_range_t *list, uint32_t count, uint32_t most) {
    static const uint32_t any[] = {8, 40, 64, 72, 80, 96, 128, 192, 256, 33};
    for (int tries = 0; tries < 64; tries++) {
        if (count == 0) return any[kit_random_in(state, 0, 9)];
        const attn_range_t *r = &list[kit_random_in(state, 0, count - 1)];
        uint32_t step = r->step != 0 ? r->step : 1, last = r->max < most ? r->max : most;
        if (last >= r->min) return r->min + step * (uint32_t)kit_random_in(state, 0, (last - r->min) / step);
    }
    return list[0].min;
}

static uint32_t pick_block_size(uint64_t *state, const attn_capabilities_t *can) {
    static const uint32_t any[] = {1, 7, 16, 32, 64};
    if (can->num_block_sizes == 0) return any[kit_random_in(state, 0, 4)];
    const attn_block_size_t *b = &can->block_sizes[kit_random_in(state, 0, can->num_block_sizes - 1)];
    return b->is_multiple ? b->size * (uint32_t)kit_random_in(state, 1, b->size >= 64 ? 2 : 4) : b->size;
}

static int coin(uint64_t *state, int in) {
    return kit_random_in(state, 1, in) == 1;
}

/* Head sizes that rows of the format can have, from the table's, where it has any. */
static void fit_sizes(attn_problem_t *p, uint64_t *s, const attn_capabilities_t *can) {
    const attn_kv_format_t *format = attn_kv_format(p->kv_cache_dtype);
    const attn_range_t *v = can->num_head_sizes_v != 0 ? can->head_sizes_v : can->head_sizes;
    const uint32_t num_v = can->num_head_sizes_v != 0 ? can->num_head_sizes_v : can->num_head_sizes;
    const double factor = p->scale * sqrt((double)p->head_size);
    for (int i = 0; i < 1000 && !attn_kv_has_size(format, p->head_size); i++)
        p->head_size = pick_range(s, can->head_sizes, can->num_head_sizes, 256);
    for (int i = 0; i < 1000 && p->head_size_v != 0 && !attn_kv_has_size(format, p->head_size_v); i++)
        p->head_size_v = pick_range(s, v, num_v, 256);
    if (attn_kv_has_one_size(p->kv_cache_dtype)) p->head_size_v = 0;
    p->scale = factor / sqrt((double)p->head_size);
}

/* Masks and features of a decoder; at most one of the kinds that exclude each other. */
static void random_decoder_features(kit_case_t *c, uint64_t *s, uint64_t f, int32_t max_len) {
    attn_problem_t *p = &c->problem;
    int kind = (int)kit_random_in(s, 0, 7);
    if (kind == 1 && (f & ATTN_F_SLIDING_WINDOW)) p->sliding_window = (uint32_t)kit_random_in(s, 1, max_len);
    if (kind == 2 && (f & ATTN_F_CHUNKED_LOCAL)) {
        p->chunk_size = p->block_size * (uint32_t)kit_random_in(s, 1, 4);
        p->features |= ATTN_F_CHUNKED_LOCAL;
    }
    if (kind == 3 && (f & ATTN_F_CHUNK_LOOKBACK) && (f & ATTN_F_SLIDING_WINDOW)) {
        p->chunk_lookback = (uint32_t)kit_random_in(s, 0, 2);
        p->sliding_window = (p->chunk_lookback + 1) * (uint32_t)kit_random_in(s, 1, 40);
        p->features |= ATTN_F_CHUNK_LOOKBACK;
    }
    if (kind == 4 && (f & ATTN_F_RSWA)) p->rswa_window = (uint32_t)kit_random_in(s, 1, max_len);
    if (kind == 5 && (f & ATTN_F_MM_PREFIX)) {
        p->features |= ATTN_F_MM_PREFIX;
        p->max_mm_ranges = DRAWN_SPANS;
        c->num_spans = DRAWN_SPANS;
        if ((f & ATTN_F_SLIDING_WINDOW) && coin(s, 2))
            p->sliding_window = (uint32_t)kit_random_in(s, 1, max_len);
        if (p->sliding_window != 0 && (f & ATTN_F_MM_PREFIX_CLAMP) && coin(s, 2))
            p->features |= ATTN_F_MM_PREFIX_CLAMP;
    }
    if (kind == 6 && (f & ATTN_F_QQ_BIAS)) p->features |= ATTN_F_QQ_BIAS;
    if (kind < 2 && (f & ATTN_F_NON_CAUSAL) && coin(s, 4)) p->mask = ATTN_MASK_FULL;
    if (kind < 2 && (f & ATTN_F_PER_REQUEST_CAUSAL) && coin(s, 4)) p->mask = ATTN_MASK_PER_REQUEST;
    if ((f & attn_kv_format(p->kv_cache_dtype)->features & ATTN_F_QUANT_QUERY) && coin(s, 3))
        p->query_dtype = ATTN_DTYPE_FP8_E4M3;
}

static void random_requests(kit_case_t *c, uint64_t *s, int32_t max_len) {
    int n = (int)kit_random_in(s, 1, 6);
    int32_t page = c->problem.block_size != 0 ? (int32_t)c->problem.block_size : 16;
    for (int i = 0; i < n; i++) {
        int32_t seq = (int32_t)kit_random_in(s, 1, max_len), query;
        if (coin(s, 3)) seq = (seq / page + 1) * page + (int32_t)kit_random_in(s, -1, 1); /* page borders */
        if (seq > max_len) seq = max_len;
        if (coin(s, 8)) seq = coin(s, 2) ? 1 : 0;
        query = coin(s, 2) ? 1 : (int32_t)kit_random_in(s, 1, coin(s, 2) ? 8 : 80);
        const int is_bound =
            c->problem.role != ATTN_ROLE_ENCODER_DECODER && attn_role_has_cache(c->problem.role);
        if (is_bound && query > seq) query = seq;
        if (!kit_has_context(c)) query = seq;
        int r = kit_case_add(c, query, seq);
        c->causal[r] = (uint8_t)coin(s, 2);
        c->rswa_prefix_lens[r] = (int32_t)kit_random_in(s, 0, seq);
        for (int j = 0; j < c->num_spans; j++) {
            int32_t start = (int32_t)kit_random_in(s, 0, seq), end = start + (int32_t)kit_random_in(s, 0, 40);
            if (coin(s, 3)) start = end = 0;
            c->spans[r][j][0] = start;
            c->spans[r][j][1] = end;
        }
    }
}

void kit_case_random(kit_case_t *c, const attn_capabilities_t *can, uint64_t seed, int32_t max_len) {
    static const uint32_t groups[][2] = {{4, 4}, {8, 2}, {5, 1}, {6, 2}, {1, 1}, {16, 1}};
    uint64_t state = seed, *s = &state, f = can->features;
    uint64_t plain = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER) |
                     ATTN_BIT(ATTN_ROLE_ENCODER_ONLY) | ATTN_BIT(ATTN_ROLE_ENCODER_DECODER) |
                     ATTN_BIT(ATTN_ROLE_MM_ENCODER);
    uint32_t role = pick_bit(s, can->roles & plain);
    if ((can->roles & ATTN_BIT(ATTN_ROLE_DECODER)) && coin(s, 2)) role = ATTN_ROLE_DECODER;
    kit_case_start(c, role, seed);
    attn_problem_t *p = &c->problem;
    const uint32_t *heads = groups[kit_random_in(s, 0, 5)];
    p->num_heads = heads[0];
    p->num_kv_heads = heads[1];
    if (can->max_group != 0 && heads[0] / heads[1] > can->max_group) p->num_kv_heads = heads[0];
    p->dtype = pick_bit(s, can->dtypes & (ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) |
                                          ATTN_BIT(ATTN_DTYPE_BFLOAT16)));
    p->head_size = pick_range(s, can->head_sizes, can->num_head_sizes, 256);
    if ((f & ATTN_F_DIFF_KV) && coin(s, 4))
        p->head_size_v = can->num_head_sizes_v != 0
                             ? pick_range(s, can->head_sizes_v, can->num_head_sizes_v, 256)
                             : pick_range(s, can->head_sizes, can->num_head_sizes, 256);
    p->scale = (coin(s, 4) ? 0.3 : 1.0) / sqrt((double)p->head_size);
    if ((f & ATTN_F_SOFT_CAP) && coin(s, 4)) p->logits_soft_cap = coin(s, 2) ? 50.0 : 3.0;
    if ((f & ATTN_F_SINK) && coin(s, 4)) p->features |= ATTN_F_SINK;
    if ((f & ATTN_F_ALIBI) && coin(s, 6))
        p->features |= ATTN_F_ALIBI;
    else if ((f & ATTN_F_ALIBI_SQRT) && coin(s, 6))
        p->features |= ATTN_F_ALIBI_SQRT;
    if ((f & ATTN_F_REL_BIAS) && coin(s, 6)) p->features |= ATTN_F_REL_BIAS;
    if (f & ATTN_F_LSE) p->features |= ATTN_F_LSE;
    if (attn_role_has_cache(role)) {
        p->block_size = pick_block_size(s, can);
        p->kv_cache_dtype = pick_bit(s, can->kv_cache_dtypes & attn_kv_formats_of(ATTN_BIT(role)));
        fit_sizes(p, s, can);
        if (p->kv_cache_dtype > ATTN_KV_AUTO && !attn_kv_is_quantized(p->kv_cache_dtype) && coin(s, 2))
            p->kv_cache_dtype = ATTN_KV_AUTO;
        p->kv_layout = can->required_layout != 0 ? can->required_layout : (uint32_t)kit_random_in(s, 0, 2);
        if ((f & attn_kv_format(p->kv_cache_dtype)->features & ATTN_F_PER_HEAD_SCALES) && coin(s, 2)) {
            c->flags |= KIT_PER_HEAD;
            p->features |= ATTN_F_PER_HEAD_SCALES;
        }
        if ((f & ATTN_F_SEPARATE_KV) && !attn_kv_is_whole_page(p->kv_cache_dtype) && coin(s, 4))
            p->features |= ATTN_F_SEPARATE_KV;
        if ((f & ATTN_F_BLOCK_STRIDE) && coin(s, 3)) c->flags |= KIT_CROSS_LAYER;
    } else {
        if ((f & ATTN_F_SLIDING_WINDOW) && coin(s, 3))
            p->sliding_window = (uint32_t)kit_random_in(s, 1, max_len);
        if ((f & ATTN_F_KEY_LENGTHS) && coin(s, 2)) {
            p->features |= ATTN_F_KEY_LENGTHS;
            if (coin(s, 2)) p->mask = ATTN_MASK_CAUSAL;
        }
    }
    if (role == ATTN_ROLE_DECODER) random_decoder_features(c, s, f, max_len);
    /* lengths on the device: a bias would need rows for what the host says */
    if (role == ATTN_ROLE_DECODER && (f & ATTN_F_DEVICE_LENGTHS) && (p->features & ATTN_F_QQ_BIAS) == 0 &&
        coin(s, 4))
        p->features |= ATTN_F_DEVICE_LENGTHS;
    if (coin(s, 2)) c->flags |= KIT_STRIDED;
    c->padded_tokens = (int32_t)kit_random_in(s, 0, 3);
    random_requests(c, s, max_len);
}

static size_t put(char *text, size_t size, size_t at, const char *format, ...) ATTN_PRINTF(4, 5);
static size_t put(char *text, size_t size, size_t at, const char *format, ...) {
    if (at >= size) return at;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text + at, size - at, format, args);
    va_end(args);
    return n > 0 ? at + (size_t)n : at;
}

const char *kit_case_text(const kit_case_t *c, char *text, size_t size) {
    const attn_problem_t *p = &c->problem;
    static const char *const masks[] = {"none", "causal", "full", "per_request"};
    static const char *const layouts[] = {"any", "nhd", "hnd"};
    size_t at = put(text, size, 0, "role=%s mask=%s dtype=%s num_heads=%u num_kv_heads=%u head_size=%u",
                    attn_role_name(p->role), masks[p->mask & 3], attn_dtype_name(p->dtype), p->num_heads,
                    p->num_kv_heads, p->head_size);
    if (p->head_size_v != 0) at = put(text, size, at, " head_size_v=%u", p->head_size_v);
    if (p->out_dtype != 0) at = put(text, size, at, " out_dtype=%s", attn_dtype_name(p->out_dtype));
    if (p->query_dtype != 0) at = put(text, size, at, " query_dtype=%s", attn_dtype_name(p->query_dtype));
    if (p->kv_cache_dtype != 0)
        at = put(text, size, at, " kv_cache_dtype=%s", attn_kv_name(p->kv_cache_dtype));
    if (p->kv_layout != 0) at = put(text, size, at, " kv_layout=%s", layouts[p->kv_layout & 3]);
    if (p->block_size != 0) at = put(text, size, at, " block_size=%u", p->block_size);
    if (p->sliding_window != 0) at = put(text, size, at, " sliding_window=%u", p->sliding_window);
    if (p->chunk_size != 0) at = put(text, size, at, " chunk_size=%u", p->chunk_size);
    if (p->chunk_lookback != 0) at = put(text, size, at, " chunk_lookback=%u", p->chunk_lookback);
    if (p->rswa_window != 0) at = put(text, size, at, " rswa_window=%u", p->rswa_window);
    at = put(text, size, at, " scale=%.17g", p->scale);
    if (p->kv_lora_rank != 0)
        at = put(text, size, at, " kv_lora_rank=%u qk_nope_head_dim=%u qk_rope_head_dim=%u v_head_dim=%u",
                 p->kv_lora_rank, p->qk_nope_head_dim, p->qk_rope_head_dim, p->v_head_dim);
    if (p->topk != 0) at = put(text, size, at, " topk=%u", p->topk);
    if (p->logits_soft_cap != 0) at = put(text, size, at, " logits_soft_cap=%.17g", p->logits_soft_cap);
    for (unsigned bit = 0, first = 1; bit < 64; bit++)
        if (p->features >> bit & 1) {
            const char *name = attn_feature_name(bit);
            at = put(text, size, at, "%s%s", first ? " features=" : ",", name != NULL ? name : "unknown");
            first = 0;
        }
    at = put(text, size, at, " | query_lens=");
    for (int r = 0; r < c->num_reqs; r++)
        at = put(text, size, at, "%s%d", r ? "," : "", c->query_lens[r]);
    at = put(text, size, at, " seq_lens=");
    for (int r = 0; r < c->num_reqs; r++)
        at = put(text, size, at, "%s%d", r ? "," : "", c->seq_lens[r]);
    if (c->common_prefix_len != 0) at = put(text, size, at, " common_prefix_len=%d", c->common_prefix_len);
    for (int r = 0; p->mask == ATTN_MASK_PER_REQUEST && r < c->num_reqs; r++)
        at = put(text, size, at, "%s%d", r ? "," : " causal=", c->causal[r]);
    for (int r = 0; p->rswa_window != 0 && r < c->num_reqs; r++)
        at = put(text, size, at, "%s%d", r ? "," : " rswa_prefix_lens=", c->rswa_prefix_lens[r]);
    for (int i = 0; i < c->num_reqs * c->num_spans; i++) { /* start-end,start-end;.. by request */
        const int32_t *span = c->spans[i / c->num_spans][i % c->num_spans];
        at = put(text, size, at, "%s%d-%d",
                 i == 0                  ? " spans="
                 : i % c->num_spans == 0 ? ";"
                                         : ",",
                 span[0], span[1]);
    }
    if (c->amplitude != 0) at = put(text, size, at, " amplitude=%.17g", c->amplitude);
    if (c->family != KIT_USUAL) at = put(text, size, at, " inputs=%s", kit_family_name(c->family));
    at = put(text, size, at, " padded_tokens=%d flags=%u seed=%llu", c->padded_tokens, c->flags,
             (unsigned long long)c->seed);
    if (at >= size && size > 0) text[size - 1] = '\0';
    return text;
}
