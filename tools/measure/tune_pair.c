/* SPDX-License-Identifier: Apache-2.0 */
/* tune_pair.c: where decode and prefill want different backends, whether both can work over one cache, and
 * what that would gain. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/term.h"
#include "measure/tune.h"

/* The best backend of one phase of a role, as configured; -1: none. */
static int best_of_phase(const tune_t *t, uint32_t role, int is_decode) {
    int best = -1;
    double least = 0;
    for (int c = 0; c < t->num_candidates; c++) {
        const double score = tune_score(t, role, TUNE_ALL_KINDS, c, is_decode);
        if (t->candidates[c].setting[0] != '\0' || score == 0 || (best >= 0 && score >= least)) continue;
        best = c;
        least = score;
    }
    return best;
}

static int serves(const tune_t *t, const tune_candidate_t *c, const attn_problem_t *problem) {
    attn_reason_t reason;
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &reason};
    const attn_backend_t *backend = attn_context_find_backend(c->context, c->backend, NULL);
    return attn_backend_validate(backend, problem, t->device, &reasons, NULL) == ATTN_OK &&
           reasons.count == 0;
}

/* Groups of both for every kind of layers that both serve, opened as an engine opens them. */
static int share_caches(const tune_t *t, uint32_t role, tune_pair_t *pair) {
    const tune_candidate_t *decode = &t->candidates[pair->decode], *prefill = &t->candidates[pair->prefill];
    char ini[512];
    tool_common_t with = *t->common;
    attn_context_t *context = NULL;
    int num_open = 0;
    snprintf(ini, sizeof ini,
             "[attn]\nfallback = error\n[select %s %s]\ndecode_backend = %s\nprefill_backend = %s\n",
             attn_role_name(role), t->device_section, decode->backend, prefill->backend);
    with.ini = ini;
    if (tool_context_open(&with, 0, &context) != TOOL_OK) return 0;
    for (uint32_t k = 0; k < t->model->num_kinds && pair->why[0] == '\0'; k++) {
        const attn_problem_t *problem = &t->model->kinds[k].problem;
        attn_group_t *group = NULL;
        ATTN_INIT(attn_error_t, error);
        if (problem->role != role || !serves(t, decode, problem) || !serves(t, prefill, problem)) continue;
        if (attn_group_open(context, problem, t->device, NULL, &group, NULL, &error) == ATTN_OK)
            num_open++;
        else
            snprintf(pair->why, sizeof pair->why, "%.390s", error.text);
        attn_group_close(group);
    }
    if (num_open == 0 && pair->why[0] == '\0')
        snprintf(pair->why, sizeof pair->why, "no kind of layers is served by both");
    attn_context_destroy(context);
    return pair->why[0] == '\0';
}

static void find_pair(const tune_t *t, uint32_t role, tune_pair_t *pair) {
    int order[TUNE_MAX_CANDIDATES];
    *pair = (tune_pair_t){.decode = -1, .prefill = -1, .alone = -1};
    if (!attn_role_has_cache(role) || tune_rank(t, role, order) == 0) return;
    const int decode = best_of_phase(t, role, 1), prefill = best_of_phase(t, role, 0);
    if (decode < 0 || prefill < 0) return;
    pair->decode = decode;
    pair->prefill = prefill;
    pair->alone = order[0];
    const double of_two = exp(t->decode_share * log(tune_score(t, role, TUNE_ALL_KINDS, decode, 1)) +
                              (1 - t->decode_share) * log(tune_score(t, role, TUNE_ALL_KINDS, prefill, 0)));
    pair->time_ratio = of_two / tune_score(t, role, TUNE_ALL_KINDS, pair->alone, -1);
    pair->is_one_cache = decode == prefill || share_caches(t, role, pair);
    pair->is_written = decode != prefill && pair->is_one_cache && pair->time_ratio <= TUNE_WORTH;
}

void tune_pairs(tune_t *t) {
    for (uint32_t role = 1; role < ATTN_ROLE_COUNT_; role++)
        find_pair(t, role, &t->pairs[role]);
}

/* "decode by A, prefill by B: 0.80 of the time of A alone", and why it is not done. */
static void say(const tune_t *t, const tune_pair_t *pair, char *text, size_t size) {
    const char *decode = t->candidates[pair->decode].backend, *prefill = t->candidates[pair->prefill].backend;
    const char *alone = t->candidates[pair->alone].backend;
    if (pair->decode == pair->prefill)
        snprintf(text, size, "%s is best at decode and at prefill", decode);
    else
        snprintf(text, size, "decode by %s and prefill by %s take %.2f of the time of %s alone%s%s", decode,
                 prefill, pair->time_ratio, alone,
                 pair->is_written     ? ", over one cache"
                 : pair->is_one_cache ? ", too little to tell from noise"
                                      : "; but ",
                 pair->is_one_cache ? "" : pair->why);
}

void tune_pair_ini(const tune_t *t, uint32_t role, FILE *f) {
    const tune_pair_t *pair = &t->pairs[role];
    char text[640];
    if (pair->decode < 0 || pair->decode == pair->prefill) return;
    say(t, pair, text, sizeof text);
    fprintf(f, "; %s\n", text);
    if (!pair->is_written) return;
    if (pair->prefill != pair->alone)
        fprintf(f, "prefill_priority = %s\n", t->candidates[pair->prefill].backend);
    if (pair->decode != pair->alone)
        fprintf(f, "decode_priority = %s\n", t->candidates[pair->decode].backend);
}

json_t *tune_pair_json(const tune_t *t, uint32_t role) {
    const tune_pair_t *pair = &t->pairs[role];
    if (pair->decode < 0) return json_null();
    return json_pack("{s:s, s:s, s:s, s:f, s:b, s:s, s:b}", "decode", t->candidates[pair->decode].backend,
                     "prefill", t->candidates[pair->prefill].backend, "alone",
                     t->candidates[pair->alone].backend, "time_ratio", pair->time_ratio, "one_cache",
                     pair->is_one_cache, "why", pair->why, "written", pair->is_written);
}

static void score_cell(table_t *table, double score, double least) {
    if (score > 0)
        table_cell(table, score <= least ? TERM_GREEN : TERM_PLAIN, "%.2f", score);
    else
        table_cell(table, TERM_DIM, "-");
}

void tune_pair_print(const tune_t *t, uint32_t role) {
    const tune_pair_t *pair = &t->pairs[role];
    int order[TUNE_MAX_CANDIDATES];
    char text[640];
    const int count = tune_rank(t, role, order);
    if (count == 0) return;
    table_t *table = table_new("times the best|>decode|>prefill|>both");
    for (int i = 0; i < count; i++) {
        table_cell(table, TERM_PLAIN, "%s", t->candidates[order[i]].backend);
        for (int phase = 1; phase >= -1; phase--) {
            const int best = phase < 0 ? order[0] : best_of_phase(t, role, phase);
            score_cell(table, tune_score(t, role, TUNE_ALL_KINDS, order[i], phase),
                       best < 0 ? 0 : tune_score(t, role, TUNE_ALL_KINDS, best, phase));
        }
    }
    term_print(TERM_BOLD, "role %s\n", attn_role_name(role));
    table_print(table, stdout, "  ");
    if (pair->decode >= 0) {
        say(t, pair, text, sizeof text);
        printf("  %s\n", text);
    }
    printf("\n");
}
