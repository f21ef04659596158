/* SPDX-License-Identifier: Apache-2.0 */
/* tune.h: what `attn tune` measures, remembers and concludes. */
#ifndef ATTN_TOOLS_TUNE_H
#define ATTN_TOOLS_TUNE_H

#include <jansson.h>

#include "base/tool.h"
#include "cmd/tool_model.h"
#include "measure/bench_run.h"

enum { TUNE_MAX_POINTS = 64, TUNE_MAX_CANDIDATES = 48 };

/* One batch: equal requests. */
typedef struct tune_point {
    int is_decode; /* else prefill: the query is the whole context, or the last part of it */
    int32_t requests, query_len, seq_len;
} tune_point_t;

/* A backend, as configured or with one option set otherwise. */
typedef struct tune_candidate {
    char backend[40], plugin[40];
    char identity[160];      /* plugin's version and build */
    char setting[128];       /* "" or "cpu.level=avx2" */
    attn_context_t *context; /* with that setting */
} tune_candidate_t;

typedef struct tune_result {
    double seconds; /* 0: not measured, and failure says why */
    double error;   /* largest difference to double precision; negative: not checked */
    int is_remembered;
    int is_wrong; /* its outputs are not those of the problem */
    char failure[200];
} tune_result_t;

/* Decode by one backend and prefill by another, in the groups of one role. */
typedef struct tune_pair {
    int decode, prefill, alone; /* candidates: best of each phase, best of both; decode -1: nothing to tell */
    double time_ratio;          /* of the pair to that of `alone` */
    int is_one_cache, is_written;
    char why[400]; /* not one cache: the library's words */
} tune_pair_t;

typedef struct tune {
    const attn_device_t *device;
    char device_section[64]; /* "cpu", "sm_90": as in [select decoder sm_90] */
    tool_model_t *model;
    tune_point_t points[TUNE_MAX_POINTS];
    int num_points;
    tune_candidate_t candidates[TUNE_MAX_CANDIDATES];
    int num_candidates;
    tune_result_t *results; /* [kinds, candidates, points] */
    double decode_share;    /* weight of decode, 0..1, where both phases were measured */
    tune_pair_t pairs[ATTN_ROLE_COUNT_];
    struct {
        char setting[128], why[128];
    } left_out[TUNE_MAX_CANDIDATES]; /* values of options that are not of this machine or build */
    int num_left_out;
    const tool_common_t *common;
    json_t *state; /* rows by their text; NULL: none is kept */
    const char *state_path;
} tune_t;

static inline tune_result_t *tune_result(const tune_t *t, uint32_t kind, int candidate, int point) {
    return &t->results[((size_t)kind * (size_t)t->num_candidates + (size_t)candidate) *
                           (size_t)t->num_points +
                       (size_t)point];
}

/* Whether a point is one of a kind: encoders have no decode. */
int tune_point_fits(const attn_problem_t *problem, const tune_point_t *point);

/* tune_state.c: opens the state file (a missing one is empty); TOOL_OK or an exit code after saying why. */
int tune_state_open(tune_t *t, const char *path);
/* 1 and the result, if the state has this measurement of this device, library and plugin. */
int tune_state_find(const tune_t *t, uint32_t kind, int candidate, int point, tune_result_t *result);
/* Remembers a result; the file is then whole and has it. */
int tune_state_add(tune_t *t, uint32_t kind, int candidate, int point);

/* tune_rank.c: how much longer than the best candidate one takes on the kinds of a role, as a factor: the
 * geometric mean over the points, with the weights of layers and phases. phase: 0 prefill, 1 decode, -1
 * both. 0: it serves none of them, or is wrong somewhere. */
double tune_score(const tune_t *t, uint32_t role, uint32_t kind_or_all, int candidate, int phase);
#define TUNE_ALL_KINDS UINT32_MAX
/* Candidates of a role without a setting, best first; returns how many. */
int tune_rank(const tune_t *t, uint32_t role, int *order);
/* The INI text, free it; and the conclusions of the JSON output. */
char *tune_ini(const tune_t *t);
json_t *tune_conclusions_json(const tune_t *t);
json_t *tune_rows_json(const tune_t *t);
/* What an option or a second backend has to gain before it is written down; less is noise. */
#define TUNE_WORTH 0.95
/* tune_pair.c: fills t->pairs in, opening groups of two backends to see whether they share a cache. */
void tune_pairs(tune_t *t);
/* The lines of a role behind its priority; its member in the JSON output; the same as text. */
void tune_pair_ini(const tune_t *t, uint32_t role, FILE *f);
json_t *tune_pair_json(const tune_t *t, uint32_t role);
void tune_pair_print(const tune_t *t, uint32_t role);
/* tune_picture.c: the measurements as SVG. 0, or -1 with errno. */
int tune_picture(const tune_t *t, const char *path);

#endif
