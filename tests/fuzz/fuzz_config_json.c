/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_config_json.c: any bytes as a Hugging Face config.json. Either layers whose problems hold together,
 * or an error. */
// SOURCES: core/*/*.c
#include <stdlib.h>
#include <string.h>

#include <attn/attn.h>
#include <attn/attn_model.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    attn_model_t *model = NULL;
    attn_error_t err = {.struct_size = sizeof err};
    int code = attn_model_parse((const char *)data, size, "fuzz", &model, &err);
    if (code) {
        if (code > 0 || err.code != code || !err.text[0] || !memchr(err.text, '\0', sizeof err.text)) abort();
        return 0;
    }
    attn_model_kind_t kind = {.struct_size = sizeof kind};
    attn_problem_t problem = {.struct_size = sizeof problem};
    uint32_t count = 0;
    while ((code = attn_model_kind(model, count, &kind, &problem, &err)) == ATTN_OK) {
        char text[2048];
        if (attn_problem_check(&problem, &err)) abort();
        if (attn_problem_format(&problem, text, sizeof text) < 0) abort();
        for (uint32_t i = 1; i < kind.num_layers; i++)
            if (kind.layers[i] <= kind.layers[i - 1]) abort();
        if (strlen(kind.name) == 0 || strlen(kind.layers_text) == 0) abort();
        if (attn_model_split(&problem, 1u << (size & 3), &err) == ATTN_OK && problem.num_heads == 0) abort();
        count++;
    }
    if (code != ATTN_E_NOT_FOUND || count == 0) abort();
    attn_model_free(model);
    return 0;
}
