/* SPDX-License-Identifier: Apache-2.0 */
/* tune_state.c: the measurements so far, in a JSON file that is replaced as a whole after each, so that an
 * interrupted run goes on where it was. A measurement is found by everything that it depends on. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/out_file.h"
#include "base/tool.h"
#include "measure/tune.h"

static const char format[] = "attn-tune/1";

static void key_of(const tune_t *t, uint32_t kind, int candidate, int point, char *key, size_t size) {
    char problem[2048];
    const tune_candidate_t *c = &t->candidates[candidate];
    const tune_point_t *p = &t->points[point];
    attn_problem_format(&t->model->kinds[kind].problem, problem, sizeof problem);
    snprintf(key, size, "%s, %d units; libattn %s; %s %s %s; %s; %d x %d of %d", t->device->name,
             (int)t->device->num_sms, attn_version(), c->backend, c->identity, c->setting, problem,
             p->requests, p->query_len, p->seq_len);
}

int tune_state_open(tune_t *t, const char *path) {
    json_error_t why;
    t->state_path = path;
    if (access(path, F_OK) != 0) {
        t->state = json_pack("{s:s, s:{}}", "format", format, "rows");
        return t->state != NULL ? TOOL_OK : TOOL_SETUP;
    }
    t->state = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    const char *have = json_string_value(json_object_get(t->state, "format"));
    if (have != NULL && strcmp(have, format) == 0 && json_is_object(json_object_get(t->state, "rows")))
        return TOOL_OK;
    if (t->state == NULL)
        tool_error("--state: %s:%d: %s", path, why.line, why.text);
    else
        tool_error("--state: %s is not a state file of attn tune; name another file, or delete it", path);
    return TOOL_INPUT;
}

int tune_state_find(const tune_t *t, uint32_t kind, int candidate, int point, tune_result_t *result) {
    char key[3072];
    if (t->state == NULL) return 0;
    key_of(t, kind, candidate, point, key, sizeof key);
    const json_t *row = json_object_get(json_object_get(t->state, "rows"), key);
    const json_t *seconds = json_object_get(row, "seconds"), *error = json_object_get(row, "error");
    if (!json_is_number(seconds) || !(json_number_value(seconds) > 0) || !json_is_number(error)) return 0;
    *result = (tune_result_t){
        .seconds = json_number_value(seconds), .error = json_number_value(error), .is_remembered = 1};
    return 1;
}

int tune_state_add(tune_t *t, uint32_t kind, int candidate, int point) {
    char key[3072];
    const tune_result_t *r = tune_result(t, kind, candidate, point);
    if (t->state == NULL || r->seconds == 0) return TOOL_OK; /* what failed is tried again */
    key_of(t, kind, candidate, point, key, sizeof key);
    json_t *row = json_pack("{s:f, s:f}", "seconds", r->seconds, "error", r->error);
    json_object_set_new(json_object_get(t->state, "rows"), key, row);
    char *text = json_dumps(t->state, JSON_INDENT(1) | JSON_SORT_KEYS);
    const struct attni_bytes part = {text, text != NULL ? strlen(text) : 0};
    const int failed = text != NULL ? attni_out_file_write(t->state_path, &part, 1, 0644) : ENOMEM;
    free(text);
    if (failed == 0) return TOOL_OK;
    tool_error("--state: %s: %s", t->state_path, strerror(failed));
    return TOOL_SETUP;
}
