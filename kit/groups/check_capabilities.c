/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_capabilities.c: group capabilities. What the table advertises opens, with a coherent cache shape;
 * what it does not advertise is refused by the name of the parameter.
 */
#include "../run/check_engine.h"

#include <math.h>
#include <stdlib.h>

/* Opens and closes; a refusal must be announced by supports_combination. */
static void opens(check_t *c, kit_case_t *k, const char *what) {
    attn_instance_t *instance = NULL;
    attn_error_t error = {.struct_size = sizeof error};
    check_running(c, k);
    if (!check_is_served(c, k)) return;
    k->problem.num_blocks = 8;
    int status = check_open(c, &k->problem, &instance, &error);
    if (status != ATTN_OK)
        check_fail(c, "%s is in the table, but open says %d, %s: %s", what, status, error.param, error.text);
    else if (instance == NULL)
        check_fail(c, "open returned 0 and no instance");
    else
        c->backend->ops->close(instance);
    c->report->num_cases++;
}

/* Checks that open many problems are several where opening may compile: else one process would take
 * minutes. */
static uint32_t num_parts(const check_t *c) {
    return (c->can.device_types & ATTN_BIT(kDLCPU)) ? 1 : 4;
}

/* Of number `part` (c->arg). */
static void head_sizes(check_t *c) {
    static const uint32_t wanted[] = {1,  8,   16,  32,  33,  40,  64,  72, 80,
                                      96, 112, 128, 160, 192, 256, 320, 512};
    kit_case_t k;
    if (!check_start(c, &k)) return;
    uint32_t last = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        uint32_t d = check_head_size(c, wanted[i]);
        if (d == last) continue;
        last = k.problem.head_size = d;
        if (i % num_parts(c) != c->arg) continue;
        k.problem.scale = 1 / sqrt((double)d);
        char what[40];
        snprintf(what, sizeof what, "head_size %u", d);
        opens(c, &k, what);
    }
}

static void block_sizes(check_t *c) {
    static const uint32_t wanted[] = {1, 5, 8, 16, 32, 48, 64, 128, 256};
    kit_case_t k;
    if (!check_start(c, &k)) return;
    if (k.problem.block_size == 0) {
        check_skip(c, "no role with a cache");
        return;
    }
    for (size_t i = 0; i <= sizeof wanted / sizeof wanted[0]; i++) { /* and 0: its own preference */
        k.problem.block_size = i < sizeof wanted / sizeof wanted[0] ? check_block_size(c, wanted[i]) : 0;
        char what[40];
        snprintf(what, sizeof what, "block_size %u", k.problem.block_size);
        opens(c, &k, what);
    }
}

/* What the table lists and supports_combination refuses whatever it is combined with is not served. */
static void expect_served(check_t *c, uint64_t listed, uint64_t served, const char *what,
                          const char *(*name)(uint32_t)) {
    for (uint32_t i = 0; i < 64; i++)
        if ((listed & ~served) >> i & 1)
            check_fail(c, "%s %s is in the table, but supports_combination refuses every problem of it", what,
                       name(i));
}

/* The problem of a role, dtype and cache dtype (0: not given); 0 if the table does not list it. */
static int combination(check_t *c, kit_case_t *k, uint32_t role, uint32_t dtype, uint32_t kv) {
    if (!(c->can.dtypes & ATTN_BIT(dtype))) return 0;
    if (kv != 0 && !(c->can.kv_cache_dtypes & attn_kv_formats_of(ATTN_BIT(role)) & ATTN_BIT(kv))) return 0;
    if (!check_plain_case(c, k)) return 0;
    k->problem.role = role;
    k->problem.mask = role == ATTN_ROLE_DECODER ? ATTN_MASK_CAUSAL : ATTN_MASK_FULL;
    k->problem.dtype = dtype;
    k->problem.kv_cache_dtype = kv;
    check_fit_size(c, k);
    if (!attn_role_has_cache(role)) k->problem.block_size = 0;
    return 1;
}

static void all_served(check_t *c) {
    kit_case_t k;
    uint64_t asked[3] = {0, 0, 0}, served[3] = {0, 0, 0};
    if (!check_start(c, &k)) return;
    for (uint32_t role = 1; role < ATTN_ROLE_COUNT_; role++)
        for (uint32_t dtype = ATTN_DTYPE_FLOAT32; dtype <= ATTN_DTYPE_BFLOAT16; dtype++)
            for (uint32_t kv = 0; kv < ATTN_KV_COUNT_; kv++) {
                if (!(c->can.roles & ATTN_BIT(role)) || attn_role_is_mla(role) ||
                    !combination(c, &k, role, dtype, kv))
                    continue;
                const uint64_t bits[3] = {ATTN_BIT(role), ATTN_BIT(dtype), ATTN_BIT(kv)};
                const int is_served = check_is_served(c, &k);
                for (int i = 0; i < 3; i++) {
                    asked[i] |= bits[i];
                    if (is_served) served[i] |= bits[i];
                }
                c->report->num_cases++;
            }
    expect_served(c, asked[0], served[0], "role", attn_role_name);
    expect_served(c, asked[1], served[1], "dtype", attn_dtype_name);
    expect_served(c, asked[2] & ~UINT64_C(1), served[2], "kv_cache_dtype", attn_kv_name);
}

/* A check for each role, dtype and part of the cache dtypes. */
enum { DTYPES_OF_ROLE = 16, ROLES_OF_PART = 64 };
static void dtypes(check_t *c) {
    const uint32_t role = c->arg / DTYPES_OF_ROLE % ROLES_OF_PART, dtype = c->arg % DTYPES_OF_ROLE,
                   part = c->arg / DTYPES_OF_ROLE / ROLES_OF_PART;
    kit_case_t k;
    for (uint32_t kv = part; kv < ATTN_KV_COUNT_; kv += num_parts(c)) {
        if (!combination(c, &k, role, dtype, kv)) continue;
        char what[100];
        snprintf(what, sizeof what, "role %s, dtype %s, kv_cache_dtype %s", attn_role_name(role),
                 attn_dtype_name(dtype), attn_kv_name(kv));
        opens(c, &k, what);
    }
    if (c->report->num_cases == 0) check_skip(c, "supports_combination refuses all of them");
}

static void dtypes_list(check_list_t *list, const check_t *c) {
    const uint32_t parts = num_parts(c);
    for (uint32_t role = 1; role < ATTN_ROLE_COUNT_; role++)
        for (uint32_t dtype = ATTN_DTYPE_FLOAT32; dtype <= ATTN_DTYPE_BFLOAT16; dtype++)
            for (uint32_t part = 0; part < parts; part++)
                if ((c->can.roles & ATTN_BIT(role)) && !attn_role_is_mla(role) &&
                    (c->can.dtypes & ATTN_BIT(dtype)))
                    check_add(list, "capabilities", 1, dtypes,
                              (part * ROLES_OF_PART + role) * DTYPES_OF_ROLE + dtype,
                              parts > 1 ? "role %s, %s: every cache dtype opens, part %u"
                                        : "role %s, %s: every cache dtype opens",
                              attn_role_name(role), attn_dtype_name(dtype), part + 1);
}

/* Members that go with a feature bit. Returns 0 for bits that a problem of the kit cannot have. */
static int ask_feature(kit_case_t *k, unsigned bit) {
    attn_problem_t *p = &k->problem;
    uint64_t f = UINT64_C(1) << bit;
    if (f & (ATTN_F_DCP | ATTN_F_WEIGHTS | ATTN_F_CONTIGUOUS_KV | ATTN_F_LATENT | ATTN_F_KEY_LENGTHS))
        return 0;
    p->features |= f;
    if (f & (ATTN_F_SLIDING_WINDOW | ATTN_F_MM_PREFIX_CLAMP | ATTN_F_CHUNK_LOOKBACK)) p->sliding_window = 32;
    if (f & ATTN_F_MM_PREFIX_CLAMP) p->features |= ATTN_F_MM_PREFIX;
    if (f & ATTN_F_CHUNK_LOOKBACK) p->chunk_lookback = 1;
    if (f & ATTN_F_CHUNKED_LOCAL) p->chunk_size = 2 * p->block_size;
    if (f & ATTN_F_RSWA) p->rswa_window = 20;
    if (f & ATTN_F_STATIC_SINK) p->static_sink_len = 2 * p->block_size;
    if (f & ATTN_F_SOFT_CAP) p->logits_soft_cap = 30;
    if (f & ATTN_F_NON_CAUSAL) p->mask = ATTN_MASK_FULL;
    if (f & ATTN_F_PER_REQUEST_CAUSAL) p->mask = ATTN_MASK_PER_REQUEST;
    if (f & ATTN_F_DIFF_KV) p->head_size_v = 0; /* set by the caller from the table */
    if (f & (ATTN_F_QUANT_QUERY)) p->query_dtype = ATTN_DTYPE_FP8_E4M3, p->kv_cache_dtype = ATTN_KV_FP8_E4M3;
    if (f & ATTN_F_PER_HEAD_SCALES) p->kv_cache_dtype = ATTN_KV_FP8_E4M3;
    if (f & ATTN_F_OUT_SCALE_UE8M0) p->features |= ATTN_F_OUT_FP8_GROUP;
    if (p->features & (ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP)) p->out_dtype = ATTN_DTYPE_FP8_E4M3;
    if (f & ATTN_F_OUT_NVFP4) p->out_dtype = ATTN_DTYPE_UINT8;
    return 1;
}

static void feature(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    if (k.problem.role != ATTN_ROLE_DECODER || !ask_feature(&k, c->arg)) {
        check_skip(c, "not covered by the decoder cases of this kit");
        return;
    }
    if (ATTN_BIT(c->arg) == ATTN_F_PER_HEAD_SCALES) k.problem.kv_cache_dtype = check_fp8_cache(c);
    if (c->arg == 13 && c->can.num_head_sizes_v > 0) k.problem.head_size_v = c->can.head_sizes_v[0].min;
    const int needs_fp8 = (ATTN_BIT(c->arg) & (ATTN_F_PER_HEAD_SCALES | ATTN_F_QUANT_QUERY)) != 0;
    if ((needs_fp8 || k.problem.kv_cache_dtype != 0) &&
        !(c->can.kv_cache_dtypes & ATTN_BIT(k.problem.kv_cache_dtype))) {
        check_skip(c, "needs a fp8 cache, which is not in the table");
        return;
    }
    char what[60];
    snprintf(what, sizeof what, "feature %s", attn_feature_name(c->arg));
    opens(c, &k, what);
    if (c->report->num_cases == 0) check_skip(c, "supports_combination refuses the plain case with it");
}

/* How many reasons a backend has against a problem, the first in *first. */
static uint32_t reasons_against(const attn_backend_t *backend, const attn_problem_t *p,
                                const attn_device_t *device, attn_reason_t *first) {
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = first};
    if (backend->ops->supports_combination == NULL) return 0;
    const int status = backend->ops->supports_combination(p, device, &reasons);
    return status != ATTN_OK ? 1 : reasons.count;
}

/* A role of latent attention (c->arg) with each feature of the table: what the oracle refuses by a rule of
 * the semantics has no numbers that could be right. */
static void latent_features(check_t *c) {
    kit_case_t plain;
    attn_device_t device;
    attn_reason_t why = {.text = ""};
    if (!check_latent_case(c, &plain, c->arg, c->seed)) {
        check_skip(c, "the kit has no sizes of latent attention that the table takes");
        return;
    }
    check_device(c, &device);
    for (unsigned bit = 0; bit < 64; bit++) {
        kit_case_t k = plain;
        if (!(c->can.features >> bit & 1) || !ask_feature(&k, bit)) continue;
        check_running(c, &k);
        c->report->num_cases++;
        if (reasons_against(c->backend, &k.problem, c->is_device_here ? &device : NULL, &why) == 0 &&
            reasons_against(&kit_oracle, &k.problem, NULL, &why) != 0)
            check_fail(c, "role %s is served with %s, which it has not: %s", attn_role_name(c->arg),
                       attn_feature_name(bit), why.text);
    }
}

/* Every number of a cache shape follows from the others. */
static void cache_shape(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    if (k.problem.block_size == 0) {
        check_skip(c, "no role with a cache");
        return;
    }
    uint64_t seen[3] = {0, 0, 0};
    for (uint32_t layout = 0; layout <= ATTN_LAYOUT_HND; layout++) {
        if (c->can.required_layout != 0 && layout != 0 && layout != c->can.required_layout) continue;
        attn_instance_t *instance = NULL;
        attn_error_t error = {.struct_size = sizeof error};
        attn_kv_cache_shape_t s = {.struct_size = sizeof s}, t = {.struct_size = sizeof t};
        k.problem.kv_layout = layout;
        k.problem.num_blocks = 8;
        check_running(c, &k);
        if (!check_is_served(c, &k)) continue;
        if (check_open(c, &k.problem, &instance, &error) != ATTN_OK) {
            check_fail(c, "layout %u does not open: %s", layout, error.text);
            return;
        }
        const attn_backend_ops_t *ops = c->backend->ops;
        int status = ops->kv_cache_shape(instance, 8, &s, &error);
        if (status == ATTN_OK) status = ops->kv_cache_shape(instance, 0, &t, &error);
        if (status != ATTN_OK)
            check_fail(c, "kv_cache_shape: %d, %s", status, error.text);
        else if (memcmp(&s, &t, sizeof s) != 0)
            check_fail(c, "num_blocks 0 does not mean the problem's num_blocks");
        int64_t count = 1, element = s.dtype.bits / 8, last = element;
        int block_axis = -1;
        uint32_t orders = 0;
        for (uint32_t i = 0; i < s.ndim && i < ATTN_CACHE_MAX_DIMS; i++) {
            count *= s.shape[i];
            last += (s.shape[i] - 1) * s.byte_strides[i];
            if (s.stride_order[i] < s.ndim) orders |= 1u << s.stride_order[i];
            if (s.axes[i] == ATTN_AXIS_BLOCK) block_axis = (int)i;
            if (s.shape[i] <= 0 || s.byte_strides[i] <= 0)
                check_fail(c, "dimension %u has size or stride <= 0", i);
        }
        if (s.ndim == 0 || s.ndim > ATTN_CACHE_MAX_DIMS || block_axis < 0 || s.shape[block_axis] != 8)
            check_fail(c, "the shape has no axis of 8 blocks");
        else if (orders != (1u << s.ndim) - 1)
            check_fail(c, "stride_order is not a permutation of the axes");
        else if (s.page_bytes * 8 != s.total_bytes || s.page_bytes < count / 8 * element ||
                 last > s.total_bytes)
            check_fail(
                c, "page_bytes %lld and total_bytes %lld do not fit 8 blocks of %lld elements of %lld bytes",
                (long long)s.page_bytes, (long long)s.total_bytes, (long long)(count / 8),
                (long long)element);
        else if (s.block_size != k.problem.block_size)
            check_fail(c, "block_size is %u, not the %u requested", s.block_size, k.problem.block_size);
        else if (s.alignment == 0 || (s.alignment & (s.alignment - 1)) != 0)
            check_fail(c, "alignment %u is not a power of two", s.alignment);
        else if (s.fingerprint == 0)
            check_fail(c, "fingerprint is 0");
        else if (layout != 0 && s.kv_layout != layout)
            check_fail(c, "layout %u was requested, %u was returned", layout, s.kv_layout);
        seen[layout] = s.fingerprint;
        ops->close(instance);
        c->report->num_cases++;
    }
    if (seen[1] != 0 && seen[1] == seen[2]) check_fail(c, "NHD and HND pages have the same fingerprint");
}

/* Sizes grow with the limits and are the same every time. */
static void space(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    attn_space_needed_t needed[3];
    memset(needed, 0, sizeof needed);
    check_running(c, &k);
    for (int i = 0; i < 3; i++) {
        attn_instance_t *instance = NULL;
        attn_error_t error = {.struct_size = sizeof error};
        needed[i].struct_size = sizeof needed[i];
        k.problem.max_num_seqs = i == 2 ? 256 : 8;
        k.problem.max_num_batched_tokens = i == 2 ? 4096 : 64;
        k.problem.max_model_len = 4096;
        int status = check_open(c, &k.problem, &instance, &error);
        if (status == ATTN_OK) status = c->backend->ops->space_needed(instance, &needed[i], &error);
        if (status != ATTN_OK) check_fail(c, "%d: %s", status, error.text);
        if (instance != NULL) c->backend->ops->close(instance);
        uint32_t a = needed[i].alignment;
        if (a == 0 || (a & (a - 1)) != 0) check_fail(c, "alignment %u is not a power of two", a);
    }
    if (memcmp(&needed[0], &needed[1], sizeof needed[0]) != 0)
        check_fail(c, "equal problems need different space");
    if (needed[2].metadata_bytes < needed[0].metadata_bytes ||
        needed[2].workspace_bytes < needed[0].workspace_bytes)
        check_fail(c, "larger limits need less space");
}

/* One value of one parameter that is not in the table, and the name that the refusal must have. */
static void refusals(check_t *c) {
    if (c->options->validate == NULL) {
        check_skip(c, "no library to compare with");
        return;
    }
    kit_case_t plain;
    if (!check_start(c, &plain)) return;
    attn_device_t device;
    check_device(c, &device);
    for (int step = 0; step < 6 + 30; step++) {
        kit_case_t k = plain;
        const char *param = NULL;
        int code = 0;
        if (step == 0) {
            for (uint32_t d = 1; d < 1024 && param == NULL; d++)
                if (check_head_size(c, d) != d)
                    k.problem.head_size = d, param = "head_size", code = ATTN_REASON_HEAD_SIZE;
        } else if (step == 1) {
            for (uint32_t t = ATTN_DTYPE_FLOAT32; t <= ATTN_DTYPE_BFLOAT16 && param == NULL; t++)
                if (!(c->can.dtypes & ATTN_BIT(t)))
                    k.problem.dtype = t, param = "dtype", code = ATTN_REASON_DTYPE;
        } else if (step == 2 && k.problem.block_size != 0) {
            const uint64_t dense = attn_kv_formats_of(ATTN_BIT(k.problem.role));
            for (uint32_t kv = ATTN_KV_AUTO; kv < ATTN_KV_COUNT_ && param == NULL; kv++)
                if (dense & ~c->can.kv_cache_dtypes & ATTN_BIT(kv))
                    k.problem.kv_cache_dtype = kv, param = "kv_cache_dtype",
                    code = ATTN_REASON_KV_CACHE_DTYPE;
        } else if (step == 3 && k.problem.block_size != 0) {
            for (uint32_t b = 1; b < 512 && param == NULL; b++)
                if (check_block_size(c, b) != b)
                    k.problem.block_size = b, param = "block_size", code = ATTN_REASON_BLOCK_SIZE;
        } else if (step == 4 && !(c->can.roles & ATTN_BIT(ATTN_ROLE_ENCODER_ONLY))) {
            k.problem.role = ATTN_ROLE_ENCODER_ONLY, k.problem.mask = ATTN_MASK_FULL;
            k.problem.block_size = k.problem.kv_cache_dtype = 0;
            param = "role", code = ATTN_REASON_ATTN_TYPE;
        } else if (step == 5) {
            continue;
        } else if (step >= 6 && !(c->can.features & UINT64_C(1) << (step - 6)) &&
                   k.problem.role == ATTN_ROLE_DECODER) {
            /* bits whose absence a problem can meet without further members */
            uint64_t askable = ATTN_F_SINK | ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT | ATTN_F_QQ_BIAS | ATTN_F_LSE |
                               ATTN_F_SOFT_CAP | ATTN_F_SLIDING_WINDOW | ATTN_F_NON_CAUSAL |
                               ATTN_F_MM_PREFIX | ATTN_F_REL_BIAS;
            if ((askable >> (step - 6) & 1) && ask_feature(&k, (unsigned)step - 6))
                param = attn_feature_name((unsigned)step - 6);
        }
        if (param == NULL) continue;
        attn_reason_t items[16];
        attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 16, .items = items};
        attn_error_t error = {.struct_size = sizeof error};
        check_running(c, &k);
        int status = c->options->validate(c->raw, &k.problem, &device, &reasons, &error);
        int is_named = 0;
        for (uint32_t i = 0; i < reasons.count && i < 16; i++)
            is_named |= (code != 0 && items[i].code == code) || strcmp(items[i].param, param) == 0;
        if (status != ATTN_OK && status != ATTN_E_UNSUPPORTED) continue; /* not a problem at all */
        if (!is_named)
            check_fail(c, "%s is not in the table, but no reason names it (%u reasons)", param,
                       reasons.count);
        c->report->num_cases++;
    }
}

void check_capabilities_list(check_list_t *list, const check_t *c) {
    check_add(list, "capabilities", 1, all_served, 0, "what the table lists is served by some problem");
    dtypes_list(list, c);
    for (uint32_t part = 0; part < num_parts(c); part++)
        check_add(list, "capabilities", 1, head_sizes, part,
                  num_parts(c) > 1 ? "every head size opens, part %u" : "every head size opens", part + 1);
    check_add(list, "capabilities", 1, block_sizes, 0, "every block size opens");
    for (unsigned bit = 0; bit < 64; bit++)
        if (c->can.features >> bit & 1)
            check_add(list, "capabilities", 1, feature, bit, "feature %s opens", attn_feature_name(bit));
    for (uint32_t role = ATTN_ROLE_MLA; role <= ATTN_ROLE_MLA_SPARSE; role++)
        if (c->can.roles >> role & 1)
            check_add(list, "capabilities", CHECK_TABLES, latent_features, role,
                      "role %s: no feature that it has not", attn_role_name(role));
    check_add(list, "capabilities", 1, cache_shape, 0, "the cache shape is coherent");
    check_defaults_list(list, c);
    check_reasons_list(list, c);
    check_add(list, "capabilities", 1, space, 0, "space_needed follows from the problem");
    check_add(list, "capabilities", 0, refusals, 0, "what the table lacks is refused by name");
}
