/* SPDX-License-Identifier: Apache-2.0 */
/* fp8 attention of multimodal encoders through the core on the reference plugin: the [mm_encoder] section,
 * files of static scales, dynamic scales with their history, saving, and everything that is refused
 * (semantics 7.6). */
#include "mm_encoder_setup.h"

#include <pthread.h>

static attn_error_t error = {.struct_size = sizeof error};
static const int32_t images[4] = {0, 20, 33, 70};

/* e4m3 written down plainly: nearest even among the 8-bit codes, by searching them. */
static double e4m3_value(int code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    return exponent == 0 ? mantissa / 512.0 : ldexp(1 + mantissa / 8.0, exponent - 7);
}
static double through_e4m3(float x, float scale) {
    double a = fabs((double)(x / scale)), best = 448;
    int chosen = 0x7e;
    if (a < 448)
        for (int code = 0x7e; code >= 0; code--) { /* 0x7f is NaN */
            double d = fabs(e4m3_value(code) - a);
            if (d < fabs(best - a) || (d == fabs(best - a) && code % 2 == 0))
                best = e4m3_value(code), chosen = code;
        }
    return (x < 0 ? -1 : 1) * e4m3_value(chosen) * (double)scale;
}

static void fill_rows(mm_layer_t *l, uint64_t seed, float amplitude) {
    for (int64_t i = 0; i < MM_ROWS * l->qkv_strides[0]; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        l->qkv[i] = amplitude * (float)((double)(seed >> 33) / 1073741824.0 - 1.0);
    }
}

static void config_says_what_is_wrong(void) {
    static const struct {
        const char *ini, *param, *what;
    } bad[] = {
        {"[mm_encoder]\nfp8_scale_path = /x\n", "fp8_scale_path", "a scale path without fp8"},
        {"[mm_encoder]\nfp8_scale_save_path = /x\n", "fp8_scale_save_path", "a save path without fp8"},
        {"[mm_encoder]\nattn_dtype = fp8\nfp8_scale_path = /x\nfp8_scale_save_path = /y\n",
         "fp8_scale_save_path", "both paths"},
        {"[mm_encoder]\nattn_dtype = fp8\nfp8_scale_save_margin = 0\n", "fp8_scale_save_margin",
         "a margin of 0"},
        {"[mm_encoder]\nattn_dtype = fp8\nfp8_scale_save_margin = -1.5\n", "fp8_scale_save_margin",
         "a negative margin"},
        {"[mm_encoder]\nattn_dtype = fp8\nfp8_scale_path = here.json\n", "fp8_scale_path", "a relative path"},
        {"[mm_encoder]\nattn_dtype = fp4\n", "attn_dtype", "an unknown dtype"},
        {"[mm_encoder]\nmargin = 2\n", "margin", "an unknown key"},
        {"[mm_encoder vision]\n", "mm_encoder vision", "a section with a name"},
        {"[mm_encoder]\nattn_dtype = fp8\nfp8_scale_path = /nowhere/scales.json\n", "fp8_scale_path",
         "a missing file"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        attn_context_t *context;
        int code = mm_try_context(bad[i].ini, &context, &error);
        ok(code != ATTN_OK && !strcmp(error.param, bad[i].param), "%s is refused: %s", bad[i].what,
           error.text);
        attn_context_destroy(context);
    }
}

static attn_context_t *with_file(const char *content) {
    char ini[512];
    attn_context_t *context;
    snprintf(ini, sizeof ini, "[mm_encoder]\nattn_dtype = fp8\nfp8_scale_path = %s\n",
             mm_file("scales.json", content));
    mm_try_context(ini, &context, &error);
    return context;
}

static void files(void) {
    static const struct {
        const char *content, *text, *what;
    } bad[] = {
        {"{\"a\": {\"q\": 1,", ":1:", "a file that is cut off"},
        {"[1, 2, 3]", "not a JSON object", "a list of scales"},
        {"{\"a\": {\"q\": 1, \"k\": 1, \"v\": 1}, \"a\": {}}", "duplicate", "a layer twice"},
        {"{\"a\": {\"q\": 0, \"k\": 1, \"v\": 1}}", "'q' of layer 'a'", "a scale of 0"},
        {"{\"a\": {\"q\": 1, \"k\": -2, \"v\": 1}}", "'k' of layer 'a'", "a negative scale"},
        {"{\"a\": {\"q\": 1, \"k\": 1, \"v\": \"1\"}}", "'v' of layer 'a'", "a scale as text"},
        {"{\"a\": {\"q\": 1, \"k\": 1, \"v_scale\": 1e300}}", "'v_scale' of layer 'a'",
         "a scale beyond float32"},
        {"{\"a\": {\"q\": 1, \"k\": [1, 2], \"v\": 1}}", "a list of 2", "two scales for one tensor"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        attn_context_t *context = with_file(bad[i].content);
        ok(context == NULL && strstr(error.text, "scales.json") && strstr(error.text, bad[i].text),
           "%s is refused: %s", bad[i].what, error.text);
        attn_context_destroy(context);
    }
    attn_context_t *context =
        with_file("{\"format\": 1, \"layers\": {\"visual.0\": {\"q\": 0.5, \"k\": 0.25, \"v\": 2},"
                  "\"visual.1\": {\"q_scale\": 1.0, \"k_scale\": 1, \"v_scale\": 1, \"note\": 7},"
                  "\"half\": {\"q\": 1}, \"text\": \"none\"}}");
    if (context == NULL) bail_out("%s", error.text);
    mm_layer_t l;
    float q = 0, k = 0, v = 0;
    mm_open(&l, context, 2, 16, 0);
    ok((attn_group_problem(l.group)->features & ATTN_F_FP8_ATTENTION) != 0,
       "attn_dtype = fp8 reaches the problem");
    int code = attn_layer_create(l.group, "visual.0", NULL, &l.layer, &error);
    attn_layer_scales(l.layer, &q, &k, &v);
    ok(code == ATTN_OK && q == 0.5f && k == 0.25f && v == 2.0f, "the scales of a layer come from \"layers\"");
    attn_layer_t *other = NULL;
    ok(attn_layer_create(l.group, "visual.1", NULL, &other, &error) == ATTN_OK,
       "q_scale, k_scale, v_scale are read too");
    attn_layer_destroy(other);
    other = NULL;
    code = attn_layer_create(l.group, "visual.7", NULL, &other, &error);
    ok(code == ATTN_E_NOT_FOUND && strstr(error.text, "visual.0, visual.1"),
       "a layer that is not in the file: what is there is listed: %s", error.text);
    ok(attn_layer_create(l.group, "half", NULL, &other, &error) == ATTN_E_NOT_FOUND,
       "an incomplete entry is no entry");
    attn_layer_options_t o = {.struct_size = sizeof o, .q_scale = 3, .k_scale = 4, .v_scale = 5};
    code = attn_layer_create(l.group, "own", &o, &other, &error);
    attn_layer_scales(other, &q, &k, &v);
    ok(code == ATTN_OK && q == 3 && k == 4 && v == 5, "the engine's scales stand above the file's");
    attn_layer_destroy(other);
    mm_close(&l);
    attn_context_destroy(context);
}

/* A static layer is a plain one over rows that were rounded by hand. */
static void static_scales(void) {
    attn_context_t *context = mm_context("");
    mm_layer_t fp8, plain;
    attn_layer_options_t o = {.struct_size = sizeof o, .q_scale = 0.01f, .k_scale = 0.002f, .v_scale = 0.05f};
    const float scale[3] = {o.q_scale, o.k_scale, o.v_scale};
    mm_open(&fp8, context, 3, 24, ATTN_F_FP8_ATTENTION);
    mm_open(&plain, context, 3, 24, 0);
    int code = attn_layer_create(fp8.group, "static", &o, &fp8.layer, &error) |
               attn_layer_create(plain.group, "plain", NULL, &plain.layer, &error);
    fill_rows(&fp8, 3, 1.5f); /* K saturates: 448 * 0.002 */
    for (int64_t i = 0; i < MM_ROWS * 3 * 3 * 24; i++)
        plain.qkv[i] = (float)through_e4m3(fp8.qkv[i], scale[i / (3 * 24) % 3]);
    code |= mm_build(&fp8, images, 3, 0, &error) | mm_build(&plain, images, 3, 0, &error);
    code |= mm_forward(&fp8, &error) | mm_forward(&plain, &error);
    double worst = 0;
    for (int i = 0; i < images[3] * 3 * 24; i++)
        worst = fmax(worst, fabs((double)fp8.out[i] - (double)plain.out[i]));
    ok(code == ATTN_OK && worst < 2e-6, "static scales: as plain attention over e4m3 rows (%.1e)", worst);

    attn_layer_t *wrong = NULL;
    o.k_scale = 0;
    ok(attn_layer_create(fp8.group, "two", &o, &wrong, &error) == ATTN_E_INVALID &&
           !strcmp(error.param, "k_scale"),
       "two of three scales are refused: %s", error.text);
    o = (attn_layer_options_t){.struct_size = sizeof o, .calculate_kv_scales = 1};
    ok(attn_layer_create(fp8.group, "calc", &o, &wrong, &error) == ATTN_E_INVALID &&
           !strcmp(error.param, "calculate_kv_scales"),
       "calculate_kv_scales is refused");
    attn_weights_t w = {
        .struct_size = sizeof w, .weight_space = &fp8.state, .weight_space_bytes = sizeof fp8.state};
    ok(attn_layer_prepare_weights(fp8.layer, &w, NULL, &error) == ATTN_E_INVALID,
       "a static layer has no state to prepare");
    attn_forward_t f = {.struct_size = sizeof f,
                        .query = &fp8.q,
                        .key = &fp8.k,
                        .value = &fp8.v,
                        .output = &fp8.o,
                        .weight_space = &fp8.state,
                        .weight_space_bytes = sizeof fp8.state};
    ok(attn_layer_forward(fp8.layer, &f, &fp8.space, NULL, &error) == ATTN_E_INVALID &&
           !strcmp(error.param, "weight_space"),
       "a state beside static scales is refused");
    code = mm_build(&fp8, images, 3, ATTN_BATCH_CAPTURE, &error) | mm_forward(&fp8, &error);
    ok(code == ATTN_OK, "static scales go with capture");
    mm_close(&fp8), mm_close(&plain);
    attn_context_destroy(context);
}

static float largest(const mm_layer_t *l, int part) {
    float m = 0;
    int size = l->heads * l->d;
    for (int t = 0; t < images[3]; t++)
        for (int i = 0; i < size; i++)
            m = fmaxf(m, fabsf(l->qkv[((size_t)t * 3 + (size_t)part) * (size_t)size + (size_t)i]));
    return m;
}

static char *content_of(const char *path, char *text, size_t size) {
    FILE *f = fopen(path, "r");
    size_t n = f != NULL ? fread(text, 1, size - 1, f) : 0;
    if (f != NULL) fclose(f);
    text[n] = '\0';
    return text;
}

/* 40 calls: the history is circular, the file appears with call 16 and not again. */
static void dynamic_scales(void) {
    char ini[512], text[1024] = "", want[3][64];
    const char *path = mm_file("saved.json", "old");
    snprintf(ini, sizeof ini,
             "[mm_encoder]\nattn_dtype = fp8\nfp8_scale_save_path = %s\nfp8_scale_save_margin = 2\n", path);
    attn_context_t *context = mm_context(ini);
    mm_layer_t l;
    mm_open(&l, context, 2, 16, 0);
    ok(l.need.weight_bytes == sizeof(attn_fp8_state_t), "space_needed asks for a state");
    int code = attn_layer_create(l.group, "blocks.0.attn", NULL, &l.layer, &error);
    attn_layer_t *idle = NULL;
    code |= attn_layer_create(l.group, "blocks.1.attn", NULL, &idle, &error);
    code |= mm_build(&l, images, 3, 0, &error);
    ok(code == ATTN_OK && mm_forward(&l, &error) == ATTN_E_STATE && !strcmp(error.param, "weight_space"),
       "a dynamic layer without its state is refused: %s", error.text);
    attn_weights_t w = {
        .struct_size = sizeof w, .weight_space = &l.state, .weight_space_bytes = sizeof l.state - 1};
    ok(attn_layer_prepare_weights(l.layer, &w, NULL, &error) == ATTN_E_SPACE,
       "a state that is too small is refused");
    w.weight_space_bytes++;
    memset(&l.state, 0xff, sizeof l.state);
    code = attn_layer_prepare_weights(l.layer, &w, NULL, &error);
    float seen[40][3];
    int good = 0, early = 0;
    for (int i = 0; i < 40 && code == ATTN_OK; i++) {
        fill_rows(&l, (uint64_t)i, i == 3 ? 9 : 0.5f + 0.01f * (float)i);
        l.qkv[(size_t)images[3] * 3 * 32] = 1e6f; /* behind the batch: never seen */
        if (i == 5) l.qkv[7] = INFINITY;          /* not finite: not counted */
        code = mm_forward(&l, &error);
        if (i == 5) l.qkv[7] = 0;
        int fine = l.state.calls == (uint32_t)i + 1;
        for (int part = 0; part < 3; part++) {
            float m = 0;
            seen[i][part] = largest(&l, part);
            for (int j = i > 15 ? i - 15 : 0; j <= i; j++)
                m = fmaxf(m, seen[j][part]);
            fine = fine && l.state.amax[part][i % 16] == seen[i][part] && l.state.scale[part] == m / 448;
        }
        good += fine;
        content_of(path, text, sizeof text);
        if (i < 15) early += strcmp(text, "old") != 0;
        for (int part = 0; part < 3 && i == 15; part++) {
            snprintf(want[part], sizeof want[part], "\"%c\": %.6f", "qkv"[part],
                     2.0 * (double)l.state.scale[part]);
            want[part][11] = '\0'; /* four digits */
        }
    }
    ok(code == ATTN_OK && good == 40, "%d of 40 calls keep the history and the scales of the last 16", good);
    ok(early == 0 && strncmp(text, "{\n  \"blocks.0.attn\": {\n    \"q\": ", 30) == 0 &&
           strstr(text, "blocks.1") == NULL,
       "the scales were saved with call 16, of the layers that ran: %.80s", text);
    ok(strstr(text, want[0]) != NULL && strstr(text, want[1]) != NULL && strstr(text, want[2]) != NULL,
       "they are those of that call times the margin (%s, %s, %s)", want[0], want[1], want[2]);
    char left[300];
    snprintf(left, sizeof left, "ls %s | grep -c saved.json.", mm_dir);
    FILE *p = popen(left, "r");
    int temporary = -1;
    if (p == NULL || fscanf(p, "%d", &temporary) != 1) temporary = -1;
    if (p != NULL) pclose(p);
    ok(temporary == 0, "no temporary file is left");

    float one = 1;
    int64_t size = 1, stride = 1;
    DLTensor t = {.data = &one,
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = {kDLFloat, 32, 1},
                  .shape = &size,
                  .strides = &stride};
    attn_forward_t f = {.struct_size = sizeof f,
                        .query = &l.q,
                        .key = &l.k,
                        .value = &l.v,
                        .output = &l.o,
                        .scales = {.q = &t}};
    ok(attn_layer_forward(l.layer, &f, &l.space, NULL, &error) == ATTN_E_INVALID &&
           !strcmp(error.param, "scales"),
       "scales for a layer that measures them are refused");
    code = mm_build(&l, images, 3, ATTN_BATCH_CAPTURE, &error);
    ok(code == ATTN_OK && mm_forward(&l, &error) == ATTN_E_STATE, "dynamic scales do not go with capture: %s",
       error.text);
    attn_layer_destroy(idle);
    mm_close(&l);
    attn_context_destroy(context);
}

/* The layers of one thread, prepared anew now and then, while the call of another saves what all have
 * seen. */
struct caller {
    mm_layer_t l;
    int code;
};

static void *call_often(void *argument) {
    struct caller *c = argument;
    attn_error_t e = {.struct_size = sizeof e};
    attn_weights_t w = {
        .struct_size = sizeof w, .weight_space = &c->l.state, .weight_space_bytes = sizeof c->l.state};
    for (int i = 0; i < 64; i++) {
        if (i % 20 == 0) c->code |= attn_layer_prepare_weights(c->l.layer, &w, NULL, &e);
        c->code |= mm_forward(&c->l, &e);
    }
    return NULL;
}

static void saved_by_another(void) {
    enum { CALLERS = 4 };
    static struct caller callers[CALLERS];
    char ini[512], text[1024] = "", name[16];
    const char *path = mm_path("shared.json");
    pthread_t threads[CALLERS];
    snprintf(ini, sizeof ini, "[mm_encoder]\nattn_dtype = fp8\nfp8_scale_save_path = %s\n", path);
    attn_context_t *context = mm_context(ini);
    int code = ATTN_OK;
    for (int i = 0; i < CALLERS; i++) {
        mm_open(&callers[i].l, context, 2, 16, 0);
        snprintf(name, sizeof name, "b.%d", i);
        code |= attn_layer_create(callers[i].l.group, name, NULL, &callers[i].l.layer, &error);
        code |= mm_build(&callers[i].l, images, 3, 0, &error);
        fill_rows(&callers[i].l, (uint64_t)i, 1);
    }
    for (int i = 0; i < CALLERS; i++)
        if (pthread_create(&threads[i], NULL, call_often, &callers[i]) != 0) bail_out("no thread");
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        code |= callers[i].code;
    }
    content_of(path, text, sizeof text);
    ok(code == ATTN_OK && strstr(text, "\"b.") != NULL, "%d threads, one file: %.60s", CALLERS, text);
    for (int i = 0; i < CALLERS; i++)
        mm_close(&callers[i].l);
    attn_context_destroy(context);
}

/* A file that cannot be written is a line in the log, not a failed call. */
static void failed_save(void) {
    attn_context_t *context =
        mm_context("[mm_encoder]\nattn_dtype = fp8\nfp8_scale_save_path = /nowhere/at/all.json\n");
    mm_layer_t l;
    int code = ATTN_OK;
    mm_open(&l, context, 1, 8, 0);
    attn_weights_t w = {
        .struct_size = sizeof w, .weight_space = &l.state, .weight_space_bytes = sizeof l.state};
    code |= attn_layer_create(l.group, "a", NULL, &l.layer, &error) |
            attn_layer_prepare_weights(l.layer, &w, NULL, &error);
    code |= mm_build(&l, images, 3, 0, &error);
    for (int i = 0; i < 17; i++)
        code |= mm_forward(&l, &error); /* all rows zero: the smallest scale */
    ok(code == ATTN_OK && strstr(mm_log, "cannot write /nowhere/at/all.json"),
       "a failed save is said and nothing else");
    ok(l.state.scale[0] > 0 && l.out[0] == 0, "rows of zeros have a scale above 0");
    attn_layer_t *first = l.layer;
    attn_fp8_state_t other;
    w.weight_space = &other;
    code = attn_layer_create(l.group, "b", NULL, &l.layer, &error) |
           attn_layer_prepare_weights(l.layer, &w, NULL, &error);
    mm_log[0] = '\0';
    for (int i = 0; i < 17; i++)
        code |= mm_forward(&l, &error);
    ok(code == ATTN_OK && mm_log[0] == '\0', "the 16th call of the next layer does not try again (%s)",
       mm_log);
    attn_layer_destroy(first);
    mm_close(&l);
    attn_context_destroy(context);
}

static void who_serves_it(void) {
    attn_context_t *context = mm_context("[mm_encoder]\nattn_dtype = fp8\n");
    attn_problem_t p = mm_problem(2, 64, 0);
    attn_device_t d = mm_cpu();
    attn_selection_t *s = NULL;
    int code = attn_select(context, &p, &d, NULL, &s, &error);
    ok(code == ATTN_OK && s->backend != NULL && !strcmp(s->backend->name, "REFERENCE"),
       "on a CPU the reference serves fp8 encoders");
    attn_problem_t decoder = {.struct_size = sizeof decoder,
                              .role = ATTN_ROLE_DECODER,
                              .mask = ATTN_MASK_CAUSAL,
                              .dtype = ATTN_DTYPE_FLOAT32,
                              .num_heads = 2,
                              .head_size = 64,
                              .scale = 0.125};
    attn_group_t *g = NULL;
    code = attn_group_open(context, &decoder, &d, "REFERENCE", &g, NULL, &error);
    ok(code == ATTN_OK && attn_group_problem(g)->features == 0, "the setting is for encoders alone");
    attn_group_close(g);
    attn_selection_free(s);
    s = NULL;
    code = attn_select(context, &p, &d, "CPU_ATTN", &s, &error);
    ok(code != ATTN_OK && (code == ATTN_E_NOT_FOUND || strstr(error.text, "fp8_attention")),
       "CPU_ATTN says why not: %s", error.text);
    attn_selection_free(s);
    p.role = ATTN_ROLE_ENCODER_ONLY;
    p.features = ATTN_F_FP8_ATTENTION;
    ok(attn_problem_check(&p, &error) == ATTN_E_INVALID && !strcmp(error.param, "features"),
       "another role with fp8_attention is refused: %s", error.text);
    attn_context_destroy(context);
}

static void buckets(void) {
    static const struct {
        int64_t length, bucket;
    } lengths[] = {{-5, 1024},      {0, 1024},        {1, 1024},        {1024, 1024},     {1025, 2048},
                   {70000, 131072}, {131072, 131072}, {131073, 262144}, {262144, 262144}, {300000, 393216}};
    static const int32_t batches[][2] = {{0, 8},   {1, 8},   {8, 8},   {9, 16}, {17, 32},
                                         {33, 64}, {64, 64}, {65, 72}, {72, 72}};
    int good = 0, n = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++, n++)
        good += attn_mm_seqlen_bucket(lengths[i].length) == lengths[i].bucket;
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++, n++)
        good += attn_mm_batch_bucket(batches[i][0]) == batches[i][1];
    ok(good == n, "%d of %d buckets of lengths and batches", good, n);
    const int32_t cu[5] = {0, 3, 3, 10, 12};
    int32_t padded[9];
    ok(attn_mm_max_seqlen(cu, 5) == 7 && attn_mm_max_seqlen(cu, 1) == 0 && attn_mm_max_seqlen(NULL, 0) == 0,
       "the longest of cu_seqlens");
    int code = attn_mm_pad_cu_seqlens(cu, 4, 8, padded, &error);
    ok(code == ATTN_OK && padded[4] == 12 && padded[8] == 12 && padded[3] == 10,
       "a batch is padded with empty sequences");
    ok(attn_mm_pad_cu_seqlens(cu, 4, 3, padded, &error) == ATTN_E_INVALID && !strcmp(error.param, "bucket"),
       "a bucket that is too small is refused");
    const int32_t falling[3] = {0, 5, 4};
    ok(attn_mm_pad_cu_seqlens(falling, 2, 8, padded, &error) == ATTN_E_INVALID,
       "falling cu_seqlens are refused");
}

int main(void) {
    config_says_what_is_wrong();
    files();
    static_scales();
    dynamic_scales();
    saved_by_another();
    failed_save();
    who_serves_it();
    buckets();
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", mm_dir);
    ok(system(command) == 0, "the scratch folder is removed");
    return tap_done();
}
