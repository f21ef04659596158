/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_calibrate.c: `attn calibrate`: the largest magnitudes of V over files of activations, in a file from
 * which engines take the static scales of int8 caches. */
#include <errno.h>
#include <unistd.h>

#include "base/term.h"
#include "base/tool.h"
#include "run/calibrate.h"

enum { MAX_LAYERS = 4096 };

typedef struct calibrate_args {
    const char *output;
    int resume, json;
} calibrate_args_t;

/* What is added to: nothing yet, or the output of an earlier run. */
static int open_calibration(const calibrate_args_t *args, attn_calibration_t **calibration) {
    attn_error_t error = {.struct_size = sizeof error};
    int code;
    if (args->resume) {
        code = attn_calibration_load(args->output, calibration, &error);
    } else {
        if (access(args->output, F_OK) == 0) {
            tool_error("%s exists; --resume adds to it, or give --output another name", args->output);
            return TOOL_USAGE;
        }
        code = attn_calibration_create(calibration, &error);
    }
    if (code == ATTN_OK) return TOOL_OK;
    tool_error("%s", error.text);
    return code == ATTN_E_NO_MEMORY ? TOOL_SETUP : TOOL_INPUT;
}

/* Every layer of a file that keeps V by channels. */
static int add_file(attn_calibration_t *calibration, const char *path, const calibrate_args_t *args,
                    int *added) {
    static int64_t numbers[MAX_LAYERS];
    attn_error_t error = {.struct_size = sizeof error};
    st_file_t *file;
    int code = st_open(path, &file, &error);
    if (code != ATTN_OK) {
        tool_error("%s", error.text);
        return TOOL_INPUT;
    }
    const int count = run_input_layers(file, path, numbers, MAX_LAYERS, &error);
    code = count < 0 ? count : ATTN_OK;
    for (int i = 0; i < count && code == ATTN_OK; i++) {
        run_input_t input;
        char name[64];
        code = run_input_read(file, path, numbers[i], &input, &error);
        if (code != ATTN_OK) break;
        code = calibrate_add(calibration, &input, &error);
        if (code == ATTN_E_UNSUPPORTED) {
            if (!args->json) printf("%s: left out: %s\n", path, error.text);
            code = ATTN_OK;
        } else if (code == ATTN_OK) {
            (*added)++;
            if (!args->json)
                printf("%s: %s, %d tokens\n", path, calibrate_name(&input, name, sizeof name),
                       (int)input.k_start[input.num_reqs]);
        }
        run_input_free(&input);
    }
    st_close(file);
    if (code == ATTN_OK) return TOOL_OK;
    tool_error("%s", error.text);
    return code == ATTN_E_NO_MEMORY ? TOOL_SETUP : TOOL_INPUT;
}

static void print_layers(const attn_calibration_t *calibration, const char *output) {
    table_t *table = table_new("layer|>heads|>channels|>tokens|>largest");
    printf("\n");
    for (uint32_t i = 0; i < attn_calibration_num_layers(calibration); i++) {
        attn_calibration_layer_t l = {.struct_size = sizeof l};
        if (attn_calibration_layer(calibration, i, &l, NULL) != ATTN_OK) continue;
        table_cell(table, TERM_PLAIN, "%s", l.name);
        table_cell(table, TERM_PLAIN, "%lld", (long long)l.num_kv_heads);
        table_cell(table, TERM_PLAIN, "%lld", (long long)l.head_size_v);
        table_cell(table, TERM_PLAIN, "%lld", (long long)l.tokens);
        table_cell(table, TERM_PLAIN, "%.4g", (double)l.largest);
    }
    table_print(table, stdout, "  ");
    printf("\n%s: %u layers written\n", output, attn_calibration_num_layers(calibration));
}

static void print_json(const attn_calibration_t *calibration, const char *output) {
    json_t *layers = json_array();
    for (uint32_t i = 0; i < attn_calibration_num_layers(calibration); i++) {
        attn_calibration_layer_t l = {.struct_size = sizeof l};
        if (attn_calibration_layer(calibration, i, &l, NULL) != ATTN_OK) continue;
        json_array_append_new(layers,
                              json_pack("{s:s, s:I, s:I, s:I, s:f}", "name", l.name, "num_kv_heads",
                                        (json_int_t)l.num_kv_heads, "head_size_v", (json_int_t)l.head_size_v,
                                        "tokens", (json_int_t)l.tokens, "largest", (double)l.largest));
    }
    tool_print_json(json_pack("{s:s, s:o}", "output", output, "layers", layers));
}

int cmd_calibrate(int argc, char **argv) {
    calibrate_args_t args = {0};
    int words, added = 0;
    const tool_option_t options[] = {
        {"output", "FILE", TOOL_TEXT, &args.output, 0, 0,
         "the file to write; it appears when it is complete"},
        {"resume", NULL, TOOL_FLAG, &args.resume, 0, 0, "add to what --output holds already"},
        {"json", NULL, TOOL_FLAG, &args.json, 0, 0, "print JSON instead of text"},
        {"help", NULL, TOOL_HELP, NULL, 0, 0, "show this text"}};
    const tool_usage_t usage = {
        "calibrate",
        "FILE.safetensors.. --output FILE [options]",
        "Finds the largest magnitude of every channel of V over the layers and tokens of the given files "
        "(activations as\n"
        "attn run reads them) and writes them to a file, from which an engine takes the static scales of a "
        "cache "
        "of\n"
        "int8_static_v (attn_calibration_load). --resume goes on with a file of an earlier run; it is "
        "replaced "
        "when the new\n"
        "one is complete.",
        "  attn calibrate examples/data/minilm-as-decoder.safetensors --output v-scales.json\n"
        "  attn calibrate more.safetensors --output v-scales.json --resume\n"
        "  attn run examples/data/minilm-as-decoder.safetensors --kv-cache-dtype int8_static_v --calibration "
        "v-scales.json",
        options,
        sizeof options / sizeof options[0]};
    int status = tool_parse(&usage, argc, argv, &words);
    if (status >= 0) return status;
    if (words == 0 || args.output == NULL) {
        tool_error(words == 0 ? "no file; give FILE.safetensors"
                              : "--output is missing; name the file to write");
        return TOOL_USAGE;
    }
    attn_calibration_t *calibration = NULL;
    attn_error_t error = {.struct_size = sizeof error};
    status = open_calibration(&args, &calibration);
    for (int i = 0; i < words && status == TOOL_OK; i++)
        status = add_file(calibration, argv[i], &args, &added);
    if (status == TOOL_OK && added == 0) {
        tool_error("no layer of these files keeps V by channels; nothing was written");
        status = TOOL_NO;
    }
    if (status == TOOL_OK && attn_calibration_save(calibration, args.output, &error) != ATTN_OK) {
        tool_error("%s", error.text);
        status = TOOL_SETUP;
    }
    if (status == TOOL_OK && args.json)
        print_json(calibration, args.output);
    else if (status == TOOL_OK)
        print_layers(calibration, args.output);
    attn_calibration_destroy(calibration);
    return status;
}
