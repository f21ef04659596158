/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hook_check.c: inspects everything that a CPU call gets and returns. Level index: lengths, indices and
 * slots. Level all: also NaN in inputs and outputs, workspaces filled with NaN before every call, metadata
 * filled with garbage before it is built, and known bytes behind each buffer and output that must not change.
 * Errors name the parameter.
 */
#include "hook/hook.h"
#include "hook/hook_inspect.h"
#include "base/arith.h"
#include <attn/attn_plugin_util.h>

#include <stdlib.h>

enum {
    CANARY_BYTES = 64,
    CANARY = 0xC7,
    REMEMBERED = 16,
    POISON = 0xFF /* a NaN in every floating point type */
};

struct check {
    struct attni_hook hook;
    int everything;
    attn_space_needed_t inner; /* what the next stage needs */
    /* tokens of the batches that were built, by the address of their metadata */
    struct {
        const void *metadata;
        int32_t tokens;
        int64_t key_rows; /* of the call that were all written: those of tokens, or of keys */
        int64_t longest;
    } built[REMEMBERED];
    unsigned next_built;
    uint8_t *slot_seen; /* one bit for each slot of the cache; NULL: num_blocks unknown */
    int64_t num_slots;
};

static struct check *check_of(attn_instance_t *i) {
    return (struct check *)(void *)i;
}

/* ---------------------------------------------------------------- canaries */

static uint64_t padded(uint64_t bytes) {
    return bytes > 0 ? (bytes + CANARY_BYTES - 1) / CANARY_BYTES * CANARY_BYTES : 0;
}

/* A buffer of `bytes` for the backend with the canary behind its end. */
static void prepare(void *buffer, uint64_t bytes, int fill) {
    if (buffer == NULL || bytes == 0) return;
    if (fill >= 0) memset(buffer, fill, bytes);
    memset((char *)buffer + bytes, CANARY, padded(bytes) + CANARY_BYTES - bytes);
}

static int inspect(const struct check *c, const void *buffer, uint64_t bytes, const char *name,
                   attn_error_t *error) {
    const unsigned char *end = (const unsigned char *)buffer + bytes;
    if (buffer == NULL || bytes == 0) return ATTN_OK;
    for (uint64_t i = 0; i < padded(bytes) + CANARY_BYTES - bytes; i++)
        if (end[i] != CANARY)
            BROKEN(name, "%s wrote %llu bytes beyond the end of space.%s, which has %llu",
                   c->hook.group->backend->shown.name, (unsigned long long)i + 1, name,
                   (unsigned long long)bytes);
    return ATTN_OK;
}

static int inspect_all(const struct check *c, const attn_space_t *s, attn_error_t *error) {
    int code = inspect(c, s->metadata, c->inner.metadata_bytes, "metadata", error);
    if (code == ATTN_OK) code = inspect(c, s->workspace, c->inner.workspace_bytes, "workspace", error);
    return code != ATTN_OK ? code : inspect(c, s->host, c->inner.host_bytes, "host", error);
}

static int check_space(attn_instance_t *i, attn_space_needed_t *needed, attn_error_t *error) {
    struct check *c = check_of(i);
    int code = c->hook.next.ops.space_needed(c->hook.next.instance, needed, error);
    c->inner = *needed;
    if (code != ATTN_OK || !c->everything) return code;
    uint64_t *bytes[] = {&needed->metadata_bytes, &needed->workspace_bytes, &needed->host_bytes};
    for (int k = 0; k < 3; k++)
        if (*bytes[k] > 0) *bytes[k] = padded(*bytes[k]) + CANARY_BYTES;
    return code;
}

/* The space as the next stage needs it. */
static attn_space_t trimmed(const struct check *c, const attn_space_t *s) {
    attn_space_t t = *s;
    if (!c->everything) return t;
    t.metadata_bytes = c->inner.metadata_bytes;
    t.workspace_bytes = c->inner.workspace_bytes;
    t.host_bytes = c->inner.host_bytes;
    return t;
}

/* ------------------------------------------------------------------ indices */

/* Two new tokens in one slot: one of them would be lost. */
static int check_slots(struct check *c, const DLTensor *t, int64_t n, attn_error_t *error) {
    int code = ATTN_OK;
    if (t->device.device_type != kDLCPU || c->slot_seen == NULL) return ATTN_OK;
    const int64_t *slot = (const int64_t *)attn_data(t);
    int64_t i = 0;
    for (; i < n && code == ATTN_OK; i++) {
        if (slot[i] < 0) continue;
        if (slot[i] >= c->num_slots)
            code = attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                             "[hook check] slot_mapping[%lld] is %lld; the cache has %lld", (long long)i,
                             (long long)slot[i], (long long)c->num_slots);
        else if ((c->slot_seen[slot[i] / 8] >> (slot[i] % 8)) & 1)
            code = attn_fail(
                error, ATTN_E_INVALID, "slot_mapping",
                "[hook check] duplicate slot %lld in slot_mapping, again at %lld; one token would be lost",
                (long long)slot[i], (long long)i);
        else
            c->slot_seen[slot[i] / 8] |= (uint8_t)(1u << (slot[i] % 8));
    }
    while (i-- > 0)
        if (slot[i] >= 0 && slot[i] < c->num_slots) c->slot_seen[slot[i] / 8] = 0;
    return code;
}

/* The host's lengths are bounds (semantics 1.6): which rows of a call have content is not known here. */
static int has_device_lengths(const struct check *c) {
    return (c->hook.group->features & ATTN_F_DEVICE_LENGTHS) != 0;
}

static int check_batch(struct check *c, const attn_batch_t *b, attn_error_t *error) {
    int code = ATTN_OK;
    if (!has_device_lengths(c)) /* which need not be what they will be in forward */
        code = attni_inspect_list(b->query_start_loc, b->query_start_loc_host, b->num_reqs + 1,
                                  "query_start_loc", error);
    if (code == ATTN_OK && !has_device_lengths(c))
        code = attni_inspect_list(b->seq_lens, b->seq_lens_host, b->num_reqs, "seq_lens", error);
    if (code == ATTN_OK)
        code = attni_inspect_list(b->rswa_prefix_lens, b->rswa_prefix_lens_host, b->num_reqs,
                                  "rswa_prefix_lens", error);
    const int is_cross = c->hook.group->problem.role == ATTN_ROLE_ENCODER_DECODER;
    if (code == ATTN_OK && b->slot_mapping != NULL) /* a cross batch has the encoder's, however many */
        code = check_slots(c, b->slot_mapping, is_cross ? b->slot_mapping->shape[0] : b->num_actual_tokens,
                           error);
    for (int32_t r = 0;
         code == ATTN_OK && b->causal != NULL && b->causal->device.device_type == kDLCPU && r < b->num_reqs;
         r++) {
        const int32_t *causal = (const int32_t *)attn_data(b->causal);
        if ((causal[r] != 0) != (b->causal_host[r] != 0))
            WRONG("causal", "causal[%d] is %d in the tensor and %d in causal_host", (int)r, (int)causal[r],
                  (int)b->causal_host[r]);
    }
    return code;
}

/* -------------------------------------------------------------------- calls */

static int check_plan(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *s, void *stream,
                      int is_table, attn_error_t *error) {
    struct check *c = check_of(i);
    const struct attni_stage *next = &c->hook.next;
    attn_space_t inner = trimmed(c, s);
    int code = check_batch(c, b, error);
    if (code != ATTN_OK) return code;
    if (c->everything) {
        prepare(inner.metadata, inner.metadata_bytes, is_table ? -1 : POISON);
        prepare(inner.host, inner.host_bytes, is_table ? -1 : POISON);
        prepare(inner.workspace, inner.workspace_bytes, POISON);
    }
    code = (is_table ? next->ops.update_block_table : next->ops.build_metadata)(next->instance, b, &inner,
                                                                                stream, error);
    if (code != ATTN_OK) return code;
    unsigned at = 0;
    while (at < REMEMBERED && c->built[at].metadata != s->metadata)
        at++;
    if (at == REMEMBERED) at = c->next_built++ % REMEMBERED;
    c->built[at].metadata = s->metadata;
    c->built[at].tokens = b->num_actual_tokens;
    c->built[at].key_rows = b->key_start_loc_host != NULL ? 0 : b->num_actual_tokens;
    c->built[at].longest = 0;
    for (int32_t r = 0; r < b->num_reqs; r++) {
        c->built[at].longest = attni_max64(c->built[at].longest, b->seq_lens_host[r]);
        /* up to the first row that is no key (semantics 2.16) */
        if (b->key_start_loc_host != NULL && c->built[at].key_rows == b->key_start_loc_host[r])
            c->built[at].key_rows += b->seq_lens_host[r];
    }
    return c->everything ? inspect_all(c, &inner, error) : ATTN_OK;
}

static int check_build(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *s, void *stream,
                       attn_error_t *error) {
    return check_plan(i, b, s, stream, 0, error);
}

static int check_table(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *s, void *stream,
                       attn_error_t *error) {
    return check_plan(i, b, s, stream, 1, error);
}

static int check_update(attn_instance_t *i, const attn_kv_update_t *a, void *stream, attn_error_t *error) {
    struct check *c = check_of(i);
    int64_t rows = a->slot_mapping->shape[0];
    int code = check_slots(c, a->slot_mapping, rows, error);
    if (code == ATTN_OK && c->everything) code = attni_inspect_values(a->key, rows, "key", 0, error);
    if (code == ATTN_OK && c->everything) code = attni_inspect_values(a->value, rows, "value", 0, error);
    return code != ATTN_OK ? code : c->hook.next.ops.update_kv_cache(c->hook.next.instance, a, stream, error);
}

static int check_inputs(const attn_forward_t *a, int64_t rows, int64_t key_rows, attn_error_t *error) {
    int code = attni_inspect_values(a->query, rows, "query", 0, error);
    if (code == ATTN_OK) code = attni_inspect_values(a->key, key_rows, "key", 0, error);
    if (code == ATTN_OK) code = attni_inspect_values(a->value, key_rows, "value", 0, error);
    return code;
}

static int check_forward(attn_instance_t *i, const attn_forward_t *a, const attn_space_t *s, void *stream,
                         attn_error_t *error) {
    struct check *c = check_of(i);
    const struct attni_stage *next = &c->hook.next;
    if (s == NULL) return next->ops.forward(next->instance, a, s, stream, error);
    int at = 0;
    while (at < REMEMBERED && c->built[at].metadata != s->metadata)
        at++;
    if (at == REMEMBERED)
        return attn_fail(error, ATTN_E_STATE, "space",
                         "[hook check] space.metadata was not built by this group");
    int64_t rows = c->built[at].tokens;
    if (a->query->shape[0] < rows || a->output->shape[0] < rows)
        WRONG(a->query->shape[0] < rows ? "query" : "output",
              "query has %lld rows and output %lld; the batch has %lld tokens", (long long)a->query->shape[0],
              (long long)a->output->shape[0], (long long)rows);
    int code = attni_inspect_topk(a->topk_indices, rows, c->built[at].longest, error);
    if (code != ATTN_OK) return code;
    attn_space_t inner = trimmed(c, s);
    if (!c->everything || has_device_lengths(c))
        return next->ops.forward(next->instance, a, &inner, stream, error);
    code = check_inputs(a, rows, c->built[at].key_rows, error);
    if (code != ATTN_OK) return code;
    prepare(inner.workspace, inner.workspace_bytes, POISON);
    uint64_t before = attni_inspect_padding(a->output, rows);
    code = next->ops.forward(next->instance, a, &inner, stream, error);
    if (code == ATTN_OK) code = inspect_all(c, &inner, error);
    if (code == ATTN_OK && attni_inspect_padding(a->output, rows) != before)
        BROKEN("output", "%s wrote output rows at or beyond num_actual_tokens (%lld)",
               c->hook.group->backend->shown.name, (long long)rows);
    if (code == ATTN_OK) code = attni_inspect_values(a->output, rows, "output", 1, error);
    return code != ATTN_OK ? code : attni_inspect_lse(a->lse, rows, error);
}

static void check_close(attn_instance_t *i) {
    struct check *c = check_of(i);
    c->hook.next.ops.close(c->hook.next.instance);
    free(c->slot_seen);
    free(c);
}

int attni_hook_check_open(attn_group_t *group, struct attni_stage *stage, int everything,
                          attn_error_t *error) {
    const attn_problem_t *p = &group->inner;
    if (group->device.type != kDLCPU) {
        attni_log(&group->context->log, ATTN_LOG_WARN,
                  "[hook check] inspects CPU tensors only; the group on %s runs without it",
                  group->device.name);
        return ATTN_OK;
    }
    struct check *c = calloc(1, sizeof *c);
    if (c == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the check hook");
    c->everything = everything;
    c->num_slots = attn_role_has_cache(p->role) ? p->num_blocks * (int64_t)p->block_size : 0;
    if (c->num_slots > 0) {
        c->slot_seen = calloc(1, (size_t)(c->num_slots / 8 + 1));
        if (c->slot_seen == NULL) {
            free(c);
            return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the check hook");
        }
    }
    attn_backend_ops_t ops = attni_hook_pass(stage);
    ops.close = check_close;
    ops.space_needed = check_space;
    ops.build_metadata = check_build;
    ops.forward = check_forward;
    if (stage->ops.update_block_table != NULL) ops.update_block_table = check_table;
    if (ops.update_kv_cache != NULL) ops.update_kv_cache = check_update;
    attni_hook_insert(&c->hook, group, stage, ops);
    return ATTN_OK;
}
