/* SPDX-License-Identifier: Apache-2.0 */
/* hf_layers.c: window patterns of layer stacks. */
#include "model/hf_layers.h"

#include <stdio.h>
#include <string.h>

/* What layer i is; window and chunk are what the config offers to layers that have one. */
typedef struct stack {
    const json_t *types;   /* layer_types, or NULL */
    const json_t *full;    /* Kimi Linear: numbers, from 1, of the layers that are attention */
    const json_t *no_rope; /* Llama 4: 1 where the layer is chunked */
    int pattern;
    int64_t period, first;
    uint32_t window, chunk;
} layer_stack_t;

static int is_attention(const char *type) {
    return strcmp(type, "full_attention") == 0 || strcmp(type, "sliding_attention") == 0 ||
           strcmp(type, "chunked_attention") == 0 || strcmp(type, "attention") == 0;
}

/* 0: full, 1: window, 2: chunk, 3: no attention. */
static int class_of(const layer_stack_t *s, int64_t i) {
    if (s->full != NULL) {
        for (size_t k = 0; k < json_array_size(s->full); k++)
            if (json_integer_value(json_array_get(s->full, k)) == i + 1) return 0;
        return 3;
    }
    if (s->types != NULL) {
        const char *type = json_string_value(json_array_get(s->types, (size_t)i));
        if (!is_attention(type)) return 3;
        return type[0] == 's' ? 1 : type[0] == 'c' ? 2 : 0;
    }
    switch (s->pattern) {
    case HF_ALL_WINDOW:
        return 1;
    case HF_WINDOW_ABOVE:
        return i >= s->first;
    case HF_EVEN_WINDOW:
        return i % 2 == 0;
    case HF_NTH_IS_FULL:
        return (i + 1) % s->period != 0;
    case HF_NTH_IS_GLOBAL:
        return i % s->period != 0;
    case HF_CHUNKED_BUT_NTH:
        if (s->no_rope != NULL) return json_integer_value(json_array_get(s->no_rope, (size_t)i)) != 0 ? 2 : 0;
        return (i + 1) % s->period != 0 ? 2 : 0;
    default:
        return 0;
    }
}

static const json_t *full_layers(const hf_reader_t *r) {
    hf_reader_t linear = attni_hf_object(r, "linear_attn_config");
    return attni_hf_field(&linear, "full_attn_layers");
}

static void read_stack(const hf_reader_t *r, const hf_family_t *family, int64_t depth, layer_stack_t *s) {
    s->full = full_layers(r);
    s->types = attni_hf_field(r, "layer_types");
    s->no_rope = attni_hf_field(r, "no_rope_layers");
    s->pattern = family->pattern;
    s->first = attni_hf_int(r, "max_window_layers", 0);
    s->period = family->period != 0 ? family->period : 1;
    if (s->types == NULL) /* beside layer_types some models have a text there, as "LLLG" */
        s->period = attni_hf_int(r, "sliding_window_pattern|global_attn_every_n_layers", s->period);
    s->window = (uint32_t)attni_hf_int(r, "sliding_window|sliding_window_size|local_attention",
                                       attni_hf_field(r, "sliding_window") == NULL ? family->window : 0);
    if (s->pattern == HF_WINDOW_ABOVE && !attni_hf_bool(r, "use_sliding_window", 0)) s->window = 0;
    if ((family->flags & HF_HALF_WINDOW) != 0 && s->window != 0) s->window = s->window / 2 + 1;
    if (s->window == 0 && s->pattern != HF_CHUNKED_BUT_NTH) s->pattern = HF_NO_WINDOW;
    s->chunk = (uint32_t)attni_hf_int(r, "attention_chunk_size", 0);
    if (s->period == 0) attni_hf_fail(r, "sliding_window_pattern", "must be at least 1");
    if (s->types != NULL && (!json_is_array(s->types) || json_array_size(s->types) < (size_t)depth))
        attni_hf_fail(r, "layer_types", "must be a list of %lld names, one for each layer", (long long)depth);
    if (s->no_rope != NULL && (!json_is_array(s->no_rope) || json_array_size(s->no_rope) < (size_t)depth))
        s->no_rope = NULL;
    int is_list = s->full == NULL || (json_is_array(s->full) && json_array_size(s->full) <= (size_t)depth);
    for (size_t k = 0; is_list && k < json_array_size(s->full); k++) {
        const json_t *number = json_array_get(s->full, k);
        is_list = json_integer_value(number) >= 1 && json_integer_value(number) <= depth;
    }
    if (!is_list)
        attni_hf_fail(r, "full_attn_layers", "must be a list of layer numbers from 1 to %lld",
                      (long long)depth);
    for (int64_t i = 0; s->types != NULL && i < depth && !*r->failed; i++)
        if (!json_is_string(json_array_get(s->types, (size_t)i)))
            attni_hf_fail(r, "layer_types", "must be a list of names");
}

/* Appends "first-last" to the text of a set, or ",.." once there is no room. */
static void add_range(hf_layer_set_t *set, int64_t first, int64_t last) {
    size_t used = strlen(set->layers);
    if (used >= 3 && strcmp(set->layers + used - 2, "..") == 0) return;
    char range[48];
    int n = snprintf(range, sizeof range, first == last ? "%s%lld" : "%s%lld-%lld", used != 0 ? "," : "",
                     (long long)first, (long long)last);
    if (used + (size_t)n + 4 > sizeof set->layers) snprintf(range, sizeof range, ",..");
    snprintf(set->layers + used, sizeof set->layers - used, "%s", range);
}

int attni_hf_layer_sets(const hf_reader_t *r, const hf_family_t *family, int64_t depth, hf_layer_set_t *sets,
                        int capacity) {
    layer_stack_t stack;
    if (depth > HF_MAX_DEPTH)
        attni_hf_fail(r, "num_hidden_layers", "is %lld; at most %d are read", (long long)depth, HF_MAX_DEPTH);
    if (!*r->failed) read_stack(r, family, depth, &stack);
    if (*r->failed) return 0;
    int count = 0;
    for (int64_t i = 0; i < depth;) {
        int class = class_of(&stack, i);
        int64_t next = i + 1;
        while (next < depth && class_of(&stack, next) == class)
            next++;
        uint32_t window = class == 1 ? stack.window : 0, chunk = class == 2 ? stack.chunk : 0;
        int at = 0;
        while (at < count && (sets[at].window != window || sets[at].chunk != chunk))
            at++;
        if (class != 3 && at == count && count < capacity) {
            memset(&sets[count], 0, sizeof sets[count]);
            sets[count].window = window;
            sets[count++].chunk = chunk;
        }
        if (class != 3) {
            hf_layer_set_t *set = &sets[at];
            if (next - i > 1)
                set->step = 0;
            else if (set->num_layers == 0)
                set->step = -1;
            else if (set->num_layers == 1 && set->step < 0)
                set->step = i - set->last;
            else if (i - set->last != set->step)
                set->step = 0;
            set->last = next - 1;
            set->num_layers += (uint32_t)(next - i);
            add_range(set, i, next - 1);
            for (int64_t k = i; k < next; k++)
                set->is_member[k / 8] |= (uint8_t)(1 << k % 8);
        }
        i = next;
    }
    for (int k = 0; k < count; k++) {
        hf_layer_set_t *set = &sets[k];
        int64_t first = set->last - set->step * ((int64_t)set->num_layers - 1);
        if (set->step > 0 && set->num_layers > 4)
            snprintf(set->layers, sizeof set->layers, "%lld,%lld,..,%lld", (long long)first,
                     (long long)(first + set->step), (long long)set->last);
    }
    return count;
}

int attni_hf_layer_sets_skipped(const hf_reader_t *r) {
    const json_t *types = attni_hf_field(r, "layer_types");
    if (full_layers(r) != NULL) return 1;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type != NULL && !is_attention(type)) return 1;
    }
    return 0;
}

void attni_hf_layer_sets_forget(const hf_reader_t *r, const hf_family_t *family) {
    if (family->shape == HF_ENCODER_ONLY && json_is_false(json_object_get(r->object, "is_causal")))
        attni_hf_field(r, "is_causal"); /* as encoders are */
    if (attni_hf_field(r, "layer_types") != NULL) return;
    const int pattern = family->pattern;
    if (pattern != HF_CHUNKED_BUT_NTH) attni_hf_forget(r, "attention_chunk_size|no_rope_layers");
    if (pattern != HF_NTH_IS_FULL && pattern != HF_NTH_IS_GLOBAL)
        attni_hf_forget(r, "sliding_window_pattern|global_attn_every_n_layers");
    if (pattern != HF_WINDOW_ABOVE) attni_hf_forget(r, "max_window_layers");
    if (pattern == HF_NO_WINDOW || pattern == HF_CHUNKED_BUT_NTH)
        attni_hf_forget(r, "sliding_window|sliding_window_size|local_attention");
    const json_t *has_window = json_object_get(r->object, "use_sliding_window");
    if (json_is_false(has_window)) attni_hf_field(r, "use_sliding_window|sliding_window|max_window_layers");
}

const char *attni_hf_layer_sets_unknown(const hf_reader_t *r, size_t *at) {
    static const char *const others[] = {"linear_attention",
                                         "lightning_attention",
                                         "mamba",
                                         "mamba2",
                                         "ssm",
                                         "recurrent",
                                         "conv",
                                         "moe",
                                         "mlp"};
    const json_t *types = attni_hf_field(r, "layer_types");
    while (*at < json_array_size(types)) {
        const char *type = json_string_value(json_array_get(types, (*at)++));
        int is_known = type == NULL || is_attention(type);
        for (size_t k = 0; k < sizeof others / sizeof *others && !is_known; k++)
            is_known = strcmp(type, others[k]) == 0;
        for (size_t k = 0; k + 1 < *at && !is_known; k++) { /* said before; what is no text was passed over */
            const char *earlier = json_string_value(json_array_get(types, k));
            is_known = earlier != NULL && strcmp(type, earlier) == 0;
        }
        if (!is_known) return type;
    }
    return NULL;
}
