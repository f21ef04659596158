/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.h: the conformance kit behind `attn check`. It examines one backend of one plugin file against the
 * contract of attn_plugin.h, prints TAP, and gives with each failure the line that replays it. It knows the
 * plugin header alone; the oracle is linked in. Each check runs in a child process with a time limit, so that
 * a crash is one failed check; on a device those that leave nothing behind share one (check_children.c).
 */
#ifndef ATTN_KIT_CHECK_H
#define ATTN_KIT_CHECK_H

#include <attn/attn_plugin.h>
#include <attn/draft/attn_device.h>

#include <stdio.h>

/* How one check ended. */
typedef struct check_result {
    const char *backend, *group, *name;
    int is_failed, is_skipped, num_cases;
    double seconds;        /* by the clock, beside the checks that ran at once */
    const char *text;      /* what is wrong, or why it was skipped; "" */
    const char *case_text; /* of a failure: what `attn run --problem` replays; "" */
} check_result_t;

typedef struct check_options {
    const char *path;    /* of the plugin file */
    const char *backend; /* NULL: every backend of the file */
    const char *group;   /* NULL: every group; else names separated by commas */
    const char *only;    /* NULL, or a part of the names of the checks to run */
    const char *values;  /* of options, "name=value,name=value"; NULL: defaults */
    uint64_t seed;       /* 0: 1 */
    unsigned timeout_s;  /* of one check; 0: 60 */
    int is_bench;        /* 1: adds timing lines */
    int is_timed;        /* 1: says the seconds of each check, and of each group at the end */
    int is_listing;      /* 1: prints the checks, runs none */
    int max_failures;    /* stops after so many failed checks; 0: never */
    int jobs;            /* checks that run at once; 0: as many as there are processors */
    FILE *out;           /* NULL: stdout */
    /* Gets every result, in addition to the TAP; NULL: none. */
    void (*on_result)(void *user, const check_result_t *result);
    void *user;
    /* The kinds of devices that the engine's library knows, attn_device_kind; the plugin's own come first.
     * NULL: no others. */
    const attn_device_kind_t *(*device_kind)(int32_t type);
    /* How the engine's library judges a problem by the table, attn_backend_validate; NULL: those checks are
     * skipped. */
    int (*validate)(const attn_backend_t *backend, const attn_problem_t *problem, const attn_device_t *device,
                    attn_reasons_t *reasons, attn_error_t *error);
    /* Loads the file as the engine's library does, with its options at their defaults; NULL: that check is
     * skipped. */
    int (*load)(const char *path, const char *plugin_name, attn_error_t *error);
} check_options_t;

typedef struct check_totals {
    int passed, failed, skipped;
} check_totals_t;

/* The names of the groups, in the order in which they run; NULL ends the list. */
extern const char *const check_groups[];

/* Runs the checks. Returns 0 if none failed, 1 if one did, -1 if nothing could be examined (reported as a
 * failed check). */
int check_plugin(const check_options_t *options, check_totals_t *totals);

#endif
