/* SPDX-License-Identifier: Apache-2.0 */
/* tune_rank.c: what the measurements mean: an order for each role, options worth setting, and where decode
 * and prefill want different backends. */
#include <attn/attn_plugin_util.h>
#include <math.h>
#include <stdlib.h>

#include "base/tool.h"
#include "measure/tune.h"

int tune_point_fits(const attn_problem_t *problem, const tune_point_t *point) {
    return !point->is_decode || attn_role_has_cache(problem->role);
}

/* The shortest time at a point among all candidates that are right; 0: nobody. */
static double best_time(const tune_t *t, uint32_t kind, int point) {
    double best = 0;
    for (int c = 0; c < t->num_candidates; c++) {
        const tune_result_t *r = tune_result(t, kind, c, point);
        if (r->seconds > 0 && !r->is_wrong && (best == 0 || r->seconds < best)) best = r->seconds;
    }
    return best;
}

/* A point that a candidate failed or gave up counts as 100 times the best, if it serves the kind at all. */
static double log_of(const tune_t *t, uint32_t kind, int candidate, int point, double best) {
    const tune_result_t *r = tune_result(t, kind, candidate, point);
    return r->seconds > 0 ? log(r->seconds / best) : log(100);
}

/* Mean of the logarithms over the points of one phase of a kind; *count is how many. */
static double phase_mean(const tune_t *t, uint32_t kind, int candidate, int is_decode, int *count) {
    double sum = 0;
    int serves = 0;
    *count = 0;
    for (int p = 0; p < t->num_points; p++) {
        const tune_result_t *r = tune_result(t, kind, candidate, p);
        const double best = best_time(t, kind, p);
        if (r->is_wrong) return -1;
        serves |= r->seconds > 0;
        if (t->points[p].is_decode != is_decode || best == 0) continue;
        sum += log_of(t, kind, candidate, p, best);
        (*count)++;
    }
    if (!serves) *count = 0;
    return *count != 0 ? sum / *count : 0;
}

double tune_score(const tune_t *t, uint32_t role, uint32_t kind_or_all, int candidate, int phase) {
    double sum = 0, weights = 0;
    for (uint32_t k = 0; k < t->model->num_kinds; k++) {
        if (t->model->kinds[k].problem.role != role || (kind_or_all != TUNE_ALL_KINDS && kind_or_all != k))
            continue;
        const double layers = t->model->kinds[k].is.num_layers != 0 ? t->model->kinds[k].is.num_layers : 1;
        int count[2];
        const double mean[2] = {phase_mean(t, k, candidate, 0, &count[0]),
                                phase_mean(t, k, candidate, 1, &count[1])};
        if (mean[0] < 0 || mean[1] < 0) return 0;
        for (int d = 0; d < 2; d++) {
            const int is_alone = count[!d] == 0 || phase >= 0;
            const double share = is_alone ? 1 : d ? t->decode_share : 1 - t->decode_share;
            if (count[d] == 0 || (phase >= 0 && phase != d)) continue;
            sum += layers * share * mean[d];
            weights += layers * share;
        }
    }
    return weights > 0 ? exp(sum / weights) : 0;
}

int tune_rank(const tune_t *t, uint32_t role, int *order) {
    int count = 0;
    for (int c = 0; c < t->num_candidates; c++) {
        const double score = tune_score(t, role, TUNE_ALL_KINDS, c, -1);
        if (t->candidates[c].setting[0] != '\0' || score == 0) continue;
        int at = count++;
        for (; at > 0 && tune_score(t, role, TUNE_ALL_KINDS, order[at - 1], -1) > score; at--)
            order[at] = order[at - 1];
        order[at] = c;
    }
    return count;
}

/* The candidate of a kind that is best in a phase; -1: none. Settings do not count: one backend has one. */
static int best_of_phase(const tune_t *t, uint32_t kind, int phase) {
    int best = -1;
    double least = 0;
    for (int c = 0; c < t->num_candidates; c++) {
        const double score = tune_score(t, t->model->kinds[kind].problem.role, kind, c, phase);
        if (t->candidates[c].setting[0] != '\0' || score == 0 || (best >= 0 && score >= least)) continue;
        best = c;
        least = score;
    }
    return best;
}

/* What a setting changes: its mean time over that of its backend without it, over all roles; 0: nothing to
 * compare. */
static double gain_of(const tune_t *t, int candidate) {
    const tune_candidate_t *c = &t->candidates[candidate];
    double sum = 0;
    int count = 0;
    for (int base = 0; base < t->num_candidates; base++) {
        if (t->candidates[base].setting[0] != '\0' || strcmp(t->candidates[base].backend, c->backend) != 0)
            continue;
        for (uint32_t role = 1; role < ATTN_ROLE_COUNT_; role++) {
            const double with = tune_score(t, role, TUNE_ALL_KINDS, candidate, -1);
            const double without = tune_score(t, role, TUNE_ALL_KINDS, base, -1);
            if (with == 0 || without == 0) continue;
            sum += log(with / without);
            count++;
        }
    }
    return count != 0 ? exp(sum / count) : 0;
}

/* The setting of the same plugin and key that gains most, if it is worth it. */
static int is_best_setting(const tune_t *t, int candidate) {
    const tune_candidate_t *c = &t->candidates[candidate];
    const double gain = c->setting[0] != '\0' ? gain_of(t, candidate) : 0;
    const size_t key = strcspn(c->setting, "=");
    if (gain == 0 || gain > TUNE_WORTH) return 0;
    for (int i = 0; i < t->num_candidates; i++) {
        const tune_candidate_t *other = &t->candidates[i];
        if (i == candidate || strncmp(other->setting, c->setting, key + 1) != 0) continue;
        const double its = gain_of(t, i);
        if (its != 0 && (its < gain || (its == gain && i < candidate))) return 0;
    }
    return 1;
}

static int has_role(const tune_t *t, uint32_t role) {
    for (uint32_t k = 0; k < t->model->num_kinds; k++)
        if (t->model->kinds[k].problem.role == role) return 1;
    return 0;
}

/* Names of the list in force that were not measured, or not here: they keep their order behind the others.
 * What was measured and is wrong is not named again. */
static void add_rest(const tune_t *t, uint32_t role, FILE *f, json_t *list) {
    attn_selection_t *s = NULL;
    for (uint32_t k = 0; k < t->model->num_kinds && s == NULL; k++)
        if (t->model->kinds[k].problem.role == role)
            attn_select(t->candidates[0].context, &t->model->kinds[k].problem, t->device, NULL, &s, NULL);
    for (uint32_t i = 0; s != NULL && i < s->num_candidates; i++) {
        int is_known = 0;
        for (int c = 0; c < t->num_candidates; c++)
            is_known |= strcmp(t->candidates[c].backend, s->candidates[i].backend) == 0;
        if (is_known) continue;
        if (f != NULL) fprintf(f, ", %s", s->candidates[i].backend);
        if (list != NULL) json_array_append_new(list, json_string(s->candidates[i].backend));
    }
    attn_selection_free(s);
}

static void ini_numbers(const tune_t *t, FILE *f) {
    for (uint32_t k = 0; k < t->model->num_kinds; k++) {
        char text[1024];
        attn_problem_format(&t->model->kinds[k].problem, text, sizeof text);
        fprintf(f, ";\n; %s (%u layers): %.700s\n", t->model->kinds[k].is.name,
                t->model->kinds[k].is.num_layers, text);
        for (int p = 0; p < t->num_points; p++)
            for (int c = 0; c < t->num_candidates; c++) {
                const tune_result_t *r = tune_result(t, k, c, p);
                const tune_point_t *point = &t->points[p];
                if (r->seconds == 0) continue;
                fprintf(f, ";   %s %d x %d of %d: %s%s%s %.1f us%s\n",
                        point->is_decode ? "decode" : "prefill", point->requests, point->query_len,
                        point->seq_len, t->candidates[c].backend,
                        t->candidates[c].setting[0] != '\0' ? " " : "", t->candidates[c].setting,
                        r->seconds * 1e6, r->is_wrong ? ", wrong" : "");
            }
    }
}

char *tune_ini(const tune_t *t) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (f == NULL) return NULL;
    fprintf(f,
            "; Written by attn tune, libattn %s, on %s. Times of one call; requests x query tokens of "
            "context.\n",
            attn_version(), t->device->name);
    ini_numbers(t, f);
    for (uint32_t role = 1; role < ATTN_ROLE_COUNT_; role++) {
        int order[TUNE_MAX_CANDIDATES];
        const int count = has_role(t, role) ? tune_rank(t, role, order) : 0;
        if (count == 0) continue;
        fprintf(f, "\n[select %s %s]\n", attn_role_name(role), t->device_section);
        for (int i = 0; i < count; i++)
            fprintf(f, "; %s: %.2f times the best\n", t->candidates[order[i]].backend,
                    tune_score(t, role, TUNE_ALL_KINDS, order[i], -1));
        fprintf(f, "priority = ");
        for (int i = 0; i < count; i++)
            fprintf(f, "%s%s", i != 0 ? ", " : "", t->candidates[order[i]].backend);
        add_rest(t, role, f, NULL);
        fprintf(f, "\n");
        tune_pair_ini(t, role, f);
    }
    for (int c = 0; c < t->num_candidates; c++) {
        const char *setting = t->candidates[c].setting, *equals = strchr(setting, '=');
        if (!is_best_setting(t, c)) continue;
        fprintf(f, "\n[option %.*s]\n; %.2f of the time without it, with %s\n%.*s = %s\n",
                (int)strcspn(setting, "."), setting, gain_of(t, c), t->candidates[c].backend,
                (int)(equals - strchr(setting, '.') - 1), strchr(setting, '.') + 1, equals + 1);
    }
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

json_t *tune_conclusions_json(const tune_t *t) {
    json_t *select = json_array(), *phases = json_array(), *options = json_array();
    for (uint32_t role = 1; role < ATTN_ROLE_COUNT_; role++) {
        int order[TUNE_MAX_CANDIDATES];
        const int count = has_role(t, role) ? tune_rank(t, role, order) : 0;
        json_t *names = json_array(), *scores[3] = {json_array(), json_array(), json_array()};
        for (int i = 0; i < count; i++) {
            json_array_append_new(names, json_string(t->candidates[order[i]].backend));
            for (int phase = -1; phase < 2; phase++) {
                const double score = tune_score(t, role, TUNE_ALL_KINDS, order[i], phase);
                json_array_append_new(scores[phase + 1], score > 0 ? json_real(score) : json_null());
            }
        }
        if (count != 0) add_rest(t, role, NULL, names);
        json_t *item = json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "role", attn_role_name(role),
                                 "device", t->device_section, "priority", names, "times_the_best", scores[0],
                                 "prefill_times_the_best", scores[1], "decode_times_the_best", scores[2],
                                 "pair", tune_pair_json(t, role));
        if (count != 0)
            json_array_append_new(select, item);
        else
            json_decref(item);
    }
    for (uint32_t k = 0; k < t->model->num_kinds; k++) {
        const int decode = best_of_phase(t, k, 1), prefill = best_of_phase(t, k, 0);
        if (decode < 0 || prefill < 0) continue;
        json_array_append_new(phases, json_pack("{s:s, s:s, s:s}", "kind", t->model->kinds[k].is.name,
                                                "decode", t->candidates[decode].backend, "prefill",
                                                t->candidates[prefill].backend));
    }
    for (int c = 0; c < t->num_candidates; c++)
        if (t->candidates[c].setting[0] != '\0' && gain_of(t, c) != 0)
            json_array_append_new(options,
                                  json_pack("{s:s, s:s, s:f, s:b}", "backend", t->candidates[c].backend,
                                            "setting", t->candidates[c].setting, "time_ratio", gain_of(t, c),
                                            "written", is_best_setting(t, c)));
    json_t *left_out = json_array();
    for (int i = 0; i < t->num_left_out; i++)
        json_array_append_new(
            left_out, json_pack("{s:s, s:s}", "setting", t->left_out[i].setting, "why", t->left_out[i].why));
    return json_pack("{s:o, s:o, s:o, s:o}", "select", select, "phases", phases, "options", options,
                     "left_out", left_out);
}

json_t *tune_rows_json(const tune_t *t) {
    json_t *rows = json_array();
    for (uint32_t k = 0; k < t->model->num_kinds; k++)
        for (int p = 0; p < t->num_points; p++)
            for (int c = 0; c < t->num_candidates; c++) {
                const tune_result_t *r = tune_result(t, k, c, p);
                const tune_point_t *point = &t->points[p];
                if (r->seconds == 0 && r->failure[0] == '\0') continue;
                json_t *row =
                    json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:b, s:b}", "kind",
                              t->model->kinds[k].is.name, "backend", t->candidates[c].backend, "setting",
                              t->candidates[c].setting, "phase", point->is_decode ? "decode" : "prefill",
                              "requests", point->requests, "query_len", point->query_len, "seq_len",
                              point->seq_len, "remembered", r->is_remembered, "wrong", r->is_wrong);
                json_object_set_new(row, "seconds", r->seconds > 0 ? json_real(r->seconds) : json_null());
                json_object_set_new(row, "max_abs_error", r->error >= 0 ? json_real(r->error) : json_null());
                if (r->failure[0] != '\0') json_object_set_new(row, "failure", json_string(r->failure));
                json_array_append_new(rows, row);
            }
    return rows;
}
