/* SPDX-License-Identifier: Apache-2.0 */
/* Layers: names, kinds, indices, cache sharing, and where scales come from (semantics 3.3, 7.2, 7.9). */
#include "layer_testing.h"

static attn_error_t error = {.struct_size = sizeof error};

#define BAD(CALL, CODE, PARAM, ...)                                                                          \
    do {                                                                                                     \
        error.param[0] = error.text[0] = '\0';                                                               \
        int code_ = (CALL);                                                                                  \
        if (!ok(code_ == (CODE) && strcmp(error.param, PARAM) == 0 && error.text[0], __VA_ARGS__))           \
            diag("code %d, param '%s', text '%s'", code_, error.param, error.text);                          \
    } while (0)

static void test_names(attn_context_t *context) {
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
    attn_layer_t *layers[300], *again = NULL;
    char name[64], long_name[1100];
    int bad = 0;
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "model.layers.%d.self_attn.attn", i);
        bad += attn_layer_create(g, name, NULL, &layers[i], &error) != ATTN_OK;
    }
    is_int(bad, 0, "300 layers");
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "model.layers.%d.self_attn.attn", i);
        bad += attn_context_find_layer(context, name) != layers[i] ||
               strcmp(attn_layer_name(layers[i]), name) != 0;
    }
    is_int(bad, 0, "are found by their names");
    BAD(attn_layer_create(g, "model.layers.7.self_attn.attn", NULL, &again, &error), ATTN_E_EXISTS, "name",
        "a name twice");
    attn_layer_destroy(layers[7]);
    ok(attn_context_find_layer(context, "model.layers.7.self_attn.attn") == NULL,
       "a destroyed layer is gone");
    is_int(attn_layer_create(g, "model.layers.7.self_attn.attn", NULL, &layers[7], &error), ATTN_OK,
           "and its name is free");
    BAD(attn_layer_create(g, "", NULL, &again, &error), ATTN_E_INVALID, "name", "an empty name");
    BAD(attn_layer_create(g, NULL, NULL, &again, &error), ATTN_E_INVALID, "name", "no name");
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    BAD(attn_layer_create(g, long_name, NULL, &again, &error), ATTN_E_INVALID, "name",
        "a name of 1099 characters");
    BAD(attn_layer_create(g, "x", NULL, NULL, &error), ATTN_E_INVALID, "layer", "no output");
    ATTN_INIT(attn_layer_options_t, o);
    o.struct_size = 0;
    BAD(attn_layer_create(g, "x", &o, &again, &error), ATTN_E_INVALID, "options",
        "options without struct_size");
    ok(attn_context_find_layer(context, "x") == NULL && attn_context_find_layer(context, NULL) == NULL,
       "nothing was left behind");
    ok(attn_layer_group(layers[0]) == g && attn_layer_kv_sharing_target(layers[0]) == NULL,
       "a layer knows its group");
    for (int i = 0; i < 300; i++)
        attn_layer_destroy(layers[i]);
    attn_layer_destroy(NULL);
    ok(attn_layer_name(NULL) == NULL && attn_layer_kind(NULL) == 0 && attn_layer_group(NULL) == NULL &&
           attn_layer_kv_sharing_target(NULL) == NULL &&
           attn_layer_scales(NULL, NULL, NULL, NULL) == ATTN_E_INVALID,
       "NULL layers have nothing");
    attn_group_close(g);
}

static void test_kinds(attn_context_t *context) {
    const struct {
        uint32_t role, kind;
        const char *name;
    } cases[] = {{ATTN_ROLE_DECODER, ATTN_LAYER_ATTENTION, "Attention"},
                 {ATTN_ROLE_ENCODER, ATTN_LAYER_ENCODER_ONLY, "EncoderOnlyAttention"},
                 {ATTN_ROLE_ENCODER_ONLY, ATTN_LAYER_ENCODER_ONLY, "EncoderOnlyAttention"},
                 {ATTN_ROLE_ENCODER_DECODER, ATTN_LAYER_CROSS, "CrossAttention"},
                 {ATTN_ROLE_MLA, ATTN_LAYER_MLA, "MLAAttention"},
                 {ATTN_ROLE_MLA_SPARSE, ATTN_LAYER_MLA, "MLAAttention"},
                 {ATTN_ROLE_MM_ENCODER, ATTN_LAYER_MM_ENCODER, "MMEncoderAttention"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_problem_t p = small_problem(cases[i].role);
        attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
        attn_layer_t *layer = NULL;
        is_int(attn_layer_create(g, "kind", NULL, &layer, &error), ATTN_OK, "%s", cases[i].name);
        is_int(attn_layer_kind(layer), cases[i].kind, "kind");
        is_str(attn_layer_kind_name(attn_layer_kind(layer)), cases[i].name, "name of the kind");
        attn_layer_destroy(layer);
        attn_group_close(g);
    }
    is_str(attn_layer_kind_name(0), "unknown", "no kind");
    is_str(attn_layer_kind_name(99), "unknown", "another kind");
}

static void test_index(void) {
    int32_t index = -1;
    is_int(attn_layer_index("model.layers.31.self_attn.attn", &index, &error) || index != 31, 0, "layer 31");
    is_int(attn_layer_index("7", &index, &error) || index != 7, 0, "a bare number");
    is_int(attn_layer_index("h.0", &index, &error) || index != 0, 0, "the last component");
    is_int(attn_layer_index("model.layers2.5.attn", &index, &error) || index != 5, 0,
           "digits inside a word do not count");
    BAD(attn_layer_index("model.attn", &index, &error), ATTN_E_INVALID, "name", "no index");
    BAD(attn_layer_index("a.1.b.2", &index, &error), ATTN_E_INVALID, "name", "two indices");
    BAD(attn_layer_index("a.99999999999", &index, &error), ATTN_E_INVALID, "name", "an index too long");
    BAD(attn_layer_index("", &index, &error), ATTN_E_INVALID, "name", "an empty name");
    BAD(attn_layer_index("a..-1", &index, &error), ATTN_E_INVALID, "name", "a signed number is none");
    BAD(attn_layer_index(NULL, &index, &error), ATTN_E_INVALID, "name", "no name");
    BAD(attn_layer_index("a.1", NULL, &error), ATTN_E_INVALID, "index", "no output");
}

static void test_skip(void) {
    const char *skip[] = {"sliding_window", "3", "07"}, *bad[] = {"first"}, *none[] = {NULL};
    uint32_t kv = 0, fp8 = ATTN_KV_FP8_E4M3;
    is_int(attn_layer_resolve_kv_cache_dtype("l.2.a", fp8, 0, skip, 3, &kv, &error) || kv != fp8, 0,
           "layer 2 is not skipped");
    is_int(attn_layer_resolve_kv_cache_dtype("l.3.a", fp8, 0, skip, 3, &kv, &error) || kv != ATTN_KV_AUTO, 0,
           "layer 3 is");
    is_int(attn_layer_resolve_kv_cache_dtype("l.7.a", fp8, 0, skip, 3, &kv, &error) || kv != ATTN_KV_AUTO, 0,
           "07 is 7");
    is_int(attn_layer_resolve_kv_cache_dtype("l.2.a", fp8, 1, skip, 3, &kv, &error) || kv != ATTN_KV_AUTO, 0,
           "a windowed layer");
    is_int(attn_layer_resolve_kv_cache_dtype("attn", fp8, 1, skip, 1, &kv, &error) || kv != ATTN_KV_AUTO, 0,
           "without an index");
    is_int(attn_layer_resolve_kv_cache_dtype("l.2.a", 0, 0, NULL, 0, &kv, &error) || kv != ATTN_KV_AUTO, 0,
           "0 is auto");
    BAD(attn_layer_resolve_kv_cache_dtype("attn", fp8, 0, skip, 3, &kv, &error), ATTN_E_INVALID, "name",
        "an index rule for a layer without index");
    BAD(attn_layer_resolve_kv_cache_dtype("l.2.a", fp8, 0, bad, 1, &kv, &error), ATTN_E_INVALID, "skip",
        "an unknown rule");
    BAD(attn_layer_resolve_kv_cache_dtype("l.2.a", fp8, 0, none, 1, &kv, &error), ATTN_E_INVALID, "skip",
        "no rule");
    BAD(attn_layer_resolve_kv_cache_dtype("l.2.a", fp8, 0, NULL, 1, &kv, &error), ATTN_E_INVALID, "skip",
        "no list");
    BAD(attn_layer_resolve_kv_cache_dtype("l.2.a", fp8, 0, NULL, 0, NULL, &error), ATTN_E_INVALID, "resolved",
        "no output");
}

static void test_sharing(attn_context_t *context) {
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER), q = p, e = small_problem(ATTN_ROLE_ENCODER_ONLY),
                   c = small_problem(ATTN_ROLE_ENCODER_DECODER);
    q.block_size = 8;
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN"), *wide = open_group(context, &q, "FAKE_PLAIN"),
                 *enc = open_group(context, &e, "FAKE_PLAIN"), *cross = open_group(context, &c, "FAKE_PLAIN");
    attn_layer_t *first = NULL, *other = NULL, *layer = NULL, *crossing = NULL, *third = NULL;
    attn_layer_create(g, "l.1.attn", NULL, &first, &error);
    attn_layer_create(wide, "l.2.attn", NULL, &other, &error);
    attn_layer_create(cross, "l.0.cross", NULL, &crossing, &error);
    ATTN_INIT(attn_layer_options_t, o);
#define SHARE(GROUP, NAME, TARGET)                                                                           \
    (o.kv_sharing_target = TARGET, attn_layer_create(GROUP, NAME, &o, &layer, &error))
    BAD(SHARE(g, "l.5.attn", "l.5.attn"), ATTN_E_INVALID, "kv_sharing_target", "its own cache");
    BAD(SHARE(g, "l.5.attn", "l.6.attn"), ATTN_E_INVALID, "kv_sharing_target", "a later layer");
    has_str(error.text, "must come before", "must come first");
    BAD(SHARE(g, "l.5.attn", "l.4.attn"), ATTN_E_NOT_FOUND, "kv_sharing_target",
        "a layer that does not exist");
    has_str(error.text, "is not a valid layer", "is not valid");
    BAD(SHARE(g, "l.5.attn", "l.2.attn"), ATTN_E_INVALID, "kv_sharing_target", "a cache of other blocks");
    BAD(SHARE(g, "l.5.attn", "l.0.cross"), ATTN_E_INVALID, "kv_sharing_target", "a layer of another type");
    BAD(SHARE(enc, "l.5.attn", "l.1.attn"), ATTN_E_UNSUPPORTED, "kv_sharing_target",
        "an encoder has no cache to share");
    BAD(SHARE(g, "attn", "l.1.attn"), ATTN_E_INVALID, "name", "a layer without index");
    is_int(SHARE(g, "l.5.attn", "l.1.attn"), ATTN_OK, "an earlier layer of the same kind");
    is_str(attn_layer_kv_sharing_target(layer), "l.1.attn", "is remembered");
    o.kv_sharing_target = "l.5.attn";
    BAD(attn_layer_create(g, "l.8.attn", &o, &third, &error), ATTN_E_INVALID, "kv_sharing_target",
        "a cache that is itself borrowed");
    attn_kv_update_t u = {.struct_size = sizeof u};
    is_int(attn_layer_update_kv_cache(layer, &u, NULL, &error), ATTN_OK, "a sharing layer writes nothing");
    is_int(fake_log_of(g)->cache_updates, 0, "at all");
    attn_problem_t m = small_problem(ATTN_ROLE_MLA);
    attn_group_t *mla = open_group(context, &m, "FAKE_PLAIN");
    o.kv_sharing_target = "l.1.attn";
    BAD(attn_layer_create(mla, "l.9.attn", &o, &third, &error), ATTN_E_UNSUPPORTED, "kv_sharing_target",
        "MLA shares nothing");
    attn_layer_destroy(layer);
    attn_layer_destroy(first);
    attn_layer_destroy(other);
    attn_layer_destroy(crossing);
    attn_group_close(mla);
    attn_group_close(g);
    attn_group_close(wide);
    attn_group_close(enc);
    attn_group_close(cross);
}

int main(void) {
    attn_context_t *context = fake_context("");
    test_names(context);
    test_kinds(context);
    test_index();
    test_skip();
    test_sharing(context);
    attn_context_destroy(context);
    remove_fake();
    return tap_done();
}
