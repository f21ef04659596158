/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_run.c: `attn run`: real tensors through the selected backend, held against the reference backend and
 * against what the model itself computed. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/describe.h"
#include "base/layer_sizes.h"
#include "cmd/problem_args.h"
#include "run/run_case.h"
#include "run/run_layer.h"
#include "run/run_quality.h"
#include "run/run_replay.h"
#include "tensor/tensor.h"
#include "base/term.h"

enum { MAX_LAYERS = 512 };

typedef struct run_args {
    const char *device, *backend, *kv_cache_dtype, *dtype, *output, *replay, *svg, *calibration;
    int quality;
    int64_t block_size, chunk, decode, layer;
    run_case_args_t random; /* .seed also orders the pages */
} run_args_t;

/* One line of the report. */
typedef struct run_line {
    run_input_t input;
    run_result_t result;
    run_difference_t to_reference, to_model;
    int has_reference, has_model;
    int is_itself; /* REFERENCE was held against itself */
    char reference_note[128];
} run_line_t;

static void compare(attn_context_t *context, const run_options_t *options, run_line_t *line) {
    const run_input_t *in = &line->input;
    double tol = run_tolerance(&line->result.problem, 0);
    ATTN_INIT(attn_device_t, cpu);
    ATTN_INIT(attn_error_t, error);
    run_result_t reference;
    run_options_t plain = *options;
    plain.backend = "REFERENCE";
    plain.device = &cpu;
    line->is_itself = strcmp(line->result.backend, plain.backend) == 0;
    int code = attn_device_parse("cpu", &cpu, &error);
    if (code == ATTN_OK) code = run_layer(context, in, &plain, &reference, &error);
    line->has_reference = code == ATTN_OK;
    if (line->has_reference)
        line->to_reference = run_compare(line->result.output, reference.output, line->result.count, tol, tol);
    else
        snprintf(line->reference_note, sizeof line->reference_note, "%.120s", error.text);
    run_result_free(&reference);
    if (in->output == NULL) return;
    float *model = malloc((line->result.count + 1) * sizeof *model);
    if (model == NULL) return;
    for (size_t i = 0; i < line->result.count; i++)
        model[i] = tensor_load(in->output->data, in->problem.dtype, i);
    tol = run_tolerance(&line->result.problem, 1);
    line->has_model = 1;
    line->to_model = run_compare(line->result.output, model, line->result.count, tol, tol);
    free(model);
}

static void difference_cell(table_t *table, int is_there, const run_difference_t *d) {
    if (!is_there)
        table_cell(table, TERM_DIM, "-");
    else
        table_cell(table, d->is_close ? TERM_GREEN : TERM_RED, "%.1e %s", d->max_abs,
                   d->is_close ? "ok" : "WRONG");
}

static json_t *difference_json(int is_there, const run_difference_t *d) {
    if (!is_there) return json_null();
    double max_abs = isfinite(d->max_abs) ? d->max_abs : 1e300;
    return json_pack("{s:f, s:f, s:b}", "max_abs", max_abs, "relative_rms", d->relative_rms, "ok",
                     d->is_close);
}

static json_t *line_json(const run_line_t *line) {
    const run_result_t *r = &line->result;
    return json_pack("{s:I, s:s, s:o, s:o, s:s, s:i, s:I, s:f, s:f, s:f, s:b, s:o, s:o}", "layer",
                     (json_int_t)line->input.number, "name", line->input.name, "problem",
                     describe_problem_json(&r->problem), "selection", describe_selection_json(r->selection),
                     "backends", r->backend, "steps", r->steps, "page_bytes", (json_int_t)r->page_bytes,
                     "seconds_plan", r->seconds_plan, "seconds_update", r->seconds_update, "seconds_forward",
                     r->seconds_forward, "compared_with_reference", line->has_reference && !line->is_itself,
                     "error_to_reference", difference_json(line->has_reference, &line->to_reference),
                     "error_to_model", difference_json(line->has_model, &line->to_model));
}

/* "CPU_ATTN, first of ... : pages of 16 ..": how the layers ran; said once, as all layers of a file are
 * alike. */
static void print_how(const run_line_t *line, const run_options_t *options) {
    const run_result_t *r = &line->result;
    const attn_selection_t *s = r->selection;
    printf("\n%s: %s, from %s", r->backend,
           strcmp(s->rule, "explicit") == 0 ? "requested" : "first of the list that serves it", s->source);
    if (r->page_bytes == 0) {
        printf("; one call without a cache\n");
        return;
    }
    printf("\n%lld pages of %u tokens in random order; prefill in chunks of %d, the last %d tokens one by "
           "one: %d steps\n",
           (long long)r->num_blocks, r->problem.block_size, options->chunk, options->decode, r->steps);
}

static void print_report(const char *path, const run_line_t *lines, int count, const run_options_t *options) {
    const run_input_t *first = &lines[0].input;
    char shape[256];
    describe_problem(&lines[0].result.problem, shape, sizeof shape);
    printf("%s: %s%s%s, %d request%s, %d tokens\n\n", path, first->model, first->model[0] != '\0' ? ", " : "",
           shape, first->num_reqs, first->num_reqs == 1 ? "" : "s", first->q_start[first->num_reqs]);
    table_t *table = table_new("layer||backend|error to reference|error to the model|>time");
    for (int i = 0; i < count; i++) {
        const run_line_t *line = &lines[i];
        table_cell(table, TERM_PLAIN, "%lld", (long long)line->input.number);
        table_cell(table, TERM_DIM, "%s", line->input.name);
        table_cell(table, TERM_BOLD, "%s", line->result.backend);
        if (line->is_itself && line->has_reference && line->to_reference.is_close)
            table_cell(table, TERM_YELLOW, "itself");
        else
            difference_cell(table, line->has_reference, &line->to_reference);
        difference_cell(table, line->has_model, &line->to_model);
        table_cell(table, TERM_PLAIN, "%.2f ms",
                   (line->result.seconds_update + line->result.seconds_forward) * 1e3);
        if (!line->has_reference) table_note(table, "  no reference: %s", line->reference_note);
    }
    table_print(table, stdout, "  ");
    const run_line_t *shown = &lines[0];
    for (int i = 0; i < count; i++)
        if (shown->result.page_bytes == 0) shown = &lines[i];
    print_how(shown, options);
}

static int write_output(const char *path, const run_line_t *lines, int count) {
    st_tensor_t *tensors = calloc((size_t)count, sizeof *tensors);
    char(*names)[64] = calloc((size_t)count, sizeof *names);
    int status = TOOL_OK;
    ATTN_INIT(attn_error_t, error);
    for (int i = 0; tensors != NULL && names != NULL && i < count; i++) {
        const attn_problem_t *p = &lines[i].input.problem;
        st_tensor_t *t = &tensors[i];
        size_t n = lines[i].result.count;
        unsigned char *data = malloc(n * attn_dtype_size(p->dtype) + 1);
        for (size_t k = 0; data != NULL && k < n; k++)
            tensor_store(data, p->dtype, k, lines[i].result.output[k]);
        snprintf(names[i], sizeof names[i], "layers.%lld.output", (long long)lines[i].input.number);
        t->name = names[i];
        t->dtype = p->dtype;
        t->ndim = 3;
        t->shape[0] = lines[i].input.q_start[lines[i].input.num_reqs];
        t->shape[1] = p->num_heads;
        t->shape[2] = layer_sizes(p).output;
        t->data = data;
        t->bytes = data != NULL ? n * attn_dtype_size(p->dtype) : 0;
        if (data == NULL) status = TOOL_SETUP;
    }
    st_pair_t metadata[] = {
        {"format", "attn-outputs"}, {"backend", lines[0].result.backend}, {"libattn", attn_version()}};
    if (tensors == NULL || names == NULL || status != TOOL_OK) {
        tool_error("out of memory for the output file");
        status = TOOL_SETUP;
    } else if (st_write(path, tensors, (size_t)count, metadata, 3, &error) != ATTN_OK) {
        tool_error("%s", error.text);
        status = TOOL_SETUP;
    }
    for (int i = 0; tensors != NULL && i < count; i++)
        free((void *)tensors[i].data);
    free(tensors);
    free(names);
    return status;
}

/* One layer on the device; where no device was requested and a GPU has no backend for the layer, on the CPU,
 * and says so. */
static int run_line(attn_context_t *context, const run_args_t *args, run_options_t *options, uint32_t dtype,
                    run_line_t *line, attn_error_t *error) {
    int code = dtype != 0 ? run_input_convert(&line->input, dtype, error) : ATTN_OK;
    if (code == ATTN_OK) code = run_layer(context, &line->input, options, &line->result, error);
    if (code != ATTN_E_UNSUPPORTED || args->device != NULL || options->device->type == kDLCPU) return code;
    static attn_device_t cpu = {.struct_size = sizeof cpu};
    if (attn_device_parse("cpu", &cpu, NULL) != ATTN_OK) return code;
    fprintf(stderr, "attn run: on the CPU, because %s\n", error->text);
    options->device = &cpu;
    run_result_free(&line->result);
    return run_layer(context, &line->input, options, &line->result, error);
}

static int run_lines(attn_context_t *context, const st_file_t *file, const char *path, const run_args_t *args,
                     run_options_t *options, uint32_t dtype, const int64_t *numbers, int count,
                     run_line_t *lines) {
    ATTN_INIT(attn_error_t, error);
    progress_t progress;
    progress_start(&progress, "running");
    for (int i = 0; i < count; i++) {
        progress_step(&progress, (double)i / count);
        int code = run_input_read(file, path, numbers[i], &lines[i].input, &error);
        if (code != ATTN_OK) {
            progress_end(&progress);
            tool_error("%s", error.text);
            return TOOL_INPUT;
        }
        code = run_line(context, args, options, dtype, &lines[i], &error);
        if (code != ATTN_OK) {
            progress_end(&progress);
            char what[64];
            snprintf(what, sizeof what, "layer %lld", (long long)numbers[i]);
            int status = tool_library_error(what, code, &error);
            return code == ATTN_E_NOT_FOUND && args->backend != NULL ? TOOL_NO : status;
        }
        compare(context, options, &lines[i]);
    }
    progress_end(&progress);
    return TOOL_OK;
}

static int run_file(attn_context_t *context, const char *path, const run_args_t *args, run_options_t *options,
                    uint32_t dtype, int json) {
    static int64_t numbers[MAX_LAYERS];
    st_file_t *file = NULL;
    ATTN_INIT(attn_error_t, error);
    if (st_open(path, &file, &error) != ATTN_OK) {
        tool_error("%s", error.text);
        return TOOL_INPUT;
    }
    int count = run_input_layers(file, path, numbers, MAX_LAYERS, &error), status = TOOL_INPUT;
    run_line_t *lines = count > 0 ? calloc((size_t)count, sizeof *lines) : NULL;
    if (count > 0 && args->layer >= 0) {
        numbers[0] = args->layer;
        count = 1;
    }
    if (count <= 0)
        tool_error("%s", error.text);
    else if (lines == NULL)
        tool_error("out of memory for %d layers", count);
    else
        status = run_lines(context, file, path, args, options, dtype, numbers, count, lines);
    if (status == TOOL_OK && json) {
        json_t *list = json_array();
        for (int i = 0; i < count; i++)
            json_array_append_new(list, line_json(&lines[i]));
        tool_print_json(
            json_pack("{s:s, s:s, s:o}", "file", path, "model", lines[0].input.model, "layers", list));
    } else if (status == TOOL_OK) {
        print_report(path, lines, count, options);
    }
    if (status == TOOL_OK && args->output != NULL) status = write_output(args->output, lines, count);
    for (int i = 0; i < count && lines != NULL; i++) {
        if (status == TOOL_OK && ((lines[i].has_reference && !lines[i].to_reference.is_close) ||
                                  (lines[i].has_model && !lines[i].to_model.is_close)))
            status = TOOL_NO;
        run_result_free(&lines[i].result);
        run_input_free(&lines[i].input);
    }
    free(lines);
    st_close(file);
    return status;
}

static void print_quality(const char *path, const run_input_t *first, const quality_row_t *rows, int count,
                          int num_layers) {
    char shape[256];
    describe_problem(&first->problem, shape, sizeof shape);
    printf("%s: %s%s%s, %d layer%s, %d tokens\n\n", path, first->model, first->model[0] != '\0' ? ", " : "",
           shape, num_layers, num_layers == 1 ? "" : "s", first->q_start[first->num_reqs]);
    table_t *table = table_new("cache|backend|>bytes|>error|>largest|>KL mean|>KL largest|>time");
    for (int i = 0; i < count; i++) {
        const quality_row_t *r = &rows[i];
        if (!r->is_served) continue;
        table_cell(table, TERM_BOLD, "%s", attn_kv_name(r->kv));
        table_cell(table, TERM_PLAIN, "%s", r->backend);
        table_cell(table, TERM_PLAIN, "%.0f", r->bytes);
        table_cell(table, TERM_PLAIN, "%.1e", r->error);
        table_cell(table, TERM_PLAIN, "%.1e", r->max_error);
        table_cell(table, TERM_PLAIN, "%.1e", r->mean_divergence);
        table_cell(table, TERM_PLAIN, "%.1e", r->max_divergence);
        table_cell(table, TERM_PLAIN, "%.2f ms", r->seconds * 1e3);
    }
    for (int i = 0; i < count; i++)
        if (!rows[i].is_served)
            table_note(table, "  %s: not served: %s", attn_kv_name(rows[i].kv), rows[i].why);
    table_print(table, stdout, "  ");
    printf("\nbytes of a token and KV head; error: of the outputs against exact attention, relative, worst "
           "layer; KL "
           "of the\nsoftmax in nats; no calibrated scales\n");
}

static json_t *quality_json(const quality_row_t *r) {
    if (!r->is_served)
        return json_pack("{s:s, s:b, s:s}", "kv_cache_dtype", attn_kv_name(r->kv), "served", 0, "why",
                         r->why);
    return json_pack("{s:s, s:b, s:s, s:f, s:f, s:f, s:f, s:f, s:f}", "kv_cache_dtype", attn_kv_name(r->kv),
                     "served", 1, "backend", r->backend, "bytes", r->bytes, "error", r->error, "max_error",
                     r->max_error, "mean_divergence", r->mean_divergence, "max_divergence", r->max_divergence,
                     "seconds", r->seconds);
}

/* Every format on every layer of a file. */
static int run_quality(attn_context_t *context, const char *path, const run_args_t *args,
                       const run_options_t *options, int json) {
    static int64_t numbers[MAX_LAYERS];
    static quality_row_t rows[QUALITY_MAX_FORMATS];
    static run_input_t input, first;
    st_file_t *file = NULL;
    ATTN_INIT(attn_error_t, error);
    if (st_open(path, &file, &error) != ATTN_OK) {
        tool_error("%s", error.text);
        return TOOL_INPUT;
    }
    int count = run_input_layers(file, path, numbers, MAX_LAYERS, &error), formats = 0, served = 0;
    if (count > 0 && args->layer >= 0) numbers[0] = args->layer, count = 1;
    int status = count > 0 ? TOOL_OK : TOOL_INPUT;
    if (count <= 0) tool_error("%s", error.text);
    for (int i = 0; status == TOOL_OK && i < count; i++) {
        int code = run_input_read(file, path, numbers[i], &input, &error);
        if (code != ATTN_OK) {
            tool_error("%s", error.text);
            status = TOOL_INPUT;
            break;
        }
        if (i == 0) first = input;
        code = quality_layer(context, &input, options, rows, &formats, &error);
        run_input_free(&input);
        if (code != ATTN_OK) status = tool_library_error("--quality", code, &error);
        if (code == ATTN_E_UNSUPPORTED) status = TOOL_NO;
    }
    quality_finish(rows, formats);
    for (int i = 0; i < formats; i++)
        served += rows[i].is_served;
    if (status == TOOL_OK && args->svg != NULL && quality_picture(args->svg, path, rows, formats) != 0) {
        tool_error("%s: %s", args->svg, strerror(errno));
        status = TOOL_SETUP;
    }
    if (status == TOOL_OK && json) {
        json_t *list = json_array();
        for (int i = 0; i < formats; i++)
            json_array_append_new(list, quality_json(&rows[i]));
        tool_print_json(json_pack("{s:s, s:s, s:i, s:o}", "file", path, "model", first.model, "layers", count,
                                  "formats", list));
    } else if (status == TOOL_OK) {
        print_quality(path, &first, rows, formats, count);
    }
    if (status == TOOL_OK && served == 0) status = TOOL_NO;
    st_close(file);
    return status;
}

int cmd_run(int argc, char **argv) {
    tool_common_t common = {0};
    run_args_t args = {.chunk = 16, .decode = 8, .layer = -1};
    int words, status;
    const tool_option_t options[] = {
        {"device", "NAME", TOOL_TEXT, &args.device, 0, 0, "cpu or cuda:0; by default a GPU if there is one"},
        {"backend", "NAME", TOOL_TEXT, &args.backend, 0, 0, "run this backend instead of the selected one"},
        {"kv-cache-dtype", "NAME", TOOL_TEXT, &args.kv_cache_dtype, 0, 0,
         "auto, float16, fp8, int8_per_token_head, .."},
        {"dtype", "NAME", TOOL_TEXT, &args.dtype, 0, 0,
         "round the file's tensors to float32, float16 or bfloat16 first"},
        {"block-size", "N", TOOL_INT, &args.block_size, 1, 1 << 20, "tokens per cache page"},
        {"chunk", "N", TOOL_INT, &args.chunk, 1, INT32_MAX, "prompt tokens of a request in one step (16)"},
        {"decode", "N", TOOL_INT, &args.decode, 0, INT32_MAX, "last tokens of a request, one in a step (8)"},
        {"calibration", "FILE", TOOL_TEXT, &args.calibration, 0, 0,
         "static scales of V that attn calibrate wrote; otherwise from the file's own values"},
        {"layer", "N", TOOL_INT, &args.layer, 0, INT32_MAX, "this layer of the file only"},
        {"quality", NULL, TOOL_FLAG, &args.quality, 0, 0,
         "the error of every cache format on a file's tensors, its bytes and its time"},
        {"svg", "FILE", TOOL_TEXT, &args.svg, 0, 0, "with --quality: error against bytes as a picture"},
        {"output", "FILE", TOOL_TEXT, &args.output, 0, 0, "write what was computed as safetensors"},
        {"problem", "TEXT", TOOL_TEXT, &args.random.problem, 0, 0,
         "random numbers for this problem instead of a file"},
        {"replay", "FILE", TOOL_TEXT, &args.replay, 0, 0, "execute the calls that attn record wrote"},
        {"query-lens", "LIST", TOOL_TEXT, &args.random.query_lens, 0, 0,
         "with --problem: query tokens of each request"},
        {"seq-lens", "LIST", TOOL_TEXT, &args.random.seq_lens, 0, 0,
         "with --problem: length of each, the query included"},
        {"ranks", "N", TOOL_INT, &args.random.ranks.ranks, 2, 64,
         "with --problem: over this many ranks, threads or mpirun's processes"},
        {"join", "NAME", TOOL_TEXT, &args.random.ranks.join, 0, 0,
         "with --ranks: all_to_all (default) or reduce_scatter"},
        {"seed", "N", TOOL_INT, &args.random.seed, 0, INT64_MAX, "of the page order and of random numbers"},
        TOOL_COMMON_OPTIONS(common),
    };
    const tool_usage_t usage = {
        "run",
        "(FILE.safetensors | --problem TEXT | --replay FILE) [options]",
        "Runs the queries, keys and values of a file through the selected backend as an engine would: pages "
        "in random\n"
        "order, prefill in chunks, then decode; encoders in one call. The result is held against the "
        "reference backend and\n"
        "against the model's own output. --problem replays a line that `attn check` printed, or makes a "
        "random case;\n"
        "--replay executes calls that `attn record` wrote, on any backend.",
        "  attn run examples/data/minilm-encoder.safetensors\n"
        "  attn run examples/data/minilm-as-decoder.safetensors --quality\n"
        "  attn run examples/data/minilm-as-decoder.safetensors --kv-cache-dtype fp8 --chunk 7\n"
        "  attn run --problem 'role=decoder num_heads=8 num_kv_heads=2 head_size=64' --query-lens 1,5 "
        "--seq-lens 77,5\n"
        "  attn run --problem 'role=decoder num_heads=4 num_kv_heads=2 head_size=64' --ranks 4\n"
        "  attn run --replay attn-record.safetensors --backend REFERENCE",
        options,
        sizeof options / sizeof options[0]};
    status = tool_parse(&usage, argc, argv, &words);
    if (status >= 0) return status;
    if (words + (args.random.problem != NULL) + (args.replay != NULL) != 1) {
        tool_error(words == 0 && args.replay == NULL
                       ? "no file; give FILE.safetensors, --problem TEXT or --replay FILE"
                       : "expected one of a file, --problem TEXT and --replay FILE");
        return TOOL_USAGE;
    }
    if ((args.random.ranks.ranks != 0 && args.random.problem == NULL) ||
        (args.random.ranks.join != NULL && args.random.ranks.ranks == 0)) {
        tool_error(args.random.ranks.ranks != 0
                       ? "--ranks belongs to --problem; a file's layers run on one rank"
                       : "--join belongs to --ranks");
        return TOOL_USAGE;
    }
    args.random.ranks.common = &common;
    if (args.svg != NULL && !args.quality) {
        tool_error("--svg belongs to --quality");
        return TOOL_USAGE;
    }
    if (args.quality &&
        (words != 1 || args.kv_cache_dtype != NULL || args.dtype != NULL || args.output != NULL)) {
        tool_error("--quality takes a file and tries every format in float32; leave out %s",
                   words != 1                    ? "--problem and --replay"
                   : args.kv_cache_dtype != NULL ? "--kv-cache-dtype"
                   : args.dtype != NULL          ? "--dtype"
                                                 : "--output");
        return TOOL_USAGE;
    }
    ATTN_INIT(attn_device_t, device);
    run_options_t run = {args.backend,
                         &device,
                         0,
                         (uint32_t)args.block_size,
                         (int32_t)args.chunk,
                         (int32_t)args.decode,
                         (uint64_t)args.random.seed,
                         0,
                         NULL};
    if (args.kv_cache_dtype != NULL && (run.kv_cache_dtype = kv_dtype_by_name(args.kv_cache_dtype)) == 0) {
        tool_error("--kv-cache-dtype is '%s'; auto, float16, bfloat16, float32, fp8, int8_per_token_head, .. "
                   "are known",
                   args.kv_cache_dtype);
        return TOOL_USAGE;
    }
    uint32_t dtype = args.dtype != NULL ? float_dtype_by_name(args.dtype) : 0;
    if (args.dtype != NULL && dtype == 0) {
        tool_error("--dtype is '%s'; expected float32, float16 or bfloat16", args.dtype);
        return TOOL_USAGE;
    }
    /* Tensors were recorded on a CPU. */
    const char *where = args.device == NULL && args.replay != NULL ? "cpu" : args.device;
    attn_context_t *context;
    attn_calibration_t *calibration = NULL;
    attn_error_t error = {.struct_size = sizeof error};
    if (args.calibration != NULL &&
        attn_calibration_load(args.calibration, &calibration, &error) != ATTN_OK) {
        tool_error("%s", error.text);
        return TOOL_INPUT;
    }
    run.calibration = calibration;
    status = tool_place_open(&common, where, &device, &context);
    if (status != TOOL_OK) {
        attn_calibration_destroy(calibration);
        return status;
    }
    json_t *made = NULL;
    if (args.replay != NULL)
        status = run_replay(context, args.replay, &run, common.json);
    else if (args.random.problem != NULL)
        status = run_case(context, &run, &args.random, common.json ? &made : NULL);
    else if (args.quality)
        status = run_quality(context, argv[0], &args, &run, common.json);
    else
        status = run_file(context, argv[0], &args, &run, dtype, common.json);
    if (made != NULL) tool_print_json(made);
    attn_context_destroy(context);
    attn_calibration_destroy(calibration);
    return status;
}
