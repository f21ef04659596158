/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group_phases.c: one backend for batches that hold prefill and another for decode, over one cache (semantics
 * 5.8). Each is a whole group inside, with its own instance and hooks; the outer one is that of decode, has
 * the layers, and hands each batch and each metadata to the one that it belongs to.
 */
#include "group/group.h"
#include "group/ranks.h"
#include "select/select_rules.h"

/* One phase: who serves it, and who said so. */
struct choice {
    uint32_t phase;
    attn_selection_t *record;         /* of the backend named for the phase, or NULL */
    const attn_selection_t *selected; /* record, or that of the choice for all batches */
    int is_strict;                    /* it is that backend or an error */
    char note[480];                   /* why the named ones were not taken */
};

static const char *phase_name(uint32_t phase) {
    return phase == ATTN_PHASE_DECODE ? "decode" : "prefill";
}

/* "A: reason; B: reason" of a list that serves nobody. */
static void note_refusals(struct choice *c, const attn_selection_t *base) {
    const attn_selection_t *s = c->record;
    size_t used =
        (size_t)snprintf(c->note, sizeof c->note, "%s does %s too, since of the backends named (%s)",
                         base->backend->name, phase_name(c->phase), s->source);
    for (uint32_t i = 0; i < s->num_candidates && used < sizeof c->note; i++)
        if (s->candidates[i].num_reasons != 0)
            used += (size_t)snprintf(c->note + used, sizeof c->note - used, "%s %.60s does not serve: %.200s",
                                     i == 0 ? "" : ";", s->candidates[i].backend,
                                     s->candidates[i].reasons[0].text);
}

static int choose(const attn_context_t *context, const attn_problem_t *problem, const attn_device_t *device,
                  const attn_selection_t *base, struct choice *c, attn_error_t *error) {
    int code = attn_select_phase(context, problem, device, c->phase, &c->record, error);
    const int is_named = code == ATTN_OK && c->record != NULL && c->record->backend != NULL;
    c->selected = is_named ? c->record : base;
    c->is_strict = is_named && strcmp(c->record->rule, "explicit") == 0 &&
                   strcmp(attni_config_get(&context->config, "attn", "fallback"), "error") == 0;
    if (code == ATTN_OK && c->record != NULL && !is_named) note_refusals(c, base);
    return code;
}

/* What has to be equal where two backends read and write the same pages through the same layers. */
static int check_agreement(const attn_group_t *g, const attn_group_t *h, attn_error_t *error) {
    const attn_kv_cache_shape_t *a = &g->shape, *b = &h->shape;
    const char *one = g->backend->shown.name, *other = h->backend->shown.name;
    const int is_same_form = a->ndim == b->ndim && memcmp(a->shape, b->shape, sizeof a->shape) == 0 &&
                             memcmp(a->byte_strides, b->byte_strides, sizeof a->byte_strides) == 0 &&
                             memcmp(a->axes, b->axes, sizeof a->axes) == 0 && a->page_bytes == b->page_bytes;
    if (!is_same_form || a->layout_id != b->layout_id || a->fingerprint != b->fingerprint)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "kv_cache_shape",
                         "the caches of %s (layout %u, %016llx, pages of %lld bytes) and %s (layout %u, "
                         "%016llx, %lld bytes) differ, so they cannot share one",
                         one, (unsigned)a->layout_id, (unsigned long long)a->fingerprint,
                         (long long)a->page_bytes, other, (unsigned)b->layout_id,
                         (unsigned long long)b->fingerprint, (long long)b->page_bytes);
    if (memcmp(&g->problem, &h->problem, sizeof g->problem) != 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "problem",
                         "%s and %s fill the defaults of the problem in differently", one, other);
    if (g->backend->capabilities.forward_writes_cache != h->backend->capabilities.forward_writes_cache)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "forward_writes_cache",
                         "of %s and %s only one writes the cache in forward", one, other);
    if (g->wrap.sink_len != h->wrap.sink_len)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "static_sink_len",
                         "of %s and %s only one has static sink tokens of its own", one, other);
    const uint32_t order = h->backend->capabilities.reorder_threshold;
    if (order != 0 && order != g->backend->capabilities.reorder_threshold)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "reorder_threshold",
                         "%s wants batches in an order (up to %u tokens first) that %s does not", other,
                         (unsigned)order, one);
    return ATTN_OK;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Buffers serve either; prepared weights of both lie one behind the other. */
static void join(attn_group_t *g, attn_group_t *h) {
    attn_space_needed_t both = g->needed;
    const attn_space_needed_t *more = &h->needed;
    both.alignment = (uint32_t)larger(both.alignment, more->alignment);
    /* forward knows by its address whose plan it gets */
    both.metadata_bytes = larger(larger(both.metadata_bytes, more->metadata_bytes), 1);
    both.workspace_bytes = larger(both.workspace_bytes, more->workspace_bytes);
    both.host_bytes = larger(both.host_bytes, more->host_bytes);
    if (more->weight_bytes != 0) {
        const uint64_t unit = larger(both.alignment, 1);
        g->prefill_weights_at = (both.weight_bytes + unit - 1) / unit * unit;
        both.weight_bytes = g->prefill_weights_at + more->weight_bytes;
    }
    g->needed = h->needed = both;
    if (h->kind == g->kind) h->kind ^= 1; /* by chance, once in 2^16 */
    g->prefill = h;
    g->is_plain = 0;
    attni_log(&g->context->log, ATTN_LOG_INFO,
              "group: decode by %s, prefill by %s, over one cache (layout %u, %016llx)",
              g->backend->shown.name, h->backend->shown.name, (unsigned)g->shape.layout_id,
              (unsigned long long)g->shape.fingerprint);
}

/* The second backend beside an opened one, with the pages that this one has. */
static int open_prefill(const struct choice *c, attn_group_t *g, const attn_problem_t *problem,
                        attn_error_t *error) {
    attn_group_t *h = NULL;
    if (g->ranks != NULL)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "dcp_world_size",
                         "over ranks a group has one backend, not %s and %s", g->backend->shown.name,
                         c->selected->backend->name);
    int code = attni_group_open_one(g->context, problem, &g->device, c->selected, &h, error);
    if (code == ATTN_OK) code = check_agreement(g, h, error);
    if (code == ATTN_OK)
        join(g, h);
    else if (h != NULL)
        attni_group_free(h);
    return code;
}

/* Why two backends are not taken, in the record and in the log. */
static void warn(const attn_context_t *context, attn_selection_t *selection, const char *text) {
    if (text[0] == '\0') return;
    const int is_quiet = strcmp(attni_config_get(&context->config, "attn", "fallback"), "quiet") == 0;
    attni_selection_warn(selection, text);
    attni_log(&context->log, is_quiet ? ATTN_LOG_INFO : ATTN_LOG_WARN, "group: %s", text);
}

static void take_record(attn_selection_t **selection, struct choice *decode) {
    attn_selection_t *const base = *selection;
    if (decode->selected == base) return;
    *selection = decode->record;
    decode->record = NULL;
    attn_selection_free(base);
}

int attni_group_open_phases(attn_context_t *context, const attn_problem_t *problem,
                            const attn_device_t *device, attn_selection_t **selection, attn_group_t **group,
                            attn_error_t *error) {
    struct choice decode = {.phase = ATTN_PHASE_DECODE}, prefill = {.phase = ATTN_PHASE_PREFILL};
    attn_selection_t *const base = *selection;
    ATTN_INIT(attn_error_t, why);
    attn_group_t *g = NULL;
    if (strcmp(base->source, "api") == 0 || !attn_role_has_cache(problem->role))
        return attni_group_open_one(context, problem, device, base, group, error);
    int code = choose(context, problem, device, base, &decode, error);
    if (code != ATTN_OK) goto end;
    code = attni_group_open_one(context, problem, device, decode.selected, &g, &why);
    if (code == ATTN_OK) {
        attn_problem_t with_pages = *problem;
        with_pages.block_size = g->problem.block_size;
        with_pages.kv_layout = g->problem.kv_layout;
        code = choose(context, &with_pages, device, base, &prefill, error);
        if (code != ATTN_OK) goto end;
        if (prefill.selected->backend != &g->backend->shown)
            code = open_prefill(&prefill, g, &with_pages, &why);
    }
    if (code == ATTN_OK) {
        take_record(selection, &decode);
    } else if ((decode.record == NULL && prefill.record == NULL) || decode.is_strict || prefill.is_strict) {
        attn_fail(error, code, why.param, "%s", why.text);
        goto end;
    } else { /* the choice for all batches, alone */
        if (g != NULL && decode.selected != base) {
            attni_group_free(g);
            g = NULL;
        }
        code = g != NULL ? ATTN_OK : attni_group_open_one(context, problem, device, base, &g, error);
        if (code != ATTN_OK) goto end;
        char text[sizeof why.text + 160];
        snprintf(text, sizeof text, "%s does decode and prefill: %s", base->backend->name, why.text);
        warn(context, *selection, text);
    }
    warn(context, *selection, decode.note);
    warn(context, *selection, prefill.note);
    *group = g;
    g = NULL;
end:
    if (g != NULL) attni_group_free(g);
    attn_selection_free(decode.record);
    attn_selection_free(prefill.record);
    return code;
}

/*
 * Whose plan an address holds, of groups of two alone: forward must know, while the slots of metadata_owner.h
 * may forget. A word holds the address with 16 bits of the kind, as there; a set is one cache line, so that
 * an address is lost only when more than WAYS of its set have been built since.
 */
enum { SET_BITS = 8, WAYS = 8 };
static _Atomic uint64_t owners[1 << SET_BITS][WAYS];
static atomic_uint next_way;

static _Atomic uint64_t *set_of(const void *metadata) {
    return owners[(uint64_t)(uintptr_t)metadata * UINT64_C(0x9e3779b97f4a7c15) >> (64 - SET_BITS)];
}

void attni_phase_note(const attn_group_t *g, const void *metadata) {
    const uint64_t address = (uint64_t)(uintptr_t)metadata, word = address << 16 | g->kind;
    _Atomic uint64_t *const set = set_of(metadata);
    if (address >> 48 != 0) return;
    for (int i = 0; i < WAYS; i++)
        if (atomic_load(&set[i]) >> 16 == address) {
            atomic_store(&set[i], word);
            return;
        }
    for (int i = 0; i < WAYS; i++) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&set[i], &none, word)) return;
    }
    atomic_store(&set[atomic_fetch_add(&next_way, 1) % WAYS], word);
}

attn_group_t *attni_phase_owner(attn_group_t *g, const void *metadata, attn_error_t *error) {
    const uint64_t address = (uint64_t)(uintptr_t)metadata;
    const _Atomic uint64_t *const set = set_of(metadata);
    for (int i = 0; i < WAYS; i++) {
        const uint64_t word = atomic_load(&set[i]);
        if (word == 0 || word >> 16 != address) continue;
        if ((word & 0xffff) == g->kind) return g;
        if ((word & 0xffff) == g->prefill->kind) return g->prefill;
    }
    attn_fail(error, ATTN_E_STATE, "metadata",
              "space.metadata was not built last by a group of these two backends, %s and %s, with this "
              "problem and these options, or too long ago; build it with attn_group_build_metadata",
              g->backend->shown.name, g->prefill->backend->shown.name);
    return NULL;
}

uint32_t attni_phase_of(const attn_group_t *g, const attn_batch_t *b) {
    if ((b->flags & ATTN_BATCH_CAPTURE) != 0) return ATTN_PHASE_DECODE;
    for (int32_t r = 0; r < b->num_reqs; r++)
        if (b->query_start_loc_host[r + 1] - b->query_start_loc_host[r] > g->decode_len)
            return ATTN_PHASE_PREFILL;
    return ATTN_PHASE_DECODE;
}

uint32_t attn_group_phase(const attn_group_t *group, const attn_batch_t *batch) {
    attn_batch_t b;
    if (attni_group_check(group, NULL) != ATTN_OK ||
        attn_intake(&b, sizeof b, batch, "batch", NULL) != ATTN_OK ||
        (b.num_reqs > 0 && b.query_start_loc_host == NULL))
        return 0;
    return attni_phase_of(group, &b);
}

const attn_backend_t *attn_group_phase_backend(const attn_group_t *group, uint32_t phase) {
    if (group == NULL || (phase != ATTN_PHASE_DECODE && phase != ATTN_PHASE_PREFILL)) return NULL;
    const int is_second = phase == ATTN_PHASE_PREFILL && group->prefill != NULL;
    return &(is_second ? group->prefill : group)->backend->shown;
}
