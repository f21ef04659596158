/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_defaults.c: the part of group capabilities about values that are said or left to their default, and
 * about shapes of caches: what is spelled out means what 0 means, sizes are products in 64 bits, and what
 * fixes a page is in its fingerprint.
 */
#include "../run/device_image.h"

#include <math.h>
#include <stdlib.h>

/* Each default in words, alone; a problem that supports_combination refuses is left out by check_run. */
static void spelled_out(check_t *c) {
    for (int i = 0; i < 14; i++) {
        kit_case_t k;
        if (!check_start(c, &k)) return;
        attn_problem_t *p = &k.problem;
        const uint32_t storage = p->dtype == ATTN_DTYPE_FLOAT32   ? ATTN_KV_FLOAT32
                                 : p->dtype == ATTN_DTYPE_FLOAT16 ? ATTN_KV_FLOAT16
                                                                  : ATTN_KV_BFLOAT16;
        if (i == 0) p->num_kv_heads = 0;
        if (i == 1) p->num_kv_heads = p->num_heads;
        if (i == 2) p->head_size_v = p->head_size;
        if (i == 3) p->out_dtype = p->dtype;
        if (i == 4) p->query_dtype = p->dtype;
        if (i == 5 && p->block_size != 0 && (c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_AUTO)))
            p->kv_cache_dtype = ATTN_KV_AUTO;
        if (i == 6 && p->block_size != 0) {
            if (!(c->can.kv_cache_dtypes & ATTN_BIT(storage))) continue;
            p->kv_cache_dtype = storage;
        }
        if (i == 7) p->max_num_seqs = 256;
        if (i == 8) p->max_num_batched_tokens = 8192;
        if (i == 9) p->max_model_len = 131072;
        if (i == 10) p->max_num_seqs = p->max_num_batched_tokens = 0, p->max_model_len = 0;
        if (i == 11) p->dcp_world_size = 1;
        if (i == 12) p->features = attn_problem_features(p);
        if (i == 13)
            p->num_kv_heads = p->num_heads, p->head_size_v = p->head_size,
            p->out_dtype = p->query_dtype = p->dtype;
        check_run(c, c->backend, &k, NULL);
    }
}

/* Limits of 0 are 256 requests, 8192 tokens and 131072 keys: a batch of so many is planned. */
static void limits_by_default(check_t *c) {
    enum { REQS = 256, TOKENS = 8192, KEYS = 131072 };
    static int32_t starts[REQS + 1], lens[REQS];
    kit_case_t k;
    attn_instance_t *instance = NULL;
    attn_error_t e = {.struct_size = sizeof e};
    attn_space_needed_t n = {.struct_size = sizeof n};
    if (!check_start(c, &k)) return;
    attn_problem_t *p = &k.problem;
    p->max_num_seqs = p->max_num_batched_tokens = 0, p->max_model_len = 0, p->num_blocks = 8;
    check_running(c, &k);
    if (!check_is_served(c, &k)) {
        check_skip(c, "supports_combination refuses the plain case with them");
        return;
    }
    int status = check_open(c, p, &instance, &e);
    if (status == ATTN_OK) status = c->backend->ops->space_needed(instance, &n, &e);
    const int has_cache = attn_role_has_cache(p->role);
    for (int r = 0; r < REQS; r++) {
        lens[r] = has_cache ? KEYS : TOKENS / REQS;
        starts[r + 1] = has_cache ? (r + 1 < REQS ? r + 1 : TOKENS) : (r + 1) * (TOKENS / REQS);
    }
    const int64_t shape[2] = {REQS, has_cache ? KEYS / p->block_size : 0}, strides[2] = {shape[1], 1};
    const size_t bytes = (size_t)(shape[0] * shape[1]) * 4;
    int32_t *zeros = calloc(1, bytes + 4);
    attn_space_t s = {.struct_size = sizeof s,
                      .metadata = c->memory->alloc(c->memory->ctx, (size_t)n.metadata_bytes + 1, 256),
                      .metadata_bytes = n.metadata_bytes,
                      .workspace = c->memory->alloc(c->memory->ctx, (size_t)n.workspace_bytes + 1, 256),
                      .workspace_bytes = n.workspace_bytes,
                      .host = calloc(1, (size_t)n.host_bytes + 1),
                      .host_bytes = n.host_bytes};
    DLTensor table = {.device = {(DLDeviceType)c->memory->device_type, c->memory->device_id},
                      .ndim = 2,
                      .dtype = attn_dl_dtype(ATTN_DTYPE_INT32),
                      .shape = (int64_t *)shape,
                      .strides = (int64_t *)strides};
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = REQS,
                      .num_actual_tokens = TOKENS,
                      .query_start_loc_host = starts,
                      .seq_lens_host = lens};
    if (zeros != NULL && has_cache) table.data = image_new(zeros, bytes + 4), b.block_table = &table;
    if (status == ATTN_OK && s.metadata != NULL && s.workspace != NULL && s.host != NULL && zeros != NULL)
        status = c->backend->ops->build_metadata(instance, &b, &s, c->memory->stream, &e);
    c->memory->sync(c->memory->ctx);
    if (status != ATTN_OK)
        check_fail(c, "limits of 0, and a batch of %d requests, %d tokens and %d keys each: %d, %.300s", REQS,
                   TOKENS, lens[0], status, e.text);
    c->report->num_cases++;
    if (instance != NULL) c->backend->ops->close(instance);
    free(zeros), free(s.host);
    if (s.metadata != NULL) c->memory->free(c->memory->ctx, s.metadata, (size_t)n.metadata_bytes + 1);
    if (s.workspace != NULL) c->memory->free(c->memory->ctx, s.workspace, (size_t)n.workspace_bytes + 1);
}

static void block_size_of_its_own(check_t *c) {
    kit_case_t k;
    attn_instance_t *instance = NULL;
    attn_error_t error = {.struct_size = sizeof error};
    attn_kv_cache_shape_t s = {.struct_size = sizeof s};
    if (!check_start(c, &k)) return;
    if (!attn_role_has_cache(k.problem.role)) {
        check_skip(c, "no role with a cache");
        return;
    }
    k.problem.block_size = 0;
    k.problem.num_blocks = 8;
    check_running(c, &k);
    int status = check_open(c, &k.problem, &instance, &error);
    if (status == ATTN_OK) status = c->backend->ops->kv_cache_shape(instance, 0, &s, &error);
    if (status != ATTN_OK) {
        check_fail(c, "block_size 0, the backend's own preference: %d, %s", status, error.text);
        return;
    }
    c->backend->ops->close(instance);
    if (s.block_size == 0 || check_block_size(c, s.block_size) != s.block_size)
        check_fail(c, "block_size 0 gives pages of %u tokens, which the table does not list", s.block_size);
    else if (c->can.preferred_block_size != 0 && s.block_size != c->can.preferred_block_size)
        check_fail(c, "block_size 0 gives pages of %u tokens, preferred_block_size is %u", s.block_size,
                   c->can.preferred_block_size);
    k.problem.block_size = s.block_size;
    check_run(c, c->backend, &k, NULL);
}

static int shape_of(check_t *c, const attn_problem_t *p, int64_t num_blocks, attn_kv_cache_shape_t *s) {
    attn_instance_t *instance = NULL;
    attn_error_t error = {.struct_size = sizeof error};
    memset(s, 0, sizeof *s);
    s->struct_size = sizeof *s;
    int status = check_open(c, p, &instance, &error);
    if (status == ATTN_OK) status = c->backend->ops->kv_cache_shape(instance, num_blocks, s, &error);
    if (instance != NULL) c->backend->ops->close(instance);
    if (status != ATTN_OK)
        return check_fail(c, "%lld blocks: %d, %s", (long long)num_blocks, status, error.text);
    return 1;
}

/* The dimensions lie in each other without overlap, in the order that stride_order says. */
static void compare_order(check_t *c, const attn_kv_cache_shape_t *s) {
    int64_t inner = 0;
    for (uint32_t j = s->ndim; j-- > 0;) {
        const uint32_t i = s->stride_order[j];
        if (i >= s->ndim) return;
        if (s->byte_strides[i] < inner)
            check_fail(c, "dimension %u has a stride of %lld bytes, those inside it take %lld", i,
                       (long long)s->byte_strides[i], (long long)inner);
        inner = s->byte_strides[i] * s->shape[i];
    }
    if (s->ndim > 0 && s->axes[s->stride_order[0]] == ATTN_AXIS_BLOCK &&
        s->byte_strides[s->stride_order[0]] != s->page_bytes)
        check_fail(c, "blocks are %lld bytes apart, page_bytes is %lld",
                   (long long)s->byte_strides[s->stride_order[0]], (long long)s->page_bytes);
    uint32_t orders = 0;
    for (uint32_t i = 0; i <= s->ndim; i++)
        if (s->stride_order_layers[i] <= s->ndim) orders |= 1u << s->stride_order_layers[i];
    if (orders != (2u << s->ndim) - 1)
        check_fail(c, "stride_order_layers is not a permutation of layers and axes");
}

static void millions(check_t *c) {
    static const int64_t counts[] = {1, 100, 5 << 20, INT32_MAX};
    kit_case_t k;
    attn_kv_cache_shape_t base, s;
    if (!check_start(c, &k)) return;
    if (!attn_role_has_cache(k.problem.role)) {
        check_skip(c, "no role with a cache");
        return;
    }
    check_running(c, &k);
    k.problem.num_blocks = 8;
    if (!shape_of(c, &k.problem, 8, &base)) return;
    compare_order(c, &base);
    const kit_sizes_t z = kit_sizes(&k.problem);
    const int64_t element = base.dtype.bits / 8,
                  least = (int64_t)k.problem.block_size * z.kv_heads * (z.key + z.value) * element;
    if (base.page_bytes < least)
        check_fail(c, "page_bytes is %lld; K and V of a block take %lld", (long long)base.page_bytes,
                   (long long)least);
    if (base.page_bytes > least * 2)
        check_fail(c, "page_bytes is %lld, more than twice the %lld that K and V of a block take",
                   (long long)base.page_bytes, (long long)least);
    if (!z.is_latent && base.num_kv_heads != (uint32_t)z.kv_heads)
        check_fail(c, "num_kv_heads of the shape is %u, of the problem %lld", base.num_kv_heads,
                   (long long)z.kv_heads);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (int by_problem = 0; by_problem < 2; by_problem++) {
            k.problem.num_blocks = by_problem ? counts[i] : 8;
            if (!shape_of(c, &k.problem, by_problem ? 0 : counts[i], &s)) return;
            int64_t blocks = -1;
            for (uint32_t a = 0; a < s.ndim; a++)
                if (s.axes[a] == ATTN_AXIS_BLOCK) blocks = s.shape[a];
            if (blocks != counts[i] || s.page_bytes != base.page_bytes || s.fingerprint != base.fingerprint ||
                s.total_bytes != base.page_bytes * counts[i])
                check_fail(c,
                           "%lld blocks: the shape has %lld blocks, page_bytes %lld, total_bytes %lld; 8 "
                           "blocks have "
                           "page_bytes %lld",
                           (long long)counts[i], (long long)blocks, (long long)s.page_bytes,
                           (long long)s.total_bytes, (long long)base.page_bytes);
            compare_order(c, &s);
            c->report->num_cases++;
        }
}

/* A page has the tokens that were requested, not the next power of two. */
static void page_sizes(check_t *c) {
    static const uint32_t wanted[] = {1, 5, 8, 16, 24, 32, 48, 64, 96, 128, 256};
    kit_case_t k;
    attn_kv_cache_shape_t s;
    if (!check_start(c, &k)) return;
    if (!attn_role_has_cache(k.problem.role)) {
        check_skip(c, "no role with a cache");
        return;
    }
    k.problem.num_blocks = 8;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        k.problem.block_size = check_block_size(c, wanted[i]);
        check_running(c, &k);
        if (!check_is_served(c, &k)) continue;
        if (!shape_of(c, &k.problem, 8, &s)) return;
        if (s.block_size != k.problem.block_size)
            check_fail(c, "block_size is %u, not the %u requested", s.block_size, k.problem.block_size);
        for (uint32_t a = 0; a < s.ndim; a++)
            if (s.axes[a] == ATTN_AXIS_TOKEN && s.shape[a] != (int64_t)k.problem.block_size)
                check_fail(c, "the token axis has %lld entries, block_size is %u", (long long)s.shape[a],
                           k.problem.block_size);
        c->report->num_cases++;
    }
}

/* Other sizes, other pages: a cache is shared between equal fingerprints. */
static void fingerprints(check_t *c) {
    kit_case_t k;
    attn_kv_cache_shape_t base, s;
    if (!check_start(c, &k)) return;
    if (!attn_role_has_cache(k.problem.role) || k.problem.role == ATTN_ROLE_MLA_SPARSE || c->role != 0) {
        check_skip(c, "no dense cache");
        return;
    }
    k.problem.num_blocks = 8;
    check_running(c, &k);
    if (!shape_of(c, &k.problem, 8, &base)) return;
    const uint32_t half = ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16);
    for (uint32_t d = ATTN_DTYPE_FLOAT16; d <= ATTN_DTYPE_BFLOAT16 && (c->can.dtypes & half) == half; d++) {
        kit_case_t other = k;
        other.problem.dtype = d;
        if (!check_is_served(c, &other) || !shape_of(c, &other.problem, 8, &s)) break;
        check_running(c, &other);
        if (d == ATTN_DTYPE_BFLOAT16 && s.fingerprint == base.fingerprint)
            check_fail(c, "pages of float16 and of bfloat16 have the same fingerprint");
        base = s;
        c->report->num_cases++;
    }
    if (!shape_of(c, &k.problem, 8, &base)) return;
    for (int i = 0; i < 5; i++) {
        kit_case_t other = k;
        if (i == 0) other.problem.head_size = check_head_size(c, 128);
        if (i == 1) other.problem.num_kv_heads = other.problem.num_heads;
        if (i == 2) other.problem.block_size = check_block_size(c, 64);
        if (i == 3) other.problem.kv_cache_dtype = ATTN_KV_FP8_E4M3;
        if (i == 4) other.problem.scale *= 2, other.seed++;
        if (i == 3 && !(c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_FP8_E4M3))) continue;
        if (i == 0 && other.problem.head_size == k.problem.head_size) continue;
        if (i == 1 && other.problem.num_kv_heads == k.problem.num_kv_heads) continue;
        if (i == 2 && other.problem.block_size == k.problem.block_size) continue;
        if (!check_is_served(c, &other) || !shape_of(c, &other.problem, 8, &s)) continue;
        check_running(c, &other);
        if (i < 4 && s.fingerprint == base.fingerprint)
            check_fail(c, "pages of other %s have the same fingerprint",
                       i == 0   ? "head sizes"
                       : i == 1 ? "KV heads"
                       : i == 2 ? "block sizes"
                                : "cache types");
        if (i == 4 && s.fingerprint != base.fingerprint)
            check_fail(c, "the scale changes the fingerprint of a page, but is not part of it");
        c->report->num_cases++;
    }
    /* as many bytes, but of K and of V in turn */
    const uint32_t sizes[2] = {check_head_size(c, 64), check_head_size(c, 32)};
    if (!(c->can.features & ATTN_F_DIFF_KV) || sizes[0] == sizes[1]) return;
    for (int i = 0; i < 2; i++) {
        kit_case_t other = k;
        other.problem.head_size = sizes[i], other.problem.head_size_v = sizes[1 - i];
        if (!check_is_served(c, &other)) return;
        check_running(c, &other);
        if (!shape_of(c, &other.problem, 8, i == 0 ? &base : &s)) return;
    }
    if (s.fingerprint == base.fingerprint)
        check_fail(c, "pages of head sizes %u and %u have the fingerprint of those of %u and %u", sizes[0],
                   sizes[1], sizes[1], sizes[0]);
}

/* Of every format: a page has room for what its rows hold, blocks do not overlap, and K, V and their scales
 * lie beside each other where the offsets, in bytes, say. */
static void pages_of_formats(check_t *c) {
    for (uint32_t kv = ATTN_KV_AUTO; kv < ATTN_KV_COUNT_ && !c->report->is_failed; kv++) {
        kit_case_t k;
        attn_kv_cache_shape_t s;
        const attn_kv_format_t *f = attn_kv_format(kv);
        if (!check_start(c, &k)) return;
        if (!attn_role_has_cache(k.problem.role) || attn_role_is_mla(k.problem.role)) break;
        if (!(c->can.kv_cache_dtypes & ATTN_BIT(kv))) continue;
        k.problem.kv_cache_dtype = kv;
        k.problem.num_blocks = 8;
        check_fit_size(c, &k);
        check_running(c, &k);
        if (!check_is_served(c, &k)) continue;
        if (!shape_of(c, &k.problem, 8, &s)) return;
        compare_order(c, &s);
        const kit_sizes_t z = kit_sizes(&k.problem);
        const int64_t row = attn_kv_row_bytes(f, k.problem.dtype, z.key, z.value),
                      least = s.block_size * z.kv_heads * row;
        if (s.page_bytes < least || s.total_bytes != 8 * s.page_bytes)
            check_fail(c, "%s: page_bytes is %lld, total_bytes %lld; 8 pages of %lld bytes have to fit",
                       f->name, (long long)s.page_bytes, (long long)s.total_bytes, (long long)least);
        int64_t rows = s.block_size * z.kv_heads, columns = 0; /* of a content row */
        for (uint32_t a = 0; a < s.ndim; a++) {
            if (s.axes[a] == ATTN_AXIS_TOKEN) rows /= s.block_size;
            if (s.axes[a] == ATTN_AXIS_HEAD) rows /= z.kv_heads;
            if (s.axes[a] == ATTN_AXIS_KV) rows = 0; /* a plane of K and one of V */
            if (s.axes[a] == ATTN_AXIS_CONTENT) columns = s.shape[a] * (s.dtype.bits / 8);
        }
        const int64_t k_bytes = rows * attn_kv_data_bytes(f, k.problem.dtype, z.key, 0),
                      v_bytes = rows * attn_kv_data_bytes(f, k.problem.dtype, z.value, 1),
                      content = rows * row;
        c->report->num_cases++;
        if (rows == 0 || attn_kv_is_whole_page(kv) || attn_kv_is_turboquant(kv)) continue;
        if (s.k_offset < 0 || s.v_offset < 0 || s.k_offset + k_bytes > content ||
            s.v_offset + v_bytes > content ||
            (s.k_offset < s.v_offset + v_bytes && s.v_offset < s.k_offset + k_bytes))
            check_fail(c, "%s: k_offset %lld, v_offset %lld: not where %lld and %lld bytes lie", f->name,
                       (long long)s.k_offset, (long long)s.v_offset, (long long)k_bytes, (long long)v_bytes);
        /* a row that has no more than values and scales has these behind either, or the other way round */
        const int64_t at[] = {s.k_offset, s.v_offset, s.k_scale_offset, s.v_scale_offset},
                      bytes[] = {k_bytes, v_bytes, rows * f->k_beside, rows * f->v_beside};
        for (int part = 2; part < 4 && columns >= content && f->k_beside != 0; part++)
            for (int other = 0; other < part && !c->report->is_failed; other++)
                if (at[part] < 0 || at[part] + bytes[part] > columns ||
                    (at[part] < at[other] + bytes[other] && at[other] < at[part] + bytes[part]))
                    check_fail(c, "%s: %s is %lld in a row of %lld bytes; that is not where its scales lie",
                               f->name, part == 2 ? "k_scale_offset" : "v_scale_offset", (long long)at[part],
                               (long long)columns);
    }
    if (c->report->num_cases == 0) check_skip(c, "no dense cache");
}

void check_defaults_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "capabilities", 1, spelled_out, 0, "values that equal their default change nothing");
    check_add(list, "capabilities", 1, limits_by_default, 0, "limits of 0 are those of the header");
    check_add(list, "capabilities", 1, block_size_of_its_own, 0,
              "block_size 0 is a page that the table lists");
    check_add(list, "capabilities", 1, millions, 0, "cache shapes of one to billions of blocks");
    check_add(list, "capabilities", 1, page_sizes, 0, "pages have the requested size");
    check_add(list, "capabilities", 1, fingerprints, 0, "fingerprints distinguish pages");
    check_add(list, "capabilities", 1, pages_of_formats, 0, "pages of every cache format");
}
