/* SPDX-License-Identifier: Apache-2.0 */
/* check_case.c: cases within a capability table, and their run against the oracle. */
#include "check_children.h"

#include <math.h>

uint32_t check_head_size(const check_t *c, uint32_t wanted) {
    uint32_t best = 0;
    if (c->can.num_head_sizes == 0) return wanted;
    for (uint32_t i = 0; i < c->can.num_head_sizes; i++) {
        const attn_range_t *r = &c->can.head_sizes[i];
        uint32_t step = r->step != 0 ? r->step : 1, near = r->min;
        if (wanted > r->min) near = r->min + ((wanted < r->max ? wanted : r->max) - r->min) / step * step;
        uint32_t d = near > wanted ? near - wanted : wanted - near,
                 e = best > wanted ? best - wanted : wanted - best;
        if (best == 0 || d < e) best = near;
    }
    return best;
}

void check_few_heads(const check_t *c, kit_case_t *k) {
    k->problem.head_size = check_head_size(c, 16);
    k->problem.scale = 1 / sqrt((double)k->problem.head_size);
    k->problem.num_heads = c->can.max_group == 1 ? 1 : 2;
    k->problem.num_kv_heads = 1;
}

uint32_t check_block_size(const check_t *c, uint32_t wanted) {
    uint32_t best = 0;
    if (c->can.num_block_sizes == 0) return wanted;
    for (uint32_t i = 0; i < c->can.num_block_sizes; i++) {
        const attn_block_size_t *b = &c->can.block_sizes[i];
        uint32_t near =
            b->is_multiple && b->size > 0 && wanted > b->size ? wanted / b->size * b->size : b->size;
        uint32_t d = near > wanted ? near - wanted : wanted - near,
                 e = best > wanted ? best - wanted : wanted - best;
        if (best == 0 || d < e) best = near;
    }
    return best;
}

uint32_t check_fp8_cache(const check_t *c) {
    return c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_FP8_E4M3)   ? ATTN_KV_FP8_E4M3
           : c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_FP8_E5M2) ? ATTN_KV_FP8_E5M2
                                                                 : 0;
}

void check_fit_size(const check_t *c, kit_case_t *k) {
    const attn_kv_format_t *f = attn_kv_format(k->problem.kv_cache_dtype);
    for (uint32_t size = 16; size <= 1024 && !attn_kv_has_size(f, k->problem.head_size); size *= 2)
        if (check_head_size(c, size) == size && attn_kv_has_size(f, size)) {
            k->problem.head_size = size;
            k->problem.scale = 1 / sqrt((double)size);
        }
}

/* Buffers are poisoned and looked through byte by byte: no larger than the cases need. */
static void small_limits(kit_case_t *k, uint32_t tokens, int64_t len) {
    k->problem.max_num_seqs = 16;
    k->problem.max_num_batched_tokens = tokens;
    k->problem.max_model_len = len;
}

/* The latent size that the table's head sizes leave beside 64 rope columns; small where any size goes. */
static uint32_t latent_size(const check_t *c) {
    if (check_head_size(c, 192) == 192) return 128;
    for (uint32_t i = 0; i < c->can.num_head_sizes; i++)
        if (c->can.head_sizes[i].max > 64) return c->can.head_sizes[i].max - 64;
    return c->can.num_head_sizes == 0 ? 128 : 0;
}

int check_latent_case(const check_t *c, kit_case_t *k, uint32_t role, uint64_t seed) {
    uint32_t latent = role == ATTN_ROLE_MLA_PREFILL ? 512 : latent_size(c);
    kit_case_start(k, role, seed);
    kit_case_set_mla(k, 4, latent, 64, 128, 128, role == ATTN_ROLE_MLA_SPARSE ? 128 : 0);
    if (attn_role_has_cache(role) && !(c->can.features & ATTN_F_WEIGHTS)) kit_case_set_latent(k);
    k->problem.dtype = c->can.dtypes >> ATTN_DTYPE_BFLOAT16 & 1  ? ATTN_DTYPE_BFLOAT16
                       : c->can.dtypes >> ATTN_DTYPE_FLOAT16 & 1 ? ATTN_DTYPE_FLOAT16
                                                                 : ATTN_DTYPE_FLOAT32;
    if (attn_role_has_cache(role)) k->problem.block_size = check_block_size(c, 64);
    if (c->can.features & ATTN_F_LSE) k->problem.features |= ATTN_F_LSE;
    k->problem.max_model_len = 1024;
    return latent != 0 && (role != ATTN_ROLE_MLA_PREFILL || check_head_size(c, 192) == 192);
}

static void add_plain_requests(kit_case_t *k) {
    kit_case_add(k, 1, 37);
    kit_case_add(k, 5, 20);
    kit_case_add(k, 18, 18);
}

int check_plain_case(const check_t *c, kit_case_t *k) {
    if (c->role != 0) {
        if (!check_latent_case(c, k, c->role, c->seed)) return 0;
        small_limits(k, 512, 1024);
        add_plain_requests(k);
        return 1;
    }
    static const uint32_t roles[] = {ATTN_ROLE_DECODER, ATTN_ROLE_MM_ENCODER, ATTN_ROLE_ENCODER_ONLY,
                                     ATTN_ROLE_ENCODER, ATTN_ROLE_ENCODER_DECODER};
    static const uint32_t dtypes[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_BFLOAT16, ATTN_DTYPE_FLOAT16};
    uint32_t role = 0, dtype = 0;
    for (int i = 4; i >= 0; i--)
        if (c->can.roles & ATTN_BIT(roles[i])) role = roles[i];
    for (int i = 2; i >= 0; i--)
        if (c->can.dtypes & ATTN_BIT(dtypes[i])) dtype = dtypes[i];
    if (role == 0 || dtype == 0) return 0;
    kit_case_start(k, role, c->seed);
    small_limits(k, 2048, 4096);
    k->problem.dtype = dtype;
    k->problem.head_size = check_head_size(c, 32);
    k->problem.scale = 1 / sqrt((double)k->problem.head_size);
    if (c->can.max_group == 1) k->problem.num_kv_heads = k->problem.num_heads;
    if (attn_role_has_cache(role)) {
        k->problem.block_size = check_block_size(c, 16);
        if (!(c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_AUTO)))
            for (uint32_t kv = 1; kv < ATTN_KV_COUNT_ && k->problem.kv_cache_dtype == 0; kv++)
                if (c->can.kv_cache_dtypes & attn_kv_formats_of(ATTN_BIT(role)) & ATTN_BIT(kv))
                    k->problem.kv_cache_dtype = kv;
        check_fit_size(c, k);
    }
    if (c->can.features & ATTN_F_LSE) k->problem.features |= ATTN_F_LSE;
    add_plain_requests(k);
    return 1;
}

int check_start(check_t *c, kit_case_t *k) {
    if (check_plain_case(c, k)) return 1;
    check_skip(c, "the kit has no cases for its roles");
    return 0;
}

int check_start_without(check_t *c, kit_case_t *k) {
    if (!check_start(c, k)) return 0;
    k->num_reqs = 0;
    return 1;
}

int check_start_decoder(check_t *c, kit_case_t *k) {
    if (!check_start_without(c, k)) return 0;
    if (k->problem.role == ATTN_ROLE_DECODER) return 1;
    check_skip(c, "not a decoder backend");
    return 0;
}

int check_said_case(const check_t *c, kit_case_t *k, int i) {
    static const uint64_t said[CHECK_NUM_SAID] = {
        ATTN_F_MM_PREFIX,      ATTN_F_RSWA,          ATTN_F_PER_REQUEST_CAUSAL,
        ATTN_F_CASCADE,        ATTN_F_QQ_BIAS,       ATTN_F_REL_BIAS,
        ATTN_F_DEVICE_LENGTHS, ATTN_F_CHUNKED_LOCAL, ATTN_F_SLIDING_WINDOW};
    attn_problem_t *p = &k->problem;
    if (!(c->can.features & said[i]) || c->role != 0 || !check_plain_case(c, k)) return 0;
    if (p->role != ATTN_ROLE_DECODER) return 0;
    const int32_t page = (int32_t)p->block_size;
    k->num_reqs = 0;
    kit_case_add(k, 1, 2 * page + 5);
    kit_case_add(k, 5, page + 9);
    kit_case_add(k, 4, page + 30);
    if (said[i] == ATTN_F_PER_REQUEST_CAUSAL) p->mask = ATTN_MASK_PER_REQUEST;
    if (said[i] == ATTN_F_RSWA) p->rswa_window = 7;
    if (said[i] == ATTN_F_SLIDING_WINDOW) p->sliding_window = 11;
    if (said[i] == ATTN_F_CHUNKED_LOCAL) p->chunk_size = p->block_size;
    if (said[i] == ATTN_F_CASCADE) k->common_prefix_len = page;
    if (said[i] == ATTN_F_MM_PREFIX) p->max_mm_ranges = 1, k->num_spans = 1;
    p->features |= said[i] & ~(ATTN_F_PER_REQUEST_CAUSAL | ATTN_F_RSWA | ATTN_F_SLIDING_WINDOW);
    for (int r = 0; r < k->num_reqs; r++) {
        k->causal[r] = (uint8_t)(r % 2);
        k->rswa_prefix_lens[r] = 2 + r;
        k->spans[r][0][1] = k->seq_lens[r] - 1;
    }
    return check_is_served(c, k);
}

int check_kept_case(const check_t *c, kit_case_t *k, int i) {
    if (!check_plain_case(c, k)) return 0;
    if (i == 0) return 1;
    if (c->memory->kind != NULL || c->role != 0) return 0;
    if (i < ATTN_KV_COUNT_) {
        const uint64_t kept = c->can.kv_cache_dtypes & attn_kv_formats_of(ATTN_BIT(k->problem.role));
        if (!attn_role_has_cache(k->problem.role) || !(kept & ATTN_BIT(i)) || i == ATTN_KV_AUTO) return 0;
        k->problem.kv_cache_dtype = (uint32_t)i;
        check_fit_size(c, k);
    } else {
        const uint32_t dtype = ATTN_DTYPE_FLOAT32 + (uint32_t)(i - ATTN_KV_COUNT_);
        if (!(c->can.dtypes & ATTN_BIT(dtype)) || dtype == k->problem.dtype) return 0;
        k->problem.dtype = dtype;
    }
    return check_is_served(c, k);
}

double check_work(const kit_case_t *k) {
    double pairs = 0, d = k->problem.head_size, dv = k->problem.head_size_v != 0 ? k->problem.head_size_v : d;
    for (int r = 0; r < k->num_reqs; r++)
        pairs += (double)k->query_lens[r] * k->seq_lens[r];
    return pairs * k->problem.num_heads * (d + dv);
}

/* Heads, pages, cache format, lengths and the treatment of tensors; the sizes of latents are the table's. */
static void random_latent_case(const check_t *c, kit_case_t *k, uint64_t seed, int32_t max_len) {
    static const uint32_t heads[] = {1, 2, 3, 4, 8, 16}, pages[] = {16, 64, 128};
    uint64_t s = seed;
    check_latent_case(c, k, c->role, seed);
    k->problem.num_heads = heads[kit_random_in(&s, 0, 5)];
    if (attn_role_has_cache(c->role)) {
        if ((c->can.features & ATTN_F_LATENT) && kit_random_in(&s, 0, 1) == 0) {
            kit_case_set_latent(k);
            if (c->role == ATTN_ROLE_MLA && (c->can.features & ATTN_F_NON_CAUSAL) &&
                kit_random_in(&s, 0, 1) == 0)
                k->problem.mask = ATTN_MASK_FULL;
        }
        k->problem.block_size = check_block_size(c, pages[kit_random_in(&s, 0, 2)]);
        const uint32_t kv = (uint32_t)kit_random_in(&s, ATTN_KV_AUTO, ATTN_KV_COUNT_ - 1);
        const uint64_t latent = attn_kv_formats_of(ATTN_BIT(c->role));
        if (c->can.kv_cache_dtypes & latent & ATTN_BIT(kv)) k->problem.kv_cache_dtype = kv;
        if ((c->can.features & ATTN_F_DEVICE_LENGTHS) && c->role == ATTN_ROLE_MLA &&
            kit_random_in(&s, 0, 3) == 0)
            k->problem.features |= ATTN_F_DEVICE_LENGTHS;
        if ((c->can.features & ATTN_F_BLOCK_STRIDE) && kit_random_in(&s, 0, 2) == 0)
            k->flags |= KIT_CROSS_LAYER;
        if ((c->can.features & ATTN_F_QUANT_QUERY) && k->problem.kv_cache_dtype == ATTN_KV_FP8_E4M3 &&
            kit_random_in(&s, 0, 1) == 0)
            k->problem.query_dtype = ATTN_DTYPE_FP8_E4M3;
    }
    if (kit_random_in(&s, 0, 1) == 0) k->flags |= KIT_STRIDED;
    k->padded_tokens = (int32_t)kit_random_in(&s, 0, 3);
    for (int64_t r = kit_random_in(&s, 1, 4); r > 0; r--) {
        const int32_t query = (int32_t)kit_random_in(&s, 0, 2) == 0 ? (int32_t)kit_random_in(&s, 0, 20) : 1;
        kit_case_add(k, query, query + (int32_t)kit_random_in(&s, 0, max_len));
    }
}

void check_random_case(const check_t *c, kit_case_t *k, uint64_t seed, int32_t max_len) {
    for (int i = 0; i < 200; i++) {
        if (c->role != 0)
            random_latent_case(c, k, seed + ((uint64_t)i << 40), max_len);
        else
            kit_case_random(k, &c->can, seed + ((uint64_t)i << 40), max_len);
        small_limits(k, 2048, 1024);
        if (check_work(k) <= MAX_WORK / 6) return; /* what these cases are for does not need size */
    }
}

int check_is_served(const check_t *c, const kit_case_t *k) {
    const attn_backend_ops_t *ops = c->backend->ops;
    if (ops->supports_combination == NULL) return 1;
    attn_reason_t items[4] = {{0}};
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 4, .items = items};
    attn_device_t device;
    check_device(c, &device);
    if (ops->supports_combination(&k->problem, &device, &reasons) != ATTN_OK) return 0;
    for (uint32_t i = 0; i < reasons.count && i < 4; i++)
        if (items[i].text[0] == '\0' || items[i].param[0] == '\0') {
            check_t *report_only = (check_t *)(uintptr_t)c;
            check_running(report_only, k);
            check_fail(report_only,
                       "supports_combination gives reason %d of %d without %s: nobody learns why", (int)i + 1,
                       (int)reasons.count, items[i].text[0] == '\0' ? "a text" : "a parameter");
        }
    return reasons.count == 0;
}

void check_device(const check_t *c, attn_device_t *device) {
    memset(device, 0, sizeof *device);
    device->struct_size = sizeof *device;
    device->type = c->memory->device_type;
    device->id = c->memory->device_id;
    device->compute_capability = c->memory->compute_capability;
    device->num_sms = c->memory->num_sms;
}

int check_open(const check_t *c, const attn_problem_t *p, attn_instance_t **instance, attn_error_t *error) {
    attn_device_t device;
    check_device(c, &device);
    return c->backend->ops->open(p, &device, NULL, 0, &check_host, instance, error);
}

int check_run_alone(check_t *c, const attn_backend_t *backend, const kit_case_t *k, const kit_inputs_t *in,
                    const kit_memory_t *memory, kit_result_t *result) {
    check_running(c, k);
    int status = kit_run(backend, k, in, memory, result);
    if (status == ATTN_OK && result->fault[0] == '\0') return 1;
    if (status != ATTN_OK)
        check_fail(c, "%s: %d, %s: %s", result->operation, status, result->error.param, result->error.text);
    else
        check_fail(c, "%s", result->fault);
    kit_result_free(result);
    return 0;
}

int check_against_oracle(check_t *c, const kit_case_t *k, const kit_inputs_t *in, const kit_result_t *got) {
    kit_result_t want;
    kit_case_t plain = *k; /* what says how and not what is nothing to the oracle */
    plain.problem.features &=
        ~(ATTN_F_CAPTURE | ATTN_F_BATCH_INVARIANT | ATTN_F_KV_CONNECTOR | ATTN_F_BLOCK_STRIDE);
    /* a backend may keep an fp8 cache of sparse latent attention in rows of 656 bytes (semantics 5.7) */
    if (k->problem.role == ATTN_ROLE_MLA_SPARSE && k->problem.kv_cache_dtype == ATTN_KV_FP8_E4M3 &&
        got->page_bytes == 656 * (int64_t)k->problem.block_size)
        plain.problem.kv_cache_dtype = ATTN_KV_FP8_DS_MLA;
    int status = kit_run_oracle(&kit_oracle, &plain, in, &want), is_well = 1;
    kit_difference_t d = kit_compare(k, got, &want);
    if (status == ATTN_E_UNSUPPORTED && strcmp(want.operation, "open") == 0)
        is_well = check_fail(c, "these numbers cannot be checked, because the oracle does not serve this: %s",
                             want.error.text);
    else if (status != ATTN_OK)
        is_well = check_fail(c, "the oracle failed in %s: %s", want.operation, want.error.text);
    else if (!d.is_close)
        is_well = check_fail(c, "%s", d.text);
    c->report->num_cases++;
    kit_result_free(&want);
    return is_well;
}

/* A device whose kernels are compiled when a problem is opened has seconds for a check, not for every case of
 * it: after two cases and this time the others are left out, and counted. */
static int is_out_of_time(check_t *c) {
    struct timespec *first = &c->first_case;
    const double seconds = 0.7;
    if (c->memory->kind == NULL) return 0;
    if (first->tv_sec == 0) clock_gettime(CLOCK_MONOTONIC, first);
    if (c->report->num_cases < 2 || check_seconds_since(first) < seconds) return 0;
    return ++c->report->num_left_out;
}

int check_run(check_t *c, const attn_backend_t *backend, const kit_case_t *k,
              const kit_inputs_t *in_or_null) {
    if (!check_is_served(c, k) || is_out_of_time(c)) return 1;
    kit_inputs_t *made = in_or_null == NULL ? kit_inputs_make(k) : NULL;
    const kit_inputs_t *in = in_or_null != NULL ? in_or_null : made;
    if (in == NULL) return check_fail(c, "out of memory for the inputs");
    kit_result_t got;
    int is_well = check_run_alone(c, backend, k, in, c->memory, &got);
    if (is_well) {
        is_well = check_against_oracle(c, k, in, &got);
        kit_result_free(&got);
    }
    kit_inputs_free(made);
    return is_well;
}
