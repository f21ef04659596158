/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hook_trace.c: every call of a group as one line: of JSON, or (format = chrome) an event of the Trace Event
 * Format, whose array needs no closing bracket. A line goes out in one write at the end of the file, so
 * groups, threads and processes can share it. Times are those of the host: on a GPU, of the submission.
 */
#include "hook/hook.h"

#include <attn/attn_plugin_util.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 4096, SHOWN_REQUESTS = 32, SHOWN_DIMS = 8, REMEMBERED = 8 };

struct trace {
    struct attni_hook hook;
    int fd;
    int is_full;
    uint64_t max_bytes;
    int is_chrome;
    unsigned number; /* of the group in this process */
    /* query tokens, and keys that they can reach, of the batches that were built last */
    struct {
        const void *metadata;
        int64_t tokens, keys;
    } built[REMEMBERED];
    unsigned next_built;
    char path[1024];
};

struct line {
    char text[LINE_BYTES];
    size_t used;
    double started; /* 0: no call, a moment */
};

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

__attribute__((format(printf, 2, 3))) static void add(struct line *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(l->text + l->used, sizeof l->text - l->used, format, args);
    va_end(args);
    l->used += n > 0 ? (size_t)n : 0;
    if (l->used > sizeof l->text - 1) l->used = sizeof l->text - 1;
}

/* Text of ours or of a plugin: quotes and control characters become blanks, which keeps the line JSON. */
static void add_text(struct line *l, const char *key, const char *text) {
    add(l, ",\"%s\":\"", key);
    for (; *text != '\0' && l->used < sizeof l->text - 64; text++)
        l->text[l->used++] = *text == '"' || *text == '\\' || (unsigned char)*text < ' ' ? ' ' : *text;
    add(l, "\"");
}

/* Microseconds as integers: the locale may print a comma. */
static void add_us(struct line *l, const char *key, double us) {
    const long long ns = us > 0 ? (long long)(us * 1e3) : 0;
    add(l, ",\"%s\":%lld.%03lld", key, ns / 1000, ns % 1000);
}

static long thread_number(void) {
    return (long)syscall(SYS_gettid);
}

/* layer: NULL, or whose call it is. started: 0 for what has no duration. */
static void begin(const struct trace *t, struct line *l, const char *event, const char *layer,
                  double started) {
    const double now = now_us();
    l->used = 0;
    l->started = started;
    if (!t->is_chrome) { /* numbers of groups are a process's own */
        add(l, "{\"event\":\"%s\",\"pid\":%ld,\"group\":%u", event, (long)getpid(), t->number);
        add_us(l, "ts", started > 0 ? started : now);
        if (layer != NULL) add_text(l, "layer", layer);
        add_text(l, "backend", t->hook.group->backend->shown.name);
        return;
    }
    add(l, "{\"ph\":\"%s\",\"cat\":\"%s\",\"pid\":%ld,\"tid\":%ld", started > 0 ? "X" : "i", event,
        (long)getpid(), thread_number());
    add_us(l, "ts", started > 0 ? started : now);
    if (started > 0) add_us(l, "dur", now - started);
    add_text(l, "name", layer != NULL ? layer : event);
    add(l, ",\"args\":{\"group\":%u", t->number);
    add_text(l, "call", event);
    add_text(l, "backend", t->hook.group->backend->shown.name);
}

/* A trace that has reached its size stops; it does not fail the calls it watches. */
static void put(struct trace *t, struct line *l, int code) {
    struct stat st;
    if (t->is_full) return;
    if (l->started > 0 && !t->is_chrome) add_us(l, "us", now_us() - l->started);
    if (l->started > 0) add(l, ",\"status\":%d", code);
    add(l, t->is_chrome ? "}},\n" : "}\n");
    uint64_t size = fstat(t->fd, &st) == 0 && st.st_size > 0 ? (uint64_t)st.st_size : 0;
    if (size + l->used <= t->max_bytes && write(t->fd, l->text, l->used) == (ssize_t)l->used) return;
    t->is_full = 1;
    attni_log(&t->hook.group->context->log, ATTN_LOG_WARN,
              "[hook trace] %s has reached %llu bytes (max_bytes) or cannot be "
              "written; the trace of this group ends",
              t->path, (unsigned long long)t->max_bytes);
}

static void add_batch(struct line *l, const attn_batch_t *b) {
    int32_t shown = b->num_reqs < SHOWN_REQUESTS ? b->num_reqs : SHOWN_REQUESTS;
    add(l,
        ",\"num_reqs\":%d,\"num_tokens\":%d,\"max_query_len\":%d,\"max_seq_len\":%lld,\"common_prefix_len\":%"
        "d,"
        "\"flags\":%u,\"query_lens\":[",
        (int)b->num_reqs, (int)b->num_actual_tokens, (int)b->max_query_len, (long long)b->max_seq_len,
        (int)b->common_prefix_len, (unsigned)b->flags);
    for (int32_t r = 0; r < shown; r++)
        add(l, "%s%d", r > 0 ? "," : "", (int)(b->query_start_loc_host[r + 1] - b->query_start_loc_host[r]));
    add(l, "],\"seq_lens\":[");
    for (int32_t r = 0; r < shown; r++)
        add(l, "%s%d", r > 0 ? "," : "", (int)b->seq_lens_host[r]);
    add(l, "]");
}

static void add_shape(struct line *l, const char *key, const DLTensor *t) {
    if (t == NULL || t->shape == NULL) return; /* nothing of a profiling run's inputs was checked */
    add(l, ",\"%s\":[", key);
    for (int i = 0; i < t->ndim && i < SHOWN_DIMS; i++)
        add(l, "%s%lld", i > 0 ? "," : "", (long long)t->shape[i]);
    add(l, "]");
}

/* Keys in reach: a window or a chunk ends what is read of a long request. */
static void remember(struct trace *t, const attn_batch_t *b, const void *metadata) {
    const attn_problem_t *p = &t->hook.group->inner;
    unsigned at = 0;
    while (at < REMEMBERED && t->built[at].metadata != metadata)
        at++;
    if (at == REMEMBERED) at = t->next_built++ % REMEMBERED;
    t->built[at].metadata = metadata;
    t->built[at].tokens = b->num_actual_tokens;
    t->built[at].keys = 0;
    for (int32_t r = 0; r < b->num_reqs; r++) {
        const int64_t len = b->seq_lens_host[r],
                      n = b->query_start_loc_host[r + 1] - b->query_start_loc_host[r];
        const int64_t reach = p->sliding_window != 0 ? n - 1 + (int64_t)p->sliding_window : len;
        if (n > 0) t->built[at].keys += reach < len ? reach : len;
    }
}

/* What a call has to move at least: rows of tensors, and rows of this group's cache. */
static int64_t rows_bytes(const DLTensor *t, int64_t rows) {
    if (t == NULL || t->shape == NULL) return 0;
    int64_t bytes = rows * (t->dtype.bits / 8);
    for (int i = 1; i < t->ndim; i++)
        bytes *= t->shape[i];
    return bytes;
}

static int64_t cache_bytes(const struct trace *t, int64_t rows) {
    const attn_group_t *g = t->hook.group;
    return g->inner.block_size != 0 ? rows * g->shape.page_bytes / g->inner.block_size : 0;
}

static int trace_batch(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *s, void *stream,
                       int is_table, attn_error_t *error) {
    struct trace *t = (struct trace *)(void *)i;
    const struct attni_stage *next = &t->hook.next;
    struct line l;
    double started = now_us();
    int code = (is_table ? next->ops.update_block_table : next->ops.build_metadata)(next->instance, b, s,
                                                                                    stream, error);
    begin(t, &l, is_table ? "update_block_table" : "build_metadata", NULL, started);
    add_batch(&l, b);
    put(t, &l, code);
    if (code == ATTN_OK) remember(t, b, s->metadata);
    return code;
}

static int trace_build(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *s, void *stream,
                       attn_error_t *error) {
    return trace_batch(i, b, s, stream, 0, error);
}

static int trace_table(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *s, void *stream,
                       attn_error_t *error) {
    return trace_batch(i, b, s, stream, 1, error);
}

static int trace_update(attn_instance_t *i, const attn_kv_update_t *a, void *stream, attn_error_t *error) {
    struct trace *t = (struct trace *)(void *)i;
    struct line l;
    double started = now_us();
    int code = t->hook.next.ops.update_kv_cache(t->hook.next.instance, a, stream, error);
    begin(t, &l, "update_kv_cache", t->hook.group->calling, started);
    add_shape(&l, "slots", a->slot_mapping);
    add_shape(&l, "kv_cache", a->kv_cache);
    const int64_t slots = a->slot_mapping->shape[0];
    add(&l, ",\"bytes\":%lld",
        (long long)(rows_bytes(a->key, slots) + rows_bytes(a->value, slots) + cache_bytes(t, slots)));
    put(t, &l, code);
    return code;
}

static int trace_forward(attn_instance_t *i, const attn_forward_t *a, const attn_space_t *s, void *stream,
                         attn_error_t *error) {
    struct trace *t = (struct trace *)(void *)i;
    struct line l;
    double started = now_us();
    int code = t->hook.next.ops.forward(t->hook.next.instance, a, s, stream, error);
    begin(t, &l, s != NULL ? "forward" : "profiling", t->hook.group->calling, started);
    add_shape(&l, "query", s != NULL ? a->query : NULL);
    add_shape(&l, "output", a->output);
    for (int n = 0; s != NULL && n < REMEMBERED; n++) {
        if (t->built[n].metadata != s->metadata) continue;
        const int64_t tokens = t->built[n].tokens;
        add(&l, ",\"tokens\":%lld,\"keys\":%lld,\"bytes\":%lld", (long long)tokens,
            (long long)t->built[n].keys,
            (long long)(rows_bytes(a->query, tokens) + rows_bytes(a->output, tokens) +
                        (a->kv_cache != NULL ? cache_bytes(t, t->built[n].keys)
                                             : rows_bytes(a->key, t->built[n].keys) +
                                                   rows_bytes(a->value, t->built[n].keys))));
        break;
    }
    put(t, &l, code);
    return code;
}

static void trace_close(attn_instance_t *i) {
    struct trace *t = (struct trace *)(void *)i;
    struct line l;
    t->hook.next.ops.close(t->hook.next.instance);
    begin(t, &l, "close", NULL, 0);
    put(t, &l, ATTN_OK);
    close(t->fd);
    free(t);
}

static void trace_opened(struct trace *t) {
    const attn_group_t *g = t->hook.group;
    char problem[2048];
    struct line l;
    begin(t, &l, "open", NULL, 0);
    add_text(&l, "plugin", g->backend->plugin->info.name);
    add_text(&l, "plugin_version", g->backend->plugin->info.version);
    add_text(&l, "device", g->device.name);
    int n = attn_problem_format(&g->inner, problem, sizeof problem);
    add_text(&l, "problem", n > 0 && (size_t)n < sizeof problem ? problem : "");
    put(t, &l, ATTN_OK);
}

/* The file may lie in a folder that others write to: never through a link that somebody put there, never into
 * a pipe, which would keep us waiting, and never into a stranger's file or another name of one of ours. 0 or
 * an errno. */
static int open_file(const char *path, int *fd) {
    struct stat st;
    *fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (*fd < 0) return errno == ENXIO ? ENOTSUP : errno; /* a pipe without a reader */
    int failed = fstat(*fd, &st) ? errno : 0;
    int is_null = S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3);
    if (!failed && !S_ISREG(st.st_mode) && !is_null) failed = ENOTSUP;
    if (!failed && !is_null && (st.st_uid != geteuid() || st.st_nlink != 1)) failed = EPERM;
    if (failed) close(*fd);
    return failed;
}

/* The bracket that opens an array of events, once for all who share the file. */
static int open_array(int fd) {
    struct stat st;
    if (flock(fd, LOCK_EX) != 0) return errno;
    int failed = fstat(fd, &st) ? errno : 0;
    if (!failed && S_ISREG(st.st_mode) && st.st_size == 0 && write(fd, "[\n", 2) != 2) failed = errno;
    flock(fd, LOCK_UN);
    return failed;
}

int attni_hook_trace_open(attn_group_t *group, struct attni_stage *stage, const char *file, int is_chrome,
                          uint64_t max_bytes, attn_error_t *error) {
    static atomic_uint groups;
    int fd, failed = open_file(file, &fd);
    if (!failed && is_chrome && (failed = open_array(fd)) != 0) close(fd);
    if (failed)
        return attn_fail(
            error, ATTN_E_IO, "file",
            "[hook trace] file = %s cannot be written: %s; name a new file, or one of your own with one name",
            file, failed == ENOTSUP ? "it is not a regular file" : strerror(failed));
    struct trace *t = calloc(1, sizeof *t);
    if (t == NULL) {
        close(fd);
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the trace");
    }
    t->fd = fd;
    t->max_bytes = max_bytes;
    t->is_chrome = is_chrome;
    t->number = atomic_fetch_add(&groups, 1);
    snprintf(t->path, sizeof t->path, "%s", file);
    attn_backend_ops_t ops = attni_hook_pass(stage);
    ops.close = trace_close;
    ops.build_metadata = trace_build;
    ops.forward = trace_forward;
    if (stage->ops.update_block_table != NULL) ops.update_block_table = trace_table;
    if (ops.update_kv_cache != NULL) ops.update_kv_cache = trace_update;
    attni_hook_insert(&t->hook, group, stage, ops);
    trace_opened(t);
    return ATTN_OK;
}
