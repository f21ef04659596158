/* SPDX-License-Identifier: Apache-2.0 */
/* hf_families.c: the table of model types. Everything that config.json says itself (heads, sizes, layer_types, soft caps,
 * MLA ranks, alibi) is read by field name; a line here adds what only the model's code knows. A type without a line is
 * read as a decoder. */
#include "hf_families.h"

#include <string.h>

static const hf_family_t families[] = {
    {.model_type = "llama"},
    {.model_type = "qwen2", .pattern = HF_WINDOW_ABOVE},
    {.model_type = "qwen2_moe", .pattern = HF_WINDOW_ABOVE},
    {.model_type = "qwen3", .pattern = HF_WINDOW_ABOVE, .head_dim = 128},
    {.model_type = "qwen3_moe", .pattern = HF_WINDOW_ABOVE, .head_dim = 128},
    {.model_type = "qwen2_vl", .pattern = HF_WINDOW_ABOVE},
    {.model_type = "qwen2_vl_text", .pattern = HF_WINDOW_ABOVE},
    {.model_type = "qwen2_5_vl", .pattern = HF_WINDOW_ABOVE},
    {.model_type = "qwen2_5_vl_text", .pattern = HF_WINDOW_ABOVE},
    {.model_type = "qwen3_vl", .head_dim = 128},
    {.model_type = "qwen3_vl_text", .head_dim = 128},
    {.model_type = "mistral", .pattern = HF_ALL_WINDOW},
    {.model_type = "mixtral", .pattern = HF_ALL_WINDOW},
    {.model_type = "phi3", .pattern = HF_ALL_WINDOW},
    {.model_type = "starcoder2", .pattern = HF_ALL_WINDOW},
    {.model_type = "gemma", .heads = 16, .kv_heads = 16, .head_dim = 256},
    {.model_type = "gemma2", .pattern = HF_EVEN_WINDOW, .flags = HF_SCALAR, .heads = 8, .kv_heads = 4, .head_dim = 256,
     .window = 4096, .scalar = 256},
    {.model_type = "gemma3", .pattern = HF_NTH_IS_FULL, .period = 6, .flags = HF_SCALAR | HF_MM_PREFIX, .heads = 8,
     .kv_heads = 4, .head_dim = 256, .window = 4096, .scalar = 256},
    {.model_type = "gemma3_text", .pattern = HF_NTH_IS_FULL, .period = 6, .flags = HF_SCALAR, .heads = 8, .kv_heads = 4,
     .head_dim = 256, .window = 4096, .scalar = 256},
    {.model_type = "cohere2", .pattern = HF_NTH_IS_FULL, .period = 4},
    {.model_type = "llama4", .pattern = HF_CHUNKED_BUT_NTH, .period = 4},
    {.model_type = "llama4_text", .pattern = HF_CHUNKED_BUT_NTH, .period = 4},
    {.model_type = "gpt_oss", .pattern = HF_EVEN_WINDOW, .flags = HF_SINK, .head_dim = 64, .window = 128},
    {.model_type = "deepseek_v2"},
    {.model_type = "deepseek_v3"},
    {.model_type = "deepseek_v32"},
    {.model_type = "kimi_k2"},
    {.model_type = "glm4_moe_lite"},
    {.model_type = "glm_moe_dsa"},
    {.model_type = "minicpm3"},
    {.model_type = "bloom", .flags = HF_ALIBI},
    {.model_type = "mpt"},
    {.model_type = "falcon"},
    {.model_type = "gpt2"},
    {.model_type = "gpt_neox"},
    {.model_type = "gpt_bigcode"},
    {.model_type = "opt"},
    {.model_type = "olmo2"},
    {.model_type = "granite"},
    {.model_type = "bert", .shape = HF_ENCODER_ONLY},
    {.model_type = "roberta", .shape = HF_ENCODER_ONLY},
    {.model_type = "xlm-roberta", .shape = HF_ENCODER_ONLY},
    {.model_type = "camembert", .shape = HF_ENCODER_ONLY},
    {.model_type = "distilbert", .shape = HF_ENCODER_ONLY},
    {.model_type = "electra", .shape = HF_ENCODER_ONLY},
    {.model_type = "albert", .shape = HF_ENCODER_ONLY},
    {.model_type = "nomic_bert", .shape = HF_ENCODER_ONLY},
    {.model_type = "mpnet", .shape = HF_ENCODER_ONLY, .flags = HF_BIAS_NOTE},
    {.model_type = "modernbert", .shape = HF_ENCODER_ONLY, .pattern = HF_NTH_IS_GLOBAL, .period = 3, .flags = HF_HALF_WINDOW,
     .window = 128},
    {.model_type = "whisper", .shape = HF_ENCODER_DECODER},
    {.model_type = "bart", .shape = HF_ENCODER_DECODER},
    {.model_type = "mbart", .shape = HF_ENCODER_DECODER},
    {.model_type = "marian", .shape = HF_ENCODER_DECODER},
    {.model_type = "m2m_100", .shape = HF_ENCODER_DECODER},
    {.model_type = "t5", .shape = HF_ENCODER_DECODER, .flags = HF_BIAS_NOTE | HF_UNSCALED},
    {.model_type = "siglip_vision_model", .shape = HF_VISION},
    {.model_type = "clip_vision_model", .shape = HF_VISION},
    {.model_type = "vit", .shape = HF_VISION},
    {.model_type = "dinov2", .shape = HF_VISION},
};

const hf_family_t *hf_family_find(const char *model_type) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strcmp(families[i].model_type, model_type) == 0) return &families[i];
    return NULL;
}
