/* SPDX-License-Identifier: Apache-2.0 */
/* kv_spec.c: the cache spec of a layer, how many blocks a request may need, and specs of groups (semantics
 * 3.10). */
#include "base/arith.h"
#include "base/need.h"

#include <attn/attn_plan.h>

const char *attn_kv_spec_kind_name(uint32_t kind) {
    static const char *const names[] = {"unknown",
                                        "full_attention",
                                        "sliding_window",
                                        "chunked_local_attention",
                                        "mla_attention",
                                        "cross_attention",
                                        "encoder_only_attention",
                                        "sink_full_attention",
                                        "turboquant_attention",
                                        "rswa_attention"};
    return kind < sizeof names / sizeof names[0] ? names[kind] : names[0];
}

/* Layer -> spec, the last table of semantics 3.10. */
static uint32_t kind_of(const attn_problem_t *p) {
    if (attn_role_is_mla(p->role) && attn_role_has_cache(p->role)) return ATTN_SPEC_MLA;
    if (p->role == ATTN_ROLE_ENCODER_DECODER) return ATTN_SPEC_CROSS;
    if (!attn_role_has_cache(p->role)) return ATTN_SPEC_ENCODER_ONLY;
    if (p->static_sink_len != 0) return ATTN_SPEC_SINK_FULL;
    if (p->chunk_size != 0) return ATTN_SPEC_CHUNKED_LOCAL;
    if (p->rswa_window != 0) return ATTN_SPEC_RSWA;
    if (p->sliding_window != 0) return ATTN_SPEC_SLIDING_WINDOW;
    return attn_kv_is_turboquant(p->kv_cache_dtype) ? ATTN_SPEC_TURBOQUANT : ATTN_SPEC_FULL;
}

int attn_kv_spec_of(const attn_problem_t *problem, uint32_t block_size, attn_kv_spec_t *spec,
                    attn_error_t *error) {
    attn_problem_t p;
    int code = attn_intake(&p, sizeof p, problem, "problem", error);
    if (code != ATTN_OK) return code;
    ATTNI_NEED(spec, "spec", error);
    ATTN_INIT(attn_kv_spec_t, s);
    s.kind = kind_of(&p);
    s.block_size = p.block_size != 0 ? p.block_size : block_size;
    if (s.block_size == 0 && s.kind != ATTN_SPEC_ENCODER_ONLY)
        return attn_fail(
            error, ATTN_E_INVALID, "block_size",
            "block_size is 0 and so is the problem's; a layer with a cache has blocks of some size");
    s.num_kv_heads = p.num_kv_heads != 0 ? p.num_kv_heads : p.num_heads;
    s.head_size = p.head_size;
    s.head_size_v = p.head_size_v != 0 ? p.head_size_v : p.head_size;
    if (s.kind == ATTN_SPEC_MLA) {
        s.num_kv_heads = 1;
        s.head_size_v = 0; /* the values are the latent part of the keys */
    }
    s.dtype = p.dtype;
    s.kv_cache_dtype = p.kv_cache_dtype != 0 ? p.kv_cache_dtype : (uint32_t)ATTN_KV_AUTO;
    s.sliding_window = s.kind == ATTN_SPEC_SLIDING_WINDOW ? p.sliding_window : 0;
    s.chunk_size = s.kind == ATTN_SPEC_CHUNKED_LOCAL ? p.chunk_size : 0;
    s.sink_len = p.static_sink_len;
    s.rswa_window = p.rswa_window;
    s.non_causal = p.role == ATTN_ROLE_DECODER && p.mask == ATTN_MASK_FULL;
    *spec = s;
    return ATTN_OK;
}

int attn_kv_spec_max_blocks(const attn_kv_spec_t *spec, int64_t max_model_len, int64_t inflight_tokens,
                            int64_t max_encoder_tokens, int32_t dcp_world_size, int64_t *blocks,
                            attn_error_t *error) {
    attn_kv_spec_t s;
    int code = attn_intake(&s, sizeof s, spec, "spec", error);
    if (code != ATTN_OK) return code;
    ATTNI_NEED(blocks, "blocks", error);
    ATTNI_AT_LEAST(max_model_len, 0, "max_model_len", error);
    ATTNI_AT_LEAST(inflight_tokens, 0, "inflight_tokens", error);
    ATTNI_AT_LEAST(max_encoder_tokens, 0, "max_encoder_tokens", error);
    ATTNI_AT_LEAST(dcp_world_size, 0, "dcp_world_size", error);
    if (s.kind != ATTN_SPEC_ENCODER_ONLY) ATTNI_AT_LEAST(s.block_size, 1, "block_size", error);
    int64_t bs = s.block_size, dcp = dcp_world_size > 1 ? dcp_world_size : 1, flight, local;
    switch (s.kind) {
    case ATTN_SPEC_FULL:
    case ATTN_SPEC_MLA:
    case ATTN_SPEC_SINK_FULL:
    case ATTN_SPEC_TURBOQUANT:
    case ATTN_SPEC_RSWA:
        *blocks = attni_cdiv(attni_cdiv(max_model_len, dcp), bs);
        return ATTN_OK;
    case ATTN_SPEC_SLIDING_WINDOW:
        ATTNI_AT_LEAST(s.sliding_window, 1, "sliding_window", error);
        if (__builtin_add_overflow(inflight_tokens, (int64_t)s.sliding_window - 1, &flight))
            flight = INT64_MAX;
        local = attni_cdiv(attni_min64(flight, max_model_len), dcp);
        /* one more: the window need not begin with a block; over ranks nor with a run, which is no longer */
        *blocks = attni_min64(attni_cdiv(local, bs), INT64_MAX - 2 + (dcp == 1)) + 1 + (dcp > 1);
        return ATTN_OK;
    case ATTN_SPEC_CHUNKED_LOCAL:
        ATTNI_AT_LEAST(s.chunk_size, 1, "chunk_size", error);
        if (__builtin_add_overflow(inflight_tokens, (int64_t)s.chunk_size, &flight)) flight = INT64_MAX;
        *blocks = attni_cdiv(attni_min64(flight, max_model_len), bs);
        return ATTN_OK;
    case ATTN_SPEC_CROSS:
        *blocks = attni_cdiv(max_encoder_tokens, bs);
        return ATTN_OK;
    case ATTN_SPEC_ENCODER_ONLY:
        *blocks = 0;
        return ATTN_OK;
    default:
        return attn_fail(error, ATTN_E_INVALID, "kind", "kind is %u; it must be one of ATTN_SPEC_*",
                         (unsigned)s.kind);
    }
}

/* Takes a size that may be given once in a group: equal or absent in every other spec. */
static int merge_once(uint32_t have, uint32_t *merged, const char *name, attn_error_t *error) {
    if (have != 0 && *merged != 0 && have != *merged)
        return attn_fail(error, ATTN_E_INVALID, name, "%s differs in the group: %u and %u; split the group",
                         name, (unsigned)*merged, (unsigned)have);
    if (have != 0) *merged = have;
    return ATTN_OK;
}

int attn_kv_spec_merge(const attn_kv_spec_t *specs, uint32_t num_specs, attn_kv_spec_t *merged,
                       attn_error_t *error) {
    static const struct {
        size_t offset, size;
        const char *name;
    } equal[] = {
#define SAME(MEMBER) {offsetof(attn_kv_spec_t, MEMBER), sizeof(((attn_kv_spec_t *)0)->MEMBER), #MEMBER}
        SAME(kind),        SAME(block_size),     SAME(num_kv_heads),   SAME(head_size),
        SAME(head_size_v), SAME(dtype),          SAME(kv_cache_dtype), SAME(sink_len),
        SAME(rswa_window), SAME(compress_ratio), SAME(alignment),      SAME(page_bytes_padded),
#undef SAME
    };
    ATTNI_NEED(specs, "specs", error);
    ATTNI_NEED(merged, "merged", error);
    ATTNI_AT_LEAST(num_specs, 1, "num_specs", error);
    size_t step = specs[0].struct_size; /* the caller's array has the caller's element size */
    attn_kv_spec_t all;
    int code = attn_intake(&all, sizeof all, specs, "specs", error);
    for (uint32_t i = 1; i < num_specs && code == ATTN_OK; i++) {
        attn_kv_spec_t s;
        code = attn_intake(&s, sizeof s, (const char *)specs + i * step, "specs", error);
        for (size_t m = 0; code == ATTN_OK && m < sizeof equal / sizeof equal[0]; m++)
            if (memcmp((char *)&s + equal[m].offset, (char *)&all + equal[m].offset, equal[m].size) != 0)
                code = attn_fail(
                    error, ATTN_E_INVALID, equal[m].name,
                    "%s of layer %u of the group is not that of layer 0; layers of one group must agree",
                    equal[m].name, (unsigned)i);
        if (code == ATTN_OK)
            code = merge_once(s.sliding_window, &all.sliding_window, "sliding_window", error);
        if (code == ATTN_OK) code = merge_once(s.chunk_size, &all.chunk_size, "chunk_size", error);
        all.non_causal |= s.non_causal;
    }
    if (code == ATTN_OK && all.sliding_window != 0 && all.chunk_size != 0)
        code = attn_fail(error, ATTN_E_INVALID, "chunk_size",
                         "the group has both sliding_window %u and chunk_size %u; split the group",
                         (unsigned)all.sliding_window, (unsigned)all.chunk_size);
    if (code == ATTN_OK) *merged = all;
    return code;
}
