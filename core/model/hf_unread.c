/* SPDX-License-Identifier: Apache-2.0 */
/* hf_unread.c: judges names by their words: what is separated by '_'. */
#include "model/hf_unread.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Words of what is done outside attention: projections, positions, other layers, training. They override
 * the rest. */
static const char outside[] =
    " rope rotary theta moe expert experts router mlp ffn dropout pdrop drop init initializer token "
    "tokens id ids vocab loss final lm classifier pooler summary implementation impl autoset "
    "flash sdpa eager fused dtype time feature augment pad residual ";
/* Words that mean attention beside whatever else. */
static const char always[] = " relative sink sinks swa alibi ";
/* Words that take the next list back: a bias or a norm of a projection. */
static const char projection[] = " bias norm layernorm rmsnorm ln clip lora out in proj projection ";
static const char attention[] =
    " att attn attns attention attentions head heads kv qk q k v qkv query key keys value values "
    "window windows windowed sliding local global hybrid chunk chunked causal bidirectional mla "
    "mha gqa mqa dsa nsa csa moba lightning mamba mamba2 ssm recurrent softcap softcapping "
    "capping indexer topk latent cross kvcache softmax ";
/* Two words that mean the kinds of layers only together. */
static const char stacks[] = " layer layers block blocks mixer mixers ",
                  kinds[] = " type types pattern order interval period every group freq ";

/* Names that the lists above would take and that change nothing here, since engines do it around the call. */
static const char harmless[] =
    " parallel_attn parallel_attention num_key_value_groups keys_to_ignore_at_inference "
    "attn_temperature_tuning attn_scale "
    "scale_attn_weights reorder_and_upcast_attn attention_softmax_in_fp32 scale_attention_softmax_in_fp32 "
    "use_mla "
    "decoder_sparse_step encoder_sparse_step cross_attention_hidden_size is_decoder query_key_layer_scaling "
    "apply_query_key_layer_scaling norm_topk_prob topk_group topk_method num_experts_per_tok "
    "first_k_dense_replace "
    "n_group block_type hidden_act_type moe_layer_freq mlp_only_layers attn_dropout_checkpoint "
    "kv_cache_dtype "
    "key_value_proj_dim attn_output_gate torchscript tf_legacy_loss value_proj ";

static int has_word(const char *list, const char *word) {
    char wanted[64];
    if (strlen(word) + 3 > sizeof wanted) return 0;
    snprintf(wanted, sizeof wanted, " %s ", word);
    return strstr(list, wanted) != NULL;
}

int attni_hf_name_is_of_attention(const char *name) {
    char words[128];
    int is_always = 0, is_projection = 0, is_attention = 0, is_stack = 0, is_kind = 0;
    if (has_word(harmless, name) || strlen(name) >= sizeof words) return 0;
    for (size_t i = 0; i <= strlen(name); i++)
        words[i] = (char)tolower((unsigned char)name[i]);
    for (char *save = NULL, *word = strtok_r(words, "_-.", &save); word != NULL;
         word = strtok_r(NULL, "_-.", &save)) {
        if (has_word(outside, word)) return 0;
        is_always |= has_word(always, word);
        is_projection |= has_word(projection, word);
        is_attention |= has_word(attention, word);
        is_stack |= has_word(stacks, word);
        is_kind |= has_word(kinds, word);
    }
    return is_always || (!is_projection && (is_attention || (is_stack && is_kind)));
}

/* Names of which false is the value that means something. */
static const char meant_if_false[] = " scale_attn_weights is_causal causal use_causal_mask ";

static int is_off(const json_t *value) {
    return json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* "position_embedding_type": "relative_key", "alibi"; everything else is added before the call. */
static int is_relative_position(const char *name, const json_t *value) {
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    return strstr(name, "position") != NULL &&
           (strstr(text, "relative") != NULL || strstr(text, "alibi") != NULL);
}

/* A part of the model with heads of its own, as the audio tower. */
static int is_tower(const json_t *value) {
    static const char *const heads[] = {
        "num_attention_heads",     "num_heads",   "n_head", "n_heads", "attention_heads",
        "encoder_attention_heads", "d_model_attn"};
    for (size_t i = 0; json_is_object(value) && i < sizeof heads / sizeof *heads; i++)
        if (json_object_get(value, heads[i]) != NULL) return 1;
    return 0;
}

static int is_other_kind(const char *name) {
    return strncmp(name, "linear_", 7) == 0 || strncmp(name, "mamba_", 6) == 0 ||
           strncmp(name, "ssm_", 4) == 0;
}

static void walk(const hf_reader_t *r, const char *prefix, int is_hybrid,
                 void (*found)(void *user, const char *path), void *user) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)r->object, name, value) {
        char path[200];
        snprintf(path, sizeof path, "%s%.100s", prefix, name);
        hf_reader_t inner = *r;
        inner.object = value;
        if (json_is_object(value) && attni_hf_was_entered(r, value)) {
            char deeper[128];
            if (strncmp(name, "rope", 4) == 0 || strlen(path) + 2 > sizeof deeper) continue;
            snprintf(deeper, sizeof deeper, "%.120s.", path);
            walk(&inner, deeper, is_hybrid, found, user);
            continue;
        }
        if (json_is_false(value) && has_word(meant_if_false, name) && !attni_hf_was_read(r, name))
            found(user, path);
        if (attni_hf_was_read(r, name) || is_off(value) || (is_hybrid && is_other_kind(name))) continue;
        if (attni_hf_name_is_of_attention(name) || is_relative_position(name, value) || is_tower(value))
            found(user, path);
    }
}

void attni_hf_unread_each(const hf_reader_t *top, int is_hybrid, void (*found)(void *user, const char *path),
                          void *user) {
    walk(top, "", is_hybrid, found, user);
}
