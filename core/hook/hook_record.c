/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hook_record.c: calls of forward, with shapes always and with tensors on request, into one safetensors file
 * that `attn run --replay` executes. The file is collected in memory and written before and after call 1, 2,
 * 4, 8, .. and after the last one: a backend that crashes leaves its inputs behind. Nothing that goes wrong
 * here fails the call.
 */
#include "hook/hook_record.h"
#include "hook/hook.h"
#include "hook/record_call.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { REMEMBERED = 8, PATH_BYTES = 4000 };

/* One per context. */
struct attni_recorder {
    pthread_mutex_t lock;
    atomic_int is_done; /* all calls are recorded, or it has failed */
    struct attni_tensor_file file;
    uint64_t first, calls; /* the calls to record are number first .. first + calls - 1 */
    uint64_t seen, begun, ended;
    int with_tensors, is_unwritten;
    const struct attni_log *log;
    uint64_t weight_bytes; /* of all groups' kept projections, at most file.max_bytes */
    const char *refused;   /* why tensors were last left out: logged once */
    char path[PATH_BYTES];
};

struct record {
    struct attni_hook hook;
    struct attni_recorder *recorder;
    struct attni_seen_batch batches[REMEMBERED];
    unsigned next_batch;
    struct attni_seen_weights *weights; /* of latent layers, with tensors */
};

static struct record *record_of(attn_instance_t *i) {
    return (struct record *)(void *)i;
}

/* What to log once the lock is free, as the engine's log function may call back. */
struct said {
    uint32_t level;
    char text[600];
};

static void say(const struct attni_recorder *c, const struct said *s) {
    if (s->level != 0) attni_log(c->log, s->level, "[hook record] %s", s->text);
}

/* ---------------------------------------------------------------- recording */

static void write_file(struct attni_recorder *c, struct said *s) {
    char count[24];
    snprintf(count, sizeof count, "%llu", (unsigned long long)c->begun);
    int failed = attni_tensor_file_text(&c->file, "calls", count) != 0
                     ? ENOMEM
                     : attni_tensor_file_write(&c->file, c->path);
    c->is_unwritten = 0;
    if (failed == 0) return;
    atomic_store(&c->is_done, 1);
    s->level = ATTN_LOG_WARN;
    snprintf(s->text, sizeof s->text, "%.300s cannot be written: %s; recording ends", c->path,
             strerror(failed));
}

static int is_due(const struct attni_recorder *c) {
    return (c->begun & (c->begun - 1)) == 0 || c->begun == c->calls;
}

static void leave_tensors_out(struct attni_recorder *c, const struct attni_record *r, size_t mark,
                              const char *why, struct said *s) {
    attni_tensor_file_rewind(&c->file, mark);
    attni_record_text(r, "tensors", why);
    if (c->refused == why) return;
    c->refused = why;
    s->level = ATTN_LOG_WARN;
    snprintf(s->text, sizeof s->text, "call %llu: only shapes are recorded: %s", (unsigned long long)c->seen,
             why);
}

/* Before the call. Returns the call's number in the file, or -1: it is not recorded. *has_tensors: whether
 * outputs are wanted. */
static int begin(struct attni_recorder *c, struct attni_record *r, int cache_too, int *has_tensors) {
    struct said s = {0};
    pthread_mutex_lock(&c->lock);
    uint64_t at = c->seen++;
    r->number = -1;
    if (at >= c->first && c->begun < c->calls && !atomic_load(&c->is_done)) {
        size_t before = c->file.num_tensors;
        r->number = (int)c->begun;
        if (attni_record_shapes(r) != 0) {
            attni_tensor_file_rewind(&c->file, before);
            r->number = -1;
            if (c->is_unwritten) write_file(c, &s);
            atomic_store(&c->is_done, 1);
            s.level = ATTN_LOG_WARN;
            snprintf(s.text, sizeof s.text,
                     "out of memory, or max_bytes is reached; recording ends after %llu calls",
                     (unsigned long long)c->begun);
        } else {
            size_t mark = c->file.num_tensors;
            const char *why = c->with_tensors ? attni_record_inputs(r) : NULL;
            if (why == NULL && c->with_tensors && cache_too) why = attni_record_cache(r);
            *has_tensors = c->with_tensors && why == NULL;
            if (why != NULL)
                leave_tensors_out(c, r, mark, why, &s);
            else
                attni_record_text(r, "tensors", c->with_tensors ? "yes" : "no");
            c->begun++;
            c->is_unwritten = 1;
            if (is_due(c)) write_file(c, &s);
        }
    }
    pthread_mutex_unlock(&c->lock);
    say(c, &s);
    return r->number;
}

/* After the call. */
static void end(struct attni_recorder *c, const struct attni_record *r, int code, int cache_too,
                int has_tensors, const attn_error_t *error) {
    struct said s = {0};
    char status[16];
    pthread_mutex_lock(&c->lock);
    size_t mark = c->file.num_tensors;
    const char *why = has_tensors && cache_too ? attni_record_cache(r) : NULL;
    if (why == NULL && has_tensors && code == ATTN_OK) why = attni_record_outputs(r);
    if (why != NULL) leave_tensors_out(c, r, mark, why, &s);
    snprintf(status, sizeof status, "%d", code);
    attni_record_text(r, "status", status);
    if (code != ATTN_OK && error != NULL) attni_record_text(r, "error", error->text);
    c->is_unwritten = 1;
    c->ended++;
    int is_last = c->ended == c->calls;
    if ((is_due(c) || is_last) && !atomic_load(&c->is_done)) write_file(c, &s);
    if (is_last && !atomic_exchange(&c->is_done, 1)) {
        s.level = ATTN_LOG_INFO;
        snprintf(s.text, sizeof s.text, "%.300s has %llu calls; recording ends", c->path,
                 (unsigned long long)c->ended);
    }
    if (c->ended == c->begun && atomic_load(&c->is_done)) attni_tensor_file_free(&c->file);
    pthread_mutex_unlock(&c->lock);
    say(c, &s);
}

/* -------------------------------------------------------------------- calls */

static int record_plan(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *space, void *stream,
                       int is_table, attn_error_t *error) {
    struct record *rec = record_of(i);
    const struct attni_stage *next = &rec->hook.next;
    int code = (is_table ? next->ops.update_block_table : next->ops.build_metadata)(next->instance, b, space,
                                                                                    stream, error);
    if (code != ATTN_OK || atomic_load(&rec->recorder->is_done)) return code;
    unsigned at = 0;
    while (at < REMEMBERED && rec->batches[at].metadata != space->metadata)
        at++;
    if (at == REMEMBERED) at = rec->next_batch++ % REMEMBERED;
    const int may_read = !rec->recorder->with_tensors ||
                         !attni_hook_must_not_read(&rec->hook, "record", NULL, b->flags, stream);
    if (attni_seen_batch_copy(&rec->batches[at], rec->hook.group, b, may_read, stream) == 0)
        rec->batches[at].metadata = space->metadata;
    return code;
}

static int record_build(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *space, void *stream,
                        attn_error_t *error) {
    return record_plan(i, b, space, stream, 0, error);
}

static int record_table(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *space, void *stream,
                        attn_error_t *error) {
    return record_plan(i, b, space, stream, 1, error);
}

static int record_forward(attn_instance_t *i, const attn_forward_t *a, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    struct record *rec = record_of(i);
    struct attni_recorder *c = rec->recorder;
    const struct attni_stage *next = &rec->hook.next;
    const attn_group_t *g = rec->hook.group;
    unsigned at = 0;
    while (space != NULL && at < REMEMBERED && rec->batches[at].metadata != space->metadata)
        at++;
    if (space == NULL || at == REMEMBERED || atomic_load(&c->is_done))
        return next->ops.forward(next->instance, a, space, stream, error);
    /* A forward that writes this step's keys itself is recorded with the cache that it leaves. */
    const int writes = g->backend->capabilities.forward_writes_cache != 0 || a->slot_mapping != NULL;
    int cache_after = writes, has_tensors = 0;
    const struct attni_seen_weights *w = rec->weights;
    while (w != NULL && w->weight_space != a->weight_space)
        w = w->next;
    struct attni_record r = {
        .file = &c->file, .group = g, .batch = &rec->batches[at], .weights = w, .args = a, .stream = stream};
    r.is_capturing =
        c->with_tensors && attni_hook_must_not_read(&rec->hook, "record", g->calling, g->built_flags, stream);
    begin(c, &r, !cache_after, &has_tensors);
    int code = next->ops.forward(next->instance, a, space, stream, error);
    if (r.number >= 0) end(c, &r, code, cache_after, has_tensors, error);
    return code;
}

/* Room for a layer's projection, or 0: the calls of that layer are recorded as shapes. */
static int reserve(struct attni_recorder *c, uint64_t before, uint64_t bytes) {
    pthread_mutex_lock(&c->lock);
    const int fits = c->weight_bytes - before + bytes <= c->file.max_bytes;
    c->weight_bytes += (fits ? bytes : 0) - before;
    pthread_mutex_unlock(&c->lock);
    return fits;
}

static uint64_t bytes_of(const DLTensor *t) {
    uint64_t bytes = t->dtype.bits / 8;
    for (int i = 0; i < t->ndim; i++)
        bytes *= (uint64_t)t->shape[i];
    return bytes;
}

/* A copy that outlives the engine's tensor, of host memory too. */
static int keep(const attn_group_t *g, const DLTensor *t, const char *name, void *stream,
                struct attni_host_copy *copy) {
    static const int32_t all[1] = {0};
    DLTensor whole = *t; /* as the one block of a cache */
    int64_t shape[ATTNI_HOST_COPY_DIMS], strides[ATTNI_HOST_COPY_DIMS];
    if (t->ndim < 1 || t->ndim >= ATTNI_HOST_COPY_DIMS || t->shape == NULL || t->strides == NULL) return -1;
    shape[0] = 1, strides[0] = 1;
    memcpy(shape + 1, t->shape, (size_t)t->ndim * sizeof *shape);
    memcpy(strides + 1, t->strides, (size_t)t->ndim * sizeof *strides);
    whole.ndim++;
    whole.shape = shape;
    whole.strides = strides;
    if (attni_host_copy_blocks(g, &whole, name, 0, all, 1, stream, copy, NULL) != ATTN_OK) return -1;
    copy->t.ndim = t->ndim;
    copy->t.shape = copy->shape + 1;
    copy->t.strides = copy->strides + 1;
    return 0;
}

static void keep_weights(struct record *rec, const attn_weights_t *args, void *stream) {
    const attn_group_t *g = rec->hook.group;
    struct attni_seen_weights *w = rec->weights;
    while (w != NULL && w->weight_space != args->weight_space)
        w = w->next;
    if (w == NULL && (w = calloc(1, sizeof *w)) != NULL) {
        w->next = rec->weights;
        rec->weights = w;
    }
    if (w == NULL) return;
    w->weight_space = NULL; /* unless all of this succeeds */
    attni_host_copy_free(&w->kv_b_proj);
    attni_host_copy_free(&w->scale);
    const uint64_t before = w->bytes, bytes = bytes_of(args->kv_b_proj);
    w->bytes = 0;
    if (!reserve(rec->recorder, before, bytes)) return;
    w->bytes = bytes;
    if (attni_hook_must_not_read(&rec->hook, "record", g->calling, 0, stream) ||
        keep(g, args->kv_b_proj, "kv_b_proj", stream, &w->kv_b_proj) != 0)
        return;
    if (args->kv_b_proj_scale == NULL ||
        keep(g, args->kv_b_proj_scale, "kv_b_proj_scale", stream, &w->scale) == 0)
        w->weight_space = args->weight_space;
}

static int record_prepare(attn_instance_t *i, const attn_weights_t *args, void *stream, attn_error_t *error) {
    struct record *rec = record_of(i);
    const struct attni_stage *next = &rec->hook.next;
    const int code = next->ops.prepare_weights(next->instance, args, stream, error);
    if (code == ATTN_OK && args->kv_b_proj != NULL && args->weight_space != NULL &&
        rec->recorder->with_tensors && !atomic_load(&rec->recorder->is_done))
        keep_weights(rec, args, stream);
    return code;
}

static void record_close(attn_instance_t *i) {
    struct record *rec = record_of(i);
    struct attni_recorder *c = rec->recorder;
    struct said s = {0};
    rec->hook.next.ops.close(rec->hook.next.instance);
    pthread_mutex_lock(&c->lock);
    if (c->is_unwritten && !atomic_load(&c->is_done)) write_file(c, &s);
    pthread_mutex_unlock(&c->lock);
    say(c, &s);
    for (unsigned at = 0; at < REMEMBERED; at++)
        attni_seen_batch_free(&rec->batches[at]);
    for (struct attni_seen_weights *w = rec->weights, *after; w != NULL; w = after) {
        after = w->next;
        reserve(c, w->bytes, 0);
        attni_host_copy_free(&w->kv_b_proj);
        attni_host_copy_free(&w->scale);
        free(w);
    }
    free(rec);
}

/* ------------------------------------------------------------------ opening */

/* "%p" becomes the number of the process, so that each worker of an engine has its own file. */
static int expand_path(const char *file, char *path, size_t size) {
    const char *mark = strstr(file, "%p");
    int n = mark == NULL
                ? snprintf(path, size, "%s", file)
                : snprintf(path, size, "%.*s%ld%s", (int)(mark - file), file, (long)getpid(), mark + 2);
    return n > 0 && (size_t)n < size ? 0 : ENAMETOOLONG;
}

static uint64_t number(const struct attni_config *config, const char *key) {
    const char *text = attni_config_get(config, "hook record", key);
    return text != NULL ? strtoull(text, NULL, 10) : 0;
}

static int make_recorder(attn_context_t *context, const char *file, struct attni_recorder **made,
                         attn_error_t *error) {
    struct attni_recorder *c = calloc(1, sizeof *c);
    if (c == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the recording");
    int failed = expand_path(file, c->path, sizeof c->path);
    char folder[PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", c->path);
    *(strrchr(folder, '/') + 1) = '\0';
    if (failed == 0 && access(folder, W_OK | X_OK) != 0) failed = errno;
    if (failed != 0) {
        free(c);
        return attn_fail(error, ATTN_E_IO, "file",
                         "[hook record] file = %.200s: %s; name a file in a folder that can be written", file,
                         strerror(failed));
    }
    pthread_mutex_init(&c->lock, NULL);
    c->log = &context->log;
    c->first = number(&context->config, "first");
    c->calls = number(&context->config, "calls");
    c->file.max_bytes = number(&context->config, "max_bytes");
    c->with_tensors = attni_config_bool(&context->config, "hook record", "tensors", 0);
    atomic_init(&c->is_done, c->calls == 0);
    if (attni_tensor_file_text(&c->file, "format", "attn-record") != 0 ||
        attni_tensor_file_text(&c->file, "version", "1") != 0 ||
        attni_tensor_file_text(&c->file, "libattn", attn_version()) != 0)
        atomic_store(&c->is_done, 1);
    *made = c;
    return ATTN_OK;
}

void attni_recorder_free(struct attni_recorder *c) {
    if (c == NULL) return;
    attni_tensor_file_free(&c->file);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

int attni_hook_record_open(attn_group_t *group, struct attni_stage *stage, const char *file,
                           attn_error_t *error) {
    attn_context_t *context = group->context;
    int code = ATTN_OK;
    pthread_mutex_lock(&context->lock);
    if (context->recorder == NULL) code = make_recorder(context, file, &context->recorder, error);
    pthread_mutex_unlock(&context->lock);
    if (code != ATTN_OK) return code;
    struct record *rec = calloc(1, sizeof *rec);
    if (rec == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the recording");
    rec->recorder = context->recorder;
    attn_backend_ops_t ops = attni_hook_pass(stage);
    ops.close = record_close;
    ops.build_metadata = record_build;
    ops.forward = record_forward;
    if (stage->ops.update_block_table != NULL) ops.update_block_table = record_table;
    if (ops.prepare_weights != NULL) ops.prepare_weights = record_prepare;
    attni_hook_insert(&rec->hook, group, stage, ops);
    return ATTN_OK;
}
