/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_config_json.c: any bytes as a Hugging Face config.json. Either layers whose problems hold together, or an error. */
// SOURCES: tools/hf_*.c tools/tool.c tools/args.c core/*.c
#include <stdlib.h>
#include <string.h>

#include <attn/attn.h>

#include "hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static hf_model_t model;
    attn_error_t err = {.struct_size = sizeof err};
    memset(&model, 0, sizeof model);
    int code = hf_config_parse((const char *)data, size, "fuzz", &model, &err);
    if (code) {
        if (code > 0 || err.code != code || !err.text[0] || !memchr(err.text, '\0', sizeof err.text)) abort();
        return 0;
    }
    if (model.num_kinds > HF_MAX_KINDS || model.num_notes > HF_MAX_NOTES) abort();
    for (uint32_t i = 0; i < model.num_kinds; i++) {
        if (!memchr(model.kinds[i].name, '\0', sizeof model.kinds[i].name)) abort();
        if (!memchr(model.kinds[i].layers, '\0', sizeof model.kinds[i].layers)) abort();
        char text[2048];
        if (attn_problem_check(&model.kinds[i].problem, &err)) abort();
        if (attn_problem_format(&model.kinds[i].problem, text, sizeof text) < 0) abort();
    }
    (void)hf_model_split(&model, 1u << (size & 3), &err);
    return 0;
}
