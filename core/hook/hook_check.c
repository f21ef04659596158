/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hook_check.c: inspects everything that a call gets and returns. Level index: lengths, indices and
 * slots. Level all: also NaN in inputs and outputs, workspaces filled with NaN before every call, metadata
 * filled with garbage before it is built, and known bytes behind each buffer and output that must not change.
 * Errors name the parameter. Tensors of a device are copied to the host, behind the engine's stream, and the
 * call waits for them; in a stream that is being captured that is impossible, and the call passes.
 */
#include "hook/hook.h"
#include "hook/hook_inspect.h"
#include "hook/host_copy.h"
#include "device/device.h"
#include "base/arith.h"
#include <attn/attn_plugin_util.h>

#include <stdlib.h>

enum {
    CANARY_BYTES = 64,
    CANARY = 0xC7,
    REMEMBERED = 16,
    NO_FILL = -1,
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

static int is_of_host(const struct check *c) {
    return c->hook.group->device.type == kDLCPU;
}

/* A buffer of `bytes` for the backend with the canary behind its end. */
static int prepare(const struct check *c, void *buffer, uint64_t bytes, int fill, int is_host, void *stream,
                   attn_error_t *error) {
    const uint64_t behind = padded(bytes) + CANARY_BYTES - bytes;
    if (buffer == NULL || bytes == 0) return ATTN_OK;
    if (is_host) {
        if (fill != NO_FILL) memset(buffer, fill, bytes);
        memset((char *)buffer + bytes, CANARY, behind);
        return ATTN_OK;
    }
    const attn_device_t *d = &c->hook.group->device;
    const attn_device_kind_t *kind = attn_device_kind(d->type);
    int code = ATTN_OK;
    if (fill != NO_FILL) code = kind->fill(d->id, buffer, (uint8_t)fill, bytes, stream, error);
    if (code == ATTN_OK) code = kind->fill(d->id, (char *)buffer + bytes, CANARY, behind, stream, error);
    return code;
}

static int prepare_all(const struct check *c, const attn_space_t *s, int fill, void *stream,
                       attn_error_t *error) {
    const int is_host = is_of_host(c);
    int code = prepare(c, s->metadata, s->metadata_bytes, fill, is_host, stream, error);
    if (code == ATTN_OK) code = prepare(c, s->host, s->host_bytes, fill, 1, stream, error);
    return code != ATTN_OK ? code
                           : prepare(c, s->workspace, s->workspace_bytes, POISON, is_host, stream, error);
}

static int inspect(const struct check *c, const void *buffer, uint64_t bytes, const char *name, int is_host,
                   void *stream, attn_error_t *error) {
    unsigned char copy[2 * CANARY_BYTES];
    const unsigned char *end = (const unsigned char *)buffer + bytes;
    const uint64_t behind = padded(bytes) + CANARY_BYTES - bytes;
    if (buffer == NULL || bytes == 0) return ATTN_OK;
    if (!is_host) {
        const int code = attni_device_read(&c->hook.group->device, copy, end, behind, stream, error);
        if (code != ATTN_OK) return code;
        end = copy;
    }
    for (uint64_t i = 0; i < behind; i++)
        if (end[i] != CANARY)
            BROKEN(name, "%s wrote %llu bytes beyond the end of space.%s, which has %llu",
                   c->hook.group->backend->shown.name, (unsigned long long)i + 1, name,
                   (unsigned long long)bytes);
    return ATTN_OK;
}

static int inspect_all(const struct check *c, const attn_space_t *s, void *stream, attn_error_t *error) {
    const int is_host = is_of_host(c);
    int code = inspect(c, s->metadata, c->inner.metadata_bytes, "metadata", is_host, stream, error);
    if (code == ATTN_OK)
        code = inspect(c, s->workspace, c->inner.workspace_bytes, "workspace", is_host, stream, error);
    return code != ATTN_OK ? code : inspect(c, s->host, c->inner.host_bytes, "host", 1, stream, error);
}

/* --------------------------------------------------------- tensors of the device */

/* What one call reads back, one tensor after the other. */
struct look {
    struct check *c;
    void *stream;
    attn_error_t *error;
    struct attni_host_copy copy;
};

/* The first `most` of dimension dim, -1: all. */
static int see_part(struct look *l, const DLTensor *t, const char *name, int dim, int64_t most,
                    const DLTensor **seen) {
    const struct attni_host_read read = {l->c->hook.group, l->stream, dim, most};
    return attni_host_copy(&read, t, name, &l->copy, seen, l->error);
}

static int see(struct look *l, const DLTensor *t, const char *name, int64_t rows, const DLTensor **seen) {
    return see_part(l, t, name, 0, rows, seen);
}

static int look_at_list(struct look *l, const DLTensor *t, const int32_t *host, int64_t n, const char *name) {
    const DLTensor *seen;
    int code = host != NULL ? see(l, t, name, n, &seen) : ATTN_OK;
    return code != ATTN_OK || host == NULL ? code : attni_inspect_list(seen, host, n, name, l->error);
}

static int look_at_values(struct look *l, const DLTensor *t, int64_t rows, const char *name) {
    const DLTensor *seen;
    int code = see(l, t, name, rows, &seen);
    return code != ATTN_OK ? code : attni_inspect_values(seen, rows, name, 0, l->error);
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
static int check_slots(struct look *l, const DLTensor *given, int64_t n) {
    struct check *c = l->c;
    attn_error_t *error = l->error;
    const DLTensor *t = NULL;
    int code = c->slot_seen != NULL ? see(l, given, "slot_mapping", n, &t) : ATTN_OK;
    if (code != ATTN_OK || t == NULL) return code;
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

static int check_causal(struct look *l, const attn_batch_t *b) {
    attn_error_t *error = l->error;
    const DLTensor *t;
    int code = see(l, b->causal, "causal", b->num_reqs, &t);
    if (code != ATTN_OK || t == NULL) return code;
    const int32_t *causal = (const int32_t *)attn_data(t);
    for (int32_t r = 0; r < b->num_reqs; r++)
        if ((causal[r] != 0) != (b->causal_host[r] != 0))
            WRONG("causal", "causal[%d] is %d in the tensor and %d in causal_host", (int)r, (int)causal[r],
                  (int)b->causal_host[r]);
    return ATTN_OK;
}

static int check_batch(struct look *l, const attn_batch_t *b) {
    const struct check *c = l->c;
    int code = ATTN_OK;
    if (!has_device_lengths(c)) /* which need not be what they will be in forward */
        code =
            look_at_list(l, b->query_start_loc, b->query_start_loc_host, b->num_reqs + 1, "query_start_loc");
    if (code == ATTN_OK && !has_device_lengths(c))
        code = look_at_list(l, b->seq_lens, b->seq_lens_host, b->num_reqs, "seq_lens");
    if (code == ATTN_OK)
        code =
            look_at_list(l, b->rswa_prefix_lens, b->rswa_prefix_lens_host, b->num_reqs, "rswa_prefix_lens");
    const int is_cross = c->hook.group->problem.role == ATTN_ROLE_ENCODER_DECODER;
    if (code == ATTN_OK && b->slot_mapping != NULL) /* a cross batch has the encoder's, however many */
        code = check_slots(l, b->slot_mapping, is_cross ? b->slot_mapping->shape[0] : b->num_actual_tokens);
    if (code == ATTN_OK && b->causal_host != NULL) code = check_causal(l, b);
    return code;
}

/* -------------------------------------------------------------------- calls */

static int check_plan(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *s, void *stream,
                      int is_table, attn_error_t *error) {
    struct check *c = check_of(i);
    const struct attni_stage *next = &c->hook.next;
    attn_space_t inner = trimmed(c, s);
    struct look l = {.c = c, .stream = stream, .error = error};
    const int looks = !attni_hook_must_not_read(&c->hook, "check", NULL, b->flags, stream);
    int code = looks ? check_batch(&l, b) : ATTN_OK;
    attni_host_copy_free(&l.copy);
    if (code == ATTN_OK && looks && c->everything)
        code = prepare_all(c, &inner, is_table ? NO_FILL : POISON, stream, error);
    if (code != ATTN_OK) return code;
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
    return looks && c->everything ? inspect_all(c, &inner, stream, error) : ATTN_OK;
}

static int check_build(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *s, void *stream,
                       attn_error_t *error) {
    return check_plan(i, b, s, stream, 0, error);
}

static int check_table(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *s, void *stream,
                       attn_error_t *error) {
    return check_plan(i, b, s, stream, 1, error);
}

static int look_at_update(struct look *l, const attn_kv_update_t *a) {
    const int64_t rows = a->slot_mapping->shape[0];
    int code = check_slots(l, a->slot_mapping, rows);
    if (code == ATTN_OK && l->c->everything) code = look_at_values(l, a->key, rows, "key");
    if (code == ATTN_OK && l->c->everything) code = look_at_values(l, a->value, rows, "value");
    return code;
}

static int check_update(attn_instance_t *i, const attn_kv_update_t *a, void *stream, attn_error_t *error) {
    struct check *c = check_of(i);
    const attn_group_t *g = c->hook.group;
    struct look l = {.c = c, .stream = stream, .error = error};
    int code = ATTN_OK;
    if (!attni_hook_must_not_read(&c->hook, "check", g->calling, g->built_flags, stream))
        code = look_at_update(&l, a);
    attni_host_copy_free(&l.copy);
    return code != ATTN_OK ? code : c->hook.next.ops.update_kv_cache(c->hook.next.instance, a, stream, error);
}

/* Before the call: its indices, on level all its inputs, and what its output has behind the batch's rows. */
static int look_at_inputs(struct look *l, const attn_forward_t *a, int at, int with_values,
                          uint64_t *padding) {
    const int64_t rows = l->c->built[at].tokens, key_rows = l->c->built[at].key_rows;
    const DLTensor *t;
    int code = see(l, a->topk_indices, "topk_indices", rows, &t);
    if (code == ATTN_OK) code = attni_inspect_topk(t, rows, l->c->built[at].longest, l->error);
    if (code == ATTN_OK && a->slot_mapping != NULL) /* it writes them first */
        code = check_slots(l, a->slot_mapping, a->slot_mapping->shape[0]);
    if (code != ATTN_OK || !with_values) return code;
    code = look_at_values(l, a->query, rows, "query");
    if (code == ATTN_OK) code = look_at_values(l, a->key, key_rows, "key");
    if (code == ATTN_OK) code = look_at_values(l, a->value, key_rows, "value");
    if (code == ATTN_OK) code = see(l, a->output, "output", -1, &t);
    if (code == ATTN_OK) *padding = attni_inspect_padding(t, rows);
    return code;
}

/* After it. */
static int look_at_outputs(struct look *l, const attn_forward_t *a, int64_t rows, uint64_t padding) {
    attn_error_t *error = l->error;
    const DLTensor *t;
    int code = see(l, a->output, "output", -1, &t);
    if (code == ATTN_OK && attni_inspect_padding(t, rows) != padding)
        BROKEN("output", "%s wrote output rows at or beyond num_actual_tokens (%lld)",
               l->c->hook.group->backend->shown.name, (long long)rows);
    if (code == ATTN_OK) code = attni_inspect_values(t, rows, "output", 1, error);
    if (code == ATTN_OK) code = see_part(l, a->lse, "lse", 1, rows, &t);
    return code != ATTN_OK ? code : attni_inspect_lse(t, rows, error);
}

static int check_forward(attn_instance_t *i, const attn_forward_t *a, const attn_space_t *s, void *stream,
                         attn_error_t *error) {
    struct check *c = check_of(i);
    const struct attni_stage *next = &c->hook.next;
    if (s == NULL) return next->ops.forward(next->instance, a, s, stream, error);
    const attn_group_t *g = c->hook.group;
    int at = 0;
    while (at < REMEMBERED && c->built[at].metadata != s->metadata)
        at++;
    if (at == REMEMBERED)
        return attn_fail(error, ATTN_E_STATE, "space",
                         "[hook check] space.metadata was not built by this group");
    const int64_t rows = c->built[at].tokens;
    if (a->query->shape[0] < rows || a->output->shape[0] < rows)
        WRONG(a->query->shape[0] < rows ? "query" : "output",
              "query has %lld rows and output %lld; the batch has %lld tokens", (long long)a->query->shape[0],
              (long long)a->output->shape[0], (long long)rows);
    attn_space_t inner = trimmed(c, s);
    if (attni_hook_must_not_read(&c->hook, "check", g->calling, g->built_flags, stream))
        return next->ops.forward(next->instance, a, &inner, stream, error);
    struct look l = {.c = c, .stream = stream, .error = error};
    const int with_values = c->everything && !has_device_lengths(c);
    uint64_t padding = 0;
    int code = look_at_inputs(&l, a, at, with_values, &padding);
    if (code == ATTN_OK && with_values)
        code = prepare(c, inner.workspace, inner.workspace_bytes, POISON, is_of_host(c), stream, error);
    if (code == ATTN_OK) code = next->ops.forward(next->instance, a, &inner, stream, error);
    if (code == ATTN_OK && with_values) code = inspect_all(c, &inner, stream, error);
    if (code == ATTN_OK && with_values) code = look_at_outputs(&l, a, rows, padding);
    attni_host_copy_free(&l.copy);
    return code;
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
    if (attn_device_kind(group->device.type) == NULL) {
        attni_log(&group->context->log, ATTN_LOG_WARN,
                  "[hook check] cannot reach the memory of %s, whose plugin brings no device kind; the group "
                  "runs without it",
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
