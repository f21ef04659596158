/* SPDX-License-Identifier: Apache-2.0 */
/* Models: the layers of a config.json through attn_model.h, ownership, older headers, ranks, and what is
 * refused. What each family means is tested by tests/tools/tool_select.sh over the same code. */
#include "core_testing.h"

#include <attn/attn_model.h>

static attn_error_t err;

static attn_model_t *parse(const char *text) {
    attn_model_t *model = NULL;
    err = (attn_error_t)ERROR_INIT;
    int code = attn_model_parse(text, strlen(text), "test", &model, &err);
    if (code != ATTN_OK) ok(0, "reads: %s", err.text);
    return model;
}

static const char windowed[] =
    "{\"model_type\": \"gemma2\", \"torch_dtype\": \"float16\", \"num_attention_heads\": 8, \"head_dim\": "
    "256,"
    " \"num_key_value_heads\": 4, \"hidden_size\": 2304, \"num_hidden_layers\": 5, \"sliding_window\": 64,"
    " \"attn_logit_softcapping\": 50.0, \"max_position_embeddings\": 8192, \"swa_head_dim\": 128}";

static void test_kinds(void) {
    attn_model_t *model = parse(windowed);
    attn_model_kind_t kind = {.struct_size = sizeof kind};
    attn_problem_t problem = {.struct_size = sizeof problem};
    is_str(attn_model_type(model), "gemma2", "model_type");
    is_int(attn_model_kind(model, 0, &kind, &problem, &err), ATTN_OK, "the first kind");
    is_str(kind.name, "self attention, window 64", "its name");
    is_str(kind.layers_text, "0,2,4", "its layers as text");
    ok(kind.num_layers == 3 && kind.layers[0] == 0 && kind.layers[1] == 2 && kind.layers[2] == 4,
       "as numbers");
    is_str(kind.unserved, "", "it can be served");
    char text[512];
    attn_problem_format(&problem, text, sizeof text);
    has_str(text, "role=decoder mask=causal dtype=float16", "problem");
    has_str(text, "num_heads=8 num_kv_heads=4 head_size=256", "heads");
    has_str(text, "sliding_window=64", "window");
    ok(problem.logits_soft_cap == 50 && problem.max_model_len == 8192 && problem.block_size == 0, "members");
    is_int(attn_model_kind(model, 1, &kind, &problem, &err), ATTN_OK, "the second kind");
    ok(kind.num_layers == 2 && kind.layers[0] == 1 && kind.layers[1] == 3, "its layers");
    is_int(problem.sliding_window, 0, "no window");
    is_int(attn_model_kind(model, 1, &kind, NULL, &err), ATTN_OK, "a problem need not be asked for");
    const attn_model_kind_t before = kind;
    is_int(attn_model_kind(model, 2, &kind, &problem, &err), ATTN_E_NOT_FOUND, "there is no third");
    has_str(err.text, "index is 2; the model has 2 kinds", "and it says so");
    ok(memcmp(&before, &kind, sizeof kind) == 0, "outputs are written on success only");
    is_str(attn_model_not_understood(model, 0), "swa_head_dim", "what was not understood");
    ok(attn_model_not_understood(model, 1) == NULL && attn_model_note(model, 0) == NULL, "ends of the lists");
    attn_model_free(model);
    attn_model_free(NULL);

    model =
        parse("{\"model_type\": \"t5\", \"d_model\": 512, \"d_kv\": 64, \"num_heads\": 8, \"num_layers\": 6,"
              " \"relative_attention_num_buckets\": 32}");
    for (uint32_t i = 0; i < 3; i++) {
        is_int(attn_model_kind(model, i, &kind, &problem, &err), ATTN_OK, "T5");
        is_str(kind.unserved, "", "it can be served");
        ok(((problem.features & ATTN_F_REL_BIAS) != 0) == (i < 2) && problem.scale == 1,
           "%s: relative bias in self attention, scale 1", kind.name);
    }
    has_str(attn_model_note(model, 0), "its 32 buckets, which end at distance 128",
            "what the engine has to do");
    attn_model_free(model);
    model = parse("{\"model_type\": \"bert\", \"num_attention_heads\": 4, \"hidden_size\": 64, "
                  "\"num_hidden_layers\": 2, \"position_embedding_type\": \"relative_key\"}");
    is_int(attn_model_kind(model, 0, &kind, &problem, &err), ATTN_OK, "BERT with vectors for distances");
    has_str(kind.unserved, "position_embedding_type is relative_key", "layers that no problem can describe");
    attn_model_free(model);
    model = parse("{\"model_type\": \"brandnew\", \"num_attention_heads\": 4, \"hidden_size\": 64, "
                  "\"num_hidden_layers\": 2}");
    has_str(attn_model_note(model, 0), "'brandnew' is not in the table", "a remark");
    attn_model_free(model);
}

/* Programs that were built with shorter structs. */
static void test_sizes(void) {
    attn_model_t *model = parse(windowed);
    attn_model_kind_t kind;
    attn_problem_t problem;
    memset(&kind, 0x5a, sizeof kind);
    memset(&problem, 0x5a, sizeof problem);
    kind.struct_size = offsetof(attn_model_kind_t, name);
    problem.struct_size = offsetof(attn_problem_t, kv_lora_rank);
    const attn_model_kind_t poison = kind;
    const attn_problem_t tail = problem;
    is_int(attn_model_kind(model, 0, &kind, &problem, &err), ATTN_OK, "shorter structs");
    ok(kind.num_layers == 3 && problem.head_size == 256, "are filled");
    is_int(kind.struct_size, offsetof(attn_model_kind_t, name), "their size is kept");
    ok(memcmp(&kind.name, &poison.name, sizeof kind - offsetof(attn_model_kind_t, name)) == 0 &&
           memcmp(&problem.kv_lora_rank, &tail.kv_lora_rank,
                  sizeof problem - offsetof(attn_problem_t, kv_lora_rank)) == 0,
       "and nothing behind is written");
    problem.struct_size = offsetof(attn_problem_t, head_size);
    is_int(attn_model_kind(model, 0, &kind, &problem, &err), ATTN_E_TOO_NEW, "a problem cut short is none");
    is_str(err.param, "problem", "by name: %s", err.text);
    kind.struct_size = 0;
    is_int(attn_model_kind(model, 0, &kind, NULL, &err), ATTN_E_INVALID, "struct_size 0");
    is_str(err.param, "kind", "by name: %s", err.text);
    kind.struct_size = sizeof kind, problem.struct_size = 0;
    is_int(attn_model_kind(model, 0, &kind, &problem, &err), ATTN_E_INVALID, "struct_size 0 of the problem");
    is_str(err.param, "problem", "by name: %s", err.text);
    attn_model_free(model);
}

static void test_files(void) {
    attn_model_t *model = (attn_model_t *)&err, *const unwritten = model;
    make_scratch();
    const char *path = write_text("config.json", windowed);
    is_int(attn_model_load(path, &model, &err), ATTN_OK, "a file");
    attn_model_free(model);
    is_int(attn_model_load(scratch, &model, &err), ATTN_OK, "its folder");
    attn_model_free(model);
    model = unwritten;
    is_int(attn_model_load(in_scratch("none.json"), &model, &err), ATTN_E_IO, "no file: %s", err.text);
    has_str(err.text, "none.json: No such file", "is named");
    path = write_text("bad.json", "{\n\"num_hidden_layers\": }");
    is_int(attn_model_load(path, &model, &err), ATTN_E_PARSE, "no JSON: %s", err.text);
    has_str(err.text, "bad.json:2:", "with its line");
    path = write_text("heads.json", "{\"hidden_size\": 64, \"num_hidden_layers\": 2}");
    is_int(attn_model_load(path, &model, &err), ATTN_E_PARSE, "no heads: %s", err.text);
    has_str(err.text, "heads.json: num_attention_heads", "with the field");
    static const char deep[] = "{\"model_type\": \"whisper\", \"encoder_layers\": 9000, \"d_model\": 256,"
                               " \"num_attention_heads\": 4}";
    is_int(attn_model_parse(deep, strlen(deep), "deep", &model, &err), ATTN_E_PARSE, "deep: %s", err.text);
    has_str(err.text, "is 9000; at most 4096", "with both numbers");
    is_int(attn_model_load(NULL, &model, &err), ATTN_E_INVALID, "no path");
    is_str(err.param, "path", "by name");
    is_int(attn_model_load(path, NULL, &err), ATTN_E_INVALID, "nowhere to put it");
    is_int(attn_model_parse(NULL, 0, "x", &model, &err), ATTN_E_INVALID, "no text");
    is_int(attn_model_parse("{}", 2, NULL, &model, &err), ATTN_E_INVALID, "no label");
    is_int(attn_model_parse("", 0, "x", &model, NULL), ATTN_E_PARSE, "nothing, and nobody to tell");
    ok(model == unwritten, "a failure writes no model");
    attn_model_kind_t kind = {.struct_size = sizeof kind};
    is_int(attn_model_kind(NULL, 0, &kind, NULL, &err), ATTN_E_INVALID, "no model");
}

static void test_ranks(void) {
    attn_problem_t p = plain_problem();
    static const struct {
        uint32_t heads, kv_heads, world, want_heads, want_kv; /* want_heads 0: refused */
    } cases[] = {{32, 8, 1, 32, 8}, {32, 8, 4, 8, 2},  {32, 8, 8, 4, 1}, {32, 8, 16, 2, 1},
                 {32, 0, 4, 8, 0},  {32, 1, 4, 8, 1},  {24, 8, 3, 0, 0}, {32, 8, 3, 0, 0},
                 {24, 8, 12, 0, 0}, {32, 8, 64, 0, 0}, {48, 2, 3, 0, 0}, {16, 16, 16, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        p.num_heads = cases[i].heads, p.num_kv_heads = cases[i].kv_heads;
        err.text[0] = '\0';
        int code = attn_model_split(&p, cases[i].world, &err);
        is_int(code, cases[i].want_heads != 0 ? ATTN_OK : ATTN_E_INVALID, "%u/%u heads over %u ranks: %s",
               cases[i].heads, cases[i].kv_heads, cases[i].world, err.text);
        is_int(p.num_heads, code == ATTN_OK ? cases[i].want_heads : cases[i].heads, "query heads");
        is_int(p.num_kv_heads, code == ATTN_OK ? cases[i].want_kv : cases[i].kv_heads, "KV heads");
    }
    is_int(attn_model_split(&p, 0, &err), ATTN_E_INVALID, "no rank");
    is_str(err.param, "world", "by name");
    is_int(attn_model_split(NULL, 1, &err), ATTN_E_INVALID, "no problem");
}

int main(void) {
    test_kinds();
    test_sizes();
    test_files();
    test_ranks();
    return tap_done();
}
