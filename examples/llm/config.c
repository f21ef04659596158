/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.c: what llama.c has to know of config.json. The fields that concern attention are read by libattn,
 * from the same file.
 */
#include <stdio.h>
#include <string.h>

#include "llm.h"

static void read_rope(json_t *root, config_t *c) {
    json_t *rope = json_object_get(root, "rope_parameters");
    if (rope == NULL) rope = json_object_get(root, "rope_scaling");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (type == NULL) type = json_string_value(json_object_get(rope, "type"));
    if (type == NULL) type = "default";
    c->rope_theta = config_number(rope, "rope_theta", config_number(root, "rope_theta", 10000));
    c->rope_factor = 1;
    if (strcmp(type, "default") == 0) return;
    c->is_rope_llama3 = strcmp(type, "llama3") == 0;
    if (!c->is_rope_llama3 && strcmp(type, "linear") != 0)
        die("config.json: rope_type is '%s'; default, linear and llama3 are served", type);
    c->rope_factor = config_number(rope, "factor", 1);
    c->rope_low = config_number(rope, "low_freq_factor", 1);
    c->rope_high = config_number(rope, "high_freq_factor", 4);
    c->rope_old_len = config_number(rope, "original_max_position_embeddings", 8192);
}

/* The fields that concern attention are read by libattn; these are the rest. */
void config_read(const char *folder, config_t *c) {
    static const char *const types[] = {"llama", "mistral", "qwen2", "qwen3"};
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *root = config_load(path, 1), *end = json_object_get(root, "eos_token_id");
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const char *act = json_string_value(json_object_get(root, "hidden_act"));
    int is_known = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        is_known |= type != NULL && strcmp(type, types[i]) == 0;
    if (!is_known)
        die("%s: model_type is '%s'; llama, mistral, qwen2 and qwen3 are served", path,
            type != NULL ? type : "");
    if (act != NULL && strcmp(act, "silu") != 0) die("%s: hidden_act is '%s'; silu is served", path, act);
    *c = (config_t){.hidden = config_whole(root, "hidden_size", 0),
                    .inner = config_whole(root, "intermediate_size", 0),
                    .layers = config_whole(root, "num_hidden_layers", 0),
                    .heads = config_whole(root, "num_attention_heads", 0),
                    .vocabulary = config_whole(root, "vocab_size", 0),
                    .max_len = config_whole(root, "max_position_embeddings", 2048),
                    .norm_eps = config_number(root, "rms_norm_eps", 1e-6)};
    c->kv_heads = config_whole(root, "num_key_value_heads", c->heads);
    c->head_size = config_whole(root, "head_dim", strcmp(type, "qwen3") == 0 ? 128 : c->hidden / c->heads);
    c->is_tied = json_is_true(json_object_get(root, "tie_word_embeddings"));
    read_rope(root, c);
    for (size_t i = 0; i < (json_is_array(end) ? json_array_size(end) : 1) && c->num_ends < 8; i++) {
        json_t *token = json_is_array(end) ? json_array_get(end, i) : end;
        if (json_is_integer(token)) c->ends[c->num_ends++] = (int32_t)json_integer_value(token);
    }
    json_decref(root);
}
