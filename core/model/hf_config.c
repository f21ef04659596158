/* SPDX-License-Identifier: Apache-2.0 */
/* hf_config.c: makes the kinds of attention layers of a model from its config.json and the table of
 * families. */
#include "model/hf_config.h"

#include <attn/attn.h>
#include <attn/attn_plugin_util.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "model/hf_families.h"
#include "model/hf_layers.h"
#include "model/hf_unread.h"

static void note(hf_model_t *model, const char *format, ...) ATTN_PRINTF(2, 3);
static void note(hf_model_t *model, const char *format, ...) {
    if (model->num_notes == HF_MAX_NOTES) return;
    va_list args;
    va_start(args, format);
    vsnprintf(model->notes[model->num_notes++], sizeof model->notes[0], format, args);
    va_end(args);
}

static uint32_t dtype_of(const hf_reader_t *top, const hf_reader_t *part) {
    const char *name =
        attni_hf_text(part, "dtype|torch_dtype", attni_hf_text(top, "dtype|torch_dtype", "bfloat16"));
    if (strcmp(name, "float32") == 0) return ATTN_DTYPE_FLOAT32;
    if (strcmp(name, "float16") == 0) return ATTN_DTYPE_FLOAT16;
    if (strcmp(name, "bfloat16") != 0)
        attni_hf_fail(top, "torch_dtype", "is '%.30s'; float32, float16 and bfloat16 are known", name);
    return ATTN_DTYPE_BFLOAT16;
}

/* One more kind; NULL if there are more kinds or layers than there is room for, which is an error of the
 * file. */
static hf_kind_t *add_kind(hf_model_t *model, const hf_reader_t *reader, const attn_problem_t *problem,
                           uint32_t num_layers) {
    if (model->num_kinds == HF_MAX_KINDS) {
        attni_hf_fail(reader, "layer_types", "makes more than %d kinds of layers", HF_MAX_KINDS);
        return NULL;
    }
    if (num_layers > HF_MAX_DEPTH) {
        attni_hf_fail(reader, "num_hidden_layers", "is %u; at most %d are read", num_layers, HF_MAX_DEPTH);
        return NULL;
    }
    hf_kind_t *kind = &model->kinds[model->num_kinds++];
    memset(kind, 0, sizeof *kind);
    kind->problem = *problem;
    kind->num_layers = num_layers;
    if (num_layers > 1)
        snprintf(kind->layers, sizeof kind->layers, "0-%u", num_layers - 1);
    else
        snprintf(kind->layers, sizeof kind->layers, "%s", num_layers == 1 ? "0" : "-");
    for (uint32_t i = 0; i < num_layers && i < HF_MAX_DEPTH; i++)
        kind->is_member[i / 8] |= (uint8_t)(1 << i % 8);
    return kind;
}

/* One more kind, of the layers of a set. */
static hf_kind_t *add_set(hf_model_t *model, const hf_reader_t *reader, const attn_problem_t *base,
                          const hf_layer_set_t *set) {
    attn_problem_t p = *base;
    p.sliding_window = set->window;
    p.chunk_size = set->chunk;
    hf_kind_t *kind = add_kind(model, reader, &p, set->num_layers);
    if (kind == NULL) return NULL;
    memcpy(kind->layers, set->layers, sizeof kind->layers);
    memcpy(kind->is_member, set->is_member, sizeof kind->is_member);
    return kind;
}

static void name_kind(hf_kind_t *kind, const char *format, ...) {
    if (kind == NULL) return;
    va_list args;
    va_start(args, format);
    vsnprintf(kind->name, sizeof kind->name, format, args);
    va_end(args);
}

/* KV heads under the many names that they have. */
static int64_t kv_heads_of(const hf_reader_t *r, const hf_family_t *family, int64_t heads) {
    hf_reader_t attn = attni_hf_object(r, "attn_config");
    if (attni_hf_bool(r, "multi_query", 0) && !attni_hf_bool(r, "new_decoder_architecture", 0)) return 1;
    int64_t given =
        attni_hf_int(r, "num_key_value_heads|num_kv_heads|n_head_kv", attni_hf_int(&attn, "kv_n_heads", 0));
    if (given != 0) return given;
    return family->kv_heads != 0 && heads % family->kv_heads == 0 ? family->kv_heads : heads;
}

static const char depth_names[] = "num_hidden_layers|n_layer|n_layers|num_layers|depth";
static const char hidden_names[] =
    "embed_dim|qkv_hidden_size|hidden_size|vt_hidden_size|n_embed|n_embd|d_model|dim";

/* Whether the config is one that says its sizes by leaving them out, as the text_config of LLaVA does. */
static int has_class_sizes(const hf_reader_t *r, const hf_family_t *family, const char *heads_names) {
    return family->hidden != 0 && attni_hf_field(r, heads_names) == NULL &&
           attni_hf_field(r, hidden_names) == NULL && attni_hf_field(r, depth_names) == NULL;
}

/* Heads and sizes that all dense layers of one stack share. */
static void read_heads(const hf_reader_t *r, const hf_family_t *family, const char *heads_names,
                       attn_problem_t *p) {
    const int is_of_class = has_class_sizes(r, family, heads_names);
    int64_t heads = attni_hf_int(r, heads_names, family->hidden == 0 || is_of_class ? family->heads : 0);
    if (heads == 0) heads = attni_hf_int_required(r, heads_names);
    int64_t size = attni_hf_int(r, "head_dim|d_kv", family->head_dim);
    if (size == 0 && heads != 0) {
        int64_t hidden = is_of_class ? family->hidden : attni_hf_int_required(r, hidden_names);
        if (hidden % heads != 0)
            attni_hf_fail(r, "hidden_size", "%lld is not a multiple of %lld heads", (long long)hidden,
                          (long long)heads);
        size = hidden / heads;
    }
    p->num_heads = (uint32_t)heads;
    p->num_kv_heads = (uint32_t)kv_heads_of(r, family, heads);
    p->head_size = (uint32_t)size;
    if (*r->failed) return;
    if (p->num_kv_heads == 0 || heads % p->num_kv_heads != 0)
        attni_hf_fail(r, "num_key_value_heads", "%u does not divide %lld query heads", p->num_kv_heads,
                      (long long)heads);
    p->scale = (family->flags & HF_UNSCALED) != 0 ? 1.0 : 1.0 / sqrt((double)size);
    if ((family->flags & HF_SCALAR) != 0) {
        double scalar = attni_hf_real(r, "query_pre_attn_scalar", family->scalar);
        if (scalar > 0)
            p->scale = 1.0 / sqrt(scalar);
        else
            attni_hf_fail(r, "query_pre_attn_scalar", "must be above 0");
    }
    hf_reader_t attn = attni_hf_object(r, "attn_config");
    p->scale = attni_hf_real(r, "attention_multiplier", attni_hf_real(&attn, "softmax_scale", p->scale));
    if (p->scale == 0 && !*r->failed) attni_hf_fail(r, "attention_multiplier", "must not be 0");
    p->logits_soft_cap = attni_hf_real(r, "attn_logit_softcapping", 0);
    int64_t value_size = attni_hf_int(r, "v_head_dim", size);
    if (value_size != size && value_size != 0) p->head_size_v = (uint32_t)value_size;
    if ((family->flags & HF_SINK) != 0) p->features |= ATTN_F_SINK;
    if ((family->flags & HF_MM_PREFIX) != 0) p->features |= ATTN_F_MM_PREFIX;
    if ((family->flags & HF_ALIBI) != 0 || attni_hf_bool(r, "alibi", attni_hf_bool(&attn, "alibi", 0)))
        p->features |= ATTN_F_ALIBI;
}

static const char heads_names[] =
    "num_attention_heads|n_head|n_heads|num_heads|decoder_attention_heads|encoder_attention_heads";
static const char length_names[] =
    "max_position_embeddings|n_positions|max_seq_len|seq_length|max_sequence_length|max_target_positions";

/* A stack of dense layers, one kind for each distinct window or chunk. */
static void add_dense(hf_model_t *model, const hf_reader_t *r, const hf_family_t *family, attn_problem_t *p) {
    read_heads(r, family, heads_names, p);
    int64_t depth =
        has_class_sizes(r, family, heads_names) ? family->depth : attni_hf_int_required(r, depth_names);
    hf_layer_set_t sets[HF_MAX_KINDS];
    int n = *r->failed ? 0 : attni_hf_layer_sets(r, family, depth, sets, HF_MAX_KINDS);
    for (int i = 0; i < n; i++) {
        hf_kind_t *kind = add_set(model, r, p, &sets[i]);
        if (sets[i].window != 0)
            name_kind(kind, "self attention, window %u", sets[i].window);
        else if (sets[i].chunk != 0)
            name_kind(kind, "self attention, chunks of %u", sets[i].chunk);
        else
            name_kind(kind, n > 1 ? "self attention, full" : "self attention");
    }
}

/* YaRN raises the softmax scale (DeepSeek): mscale = 0.1 * mscale_all_dim * ln(factor) + 1, squared. */
static double yarn_factor(const hf_reader_t *r) {
    hf_reader_t rope = attni_hf_object(r, "rope_scaling|rope_parameters");
    const char *type = attni_hf_text(&rope, "rope_type|type", "");
    double factor = attni_hf_real(&rope, "factor", 1), all = attni_hf_real(&rope, "mscale_all_dim", 0);
    if (strcmp(type, "yarn") != 0 || !(factor > 1) || !(all > 0)) return 1.0;
    double mscale = 0.1 * all * log(factor) + 1.0;
    return mscale * mscale;
}

/* Latent attention (semantics 7.4). Prompts are the same layer's: what role mla_prefill means is done
 * inside. */
static void add_mla(hf_model_t *model, const hf_reader_t *r, const hf_family_t *family, attn_problem_t *p) {
    p->num_heads = (uint32_t)attni_hf_int_required(r, heads_names);
    p->kv_lora_rank = (uint32_t)attni_hf_int_required(r, "kv_lora_rank");
    p->qk_nope_head_dim = (uint32_t)attni_hf_int_required(r, "qk_nope_head_dim");
    p->qk_rope_head_dim = (uint32_t)attni_hf_int_required(r, "qk_rope_head_dim");
    p->v_head_dim = (uint32_t)attni_hf_int_required(r, "v_head_dim");
    int64_t depth = attni_hf_int_required(r, depth_names);
    if (*r->failed) return;
    p->head_size = p->kv_lora_rank + p->qk_rope_head_dim;
    p->scale = yarn_factor(r) / sqrt((double)p->qk_nope_head_dim + p->qk_rope_head_dim);
    p->topk = (uint32_t)attni_hf_int(r, "index_topk", 0);
    p->role = p->topk != 0 ? ATTN_ROLE_MLA_SPARSE : ATTN_ROLE_MLA;
    hf_layer_set_t sets[HF_MAX_KINDS];
    int n = attni_hf_layer_sets(r, family, depth, sets, HF_MAX_KINDS);
    for (int i = 0; i < n; i++) {
        hf_kind_t *kind = add_set(model, r, p, &sets[i]);
        name_kind(kind, p->topk != 0 ? "latent attention, top %u" : "latent attention", p->topk);
        if (kind != NULL && p->topk != 0)
            kind->indexer_dim = (uint32_t)attni_hf_int(r, "index_head_dim", 128);
    }
    attni_hf_field(r, "num_key_value_heads|head_dim"); /* of the form that is not latent */
    if (attni_hf_int(r, "qk_head_dim", 0) != p->qk_nope_head_dim + p->qk_rope_head_dim)
        attni_hf_forget(r, "qk_head_dim");
    if (p->topk != 0) attni_hf_field(r, "index_n_heads"); /* of the indexer */
    if (p->topk != 0)
        note(model,
             "the indexer that picks the top %u tokens is not a layer: it is the extension "
             "attn.draft.indexer/0 "
             "of "
             "the backends that have it; its keys take memory beside the cache",
             p->topk);
}

/* Encoder, decoder and cross attention of Whisper, BART and T5. */
static void add_encoder_decoder(hf_model_t *model, const hf_reader_t *r, const hf_family_t *family,
                                const attn_problem_t *base) {
    uint32_t encoder_layers =
        (uint32_t)attni_hf_int_required(r, "encoder_layers|num_layers|num_hidden_layers");
    uint32_t decoder_layers = (uint32_t)attni_hf_int(r, "decoder_layers|num_decoder_layers", encoder_layers);
    attn_problem_t encoder = *base, decoder = *base;
    read_heads(r, family, "encoder_attention_heads|num_heads|num_attention_heads", &encoder);
    read_heads(r, family, "decoder_attention_heads|num_heads|num_attention_heads", &decoder);
    if (*r->failed) return;
    attn_problem_t cross = decoder;
    encoder.role = ATTN_ROLE_ENCODER;
    encoder.mask = cross.mask = ATTN_MASK_FULL;
    decoder.role = ATTN_ROLE_DECODER;
    decoder.mask = ATTN_MASK_CAUSAL;
    cross.role = ATTN_ROLE_ENCODER_DECODER;
    encoder.max_model_len = attni_hf_int(r, "max_source_positions|max_position_embeddings|n_positions", 0);
    decoder.max_model_len = attni_hf_int(r, "max_target_positions|max_position_embeddings|n_positions", 0);
    cross.max_model_len = encoder.max_model_len;
    name_kind(add_kind(model, r, &encoder, encoder_layers), "encoder self attention");
    name_kind(add_kind(model, r, &decoder, decoder_layers), "decoder self attention");
    name_kind(add_kind(model, r, &cross, decoder_layers), "cross attention");
}

static void add_vision(hf_model_t *model, const hf_reader_t *r, uint32_t dtype) {
    static const hf_family_t plain = {.shape = HF_VISION};
    ATTN_INIT(attn_problem_t, p);
    p.role = ATTN_ROLE_MM_ENCODER;
    p.mask = ATTN_MASK_FULL;
    p.dtype = dtype;
    read_heads(r, &plain, "num_heads|num_attention_heads|attention_heads|vt_num_attention_heads", &p);
    uint32_t depth =
        (uint32_t)attni_hf_int_required(r, "depth|num_hidden_layers|num_layers|layers|vt_num_hidden_layers");
    if (!*r->failed) name_kind(add_kind(model, r, &p, depth), "vision encoder");
    if (attni_hf_field(r, "fullatt_block_indexes") != NULL &&
        attni_hf_field(r, "window_size|spatial_merge_size") != NULL)
        attni_hf_field(r, "window_size");
    if (attni_hf_field(r, "fullatt_block_indexes") != NULL)
        note(model,
             "windowed vision layers are the same problem: cu_seqlens then lists windows instead of images");
}

static void add_text(hf_model_t *model, const hf_reader_t *top, const hf_reader_t *r,
                     const hf_family_t *family) {
    ATTN_INIT(attn_problem_t, p);
    p.dtype = dtype_of(top, r);
    p.max_model_len = attni_hf_int(r, length_names, 0);
    p.role = family->shape == HF_ENCODER_ONLY ? ATTN_ROLE_ENCODER_ONLY : ATTN_ROLE_DECODER;
    p.mask = family->shape == HF_ENCODER_ONLY ? ATTN_MASK_FULL : ATTN_MASK_CAUSAL;
    if (family->shape == HF_VISION)
        add_vision(model, r, p.dtype);
    else if (family->shape == HF_ENCODER_DECODER)
        add_encoder_decoder(model, r, family, &p);
    else if (attni_hf_field(r, "kv_lora_rank") != NULL)
        add_mla(model, r, family, &p);
    else
        add_dense(model, r, family, &p);
    if (attni_hf_layer_sets_skipped(r))
        note(model, "layers without softmax attention (linear attention, state space) are left out");
    if ((family->flags & HF_MM_PREFIX) != 0)
        note(model, "image tokens see each other (mm_prefix): text alone can be served without that feature");
}

/* What is added to the scores of self attention by distance: a learned number for each head, or products of
 * the query with a vector for each distance, which no problem can say. */
static void read_relative_bias(hf_model_t *model, const hf_reader_t *r, const hf_family_t *family) {
    const int64_t buckets =
        attni_hf_int(r, "relative_attention_num_buckets", (family->flags & HF_RELATIVE_BIAS) != 0 ? 32 : 0);
    const int64_t most = attni_hf_int(r, "relative_attention_max_distance", 128);
    const char *positions = attni_hf_text(r, "position_embedding_type", "");
    const int is_product = strncmp(positions, "relative_key", strlen("relative_key")) == 0;
    if (!is_product) attni_hf_forget(r, "position_embedding_type");
    for (uint32_t i = 0; i < model->num_kinds; i++) {
        hf_kind_t *kind = &model->kinds[i];
        const uint32_t role = kind->problem.role;
        if (role == ATTN_ROLE_ENCODER_DECODER || role == ATTN_ROLE_MM_ENCODER || attn_role_is_mla(role))
            continue;
        if (buckets != 0) kind->problem.features |= ATTN_F_REL_BIAS;
        if (is_product)
            snprintf(kind->unserved, sizeof kind->unserved,
                     "position_embedding_type is %.24s: vectors for the distance are multiplied with the "
                     "query, which no "
                     "backend supports",
                     positions);
    }
    if (buckets != 0)
        note(model,
             "self attention adds a learned bias for the distance: the engine expands its %lld buckets, "
             "which end "
             "at distance %lld, into the table rel_bias",
             (long long)buckets, (long long)most);
}

/* The cache format that a checkpoint was calibrated for. */
static void read_kv_cache_scheme(hf_model_t *model, const hf_reader_t *top) {
    hf_reader_t quant = attni_hf_object(top, "quantization_config|compression_config");
    hf_reader_t scheme = attni_hf_object(&quant, "kv_cache_scheme");
    const char *algorithm = attni_hf_text(&quant, "kv_cache_quant_algo", "");
    const int is_fp8 = (scheme.object != NULL && attni_hf_int(&scheme, "num_bits", 0) == 8 &&
                        strcmp(attni_hf_text(&scheme, "type", ""), "float") == 0) ||
                       strcmp(algorithm, "FP8") == 0;
    if (*top->failed || (scheme.object == NULL && *algorithm == '\0')) return;
    const char *name = scheme.object != NULL ? "kv_cache_scheme" : "kv_cache_quant_algo";
    if (!is_fp8) {
        if (model->num_unread < HF_MAX_UNREAD)
            snprintf(model->unread[model->num_unread++], sizeof model->unread[0], "quantization_config.%s",
                     name);
        return;
    }
    for (uint32_t i = 0; i < model->num_kinds; i++) {
        attn_problem_t *p = &model->kinds[i].problem;
        if (attn_role_has_cache(p->role))
            p->kv_cache_dtype = p->role == ATTN_ROLE_MLA_SPARSE ? ATTN_KV_FP8_DS_MLA : ATTN_KV_FP8_E4M3;
    }
    note(model, "quantization_config.%s requests an fp8 cache; another kv_cache_dtype overrides it", name);
}

static void add_unread(void *user, const char *path) {
    hf_model_t *model = user;
    if (model->num_unread < HF_MAX_UNREAD)
        snprintf(model->unread[model->num_unread++], sizeof model->unread[0], "%.119s", path);
}

static void read_model(hf_model_t *model, const hf_reader_t *top) {
    static const hf_family_t generic = {.shape = HF_DECODER};
    hf_reader_t text = attni_hf_object(top, "text_config|llm_config|language_config"),
                vision = attni_hf_object(top, "vision_config");
    const hf_reader_t *r = text.object != NULL ? &text : top;
    const char *type = attni_hf_text(top, "model_type", attni_hf_text(r, "model_type", ""));
    if (*top->failed) return;
    snprintf(model->model_type, sizeof model->model_type, "%s", *type != '\0' ? type : "unknown");
    const hf_family_t *family = attni_hf_family_find(type);
    if (family == NULL && r != top) family = attni_hf_family_find(attni_hf_text(r, "model_type", ""));
    if (family == NULL) {
        note(model, "model_type '%.40s' is not in the table: read as a decoder with the usual field names",
             model->model_type);
        family = &generic;
    }
    add_text(model, top, r, family);
    if (*top->failed) return;
    read_relative_bias(model, r, family);
    read_kv_cache_scheme(model, top);
    const int is_said = attni_hf_field(&vision, "dtype|torch_dtype") != NULL ||
                        attni_hf_field(top, "dtype|torch_dtype") != NULL;
    if (vision.object != NULL)
        add_vision(model, &vision, dtype_of(top, is_said ? &vision : r)); /* else the text's */
    if (*top->failed) return;
    attni_hf_layer_sets_forget(r, family);
    const char *name;
    json_t *value;
    if (r != top) /* the text's own word counts where the file has both */
        json_object_foreach((json_t *)(uintptr_t)r->object, name, value) attni_hf_field(top, name);
    attni_hf_unread_each(top, attni_hf_layer_sets_skipped(r), add_unread, model);
    size_t at = 0;
    for (const char *type; (type = attni_hf_layer_sets_unknown(r, &at)) != NULL;) {
        char path[120];
        snprintf(path, sizeof path, "layer_types: %.80s", type);
        add_unread(model, path);
    }
}

int attni_hf_config_parse(const char *text, size_t size, const char *label, hf_model_t *model,
                          attn_error_t *error) {
    memset(model, 0, sizeof *model);
    json_error_t why;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL && json_error_code(&why) == json_error_out_of_memory)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "%s: out of memory", label);
    if (root == NULL)
        return attn_fail(error, ATTN_E_PARSE, "", "%s:%d:%d: %.120s", label, why.line, why.column, why.text);
    int failed = 0;
    hf_seen_t *seen = calloc(1, sizeof *seen);
    if (seen == NULL) {
        json_decref(root);
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "%s: out of memory", label);
    }
    hf_reader_t top = {root, label, error, &failed, seen};
    if (!json_is_object(root))
        failed = attn_fail(error, ATTN_E_PARSE, "", "%s: not a JSON object", label);
    else
        read_model(model, &top);
    if (failed == 0 && model->num_kinds == 0) attni_hf_fail(&top, "layer_types", "has no attention layer");
    json_decref(root);
    free(seen);
    for (uint32_t i = 0; i < model->num_kinds && failed == 0; i++) {
        ATTN_INIT(attn_error_t, inner);
        int code = attn_problem_check(&model->kinds[i].problem, &inner);
        if (code != ATTN_OK)
            failed = attn_fail(error, ATTN_E_PARSE, inner.param, "%s: %s: %.200s", label,
                               model->kinds[i].name, inner.text);
    }
    return failed;
}

int attni_hf_config_load(const char *path, hf_model_t *model, attn_error_t *error) {
    enum { LARGEST = 4 << 20 };
    FILE *f = fopen(path, "rbe");
    if (f == NULL) return attn_fail(error, ATTN_E_IO, "", "%s: %s", path, strerror(errno));
    char *text = malloc(LARGEST + 1);
    size_t size = text != NULL ? fread(text, 1, LARGEST + 1, f) : 0;
    int broken = ferror(f);
    fclose(f);
    int code;
    if (text == NULL)
        code = attn_fail(error, ATTN_E_NO_MEMORY, "", "%s: out of memory", path);
    else if (broken)
        code = attn_fail(error, ATTN_E_IO, "", "%s: cannot be read; is it a folder?", path);
    else if (size > LARGEST)
        code = attn_fail(error, ATTN_E_PARSE, "", "%s: over 4 MiB; expected a config.json", path);
    else
        code = attni_hf_config_parse(text, size, path, model, error);
    free(text);
    return code;
}
