/* SPDX-License-Identifier: Apache-2.0 */
/* bench_rows.c: the workloads of a command line: one problem, a file of them, or a suite. */
#include "cmd/bench_rows.h"

#include <stdlib.h>
#include <string.h>

#include "cmd/problem_args.h"

/* Whether a row is wanted: no list, or a word of the comma-separated list is part of its name. */
static int is_wanted(const char *list, const char *name) {
    if (list == NULL) return 1;
    for (const char *at = list; *at != '\0';) {
        char word[64];
        size_t length = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        if (word[0] != '\0' && strstr(name, word) != NULL) return 1;
        at += length + (at[length] == ',');
    }
    return 0;
}

/* Adds one row; TOOL_OK or an exit code. */
static int add_row(bench_row_t *rows, int *count, const char *name, const char *problem, int64_t ranks,
                   int64_t requests, int64_t query_len, int64_t seq_len) {
    char over[4200];
    bench_row_t *row = &rows[*count];
    ATTN_INIT(attn_error_t, error);
    if (*count == BENCH_MAX_ROWS) {
        tool_error("%s is workload %d; at most %d are measured in one run", name, *count + 1, BENCH_MAX_ROWS);
        return TOOL_USAGE;
    }
    memset(row, 0, sizeof *row);
    if (ranks != 0 && (problem = rank_problem_text(problem, ranks, over, sizeof over)) == NULL)
        return TOOL_USAGE;
    if (problem_from_text(problem, &row->problem, &error) != ATTN_OK) {
        tool_error("%s: %s", name, error.text);
        return TOOL_USAGE;
    }
    const int is_cross = row->problem.role == ATTN_ROLE_ENCODER_DECODER; /* its keys are another sequence's */
    if ((query_len > seq_len && !is_cross) || requests * query_len > INT32_MAX / 2) {
        tool_error("%s: %lld requests of %lld query tokens and %lld keys; the query is part of the keys, and "
                   "all of it must be "
                   "addressable",
                   name, (long long)requests, (long long)query_len, (long long)seq_len);
        return TOOL_USAGE;
    }
    snprintf(row->name, sizeof row->name, "%s", name);
    row->requests = (int32_t)requests;
    row->query_len = (int32_t)query_len;
    row->seq_len = (int32_t)seq_len;
    (*count)++;
    return TOOL_OK;
}

/* "5,100,33" -> the lengths of the requests of one row; 0 after printing why not. */
static int read_lens(const char *text, bench_row_t *row) {
    static int32_t lens[1024];
    int count = 0;
    int32_t longest = 0;
    for (const char *at = text; count == 0 || *at != '\0';) {
        char *end;
        const long value = strtol(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || value < 1 || value > 1 << 28 ||
            count == (int)(sizeof lens / sizeof lens[0])) {
            tool_error("--lens has '%s'; expected up to %zu lengths of at least 1, such as 5,100,33", text,
                       sizeof lens / sizeof lens[0]);
            return 0;
        }
        lens[count++] = (int32_t)value;
        if (value > longest) longest = (int32_t)value;
        at = end + (*end == ',');
    }
    row->lens = lens;
    row->requests = count;
    row->seq_len = longest;
    for (int i = 0; i < count; i++)
        if (row->query_len > lens[i] && row->problem.role != ATTN_ROLE_ENCODER_DECODER) {
            tool_error("--lens has %d, --query is %d; the query is part of the keys", lens[i],
                       row->query_len);
            return 0;
        }
    return 1;
}

/* Leaves the rows that --rows names. A word that is in no name would be a typing error that nobody sees
 * beside words that are in one. */
static int keep_wanted(const char *list, const char *where, bench_row_t *rows, int *count) {
    int kept = 0;
    if (list == NULL) return TOOL_OK;
    const char *at = list;
    do {
        char word[64];
        const size_t length = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        at += length + (at[length] == ',');
        int is_known = 0;
        for (int i = 0; i < *count && !is_known; i++)
            is_known = is_wanted(word, rows[i].name);
        if (!is_known) {
            tool_error("--rows has '%s', which is in the name of no row of %s; without --rows all run", word,
                       where);
            return TOOL_USAGE;
        }
    } while (*at != '\0');
    for (int i = 0; i < *count; i++)
        if (is_wanted(list, rows[i].name)) rows[kept++] = rows[i];
    *count = kept;
    return TOOL_OK;
}

static int suite_rows(const bench_args_t *args, const char *suite, bench_row_t *rows, int *count) {
    for (const bench_work_t *w = bench_works; w->name != NULL; w++) {
        if (strcmp(w->suite, suite) != 0) continue;
        int status = add_row(rows, count, w->name, w->problem, args->ranks.ranks, w->requests, w->query_len,
                             w->seq_len);
        if (status != TOOL_OK) return status;
        rows[*count - 1].lens = w->lens;
        rows[*count - 1].is_write = w->is_write;
    }
    if (*count > 0) return TOOL_OK;
    tool_error("--suite is '%s'; the suites are cpu, quick, gpu and h200", suite);
    return TOOL_USAGE;
}

/* An integer of a workload; NO_NUMBER after printing why it is none. */
enum { NO_NUMBER = -1 };
static int64_t number_of(const char *where, const json_t *work, const char *key, int64_t least,
                         int64_t otherwise) {
    const json_t *value = json_object_get(work, key);
    if (value == NULL) return otherwise;
    const json_int_t number = json_integer_value(value);
    if (json_is_integer(value) && number >= least && number <= 1 << 28) return number;
    tool_error("%s: '%s' is not an integer from %lld to %d", where, key, (long long)least, 1 << 28);
    return NO_NUMBER;
}

/* The key of a workload that is none of ours; NULL: there is no such key. */
static const char *unknown_key(const json_t *work) {
    static const char *const known[] = {"name",    "problem",  "requests", "query_len",
                                        "seq_len", "seq_lens", "backend",  "is_write"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)work, key, value) {
        size_t i = 0;
        while (i < sizeof known / sizeof known[0] && strcmp(known[i], key) != 0)
            i++;
        if (i == sizeof known / sizeof known[0]) return key;
    }
    return NULL;
}

/* Gives a row the lengths of "seq_lens". */
static int list_lens(const char *where, const json_t *list, bench_row_t *row) {
    const size_t count = json_array_size(list);
    int32_t *lens = count > 0 ? malloc(count * sizeof *lens) : NULL;
    row->lens = lens;
    for (size_t i = 0; i < count && lens != NULL; i++) {
        const json_int_t value = json_integer_value(json_array_get(list, i));
        const int is_cross = row->problem.role == ATTN_ROLE_ENCODER_DECODER;
        if (value < 1 || value > 1 << 28 || (value < row->query_len && !is_cross)) {
            tool_error("%s: 'seq_lens'[%zu] is no length from 1 to %d, or less than 'query_len', %d", where,
                       i, 1 << 28, row->query_len);
            return TOOL_INPUT;
        }
        lens[i] = (int32_t)value;
        if (i == 0 || lens[i] > row->seq_len) row->seq_len = lens[i];
    }
    row->requests = (int32_t)count;
    if (lens != NULL) return TOOL_OK;
    tool_error("%s: 'seq_lens' is not a list of lengths, one of each request", where);
    return TOOL_INPUT;
}

static int add_workload(const bench_args_t *args, const char *where, const json_t *work, bench_row_t *rows,
                        int *count) {
    const char *name = json_string_value(json_object_get(work, "name"));
    const char *problem = json_string_value(json_object_get(work, "problem"));
    const json_t *backend = json_object_get(work, "backend"), *lens = json_object_get(work, "seq_lens");
    const json_t *is_write = json_object_get(work, "is_write");
    const char *unknown = unknown_key(work);
    if (!json_is_object(work) || unknown != NULL || name == NULL || problem == NULL ||
        (backend != NULL && !json_is_string(backend)) || (is_write != NULL && !json_is_boolean(is_write)) ||
        (lens == NULL) == (json_object_get(work, "seq_len") == NULL)) {
        tool_error("%s has %s%s; a workload has the texts name and problem, an integer seq_len or a list "
                   "seq_lens, and may have requests, query_len, backend and is_write",
                   where, unknown != NULL ? "the key " : "a key missing or of another type",
                   unknown != NULL ? unknown : "");
        return TOOL_INPUT;
    }
    const int64_t query_len = number_of(where, work, "query_len", 0, 1);
    const int64_t requests =
        lens != NULL ? (int64_t)json_array_size(lens) : number_of(where, work, "requests", 1, 1);
    const int64_t seq_len = number_of(where, work, "seq_len", 1, INT32_MAX);
    if (query_len == NO_NUMBER || requests == NO_NUMBER || seq_len == NO_NUMBER) return TOOL_INPUT;
    if (add_row(rows, count, name, problem, args->ranks.ranks, requests, query_len, seq_len) != TOOL_OK)
        return TOOL_INPUT;
    bench_row_t *row = &rows[*count - 1];
    row->is_write = json_is_true(is_write);
    if (backend != NULL) snprintf(row->wanted, sizeof row->wanted, "%s", json_string_value(backend));
    return lens != NULL ? list_lens(where, lens, row) : TOOL_OK;
}

static int file_rows(const bench_args_t *args, bench_row_t *rows, int *count) {
    json_error_t why;
    json_t *list = json_load_file(args->file, JSON_REJECT_DUPLICATES, &why);
    int status = json_array_size(list) > 0 ? TOOL_OK : TOOL_INPUT;
    if (list == NULL)
        tool_error("--workloads: %s:%d: %s", args->file, why.line, why.text);
    else if (status != TOOL_OK)
        tool_error(
            "--workloads: %s is not a list of workloads, [{\"name\": .., \"problem\": .., \"seq_len\": ..}]",
            args->file);
    for (size_t i = 0; i < json_array_size(list) && status == TOOL_OK; i++) {
        char where[300];
        snprintf(where, sizeof where, "--workloads: %.200s: workload %zu", args->file, i + 1);
        status = add_workload(args, where, json_array_get(list, i), rows, count);
    }
    json_decref(list);
    return status;
}

int bench_choose_rows(const bench_args_t *args, const attn_device_t *device, bench_row_t *rows, int *count) {
    if ((args->problem != NULL) + (args->file != NULL) + (args->suite != NULL) > 1) {
        tool_error("--suite, --workloads and --problem each say what to measure; give one of them");
        return TOOL_USAGE;
    }
    if (args->problem != NULL) {
        const int64_t seq_len = args->seq_len != 0 ? args->seq_len : args->query_len;
        int status = add_row(rows, count, "yours", args->problem, args->ranks.ranks, args->requests,
                             args->query_len, args->lens != NULL ? INT32_MAX : seq_len);
        return status == TOOL_OK && args->lens != NULL && !read_lens(args->lens, &rows[0]) ? TOOL_USAGE
                                                                                           : status;
    }
    const char *suite = args->suite != NULL ? args->suite : device->type != kDLCPU ? "gpu" : "cpu";
    char where[300];
    snprintf(where, sizeof where, args->file != NULL ? "%.200s" : "suite '%.200s'",
             args->file != NULL ? args->file : suite);
    const int status =
        args->file != NULL ? file_rows(args, rows, count) : suite_rows(args, suite, rows, count);
    return status == TOOL_OK ? keep_wanted(args->rows, where, rows, count) : status;
}
