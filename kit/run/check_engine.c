/* SPDX-License-Identifier: Apache-2.0 */
/* check_engine.c: lists the checks of the kit, runs them (check_children.c) and prints TAP. */
#include "check_children.h"
#include "device_image.h"
#include "surroundings.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const check_groups[] = {"abi",         "structs", "capabilities", "numerics", "memory", "offsets",
                                    "determinism", "capture", "errors",       "threads",  "leaks",  "manners",
                                    "steps",       "options", "relations",    NULL};

enum { MAX_GROUPS = 32 };

typedef struct check_printer {
    FILE *out;
    int number;
    check_totals_t totals;
    double seconds[MAX_GROUPS]; /* of all checks of a group, which ran beside each other */
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
    e->can_share = list->can_share;
    int used = list->role == 0 ? 0 : snprintf(e->name, sizeof e->name, "%s: ", attn_role_name(list->role));
    va_list args;
    va_start(args, name);
    vsnprintf(e->name + used, sizeof e->name - (size_t)used, name, args);
    va_end(args);
}

static int group_number(const char *group) {
    int i = 0;
    while (strcmp(check_groups[i], group) != 0)
        i++;
    return i;
}

/* ------------------------------------------------------------------ printing */

/* What was printed while a check ran: its last lines, which a crash explains itself with. Control characters
 * stay here. */
static void print_captured(FILE *out, int silence) {
    char text[1500];
    off_t end = lseek(silence, 0, SEEK_END),
          from = end > (off_t)sizeof text - 1 ? end - (off_t)sizeof text + 1 : 0;
    ssize_t n = pread(silence, text, sizeof text - 1, from);
    if (n <= 0) return;
    text[n] = '\0';
    for (char *p = text; *p != '\0'; p++)
        if ((unsigned char)*p < ' ' && *p != '\n') *p = '?';
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
                                       .seconds = r->seconds,
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
        char words[120];
        size_t n = 0;
        p->totals.passed++;
        words[0] = '\0';
        if (r->num_cases > 0) n += (size_t)snprintf(words, sizeof words, ", %d cases", r->num_cases);
        if (r->num_left_out > 0)
            n += (size_t)snprintf(words + n, sizeof words - n, ", %d left out for time", r->num_left_out);
        if (c->options->is_timed) snprintf(words + n, sizeof words - n, ", %.2f s", r->seconds);
        fprintf(p->out, words[0] != '\0' ? "ok %d - %s: %s (%s)\n" : "ok %d - %s: %s%s\n", p->number,
                e->group, e->name, words[0] != '\0' ? words + 2 : "");
    }
    p->seconds[group_number(e->group)] += r->seconds;
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

/* ------------------------------------------------------------------ running */

static int is_in_list(const char *names, const char *name) {
    if (names == NULL) return 1;
    size_t n = strlen(name);
    for (const char *at = names; *at != '\0'; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        if (strcspn(at, ",") == n && memcmp(at, name, n) == 0) return 1;
    return 0;
}

/* The groups in order; those that bend one plain case do it once more for each role of latent attention. What
 * looks at the process itself, or leaves something in it, has one of its own. */
static void make_list(check_list_t *list, const check_t *c) {
    enum { BY_ROLE = 1, SHARES = 2 };
    static const struct {
        void (*add)(check_list_t *list, const check_t *c);
        unsigned how;
    } groups[] = {{check_abi_list, 0},
                  {check_structs_list, BY_ROLE | SHARES},
                  {check_capabilities_list, SHARES},
                  {check_numerics_list, SHARES},
                  {check_memory_list, BY_ROLE | SHARES},
                  {check_offsets_list, BY_ROLE},
                  {check_determinism_list, BY_ROLE | SHARES},
                  {check_capture_list, BY_ROLE | SHARES},
                  {check_errors_list, BY_ROLE | SHARES},
                  {check_threads_list, BY_ROLE},
                  {check_first_list, BY_ROLE},
                  {check_leaks_list, BY_ROLE},
                  {check_manners_list, BY_ROLE},
                  {check_steps_list, BY_ROLE | SHARES},
                  {check_options_list, 0},
                  {check_relations_list, SHARES}};
    const uint32_t latent =
        (uint32_t)c->can.roles &
        (ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_PREFILL) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE));
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        const int has_plain_cases = latent == 0 || latent != c->can.roles;
        const int is_by_role = (groups[i].how & BY_ROLE) != 0;
        list->role = 0;
        list->can_share = (groups[i].how & SHARES) != 0;
        if (!is_by_role || has_plain_cases) groups[i].add(list, c);
        for (uint32_t role = ATTN_ROLE_MLA; role <= ATTN_ROLE_MLA_SPARSE && is_by_role; role++) {
            list->role = role;
            if (latent >> role & 1) groups[i].add(list, c);
        }
    }
}

static int print_time(void *user, const struct check_entry *e, int printed) {
    const check_t *c = ((void **)user)[0];
    const check_printer_t *p = ((void **)user)[1];
    (void)e, (void)printed;
    fprintf(p->out, "# bench: %s\n", c->report->text);
    return 0;
}

static void print_bench(check_t *c, check_printer_t *p) {
    check_list_t list = {0};
    void *both[2] = {c, p};
    check_bench_list(&list, c);
    for (int i = 0; i < list.count; i++) {
        const struct check_entry *e = &list.items[i];
        check_run_children(c, &e, 1, 1, print_time, both);
    }
    free(list.items);
}

/* The kind of that type that the backend's plugin brings, else the library's. */
static const attn_device_kind_t *kind_of(const check_t *c, int32_t type) {
    const attn_backend_ops_t *ops = c->backend->ops;
    const attn_device_kind_t *own =
        ops->get_extension != NULL ? ops->get_extension(NULL, ATTN_DEVICE_EXTENSION) : NULL;
    if (own != NULL && own->type == type) return own;
    return c->options->device_kind != NULL ? c->options->device_kind(type) : NULL;
}

/* In a child, because a process that has used a driver cannot fork checks that use it again. */
static int is_present(const attn_device_kind_t *kind, attn_device_t *device) {
    int ends[2], status;
    if (pipe(ends) != 0) return 0;
    const pid_t child = fork();
    if (child == 0) {
        ATTN_INIT(attn_device_t, found);
        if (kind->describe(0, &found, NULL, NULL) != ATTN_OK) found.type = 0;
        _exit(write(ends[1], &found, sizeof found) != sizeof found);
    }
    close(ends[1]);
    const ssize_t n = child > 0 ? read(ends[0], device, sizeof *device) : 0;
    close(ends[0]);
    if (child > 0) waitpid(child, &status, 0);
    return n == sizeof *device && device->type == kind->type;
}

/* The host if the backend runs there, else device 0 of the first type in its table that is here; 0: none. */
static int choose_device(check_t *c, check_printer_t *p) {
    static kit_memory_t memory;
    attn_device_t device;
    c->memory = &kit_cpu_memory;
    if (c->can.device_types & ATTN_BIT(kDLCPU)) return 1;
    for (int32_t type = 1; type < 64; type++) {
        const attn_device_kind_t *kind = c->can.device_types & ATTN_BIT(type) ? kind_of(c, type) : NULL;
        if (kind == NULL || !is_present(kind, &device) || kit_memory_of(kind, &device, &memory) != ATTN_OK)
            continue;
        c->memory = &memory;
        if (c->options->is_listing) return 1;
        fprintf(p->out, "# on %s:%d", kind->name, (int)device.id);
        if (kind->capability_prefix != NULL)
            fprintf(p->out, ", %s%d", kind->capability_prefix, (int)device.compute_capability);
        fprintf(p->out, "\n");
        return 1;
    }
    return 0;
}

/* A failure that no single check has. */
static void fail_alone(check_t *c, check_printer_t *p, const char *name, const char *text) {
    const struct check_entry entry = {.group = "abi"};
    struct check_entry e = entry;
    snprintf(e.name, sizeof e.name, "%s", name);
    memset(c->report, 0, sizeof *c->report);
    check_fail(c, "%s", text);
    print_entry(p, c, &e, -1);
}

/* What has run of one backend. */
typedef struct progress {
    check_t *c;
    check_printer_t *p;
    int executed[MAX_GROUPS], listed[MAX_GROUPS];
} progress_t;

static int tell(void *user, const struct check_entry *e, int printed) {
    progress_t *x = user;
    const check_options_t *o = x->c->options;
    print_entry(x->p, x->c, e, printed);
    x->executed[group_number(e->group)] += !x->c->report->is_skipped || x->c->report->is_failed;
    x->listed[group_number(e->group)] += 1;
    return o->max_failures > 0 && x->p->totals.failed >= o->max_failures;
}

/* Returns how many of its checks were asked for. None is no fault where another backend has some. */
static int check_backend(check_t *c, check_printer_t *p) {
    const check_options_t *o = c->options;
    check_list_t list = {0};
    progress_t x = {.c = c, .p = p};
    c->backend = check_with_defaults(c->plugin, c->raw);
    uint32_t size = c->raw->capabilities->struct_size;
    memset(&c->can, 0, sizeof c->can);
    memcpy(&c->can, c->raw->capabilities, size < sizeof c->can ? size : sizeof c->can);
    c->is_device_here = choose_device(c, p);
    make_list(&list, c);
    const int executed = p->totals.passed + p->totals.failed;
    const struct check_entry **chosen = calloc((size_t)list.count + 1, sizeof *chosen);
    int count = 0, num_asked = 0;
    for (int i = 0; i < list.count && chosen != NULL; i++) {
        const struct check_entry *e = &list.items[i];
        if (!is_in_list(o->group, e->group)) continue;
        if (o->only != NULL && strstr(e->name, o->only) == NULL) continue;
        num_asked++;
        if (o->is_listing)
            fprintf(p->out, "%s: %s\n", e->group, e->name);
        else
            chosen[count++] = e;
    }
    if (chosen == NULL ||
        check_run_children(c, chosen, count, o->jobs > 0 ? o->jobs : check_usual_jobs(), tell, &x) != 0)
        fail_alone(c, p, "checks run in processes of their own", strerror(errno));
    free(chosen);
    for (int i = 0; check_groups[i] != NULL && !o->is_listing; i++)
        if (x.listed[i] > 0 && x.executed[i] == 0)
            fprintf(p->out, "# group %s: no check was executed; this says nothing about %s\n",
                    check_groups[i], c->raw->name);
    if (num_asked == 0 && !o->is_listing)
        fprintf(p->out, "# no check of %s has this name or group\n", c->raw->name);
    else if (!o->is_listing && p->totals.passed + p->totals.failed == executed)
        fail_alone(c, p, "something was examined",
                   "every check was skipped: nothing is known about this backend");
    free(list.items);
    if (o->is_bench && c->is_device_here && !o->is_listing) print_bench(c, p);
    return num_asked;
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
    int result = 0, num_examined = 0, num_asked = 0;
    static check_report_t own_report; /* of what no child examines */
    static load_report_t load_report;
    if (!options->is_listing) load_watch(options->path, &load_report);
    c.load_report = &load_report;
    void *file = dlopen(options->path, RTLD_NOW | RTLD_LOCAL);
    const char *why = file == NULL ? dlerror() : NULL;
    if (file != NULL) c.plugin = dlsym(file, ATTN_PLUGIN_SYMBOL_NAME);
    if (file == NULL)
        result = nothing(&p, options, "%s%s", why, "");
    else if (c.plugin == NULL)
        result = nothing(&p, options, "%s does not export %s", options->path, ATTN_PLUGIN_SYMBOL_NAME);
    else if (c.plugin->magic != ATTN_PLUGIN_MAGIC || c.plugin->abi_major != ATTN_ABI_MAJOR)
        result = nothing(&p, options, "%s was built for another ABI%s", options->path, "");
    c.report = &own_report;
    char refused[300];
    if (result == 0 && check_options_give(c.plugin, options->values, refused, sizeof refused) != 0)
        result = nothing(&p, options, "%s%s", refused, "");
    if (result == 0) {
        if (!options->is_listing)
            fprintf(p.out, "# %s %s of %s, seed %llu\n", c.plugin->name, c.plugin->version, c.plugin->vendor,
                    (unsigned long long)c.seed);
        for (uint32_t i = 0; i < c.plugin->num_backends; i++) {
            if (options->max_failures > 0 && p.totals.failed >= options->max_failures) break;
            c.raw = c.plugin->backends[i];
            if (options->backend != NULL && strcmp(options->backend, c.raw->name) != 0) continue;
            num_examined++;
            if (!options->is_listing) fprintf(p.out, "# backend %s\n", c.raw->name);
            num_asked += check_backend(&c, &p);
        }
        if (num_examined == 0)
            result = nothing(&p, options, "%s has no backend %s", options->path,
                             options->backend != NULL ? options->backend : "");
        else if (num_asked == 0 && !options->is_listing)
            fail_alone(&c, &p, "something was examined",
                       "no check has this name or group; attn check --list shows them");
    }
    for (int i = 0; check_groups[i] != NULL && options->is_timed && !options->is_listing; i++)
        if (p.seconds[i] > 0) fprintf(p.out, "# group %s: %.1f s\n", check_groups[i], p.seconds[i]);
    if (!options->is_listing) {
        fprintf(p.out, "1..%d\n", p.number);
        fprintf(p.out, "# %d passed, %d failed, %d skipped\n", p.totals.passed, p.totals.failed,
                p.totals.skipped);
    }
    if (totals != NULL) *totals = p.totals;
    return result != 0 ? result : p.totals.failed > 0;
}
