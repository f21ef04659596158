/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bench.c: `attn bench`: workloads beside the ceilings of the same run, as a table, JSON and a
 * picture. */
#include <errno.h>
#include <stdlib.h>

#include "measure/bench_picture.h"
#include "measure/bench_run.h"
#include "cmd/bench_rows.h"
#include "base/describe.h"
#include "ranks/bench_ranks.h"
#include "base/term.h"

static json_t *row_json(const bench_row_t *row) {
    json_t *ceilings = json_array();
    for (int i = 0; i < BENCH_MAX_CEILINGS; i++)
        if (row->ceilings[i].rate > 0)
            json_array_append_new(ceilings,
                                  json_pack("{s:s, s:f, s:f, s:f}", "name", row->ceilings[i].name, "rate",
                                            row->ceilings[i].rate, "burst_rate", row->ceilings[i].burst,
                                            "ratio", row->rate / row->ceilings[i].rate));
    json_t *out = json_pack("{s:s, s:o, s:i, s:i, s:i, s:s}", "name", row->name, "problem",
                            describe_problem_json(&row->problem), "requests", row->requests, "query_len",
                            row->query_len, "seq_len", row->seq_len, "backend", row->backend);
    if (row->failure[0] != '\0') {
        json_object_set_new(out, "failure", json_string(row->failure));
        json_decref(ceilings);
        return out;
    }
    json_object_set_new(out, "median_seconds", json_real(row->median));
    json_object_set_new(out, "min_seconds", json_real(row->least));
    if (row->burst > 0) {
        json_object_set_new(out, "burst_seconds", json_real(row->burst));
        json_object_set_new(out, "host_seconds", json_real(row->host));
    }
    json_object_set_new(out, "repetitions", json_integer(row->repetitions));
    json_object_set_new(out, "bytes", json_real(row->bytes));
    json_object_set_new(out, "flops", json_real(row->flops));
    json_object_set_new(out, "rate", json_real(row->rate));
    json_object_set_new(out, "unit", json_string(row->is_memory_bound ? "GB/s" : "GFLOP/s"));
    json_object_set_new(out, "ceilings", ceilings);
    json_object_set_new(out, "max_abs_error", row->error >= 0 ? json_real(row->error) : json_null());
    return out;
}

static void time_text(double seconds, char *text, size_t size) {
    if (seconds < 1e-3)
        snprintf(text, size, "%.1f us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(text, size, "%.2f ms", seconds * 1e3);
    else
        snprintf(text, size, "%.2f s", seconds);
}

/* On a GPU: both times, both shares of the ceiling, what one launch costs the host. */
static void print_gpu_rows(const bench_row_t *rows, int count) {
    table_t *table = table_new("workload|backend|>sustained|>burst|>rate|>of|>burst of|ceiling|>host|>error");
    for (int i = 0; i < count; i++) {
        const bench_row_t *row = &rows[i];
        const bench_ceiling_t *c = &row->ceilings[0];
        char text[40];
        table_cell(table, TERM_BOLD, "%s", row->name);
        table_cell(table, TERM_PLAIN, "%s", row->failure[0] != '\0' ? "failed" : row->backend);
        if (row->failure[0] != '\0') {
            for (int k = 0; k < 8; k++)
                table_cell(table, TERM_DIM, "-");
            table_note(table, "    %s", row->failure);
            continue;
        }
        time_text(row->median, text, sizeof text);
        table_cell(table, TERM_PLAIN, "%s", text);
        time_text(row->burst, text, sizeof text);
        table_cell(table, TERM_DIM, "%s", text);
        bench_rate_text(row, row->rate, text, sizeof text);
        table_cell(table, TERM_PLAIN, "%s", text);
        const double ratio = c->rate > 0 ? row->rate / c->rate : 0;
        if (ratio > 0)
            table_cell(table, ratio >= 0.8 ? TERM_GREEN : TERM_YELLOW, "%.0f%%", 100 * ratio);
        else
            table_cell(table, TERM_DIM, "-");
        if (c->burst > 0)
            table_cell(table, TERM_DIM, "%.0f%%", 100 * row->rate * row->median / row->burst / c->burst);
        else
            table_cell(table, TERM_DIM, "-");
        table_cell(table, TERM_PLAIN, "%s", ratio > 0 ? c->name : "none was measured");
        time_text(row->host, text, sizeof text);
        table_cell(table, TERM_DIM, "%s", text);
        if (row->error >= 0)
            table_cell(table, TERM_DIM, "%.1e", row->error);
        else
            table_cell(table, TERM_DIM, "-");
    }
    table_print(table, stdout, "  ");
}

static void print_limits(const gpu_ceilings_t *c) {
    printf("ceilings, sustained and in a burst: ");
    if (c->read > 0) printf("read %.0f and %.0f GB/s, ", c->read, c->read_burst);
    printf("copy %.0f and %.0f GB/s, bf16 matmul ", c->copy, c->copy_burst);
    if (c->matmul > 0)
        printf("%.0f and %.0f TFLOP/s\n\n", c->matmul / 1e3, c->matmul_burst / 1e3);
    else
        printf("not measured\n\n");
}

static void print_rows(const bench_row_t *rows, int count) {
    table_t *table = table_new("workload|backend|>median|>best|>rate|>of|ceiling|>error");
    for (int i = 0; i < count; i++) {
        const bench_row_t *row = &rows[i];
        table_cell(table, TERM_BOLD, "%s", row->name);
        table_cell(table, TERM_PLAIN, "%s", row->failure[0] != '\0' ? "failed" : row->backend);
        if (row->failure[0] != '\0') {
            for (int k = 0; k < 6; k++)
                table_cell(table, TERM_DIM, "-");
            table_note(table, "    %s", row->failure);
            continue;
        }
        char median[32], least[32], ceilings[160] = "none was measured on this device";
        time_text(row->median, median, sizeof median);
        time_text(row->least, least, sizeof least);
        table_cell(table, TERM_PLAIN, "%s", median);
        table_cell(table, TERM_DIM, "%s", least);
        char rate[40];
        bench_rate_text(row, row->rate, rate, sizeof rate);
        table_cell(table, TERM_PLAIN, "%s", rate);
        size_t used = 0;
        double ratio = row->ceilings[0].rate > 0 ? row->rate / row->ceilings[0].rate : 0;
        for (int k = 0; k < BENCH_MAX_CEILINGS && used < sizeof ceilings; k++) {
            const bench_ceiling_t *c = &row->ceilings[k];
            if (c->rate <= 0) continue;
            if (k == 0)
                used = (size_t)snprintf(ceilings, sizeof ceilings, "%s %.1f", c->name, c->rate);
            else
                used += (size_t)snprintf(ceilings + used, sizeof ceilings - used, "; %.0f%% of %s %.1f",
                                         100 * row->rate / c->rate, c->name, c->rate);
        }
        if (ratio > 0)
            table_cell(table, ratio >= 0.8 ? TERM_GREEN : TERM_YELLOW, "%.0f%%", 100 * ratio);
        else
            table_cell(table, TERM_DIM, "-");
        table_cell(table, TERM_PLAIN, "%s", ceilings);
        if (row->error >= 0)
            table_cell(table, TERM_DIM, "%.1e", row->error);
        else
            table_cell(table, TERM_DIM, "-");
    }
    table_print(table, stdout, "  ");
}

/* The value of --option cpu.KEY=VALUE, or NULL: the ceilings are to be those of what the backend was told to
 * use. */
static const char *cpu_setting(const tool_common_t *common, const char *key) {
    const char *value = NULL;
    for (size_t i = 0; i < common->settings.count; i++) {
        const char *s = common->settings.items[i];
        if (strncmp(s, "cpu.", 4) == 0 && strncmp(s + 4, key, strlen(key)) == 0 && s[4 + strlen(key)] == '=')
            value = s + 5 + strlen(key);
    }
    return value;
}

int cmd_bench(int argc, char **argv) {
    tool_common_t common = {0};
    bench_args_t args = {.requests = 1, .query_len = 1, .milliseconds = 1500};
    int words;
    const tool_option_t options[] = {
        {"suite", "NAME", TOOL_TEXT, &args.suite, 0, 0, "cpu, gpu, h200 or quick; by default the device's"},
        {"workloads", "FILE", TOOL_TEXT, &args.file, 0, 0,
         "the workloads of this JSON file instead of a suite"},
        {"rows", "LIST", TOOL_TEXT, &args.rows, 0, 0,
         "only workloads whose name contains one of these words"},
        {"problem", "TEXT", TOOL_TEXT, &args.problem, 0, 0, "your own workload instead of a suite"},
        {"requests", "N", TOOL_INT, &args.requests, 1, 1 << 16, "with --problem: requests in the batch (1)"},
        {"query", "N", TOOL_INT, &args.query_len, 0, 1 << 24,
         "with --problem: query tokens of each (1); 0: as many as keys"},
        {"seq", "N", TOOL_INT, &args.seq_len, 1, 1 << 28,
         "with --problem: keys of each, the query's included"},
        {"lens", "LIST", TOOL_TEXT, &args.lens, 0, 0,
         "with --problem: keys of each request, such as 5,100,33"},
        {"time", "MS", TOOL_INT, &args.milliseconds, 1, 600000, "milliseconds for each workload (1500)"},
        {"threads", "N", TOOL_INT, &args.threads, 1, 4096,
         "threads of CPU_ATTN and of the ceilings; by default all"},
        {"device", "NAME", TOOL_TEXT, &args.device, 0, 0, "cpu or cuda:0; by default a GPU if there is one"},
        {"backend", "NAME", TOOL_TEXT, &args.backend, 0, 0,
         "measure this backend instead of the selected one"},
        {"ranks", "N", TOOL_INT, &args.ranks.ranks, 2, 64,
         "over this many ranks, threads or mpirun's processes, beside one alone"},
        {"join", "NAME", TOOL_TEXT, &args.ranks.join, 0, 0,
         "with --ranks: all_to_all (default) or reduce_scatter"},
        {"svg", "FILE", TOOL_TEXT, &args.svg, 0, 0, "write a picture: roofline and bars"},
        TOOL_COMMON_OPTIONS(common),
    };
    const tool_usage_t usage = {"bench",
                                "[options]",
                                "Measures attention on cold caches with pages in random order, each "
                                "repetition next to what the machine can do at\n"
                                "best in that moment: a read of the same pages in the same order, a "
                                "streaming read, the multiply-add rate. Medians are\n"
                                "compared. Some outputs are held against double precision.",
                                "  attn bench\n"
                                "  attn bench --rows decode --svg decode.svg\n"
                                "  attn bench --problem 'role=decoder num_heads=16 num_kv_heads=4 "
                                "head_size=64' --requests 8 --seq 2048\n"
                                "  attn bench --workloads shapes.json --json\n"
                                "  attn bench --option cpu.level=avx2 --rows prefill",
                                options,
                                sizeof options / sizeof options[0]};
    int status = tool_parse(&usage, argc, argv, &words);
    if (status >= 0) return status;
    if (words != 0) {
        tool_error("unexpected argument '%s'; see attn bench --help", argv[0]);
        return TOOL_USAGE;
    }
    if ((args.ranks.join != NULL && args.ranks.ranks == 0) || (args.svg != NULL && args.ranks.ranks != 0)) {
        tool_error(args.svg != NULL ? "--svg draws one rank's rates; leave it away with --ranks"
                                    : "--join belongs to --ranks");
        return TOOL_USAGE;
    }
    args.ranks.common = &common;
    ATTN_INIT(attn_device_t, device);
    char threads_setting[64];
    if (args.threads != 0 && common.settings.count < TOOL_LIST_MAX) {
        snprintf(threads_setting, sizeof threads_setting, "cpu.num_threads=%lld", (long long)args.threads);
        common.settings.items[common.settings.count++] = threads_setting;
    }
    static bench_row_t rows[BENCH_MAX_ROWS];
    int count = 0;
    attn_context_t *context;
    status = tool_place_open(&common, args.device, &device, &context);
    if (status != TOOL_OK) return status;
    status = bench_choose_rows(&args, &device, rows, &count);
    if (status != TOOL_OK) {
        attn_context_destroy(context);
        return status;
    }

    if (args.ranks.ranks != 0) {
        status = bench_ranks(context, &device, args.backend, &args.ranks, rows, count,
                             (double)args.milliseconds * 1e-3);
        attn_context_destroy(context);
        return status;
    }
    const char *threads_text = cpu_setting(&common, "num_threads");
    int threads = threads_text != NULL && atoi(threads_text) > 0 ? atoi(threads_text)
                  : device.num_sms > 0                           ? device.num_sms
                                                                 : 1;
    bench_options_t run = {
        &device, args.backend, cpu_setting(&common, "level"), threads, (double)args.milliseconds * 1e-3,
        NULL};
    progress_t progress;
    gpu_ceilings_t limits;
    progress_start(&progress, "measuring");
    if (device.type != kDLCPU && bench_limits(&device, &limits) == ATTN_OK) run.limits = &limits;
    for (int i = 0; i < count; i++) {
        progress_step(&progress, (double)i / count);
        if (bench_run(context, &run, &rows[i]) != ATTN_OK) status = TOOL_NO;
    }
    progress_end(&progress);

    char title[256];
    if (device.type == kDLCPU)
        snprintf(title, sizeof title, "%s, %d threads, libattn %s", device.name, threads, attn_version());
    else
        snprintf(title, sizeof title, "%s, libattn %s", device.name, attn_version());
    if (common.json) {
        json_t *list = json_array();
        for (int i = 0; i < count; i++)
            json_array_append_new(list, row_json(&rows[i]));
        tool_print_json(json_pack("{s:s, s:s, s:i, s:o}", "device", device.name, "version", attn_version(),
                                  "threads", threads, "rows", list));
    } else {
        printf("%s\n\n", title);
        if (run.limits != NULL) print_limits(run.limits);
        (device.type != kDLCPU ? print_gpu_rows : print_rows)(rows, count);
    }
    if (args.svg != NULL) {
        int good = 0;
        for (int i = 0; i < count; i++)
            if (rows[i].failure[0] == '\0') rows[good++] = rows[i];
        if (good == 0)
            tool_error("no picture: every workload failed");
        else if (bench_picture(args.svg, title, rows, good) != 0) {
            tool_error("%s: %s", args.svg, strerror(errno));
            status = TOOL_SETUP;
        }
    }
    attn_context_destroy(context);
    return status;
}
