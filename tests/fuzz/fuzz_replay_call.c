/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_replay_call.c: any bytes as a file of the record hook, executed. A call ends with numbers or with an
 * error, and nothing is read or written outside of what it was given. */
// SOURCES: tools/run/replay_file.c tools/run/replay_call.c tools/tensor/*.c tools/base/tool.c
// SOURCES: tools/base/args.c core/*/*.c
// PLUGIN: reference plugins/reference/*.c plugins/common/batch_*.c plugins/common/c*_*.c
// PLUGIN: reference plugins/common/problem_*.c
// PLUGIN: reference plugins/common/indexer_plan.c plugins/common/latent_weights.c
// PLUGIN: reference plugins/common/output_scales.c
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/replay_call.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_CALLS = 4, MAX_TOKENS = 512, MAX_VALUES = 1 << 16, MAX_KEYS = 1 << 16 };

static attn_context_t *context;

/* The plugins are those of the build, or the instrumented ones of run_fuzz.sh. */
static void open_context(void) {
    attn_error_t error = {.struct_size = sizeof error};
    const char *folder = getenv("ATTN_TEST_PLUGIN_DIR");
    attn_context_options_t options = {.struct_size = sizeof options,
                                      .flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG,
                                      .config_text = "[attn]\nplugins = reference, cpu\nlog = off\n",
                                      .plugin_dir = folder};
    if (attn_context_create(&options, &context, &error) != ATTN_OK || !attn_context_backend(context, 0)) {
        fprintf(stderr, "fuzz_replay_call: %s\n", error.text);
        abort();
    }
}

/* Problems that are well-formed and large say nothing new and take seconds. */
static int is_small(const attn_problem_t *p) {
    return p->max_num_seqs <= MAX_TOKENS && p->max_num_batched_tokens <= MAX_TOKENS &&
           (uint64_t)p->num_heads * p->head_size <= MAX_VALUES && p->max_model_len <= MAX_KEYS &&
           p->block_size <= MAX_TOKENS && p->max_mm_ranges <= MAX_TOKENS;
}

static void replay(const replay_call_t *call, const char *backend) {
    replay_result_t result;
    attn_error_t error = {.struct_size = sizeof error};
    ATTN_INIT(attn_device_t, device);
    if (attn_device_parse("cpu", &device, &error) != ATTN_OK) abort();
    int code = replay_call(context, call, backend, &device, &result, &error);
    if (code > 0 || (code != ATTN_OK && (error.code != code || error.text[0] == '\0'))) abort();
    if (code == ATTN_OK && result.output == NULL) abort();
    replay_result_free(&result);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    st_file_t *file = NULL;
    attn_error_t error = {.struct_size = sizeof error};
    if (context == NULL) open_context();
    if (st_parse(data, size, "fuzz", &file, &error) != ATTN_OK) return 0;
    int count = replay_file_calls(file, "fuzz", &error);
    for (int i = 0; i < count && i < MAX_CALLS; i++) {
        replay_call_t call;
        int code = replay_file_read(file, "fuzz", i, &call, &error);
        if (code == ATTN_OK && call.has_tensors && is_small(&call.problem)) {
            const attn_backend_t *backend;
            for (uint32_t b = 0; (backend = attn_context_backend(context, b)) != NULL; b++)
                replay(&call, backend->name);
        }
        replay_call_free(&call);
    }
    st_close(file);
    return 0;
}
