/* SPDX-License-Identifier: Apache-2.0 */
/* check_engine.c: runs the checks of the kit, each in a child process with a time limit, and prints TAP. */
#include "check_cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const char *const check_groups[] = {"abi",         "structs", "capabilities", "numerics", "memory", "offsets",
                                    "determinism", "capture", "errors",       "threads",  "leaks",  "manners",
                                    NULL};

typedef struct check_printer {
    FILE *out;
    int number;
    check_totals_t totals;
} check_printer_t;

void check_add(check_list_t *list, const char *group, int needs_device, check_func_t *run, uint32_t arg,
               const char *name, ...) {
    if (list->count == list->capacity) {
        int capacity = list->capacity != 0 ? 2 * list->capacity : 64;
        void *items = realloc(list->items, (size_t)capacity * sizeof *list->items);
        if (items == NULL) return;
        list->items = items;
        list->capacity = capacity;
    }
    struct check_entry *e = &list->items[list->count++];
    e->group = group;
    e->run = run;
    e->arg = arg;
    e->role = list->role;
    e->needs_device = needs_device;
    int used = list->role == 0 ? 0 : snprintf(e->name, sizeof e->name, "%s: ", attn_role_name(list->role));
    va_list args;
    va_start(args, name);
    vsnprintf(e->name + used, sizeof e->name - (size_t)used, name, args);
    va_end(args);
}

/* --------------------------------------------------------------- one child */

/* Set on a GPU: operations are waited for, so that the checks may look at managed memory. */
static const kit_memory_t *running_memory;

static void run_in_child(check_t *c, const struct check_entry *e, int silence) {
    dup2(silence, STDOUT_FILENO);
    dup2(silence, STDERR_FILENO);
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(SIGABRT, &plain, NULL);
    sigaction(SIGSEGV, &plain, NULL);
    sigaction(SIGBUS, &plain, NULL);
    kit_memory_t memory; /* a GPU cannot be used by parent and child both */
    if (c->memory->device_type == kDLCUDA && e->needs_device != CHECK_TABLES) {
        if (cuda_memory_start(&memory, c->memory->device_id) != 0)
            check_fail(c, "the GPU cannot be used any more");
        c->memory = &memory;
        running_memory = &memory;
    }
    e->run(c);
    fflush(NULL);
    c->report->is_done = 1;
    _exit(0);
}

/* Waits in steps that grow from a millisecond to twenty. Returns 0 if the child ended by itself. */
static int wait_for(pid_t child, unsigned limit_s, int *status) {
    struct timespec start, now, pause = {0, 1000 * 1000};
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (;;) {
        pid_t got = waitpid(child, status, WNOHANG);
        if (got == child || (got < 0 && errno != EINTR)) return 0;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((unsigned)(now.tv_sec - start.tv_sec) >= limit_s) break;
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 20 * 1000 * 1000) pause.tv_nsec += 1000 * 1000;
    }
    kill(child, SIGKILL);
    while (waitpid(child, status, 0) < 0 && errno == EINTR) {
    }
    return -1;
}

/* The report of a check that ran in a child; what the child could not say itself is added here. */
static void run_entry(check_t *c, const struct check_entry *e, int silence) {
    unsigned limit_s = c->options->timeout_s != 0 ? c->options->timeout_s : 60;
    memset(c->report, 0, sizeof *c->report);
    c->arg = e->arg;
    c->role = e->role;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) run_in_child(c, e, silence);
    if (child < 0) {
        check_fail(c, "no child process: %s", strerror(errno));
        return;
    }
    int status = 0, is_late = wait_for(child, limit_s, &status);
    if (is_late)
        check_fail(c, "no end within %u s", limit_s);
    else if (WIFSIGNALED(status))
        check_fail(c, "the process ended with signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (!c->report->is_done)
        check_fail(c, "the process was left with status %d", WEXITSTATUS(status));
}

/* What the plugin printed while a check failed, at most a few lines. */
static void print_captured(FILE *out, int silence) {
    char text[1500];
    ssize_t n = pread(silence, text, sizeof text - 1, 0);
    if (n <= 0) return;
    text[n] = '\0';
    char *rest = NULL;
    int lines = 0;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL && lines < 8;
         line = strtok_r(NULL, "\n", &rest), lines++)
        fprintf(out, "#   printed: %.160s\n", line);
}

static void print_entry(check_printer_t *p, const check_t *c, const struct check_entry *e, int silence) {
    const check_report_t *r = c->report;
    p->number++;
    if (c->options->on_result != NULL) {
        const check_result_t result = {.backend = c->raw->name,
                                       .group = e->group,
                                       .name = e->name,
                                       .is_failed = r->is_failed,
                                       .is_skipped = r->is_skipped && !r->is_failed,
                                       .num_cases = r->num_cases,
                                       .text = r->text,
                                       .case_text = r->is_failed ? r->running : ""};
        c->options->on_result(c->options->user, &result);
    }
    if (r->is_failed) {
        p->totals.failed++;
        fprintf(p->out, "not ok %d - %s: %s\n#   %s\n", p->number, e->group, e->name, r->text);
        if (r->running[0] != '\0')
            fprintf(p->out, "#   replay: attn run --backend %s --problem '%s'\n", c->raw->name, r->running);
        print_captured(p->out, silence);
    } else if (r->is_skipped) {
        p->totals.skipped++;
        fprintf(p->out, "ok %d - %s: %s # SKIP %s\n", p->number, e->group, e->name, r->text);
    } else {
        p->totals.passed++;
        if (r->num_cases > 0)
            fprintf(p->out, "ok %d - %s: %s (%d cases)\n", p->number, e->group, e->name, r->num_cases);
        else
            fprintf(p->out, "ok %d - %s: %s\n", p->number, e->group, e->name);
    }
    fflush(p->out);
}

/* ------------------------------------------------------------------ reports */

int check_fail(check_t *c, const char *format, ...) {
    if (c->report->is_failed) return 0;
    c->report->is_failed = 1;
    va_list args;
    va_start(args, format);
    vsnprintf(c->report->text, sizeof c->report->text, format, args);
    va_end(args);
    for (char *p = c->report->text; *p != '\0'; p++)
        if (*p == '\n') *p = ' ';
    return 0;
}

void check_skip(check_t *c, const char *format, ...) {
    if (c->report->is_failed) return;
    c->report->is_skipped = 1;
    va_list args;
    va_start(args, format);
    vsnprintf(c->report->text, sizeof c->report->text, format, args);
    va_end(args);
}

void check_running(check_t *c, const kit_case_t *k) {
    if (!c->report->is_failed) kit_case_text(k, c->report->running, sizeof c->report->running);
}

/* ----------------------------------------------------------------- backends */

static void host_log(void *ctx, uint32_t level, const char *text) {
    (void)ctx, (void)level, (void)text;
}
static const void *host_extension(void *ctx, const char *id) {
    (void)ctx, (void)id;
    return NULL;
}
const attn_host_t check_host = {
    .struct_size = sizeof check_host, .log = host_log, .get_extension = host_extension};

enum { MAX_OPTIONS = 64 };
static attn_option_value_t default_options[MAX_OPTIONS];
static uint32_t num_default_options;
static const attn_backend_t *raw_backend;

/* Option values as the host would parse them from their defaults. */
static void parse_default_options(const attn_plugin_t *plugin) {
    num_default_options = 0;
    const char *at = (const char *)plugin->options;
    for (uint32_t i = 0; at != NULL && i < plugin->num_options && i < MAX_OPTIONS; i++) {
        const attn_option_spec_t *s =
            (const attn_option_spec_t *)(const void *)(at + (size_t)i * plugin->options->struct_size);
        attn_option_value_t *v = &default_options[num_default_options++];
        *v = (attn_option_value_t){
            .struct_size = sizeof *v, .type = s->type, .name = s->name, .s = s->default_value};
        const char *text = s->default_value != NULL ? s->default_value : "";
        if (s->type == ATTN_OPTION_INT) v->i = strtoll(text, NULL, 0);
        if (s->type == ATTN_OPTION_DOUBLE) v->d = strtod(text, NULL);
        if (s->type == ATTN_OPTION_BOOL)
            v->i = strcmp(text, "yes") == 0 || strcmp(text, "true") == 0 || strcmp(text, "on") == 0 ||
                   strcmp(text, "1") == 0;
        if (s->type == ATTN_OPTION_ENUM && s->choices != NULL) { /* index of the word */
            const char *c = s->choices;
            size_t n = strlen(text);
            for (int64_t index = 0; *c != '\0'; index++) {
                size_t word = strcspn(c, " ");
                if (word == n && memcmp(c, text, n) == 0) v->i = index;
                c += word + (c[word] == ' ');
            }
        }
    }
}

static int open_with_defaults(const attn_problem_t *problem, const attn_device_t *device,
                              const attn_option_value_t *options, uint32_t num_options,
                              const attn_host_t *host, attn_instance_t **instance, attn_error_t *error) {
    if (num_options == 0) {
        options = num_default_options > 0 ? default_options : NULL;
        num_options = num_default_options;
    }
    return raw_backend->ops->open(problem, device, options, num_options, host != NULL ? host : &check_host,
                                  instance, error);
}

static int finish(int status, attn_error_t *error) {
    if (running_memory == NULL || status != ATTN_OK || running_memory->sync(NULL) == 0) return status;
    return attn_fail(error, ATTN_E_DEVICE, "stream", "the device reported an error after the call");
}
static int build_and_wait(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    return finish(raw_backend->ops->build_metadata(instance, batch, space, stream, error), error);
}
static int update_and_wait(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                           attn_error_t *error) {
    return finish(raw_backend->ops->update_kv_cache(instance, args, stream, error), error);
}
static int forward_and_wait(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                            void *stream, attn_error_t *error) {
    return finish(raw_backend->ops->forward(instance, args, space, stream, error), error);
}

static int no_cache_shape(attn_instance_t *instance, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                          attn_error_t *error) {
    (void)instance, (void)num_blocks, (void)error;
    uint32_t size = shape->struct_size;
    memset(shape, 0, size < sizeof *shape ? size : sizeof *shape);
    shape->struct_size = size;
    return ATTN_OK;
}

static const attn_backend_t *with_defaults(const attn_backend_t *backend) {
    static attn_backend_ops_t ops;
    static attn_backend_t wrapped;
    raw_backend = backend;
    memset(&ops, 0, sizeof ops);
    uint32_t size = backend->ops->struct_size;
    memcpy(&ops, backend->ops, size < sizeof ops ? size : sizeof ops);
    ops.struct_size = sizeof ops;
    ops.open = open_with_defaults;
    ops.build_metadata = build_and_wait;
    ops.forward = forward_and_wait;
    if (ops.update_kv_cache != NULL) ops.update_kv_cache = update_and_wait;
    if (ops.kv_cache_shape == NULL) ops.kv_cache_shape = no_cache_shape;
    memset(&wrapped, 0, sizeof wrapped);
    size = backend->struct_size;
    memcpy(&wrapped, backend, size < sizeof wrapped ? size : sizeof wrapped);
    wrapped.struct_size = sizeof wrapped;
    wrapped.ops = &ops;
    return &wrapped;
}

/* ------------------------------------------------------------------ running */

static int is_in_list(const char *names, const char *name) {
    if (names == NULL) return 1;
    size_t n = strlen(name);
    for (const char *at = names; *at != '\0'; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        if (strcspn(at, ",") == n && memcmp(at, name, n) == 0) return 1;
    return 0;
}

/* The groups in order; those that bend one plain case do it once more for each role of latent attention. */
static void make_list(check_list_t *list, const check_t *c) {
    static const struct {
        void (*add)(check_list_t *list, const check_t *c);
        int is_by_role;
    } groups[] = {{check_abi_list, 0},         {check_structs_list, 1}, {check_capabilities_list, 0},
                  {check_numerics_list, 0},    {check_memory_list, 1},  {check_offsets_list, 1},
                  {check_determinism_list, 1}, {check_capture_list, 1}, {check_errors_list, 1},
                  {check_threads_list, 1},     {check_leaks_list, 1},   {check_manners_list, 1}};
    const uint32_t latent =
        (uint32_t)c->can.roles &
        (ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_PREFILL) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE));
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        const int has_plain_cases = latent == 0 || latent != c->can.roles;
        list->role = 0;
        if (!groups[i].is_by_role || has_plain_cases) groups[i].add(list, c);
        for (uint32_t role = ATTN_ROLE_MLA; role <= ATTN_ROLE_MLA_SPARSE && groups[i].is_by_role; role++) {
            list->role = role;
            if (latent >> role & 1) groups[i].add(list, c);
        }
    }
}

static void print_bench(check_t *c, check_printer_t *p, int silence) {
    check_list_t list = {0};
    check_bench_list(&list, c);
    for (int i = 0; i < list.count; i++) {
        run_entry(c, &list.items[i], silence);
        fprintf(p->out, "# bench: %s\n", c->report->text);
    }
    free(list.items);
}

static void check_backend(check_t *c, check_printer_t *p, int silence) {
    const check_options_t *o = c->options;
    check_list_t list = {0};
    c->backend = with_defaults(c->raw);
    uint32_t size = c->raw->capabilities->struct_size;
    memset(&c->can, 0, sizeof c->can);
    memcpy(&c->can, c->raw->capabilities, size < sizeof c->can ? size : sizeof c->can);
    static kit_memory_t gpu;
    int is_here = (c->can.device_types & ATTN_BIT(kDLCPU)) != 0;
    c->memory = &kit_cpu_memory;
    if (!is_here && (c->can.device_types & ATTN_BIT(kDLCUDA)) && cuda_memory_probe(&gpu, 0) == 0) {
        is_here = 1;
        c->memory = &gpu;
        if (!o->is_listing) fprintf(p->out, "# on cuda:0, sm_%d\n", gpu.compute_capability);
    }
    make_list(&list, c);
    for (int i = 0; i < list.count; i++) {
        const struct check_entry *e = &list.items[i];
        if (!is_in_list(o->group, e->group)) continue;
        if (o->only != NULL && strstr(e->name, o->only) == NULL) continue;
        if (o->max_failures > 0 && p->totals.failed >= o->max_failures) break;
        if (o->is_listing) {
            fprintf(p->out, "%s: %s\n", e->group, e->name);
            continue;
        }
        if (ftruncate(silence, 0) != 0) lseek(silence, 0, SEEK_SET);
        lseek(silence, 0, SEEK_SET);
        if (e->needs_device != CHECK_TABLES && !is_here) {
            memset(c->report, 0, sizeof *c->report);
            check_skip(c, "there is no device that %s runs on", c->raw->name);
        } else if (e->needs_device == CHECK_RUNS_ON_CPU && c->memory->device_type != kDLCPU) {
            memset(c->report, 0, sizeof *c->report);
            check_skip(c, "only with host memory");
        } else {
            run_entry(c, e, silence);
        }
        print_entry(p, c, e, silence);
    }
    free(list.items);
    if (o->is_bench && is_here && !o->is_listing) print_bench(c, p, silence);
}

static int nothing(check_printer_t *p, const check_options_t *o, const char *format, const char *a,
                   const char *b) {
    char text[600];
    snprintf(text, sizeof text, format, a, b);
    fprintf(p->out, "not ok %d - abi: the file is a plugin\n#   %s\n", ++p->number, text);
    const check_result_t result = {.backend = "",
                                   .group = "abi",
                                   .name = "the file is a plugin",
                                   .is_failed = 1,
                                   .text = text,
                                   .case_text = ""};
    if (o->on_result != NULL) o->on_result(o->user, &result);
    p->totals.failed++;
    return -1;
}

int check_plugin(const check_options_t *options, check_totals_t *totals) {
    check_printer_t p = {.out = options->out != NULL ? options->out : stdout};
    check_t c = {
        .options = options, .memory = &kit_cpu_memory, .seed = options->seed != 0 ? options->seed : 1};
    int result = 0, num_examined = 0, silence = -1;
    void *file = dlopen(options->path, RTLD_NOW | RTLD_LOCAL);
    const char *why = file == NULL ? dlerror() : NULL;
    if (file != NULL) c.plugin = dlsym(file, ATTN_PLUGIN_SYMBOL_NAME);
    if (file == NULL)
        result = nothing(&p, options, "%s%s", why, "");
    else if (c.plugin == NULL)
        result = nothing(&p, options, "%s does not export %s", options->path, ATTN_PLUGIN_SYMBOL_NAME);
    else if (c.plugin->magic != ATTN_PLUGIN_MAGIC || c.plugin->abi_major != ATTN_ABI_MAJOR)
        result = nothing(&p, options, "%s was built for another ABI%s", options->path, "");
    c.report = mmap(NULL, sizeof *c.report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    silence = memfd_create("attn-check", MFD_CLOEXEC);
    if (result == 0 && (c.report == MAP_FAILED || silence < 0))
        result = nothing(&p, options, "%s%s", strerror(errno), "");
    if (result == 0) {
        parse_default_options(c.plugin);
        if (!options->is_listing)
            fprintf(p.out, "# %s %s of %s, seed %llu\n", c.plugin->name, c.plugin->version, c.plugin->vendor,
                    (unsigned long long)c.seed);
        for (uint32_t i = 0; i < c.plugin->num_backends; i++) {
            c.raw = c.plugin->backends[i];
            if (options->backend != NULL && strcmp(options->backend, c.raw->name) != 0) continue;
            num_examined++;
            if (!options->is_listing) fprintf(p.out, "# backend %s\n", c.raw->name);
            check_backend(&c, &p, silence);
        }
        if (num_examined == 0)
            result = nothing(&p, options, "%s has no backend %s", options->path,
                             options->backend != NULL ? options->backend : "");
    }
    if (!options->is_listing) {
        fprintf(p.out, "1..%d\n", p.number);
        fprintf(p.out, "# %d passed, %d failed, %d skipped\n", p.totals.passed, p.totals.failed,
                p.totals.skipped);
    }
    if (c.report != MAP_FAILED) munmap(c.report, sizeof *c.report);
    if (silence >= 0) close(silence);
    if (totals != NULL) *totals = p.totals;
    return result != 0 ? result : p.totals.failed > 0;
}
