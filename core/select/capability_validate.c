/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All reasons why a backend does not serve a problem, in the order of semantics 4.3, then those that only
 * this library has, and last what the backend itself says. No early exit: a user wants to see every reason
 * at once.
 */
#include "base/plain_text.h"
#include "select/capability.h"
#include "device/device_kind.h"
#include "base/names.h"
#include "problem/ranks_problem.h"
#include "device/device_kind.h"
#include "device/merge_kind.h"

#include <attn/attn_plugin_util.h>
#include <stdio.h>

/* What the checks look at. */
struct check {
    const attn_backend_t *backend;
    const char *name;
    attn_capabilities_t caps;
    const attn_problem_t *problem;
    uint64_t needed;             /* ATTN_F_* */
    const attn_device_t *device; /* NULL: device questions are skipped */
    attn_reasons_t *reasons;
};

static void check_head_size(const struct check *in) {
    const attn_problem_t *p = in->problem;
    char have[64], want[96];
    if (!attn_backend_supports_head_size(in->backend, p->head_size)) {
        snprintf(have, sizeof have, "%u", p->head_size);
        attni_ranges_text(in->caps.head_sizes, in->caps.num_head_sizes, want, sizeof want);
        attn_add_reason(in->reasons, ATTN_REASON_HEAD_SIZE, "head_size", have, want,
                        "%s does not support head size %s; it has %s", in->name, have, want);
    }
    if (!p->head_size_v || p->head_size_v == p->head_size || !(in->caps.features & ATTN_F_DIFF_KV)) return;
    const attn_range_t *ranges = in->caps.num_head_sizes_v ? in->caps.head_sizes_v : in->caps.head_sizes;
    uint32_t count = in->caps.num_head_sizes_v ? in->caps.num_head_sizes_v : in->caps.num_head_sizes;
    if (!count || attni_in_ranges(ranges, count, p->head_size_v)) return;
    snprintf(have, sizeof have, "%u", p->head_size_v);
    attni_ranges_text(ranges, count, want, sizeof want);
    attn_add_reason(in->reasons, ATTN_REASON_HEAD_SIZE, "head_size_v", have, want,
                    "%s does not support value head size %s; it has %s", in->name, have, want);
}

/* The names of a set of values, separated by blanks. */
static void set_text(uint64_t set, const struct attni_names *names, char *text, size_t size) {
    size_t used = 0;
    snprintf(text, size, "none");
    for (uint32_t value = names->first; value <= names->last && used < size; value++)
        if (set >> value & 1)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? " " : "",
                                     attni_name_of(names, value));
}

static void check_dtype(const struct check *in) {
    if (attn_backend_supports_dtype(in->backend, in->problem->dtype)) return;
    char want[96];
    const char *have = attn_dtype_name(in->problem->dtype);
    set_text(in->caps.dtypes, &attni_dtypes, want, sizeof want);
    attn_add_reason(in->reasons, ATTN_REASON_DTYPE, "dtype", have, want,
                    "%s does not support dtype %s; it has %s", in->name, have, want);
}

/* auto is the model's dtype, so a table that lists the dtype by its own name serves it too. */
static int serves_kv(const struct check *in, uint32_t kv) {
    if (attn_backend_supports_kv_cache_dtype(in->backend, kv)) return 1;
    if (kv != ATTN_KV_AUTO) return 0;
    uint32_t dtype = in->problem->dtype;
    uint32_t named = dtype == ATTN_DTYPE_FLOAT32   ? ATTN_KV_FLOAT32
                     : dtype == ATTN_DTYPE_FLOAT16 ? ATTN_KV_FLOAT16
                                                   : ATTN_KV_BFLOAT16;
    return attn_backend_supports_kv_cache_dtype(in->backend, named);
}

static void check_kv_cache_dtype(const struct check *in) {
    uint32_t kv = in->problem->kv_cache_dtype ? in->problem->kv_cache_dtype : ATTN_KV_AUTO;
    if (!attn_role_has_cache(in->problem->role) || serves_kv(in, kv)) return;
    char want[96];
    set_text(in->caps.kv_cache_dtypes, &attni_kv_dtypes, want, sizeof want);
    attn_add_reason(in->reasons, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype", attn_kv_name(kv), want,
                    "%s does not support KV cache dtype %s; it has %s", in->name, attn_kv_name(kv), want);
}

static void check_block_size(const struct check *in) {
    uint32_t size = in->problem->block_size;
    if (!attn_role_has_cache(in->problem->role) || attn_backend_supports_block_size(in->backend, size))
        return;
    char have[64], want[96];
    size_t used = 0;
    snprintf(have, sizeof have, "%u", size);
    for (uint32_t i = 0; i < in->caps.num_block_sizes && used < sizeof want; i++)
        used += (size_t)snprintf(want + used, sizeof want - used, "%s%u", i ? ", " : "multiple of ",
                                 in->caps.block_sizes[i].size);
    attn_add_reason(in->reasons, ATTN_REASON_BLOCK_SIZE, "block_size", have, want,
                    "%s does not support block size %s; it needs a %s", in->name, have, want);
}

/* A feature that has a reason code of its own. */
static void check_feature(const struct check *in, uint64_t bit, int code, const char *param,
                          const char *what) {
    if (!(in->needed & bit) || (in->caps.features & bit)) return;
    attn_add_reason(in->reasons, code, param, "needed", "not needed", "%s does not support %s", in->name,
                    what);
}

/*
 * Semantics 4.3 rows 6, 8 and 11; the role is one set here, so a role is refused under the most telling
 * name only.
 */
static void check_kind(const struct check *in, int code) {
    /* mla_prefill is left out: it is plain attention, which other backends serve */
    const uint64_t mla = ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    const uint64_t sparse = ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    uint32_t role = in->problem->role;
    const char *have = attn_role_name(role);
    char want[96];
    if (attn_backend_supports_attn_type(in->backend, role)) return;
    int use_mla = (mla >> role & 1) != 0, use_sparse = role == ATTN_ROLE_MLA_SPARSE;
    int mla_differs = use_mla ? !(in->caps.roles & mla) : !(in->caps.roles & ~mla);
    int sparse_differs =
        !mla_differs && use_mla && (use_sparse ? !(in->caps.roles & sparse) : !(in->caps.roles & ~sparse));
    int found = mla_differs ? ATTN_REASON_MLA : sparse_differs ? ATTN_REASON_SPARSE : ATTN_REASON_ATTN_TYPE;
    if (found != code) return;
    set_text(in->caps.roles, &attni_roles, want, sizeof want);
    attn_add_reason(in->reasons, code, "role", have, want,
                    code == ATTN_REASON_MLA ? "%s is %san MLA backend; it does not serve role %s, it has %s"
                    : code == ATTN_REASON_SPARSE
                        ? "%s is %sa sparse backend; it does not serve role %s, it has %s"
                        : "%s%s does not support attention type %s; it has %s",
                    in->name,
                    code == ATTN_REASON_MLA      ? (use_mla ? "not " : "")
                    : code == ATTN_REASON_SPARSE ? (use_sparse ? "not " : "")
                                                 : "",
                    have, want);
}

static void check_compute_capability(const struct check *in) {
    const attn_device_kind_t *kind = in->device ? attn_device_kind(in->device->type) : NULL;
    if (!kind || !kind->capability_prefix ||
        !attn_backend_supports_device_type(in->backend, in->device->type) ||
        attn_backend_supports_compute_capability(in->backend, in->device->compute_capability))
        return;
    char have[64], want[96];
    attni_device_text(in->device->type, in->device->compute_capability, have, sizeof have);
    attni_ranges_text(in->caps.compute_capabilities, in->caps.num_compute_capabilities, want, sizeof want);
    attn_add_reason(in->reasons, ATTN_REASON_COMPUTE_CAPABILITY, "compute_capability", have, want,
                    "%s does not support compute capability %s; it has %s", in->name, have, want);
}

/* ---------------------------------------------- what semantics 4.3 does not have */

/* Bits with a code of their own are left out here. */
static void check_other_features(const struct check *in) {
    const uint64_t own_code = ATTN_F_MM_PREFIX | ATTN_F_SINK | ATTN_F_PER_HEAD_SCALES |
                              ATTN_F_SLIDING_WINDOW | ATTN_F_NON_CAUSAL | ATTN_F_BATCH_INVARIANT |
                              ATTN_F_KV_CONNECTOR | ATTN_F_WEIGHTS;
    if (attn_backend_supports_attn_type(in->backend, in->problem->role))
        check_feature(in, ATTN_F_WEIGHTS, ATTN_REASON_FEATURE, "weights",
                      "kv_b_proj: it takes absorbed queries, with feature latent");
    uint64_t missing = in->needed & ~in->caps.features & ~own_code;
    for (unsigned bit = 0; bit < 64; bit++) {
        if (!(missing >> bit & 1)) continue;
        const char *feature = attn_feature_name(bit);
        attn_add_reason(in->reasons, ATTN_REASON_FEATURE, feature, "needed", "not needed",
                        "%s does not support feature %s", in->name, feature);
    }
}

static void check_device(const struct check *in) {
    if (!in->device || attn_backend_supports_device_type(in->backend, in->device->type)) return;
    char have[64];
    attni_device_text(in->device->type, in->device->compute_capability, have, sizeof have);
    const attn_device_kind_t *kind;
    const char *want = "another device";
    for (uint32_t i = 0; (kind = attn_device_kind_at(i)) != NULL; i++)
        if (in->caps.device_types & ATTN_BIT(kind->type)) {
            want = kind->name;
            break;
        }
    attn_add_reason(in->reasons, ATTN_REASON_DEVICE, "device", have, want, "%s runs on %s, not on %s",
                    in->name, want, have);
}

static void check_head_count(const struct check *in) {
    const attn_problem_t *p = in->problem;
    uint32_t kv_heads = p->num_kv_heads                                               ? p->num_kv_heads
                        : p->role == ATTN_ROLE_MLA || p->role == ATTN_ROLE_MLA_SPARSE ? 1
                                                                                      : p->num_heads;
    uint32_t group = p->num_heads / kv_heads;
    if (!in->caps.max_group || group <= in->caps.max_group) return;
    char have[64], want[96];
    snprintf(have, sizeof have, "%u", group);
    snprintf(want, sizeof want, "at most %u", in->caps.max_group);
    attn_add_reason(in->reasons, ATTN_REASON_HEAD_COUNT, "num_heads", have, want,
                    "%s serves %s query heads per KV head, not %s", in->name, want, have);
}

static void check_out_dtype(const struct check *in) {
    uint32_t out = in->problem->out_dtype;
    if (!out || out == in->problem->dtype || (in->caps.out_dtypes >> out & 1)) return;
    char want[96];
    set_text(in->caps.out_dtypes, &attni_dtypes, want, sizeof want);
    attn_add_reason(in->reasons, ATTN_REASON_OUT_DTYPE, "out_dtype", attn_dtype_name(out), want,
                    "%s does not write %s; beside the dtype itself it has %s", in->name, attn_dtype_name(out),
                    want);
}

static void check_layout(const struct check *in) {
    uint32_t have = in->problem->kv_layout, want = in->caps.required_layout;
    if (!have || !want || have == want || !attn_role_has_cache(in->problem->role)) return;
    const char *have_name = attni_name_of(&attni_layouts, have),
               *want_name = attni_name_of(&attni_layouts, want);
    if (!want_name) want_name = "unknown";
    attn_add_reason(in->reasons, ATTN_REASON_LAYOUT, "kv_layout", have_name, want_name,
                    "%s needs cache layout %s, not %s", in->name, want_name, have_name);
}

/*
 * The backend's own verdict. A plugin is never called with a feature bit or role that its table does not
 * list, nor for a device that it does not know.
 */
static void check_combination(const struct check *in) {
    int is_known = (in->needed & ~in->caps.features) == 0 &&
                   attn_backend_supports_attn_type(in->backend, in->problem->role) &&
                   (!in->device || attn_backend_supports_device_type(in->backend, in->device->type));
    const attn_backend_ops_t *ops = in->backend->ops;
    if (!is_known || !ops || !ATTN_HAS_OP(ops, supports_combination)) return;
    uint32_t before = in->reasons->count;
    int code = ops->supports_combination(in->problem, in->device, in->reasons);
    /* texts of the plugin */
    for (uint32_t i = before; i < in->reasons->count && i < in->reasons->capacity; i++) {
        attn_reason_t *r = &in->reasons->items[i];
        r->param[sizeof r->param - 1] = r->have[sizeof r->have - 1] = r->want[sizeof r->want - 1] = '\0';
        r->text[sizeof r->text - 1] = '\0';
        attni_text_make_plain(r->param, '?');
        attni_text_make_plain(r->have, '?');
        attni_text_make_plain(r->want, '?');
        attni_text_make_plain(r->text, '?');
    }
    if (code != ATTN_OK && in->reasons->count == before)
        attn_add_reason(in->reasons, ATTN_REASON_COMBINATION, "", "", "", "%s refuses this combination (%s)",
                        in->name, attn_error_name(code));
}

/* Which features the problem needs of the backend itself on this device. */
static uint64_t needed_features(const attn_problem_t *problem, const attn_device_t *device) {
    uint64_t needed = attn_problem_features(problem);
    /*
     * The core adds sink tokens by rewriting batches, and splits chunks where it can write the tables, that
     * is on CPUs.
     */
    if (problem->static_sink_len) needed &= ~ATTN_F_STATIC_SINK;
    if (problem->chunk_size && device && device->type != kDLCPU)
        needed |= ATTN_F_CHUNKED_LOCAL;
    else if (problem->chunk_size)
        needed &= ~ATTN_F_CHUNKED_LOCAL;
    return needed;
}

/* Over ranks the core gathers and joins, so the backend is asked for one rank's problem: all heads over its
 * keys. What cannot be split is refused whatever the backend. */
static int take_ranks(const attn_backend_t *backend, attn_problem_t *problem, const attn_device_t *device,
                      const attn_capabilities_t *caps, attn_reasons_t *reasons) {
    char text[160], have[64];
    if (problem->dcp_world_size <= 1) return 1;
    snprintf(have, sizeof have, "%u", problem->dcp_world_size);
    if (device && device->type != kDLCPU && !attni_merge_kind(device->type)) {
        attn_add_reason(reasons, ATTN_REASON_FEATURE, "dcp_world_size", have,
                        "1, or a loaded plugin that merges on the device",
                        "%s: no loaded plugin joins the results of ranks on %s (extension %s)", backend->name,
                        attni_device_text(device->type, 0, text, sizeof text), ATTN_MERGE_EXTENSION);
        return 0;
    }
    const int is_device = device ? device->type != kDLCPU : !(caps->device_types & ATTN_BIT(kDLCPU));
    const char *param = attni_ranks_refusal(problem, is_device, text, sizeof text);
    if (param) {
        attn_add_reason(reasons, ATTN_REASON_FEATURE, param, have, "dcp_world_size 1", "%s", text);
        return 0;
    }
    attn_problem_t inner;
    attni_ranks_inner(problem, caps->features, caps->out_dtypes, &inner);
    *problem = inner;
    return 1;
}

static void check_all(const struct check *in) {
    check_head_size(in);
    check_dtype(in);
    check_kv_cache_dtype(in);
    check_block_size(in);
    check_feature(in, ATTN_F_MM_PREFIX, ATTN_REASON_MM_PREFIX, "mm_prefix",
                  "partial multimodal full attention");
    check_kind(in, ATTN_REASON_MLA);
    check_feature(in, ATTN_F_SINK, ATTN_REASON_SINK, "sink", "attention sinks");
    check_kind(in, ATTN_REASON_SPARSE);
    check_feature(in, ATTN_F_PER_HEAD_SCALES, ATTN_REASON_PER_HEAD_SCALES, "per_head_scales",
                  "quantisation scales per head");
    check_compute_capability(in);
    check_kind(in, ATTN_REASON_ATTN_TYPE);
    check_feature(in, ATTN_F_SLIDING_WINDOW, ATTN_REASON_SLIDING_WINDOW, "sliding_window", "sliding windows");
    check_feature(in, ATTN_F_NON_CAUSAL, ATTN_REASON_NON_CAUSAL, "non_causal",
                  "non-causal decoder attention");
    check_feature(in, ATTN_F_BATCH_INVARIANT, ATTN_REASON_BATCH_INVARIANCE, "batch_invariant",
                  "batch invariance");
    check_feature(in, ATTN_F_KV_CONNECTOR, ATTN_REASON_KV_CONNECTOR, "kv_connector", "KV connectors");
    check_other_features(in);
    check_device(in);
    check_head_count(in);
    check_out_dtype(in);
    check_layout(in);
    check_combination(in);
}

int attn_backend_validate(const attn_backend_t *backend, const attn_problem_t *problem,
                          const attn_device_t *device, attn_reasons_t *reasons, attn_error_t *error) {
    if (!backend || !backend->name)
        return attn_fail(error, ATTN_E_INVALID, "backend",
                         "backend is NULL; take one from attn_context_backend");
    if (!reasons || reasons->struct_size < sizeof *reasons)
        return attn_fail(error, ATTN_E_INVALID, "reasons", "reasons is NULL or its struct_size is not set");
    attn_problem_t taken;
    attn_device_t taken_device;
    int code = attn_problem_check(problem, error);
    if (code == ATTN_OK) code = attn_intake(&taken, sizeof taken, problem, "problem", error);
    if (code == ATTN_OK && device)
        code = attn_intake_known(&taken_device, sizeof taken_device, device, "device", error);
    if (code != ATTN_OK) return code;
    const attn_capabilities_t caps = attni_capabilities(backend);
    reasons->count = 0;
    if (!take_ranks(backend, &taken, device ? &taken_device : NULL, &caps, reasons)) return ATTN_OK;
    struct check in = {.backend = backend,
                       .name = backend->name,
                       .caps = caps,
                       .problem = &taken,
                       .needed = needed_features(&taken, device ? &taken_device : NULL),
                       .device = device ? &taken_device : NULL,
                       .reasons = reasons};
    check_all(&in);
    return ATTN_OK;
}
