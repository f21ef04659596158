/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soak.c [FORWARDS]: forwards of small problems by the million, over five kinds of groups with three layers
 * each; groups are closed and opened again every few hundred, contexts every few thousand, and in between
 * calls are refused. Prints memory, descriptors, threads and time over the run; fails if any of the first
 * three grows after the first tenth, or an output differs from the first one by a bit. Without an argument 20
 * 000, as a test; `make soak` runs 10^7.
 */
#include "../tap.h"
#include "small_world.h"

#include <dirent.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

enum { STEPS_OF_GROUP = 40, GROUPS_OF_CONTEXT = 20, LINES = 20 };

struct usage {
    long resident, heap, descriptors, threads; /* KiB, bytes */
};

static long entries_of(const char *folder) {
    long n = -2;
    DIR *d = opendir(folder);
    if (d == NULL) return 0;
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

static struct usage usage_now(void) {
    struct usage u = {0};
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%*d %ld", &u.resident) != 1) bail_out("no /proc/self/statm");
    fclose(f);
    u.resident *= sysconf(_SC_PAGESIZE) / 1024;
    u.descriptors = entries_of("/proc/self/fd");
    u.threads = entries_of("/proc/self/task");
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
    u.heap = (long)mallinfo2().uordblks;
#endif
    return u;
}

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* What engines get wrong: each is refused and leaves nothing behind. */
static void refused_calls(attn_context_t *context, attn_error_t *error) {
    attn_device_t cpu = {.struct_size = sizeof cpu, .type = kDLCPU};
    attn_problem_t p = small_problem_of(&kinds[0]);
    attn_group_t *none = NULL;
    attn_selection_t *selection = NULL;
    p.num_heads = 3;
    if (attn_group_open(context, &p, &cpu, NULL, &none, &selection, error) == ATTN_OK)
        bail_out("3 heads over 2 were served");
    attn_selection_free(selection);
    p = small_problem_of(&kinds[0]);
    if (attn_group_open(context, &p, &cpu, "NOSUCH", &none, NULL, error) != ATTN_E_NOT_FOUND)
        bail_out("NOSUCH: %s", error->text);
    ATTN_INIT(attn_forward_t, f);
    if (attn_layer_forward(lanes[0].layers[0], &f, &lanes[0].space, NULL, error) == ATTN_OK)
        bail_out("a forward without tensors was served");
    attn_context_t *other = NULL;
    if (small_context(NULL, "[attn]\nplugin = cpu\n", &other, error) != ATTN_E_PARSE)
        bail_out("an unknown key was accepted");
}

/* A context from its creation to its end. */
static void one_context(const char *ini, long limit) {
    attn_error_t error = {.struct_size = sizeof error};
    attn_context_t *context = NULL;
    if (small_context(ini, "[attn]\nplugins = cpu, reference\n[option cpu]\nnum_threads = 1\n", &context,
                      &error))
        bail_out("context: %s", error.text);
    for (int k = 0; k < KINDS; k++)
        if (small_open(context, k, &error) != ATTN_OK) bail_out("kind %d: %s", k, error.text);
    for (int g = 0; g < GROUPS_OF_CONTEXT && forwards < limit; g++) {
        for (int s = 0; s < STEPS_OF_GROUP; s++)
            if (small_step((g + s) % KINDS, &error) != ATTN_OK) bail_out("step: %s", error.text);
        refused_calls(context, &error);
        small_close(&lanes[g % KINDS]);
        if (small_open(context, g % KINDS, &error) != ATTN_OK) bail_out("again: %s", error.text);
    }
    for (int k = 0; k < KINDS; k++)
        small_close(&lanes[k]);
    attn_context_destroy(context);
}

int main(int argc, char **argv) {
    const char *ini = getenv("ATTN_TEST_INI");
    char *end = NULL;
    const long total = argc > 1 ? strtol(argv[1], &end, 10) : 20000;
    if (ini == NULL) bail_out("ATTN_TEST_INI names no build.ini; use make soak");
    if (total < 10000 || (end != NULL && *end != '\0')) bail_out("soak [FORWARDS]: at least 10000");
    struct usage first = {0}, now = {0};
    double before = 0, lines = 0;
    long contexts = 0, done = 0;
    diag("%11s %9s %12s %10s %11s %7s %12s", "forwards", "contexts", "resident KiB", "heap bytes",
         "descriptors", "threads", "us a forward");
    while (forwards < total) {
        one_context(ini, total);
        contexts++;
        if ((double)forwards < (lines + 1) * (double)total / LINES) continue;
        now = usage_now();
        const double cpu = processor_seconds();
        diag("%11ld %9ld %12ld %10ld %11ld %7ld %12.2f", forwards, contexts, now.resident, now.heap,
             now.descriptors, now.threads, (cpu - before) * 1e6 / (double)(forwards - done));
        lines = (double)forwards * LINES / (double)total;
        before = cpu, done = forwards;
        if (first.resident == 0 && forwards >= total / 10) first = now;
    }
    ok(forwards >= total, "%ld forwards, %ld contexts", forwards, contexts);
    is_int(differ, 0, "every output is its first one, to the bit");
#ifdef __SANITIZE_ADDRESS__
    skip(2, "a sanitizer's memory grows");
#else
    ok(now.resident <= first.resident + 512, "resident memory does not grow: %ld, then %ld KiB",
       first.resident, now.resident);
    /* malloc counts what it keeps for later as used; that settles in the first hundred contexts */
    ok(now.heap <= first.heap + 32768, "nor what is allocated: %ld, then %ld bytes", first.heap, now.heap);
#endif
    is_int(now.descriptors, first.descriptors, "nor descriptors");
    is_int(now.threads, first.threads, "nor threads");
    return tap_done();
}
