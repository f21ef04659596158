/* SPDX-License-Identifier: Apache-2.0 */
/* The hooks: a trace that other tools can read, a check that catches what it claims to, a shadow that finds
 * differences; and nothing of it when they are off. */
#include "hook_step.h"
#include "../comma_locale.h"

/* -------------------------------------------------------------------- trace */

/* Lines of a file that hold all the words, which end with NULL. */
static int lines_with(const char *path, const char *const *words) {
    char line[8192];
    int found = 0;
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        int all = line[0] == '{' && strcmp(line + strlen(line) - 2, "}\n") == 0;
        for (int i = 0; words[i] != NULL; i++)
            all = all && strstr(line, words[i]) != NULL;
        found += all;
    }
    if (f != NULL) fclose(f);
    return found;
}

/* Lines whose "us" is digits, a point, digits, and then the next member. */
static int times_in(const char *path) {
    char line[8192];
    int found = 0;
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *at = strstr(line, "\"us\":");
        if (at == NULL) continue;
        at += strlen("\"us\":");
        size_t whole = strspn(at, "0123456789"),
               part = at[whole] == '.' ? strspn(at + whole + 1, "0123456789") : 0;
        found += whole > 0 && part > 0 && strncmp(at + whole + 1 + part, ",\"status\"", 9) == 0;
    }
    if (f != NULL) fclose(f);
    return found;
}

#define LINES(...) lines_with(path, (const char *const[]){__VA_ARGS__, NULL})

static void test_trace(void) {
    static struct step s;
    char ini[300], path[] = "/tmp/attn-trace-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) bail_out("no file");
    close(fd);
    snprintf(ini, sizeof ini, "[hook trace]\nfile = %s\n", path);
    attn_context_t *context = fake_context(ini);
    open_step(&s, context, "FAKE_PLAIN");
    is_int(build(&s) || update(&s) || forward(&s), 0, "a traced step");
    is_int(attn_layer_forward(s.layer, &s.f, NULL, NULL, &error), 0, "a traced profiling run");
    s.f.kv_cache = &s.tcache.t;
    ok(fake_log_of(s.g) != NULL, "extensions pass through the hook");
    is_int(attn_group_update_block_table(s.g, &s.b, &s.buf.space, NULL, &error), 0,
           "a traced update of the table");
    close_step(&s);
    is_int(LINES("\"event\":\"open\"", "\"backend\":\"FAKE_PLAIN\"", "\"plugin\":\"layer_fake\"",
                 "role=decoder mask=causal"),
           1, "the problem in canonical text");
    is_int(LINES("\"event\":\"build_metadata\"", "\"num_reqs\":1", "\"query_lens\":[4]", "\"seq_lens\":[4]",
                 "\"us\":", "\"status\":0"),
           1, "the batch");
    is_int(LINES("\"event\":\"update_block_table\""), 1, "the new table");
    is_int(LINES("\"event\":\"update_kv_cache\"", "\"layer\":\"l.0\"", "\"slots\":[4]",
                 "\"kv_cache\":[32,1,4,16]", "\"bytes\":512"),
           1, "the cache write: 4 keys and values read and written");
    is_int(
        LINES("\"event\":\"forward\"", "\"layer\":\"l.0\"", "\"query\":[6,2,8]", "\"output\":[6,2,8]",
              "\"tokens\":4,\"keys\":4,\"bytes\":768"),
        1,
        "the forward: 4 rows of 2 heads, query and output, and 4 keys with their values, of 8 floats each");
    is_int(LINES("\"event\":\"profiling\""), 1, "the profiling run");
    is_int(LINES("\"event\":\"close\""), 1, "the end");
    is_int(LINES("\"group\":"), 7, "and nothing else");
    char pid[32];
    snprintf(pid, sizeof pid, "\"pid\":%ld,", (long)getpid());
    is_int(LINES(pid, "\"ts\":", "\"backend\":\"FAKE_PLAIN\""), 7, "each with process, time and backend");
    attn_context_destroy(context);

    /* JSON has points whatever the locale of the engine writes. */
    if (truncate(path, 0) != 0) bail_out("no file");
    context = fake_context(ini);
    open_step(&s, context, "FAKE_PLAIN");
    if (comma_locale()) {
        is_int(build(&s) || update(&s) || forward(&s), 0, "a step traced in a locale with decimal commas");
        setlocale(LC_ALL, "C");
        is_int(times_in(path), 3, "its times are numbers of JSON");
    } else {
        skip(2, "localedef is not installed");
    }
    close_step(&s);
    attn_context_destroy(context);

    /* Bounded: it stops at a whole line and says so once. */
    struct stat st;
    snprintf(ini, sizeof ini, "[hook trace]\nfile = %s\nmax_bytes = 4000\n", path);
    context = fake_context(ini);
    open_step(&s, context, "FAKE_PLAIN");
    build(&s);
    for (int i = 0; i < 100; i++)
        forward(&s);
    close_step(&s);
    int found = stat(path, &st) == 0;
    long long size = found ? (long long)st.st_size : -1;
    ok(size <= 4000 && size > 3000, "a trace of at most 4000 bytes has %lld", size);
    has_str(logged, "has reached 4000 bytes", "the log says that it ended");
    attn_context_destroy(context);
    unlink(path);
    if (symlink("/tmp/attn-not-there", path) != 0) bail_out("no link");
    context = fake_context(ini);
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_device_t d = cpu();
    attn_group_t *g = NULL;
    is_int(attn_group_open(context, &p, &d, "FAKE_PLAIN", &g, NULL, &error), ATTN_E_IO,
           "a trace through a link is refused");
    has_str(error.text, path, "by name");
    attn_context_destroy(context);
    unlink(path);
}

/* format = chrome: an array of events whose closing bracket the format lets one leave out. */
static void test_timeline(void) {
    static struct step s;
    char ini[300], path[] = "/tmp/attn-trace-XXXXXX", line[8192];
    int fd = mkstemp(path), depth = 0, events = 0, wrong = 0, brackets = 0;
    if (fd < 0) bail_out("no file");
    close(fd);
    snprintf(ini, sizeof ini, "[hook trace]\nfile = %s\nformat = chrome\n", path);
    for (int i = 0; i < 2; i++) { /* the second one goes on in the same file */
        attn_context_t *context = fake_context(ini);
        open_step(&s, context, "FAKE_PLAIN");
        is_int(build(&s) || update(&s) || forward(&s), 0, "a step in a timeline");
        close_step(&s);
        attn_context_destroy(context);
    }
    is_int(
        LINES("\"ph\":\"i\"", "\"name\":\"open\"", "\"backend\":\"FAKE_PLAIN\"", "role=decoder mask=causal"),
        0, "lines end as an array's do");
    FILE *f = fopen(path, "r");
    for (int first = 1; f != NULL && fgets(line, sizeof line, f) != NULL; first = 0) {
        if (strcmp(line, "[\n") == 0) {
            brackets += first ? 1 : 2;
            continue;
        }
        const size_t n = strlen(line);
        events++;
        depth = 0;
        for (size_t i = 0; i < n; i++)
            depth += (line[i] == '{') - (line[i] == '}');
        wrong += depth != 0 || strcmp(line + n - 4, "}},\n") != 0 || strstr(line, "\"ts\":") == NULL ||
                 strstr(line, "\"pid\":") == NULL || strstr(line, "\"tid\":") == NULL;
        if (strstr(line, "\"cat\":\"forward\"") != NULL)
            wrong += strstr(line, "\"ph\":\"X\"") == NULL || strstr(line, "\"dur\":") == NULL ||
                     strstr(line, "\"name\":\"l.0\"") == NULL || strstr(line, "\"bytes\":768") == NULL;
    }
    if (f != NULL) fclose(f);
    is_int(brackets, 1, "one array, begun once");
    is_int(events, 10, "an event for each call, opening and closing too");
    is_int(wrong, 0, "each a whole object with what a viewer needs");
    unlink(path);
}

/* -------------------------------------------------------------------- check */

static attn_context_t *check_context(const char *level, const char *mode) {
    char ini[200];
    snprintf(ini, sizeof ini, "[hook check]\nlevel = %s\n[option layer_fake]\nmode = %s\n", level, mode);
    return fake_context(ini);
}

/* Expects an error under a parameter's name. */
static void caught(int code, int want, const char *param, const char *what) {
    if (!ok(code == want && strcmp(error.param, param) == 0 && strstr(error.text, "[hook check]") != NULL,
            "%s", what))
        diag("code %d, param '%s', text '%s'", code, error.param, error.text);
}

/* Slots that forward is given are looked at as those of an update. */
static void test_check_forward_slots(void) {
    static struct step s;
    attn_context_t *context = check_context("index", "ok");
    step_features |= ATTN_F_WRITE_IN_FORWARD;
    open_step(&s, context, "FAKE_PLAIN");
    step_features = ATTN_F_LSE;
    s.f.key = &s.tk.t, s.f.value = &s.tv.t, s.f.slot_mapping = &s.tslots.t;
    is_int(build(&s) || forward(&s), 0, "a good step whose forward writes");
    s.slots[3] = s.slots[0];
    caught(forward(&s), ATTN_E_INVALID, "slot_mapping", "a slot twice in forward");
    s.slots[3] = -1;
    is_int(forward(&s), 0, "the next call starts clean");
    close_step(&s);
    attn_context_destroy(context);
}

static void test_check_index(const char *level) {
    static struct step s;
    attn_context_t *context = check_context(level, "ok");
    open_step(&s, context, "FAKE_PLAIN");
    is_int(build(&s) || update(&s) || forward(&s), 0, "level %s: a good step", level);
    s.tensor_lens[0] = 3;
    caught(build(&s), ATTN_E_INVALID, "seq_lens", "seq_lens that disagree");
    s.tensor_lens[0] = 4, s.tensor_starts[1] = 5;
    caught(build(&s), ATTN_E_INVALID, "query_start_loc", "starts that disagree");
    s.tensor_starts[1] = 4, s.slots[3] = s.slots[0];
    caught(update(&s), ATTN_E_INVALID, "slot_mapping", "a slot twice");
    s.b.slot_mapping = &s.tslots.t;
    caught(build(&s), ATTN_E_INVALID, "slot_mapping", "in the batch, too");
    s.slots[3] = -1;
    is_int(update(&s) || build(&s), 0, "the next call starts clean");
    s.tq.shape[0] = 3;
    caught(forward(&s), ATTN_E_INVALID, "query", "fewer query rows than tokens");
    s.tq.shape[0] = 6, s.tout.shape[0] = 3;
    caught(forward(&s), ATTN_E_INVALID, "output", "fewer output rows than tokens");
    s.tout.shape[0] = 6;
    struct buffers other = alloc_buffers(s.g);
    is_int(attn_layer_forward(s.layer, &s.f, &other.space, NULL, &error), ATTN_E_STATE,
           "metadata that was not built");
    free(other.memory);
    is_int(attn_group_update_block_table(s.g, &s.b, &s.buf.space, NULL, &error) || forward(&s), 0,
           "after a new table");
    close_step(&s);
    attn_context_destroy(context);
}

static void test_check_values(void) {
    static struct step s;
    attn_context_t *context = check_context("all", "ok");
    open_step(&s, context, "FAKE_PLAIN");
    build(&s);
    s.k[2][0][5] = NAN;
    caught(update(&s), ATTN_E_INVALID, "key", "NaN in key");
    s.k[2][0][5] = 0, s.v[0][0][0] = INFINITY;
    caught(update(&s), ATTN_E_INVALID, "value", "infinity in value");
    s.v[0][0][0] = 0, s.k[5][0][0] = NAN;
    is_int(update(&s), 0, "padding rows may hold anything");
    s.q[3][1][7] = NAN;
    caught(forward(&s), ATTN_E_INVALID, "query", "NaN in query");
    s.q[3][1][7] = 0, s.q[4][0][0] = NAN;
    is_int(forward(&s), 0, "but not in its padding");
    s.cache[12 * 16 + 8] = NAN; /* slot 12: the first value */
    caught(forward(&s), ATTN_E_INTERNAL, "output", "NaN in output");
    close_step(&s);
    attn_context_destroy(context);
    static const struct {
        const char *mode, *param;
    } broken[] = {{"nan", "output"},
                  {"overrun", "workspace"},
                  {"read_workspace", "output"},
                  {"touch_padding", "output"}};
    for (size_t i = 0; i < 4; i++) {
        context = check_context("all", broken[i].mode);
        open_step(&s, context, "FAKE_PLAIN");
        is_int(build(&s) || update(&s), 0, "a backend in mode %s", broken[i].mode);
        caught(forward(&s), ATTN_E_INTERNAL, broken[i].param, "is caught");
        close_step(&s);
        attn_context_destroy(context);
    }
    /* The same backends pass unseen without the hook. */
    context = check_context("off", "nan");
    open_step(&s, context, "FAKE_PLAIN");
    is_int(build(&s) || update(&s) || forward(&s), 0, "without the hook nobody looks");
    ok(isnan(s.out[0][0][0]), "at the NaN");
    close_step(&s);
    attn_context_destroy(context);
}

/* Lists that only some problems have. */
static void test_check_other_lists(void) {
    static struct step s;
    attn_context_t *context = check_context("index", "ok");
    open_step(&s, context, "FAKE_PLAIN");
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER), m = small_problem(ATTN_ROLE_MLA_SPARSE);
    p.mask = ATTN_MASK_PER_REQUEST;
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
    uint8_t causal_host[] = {1};
    int32_t causal[] = {0};
    struct tensor t;
    struct buffers buf = alloc_buffers(g);
    s.b.causal_host = causal_host;
    s.b.causal = tensor(&t, causal, ATTN_DTYPE_INT32, 1, 1, 0, 0, 0);
    caught(attn_group_build_metadata(g, &s.b, &buf.space, NULL, &error), ATTN_E_INVALID, "causal",
           "causal that disagrees");
    causal[0] = 1;
    is_int(attn_group_build_metadata(g, &s.b, &buf.space, NULL, &error), 0, "causal that agrees");
    attn_group_close(g);
    free(buf.memory);

    static float q[6 * 2 * 16], out[6 * 2 * 8], cache[32 * 4 * 24], weights[32 * 16], room[8];
    static int32_t topk[6][128];
    struct tensor tq, tout, tcache, tw, ttopk;
    attn_layer_t *layer = NULL;
    g = open_group(context, &m, "FAKE_PLAIN");
    buf = alloc_buffers(g);
    s.b.causal_host = NULL, s.b.causal = NULL;
    attn_weights_t w = {.struct_size = sizeof w,
                        .kv_b_proj = tensor(&tw, weights, ATTN_DTYPE_FLOAT32, 2, 32, 16, 0, 0),
                        .weight_space = room,
                        .weight_space_bytes = sizeof room};
    attn_forward_t f = {.struct_size = sizeof f,
                        .query = tensor(&tq, q, ATTN_DTYPE_FLOAT32, 3, 6, 2, 16, 0),
                        .output = tensor(&tout, out, ATTN_DTYPE_FLOAT32, 3, 6, 2, 8, 0),
                        .kv_cache = tensor(&tcache, cache, ATTN_DTYPE_FLOAT32, 3, 32, 4, 24, 0),
                        .topk_indices = tensor(&ttopk, topk, ATTN_DTYPE_INT32, 2, 6, 128, 0, 0)};
    is_int(attn_layer_create(g, "sparse.0", NULL, &layer, &error) ||
               attn_layer_prepare_weights(layer, &w, NULL, &error),
           0, "weights pass through the hook");
    is_int(fake_log_of(g)->weight_runs, 1, "to the backend");
    is_int(attn_group_build_metadata(g, &s.b, &buf.space, NULL, &error), 0, "a sparse step");
    topk[3][127] = 4;
    caught(attn_layer_forward(layer, &f, &buf.space, NULL, &error), ATTN_E_INVALID, "topk_indices",
           "a selected token that does not exist");
    topk[3][127] = -2;
    caught(attn_layer_forward(layer, &f, &buf.space, NULL, &error), ATTN_E_INVALID, "topk_indices",
           "a selected token -2");
    topk[3][127] = -1, topk[4][0] = 99;
    is_int(attn_layer_forward(layer, &f, &buf.space, NULL, &error), 0,
           "-1 is none, and padding is not looked at");
    /* Whatever is wrong with the tensor itself is said, not followed. */
    const struct tensor good = ttopk;
    for (int i = 0; i < 5; i++) {
        static const char *const whats[] = {"no data", "no strides", "no shape", "elements of 64 bits",
                                            "64 columns"};
        memcpy(&ttopk, &good, sizeof good);
        ttopk.t.shape = ttopk.shape, ttopk.t.strides = ttopk.strides;
        if (i == 0) ttopk.t.data = NULL;
        if (i == 1) ttopk.t.strides = NULL;
        if (i == 2) ttopk.t.shape = NULL;
        if (i == 3) ttopk.t.dtype.bits = 64;
        if (i == 4) ttopk.shape[1] = 64;
        error.param[0] = '\0';
        is_int(attn_layer_forward(layer, &f, &buf.space, NULL, &error), ATTN_E_INVALID,
               "topk_indices with %s", whats[i]);
        is_str(error.param, "topk_indices", "is refused by name");
    }
    attn_layer_destroy(layer);
    attn_group_close(g);
    free(buf.memory);
    close_step(&s);
    attn_context_destroy(context);
}

/* ------------------------------------------------------------------- shadow */

static int count_of(const char *text, const char *part) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)) != NULL; p++)
        n++;
    return n;
}

static void test_shadow(void) {
    static struct step s;
    attn_context_t *context = fake_context("[hook shadow]\nbackend = FAKE_BARE\nsample = 2\n");
    open_step(&s, context, "FAKE_PLAIN");
    is_int(build(&s) || update(&s), 0, "a shadowed step");
    for (int i = 0; i < 5; i++)
        forward(&s);
    is_int(attn_group_update_block_table(s.g, &s.b, &s.buf.space, NULL, &error) || forward(&s), 0,
           "after a new table");
    attn_fp8_state_t state = {.calls = 0};
    s.f.weight_space = &state;
    s.f.weight_space_bytes = sizeof state;
    is_int(forward(&s), 0, "a call with dynamic scales, which is not run twice");
    logged[0] = '\0';
    close_step(&s);
    has_str(logged, "FAKE_BARE beside FAKE_PLAIN: 3 of 7 calls compared, largest difference 0",
            "equal backends differ by 0");
    attn_context_destroy(context);

    /* FAKE_NOOP leaves its output as it is, so the shadow's and the engine's differ. */
    context = fake_context("[hook shadow]\nbackend = FAKE_PLAIN\nsample = 1\n");
    open_step(&s, context, "FAKE_NOOP");
    build(&s);
    for (int i = 0; i < T; i++)
        memcpy(&s.cache[(12 + i) * 16 + 8], s.v[i], sizeof s.v[i]);
    forward(&s);
    forward(&s);
    is_int(count_of(logged, "[hook shadow] layer 'l.0', call"), 2,
           "outputs and LSEs that differ are said once, as long as nothing is worse");
    has_str(logged, "2 [hook shadow] layer 'l.0', call 1: outputs of FAKE_NOOP and FAKE_PLAIN differ by",
            "as a warning that names the layer");
    s.out[0][0][0] = NAN;
    forward(&s);
    has_str(logged, "differ by inf", "NaN against a number is infinitely far");
    close_step(&s);
    has_str(logged, "of what is allowed, in layer l.0", "the summary names the worst layer");
    attn_context_destroy(context);

    /* The tolerance grows with the values, as float32 does: 1e4 may be off by 0.01, 1 may not be off by
     * 1e-4. */
    static const struct {
        float value, off;
        int is_warned;
    } cases[] = {{1e4f, 0.01f, 0}, {1e4f, 1, 1}, {1, 1e-4f, 1}, {1, 1e-6f, 0}, {1e-3f, 1e-3f, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        context = fake_context("[hook shadow]\nbackend = FAKE_PLAIN\nsample = 1\n");
        open_step(&s, context, "FAKE_NOOP");
        s.f.lse = NULL;
        build(&s);
        for (int t = 0; t < T; t++)
            for (int d = 0; d < 8; d++) {
                s.cache[(12 + t) * 16 + 8 + d] = cases[i].value;
                s.out[t][0][d] = s.out[t][1][d] = cases[i].value;
            }
        s.out[2][1][3] += cases[i].off;
        logged[0] = '\0';
        forward(&s);
        ok((strstr(logged, "2 [hook shadow] layer") != NULL) == cases[i].is_warned,
           "%g where %g was wanted is %s", (double)(cases[i].value + cases[i].off), (double)cases[i].value,
           cases[i].is_warned ? "a warning" : "none");
        close_step(&s);
        attn_context_destroy(context);
    }

    /* What cannot run beside steps aside. */
    context = fake_context("[hook shadow]\nbackend = FAKE_CUDA\n");
    open_step(&s, context, "FAKE_PLAIN");
    has_str(logged, "FAKE_CUDA cannot run beside FAKE_PLAIN: FAKE_CUDA runs on cuda",
            "a backend that does not serve the problem");
    close_step(&s);
    attn_context_destroy(context);
    context = fake_context("[hook shadow]\nbackend = FAKE_PLAIN\n[option layer_fake]\nmode = fails\n");
    open_step(&s, context, "FAKE_NOOP");
    is_int(build(&s) || forward(&s), 0, "a shadow that fails does not fail the call");
    has_str(logged, "2 [hook shadow] FAKE_PLAIN fails: the fake kernel is on strike", "but is heard");
    close_step(&s);
    attn_context_destroy(context);
    context = fake_context("[hook shadow]\nbackend = FAKE_INCLUDES\n");
    open_step(&s, context, "FAKE_PLAIN");
    has_str(logged, "FAKE_INCLUDES cannot run beside FAKE_PLAIN: a forward that writes the cache",
            "a second writer");
    is_int(build(&s) || update(&s) || forward(&s), 0, "the engine does not notice");
    close_step(&s);
    attn_context_destroy(context);
    context = fake_context("[hook shadow]\nbackend = FAKE_PLAIN\n");
    open_step(&s, context, "FAKE_PLAIN");
    logged[0] = '\0';
    close_step(&s);
    is_str(logged, "", "nothing shadows itself");
    attn_context_destroy(context);
    context = fake_context("[hook shadow]\nbackend = PLAIN\n");
    attn_device_t d = cpu();
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_group_t *g = NULL;
    is_int(attn_group_open(context, &p, &d, "FAKE_PLAIN", &g, NULL, &error), ATTN_E_NOT_FOUND,
           "a shadow that is not there is an error");
    has_str(error.text,
            "api:6: [hook shadow] no loaded plugin has a backend 'PLAIN', did you mean 'FAKE_PLAIN'",
            "that names its line");
    attn_context_destroy(context);
}

static void test_together(void) {
    static struct step s;
    attn_context_t *context = fake_context("[hook trace]\nfile = /dev/null\n[hook check]\nlevel = all\n[hook "
                                           "shadow]\nbackend = FAKE_BARE\nsample = 1\n");
    open_step(&s, context, "FAKE_PLAIN");
    is_int(build(&s) || update(&s) || forward(&s), 0, "all hooks at once");
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.chunk_size = 8;
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
    struct buffers buf = alloc_buffers(g);
    is_int(attn_group_build_metadata(g, &s.b, &buf.space, NULL, &error), 0, "over rewritten batches, too");
    attn_group_close(g);
    free(buf.memory);
    close_step(&s);
    attn_context_destroy(context);
}

/* The slots of a cross batch are the encoder's tokens, fewer than those of the step: what lies behind is
 * nobody's. */
static void test_check_cross(void) {
    attn_context_t *context = fake_context("[hook check]\nlevel = index\n");
    attn_problem_t p = small_problem(ATTN_ROLE_ENCODER_DECODER);
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
    struct buffers buf = alloc_buffers(g);
    int32_t starts[] = {0, 4}, lens[] = {4}, encoder[] = {2}, table[] = {3};
    int64_t slots[] = {12, 13, 12, INT64_C(1) << 40};
    struct tensor ttable, tslots;
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = 1,
                      .num_actual_tokens = 4,
                      .query_start_loc_host = starts,
                      .seq_lens_host = lens,
                      .encoder_seq_lens_host = encoder,
                      .block_table = tensor(&ttable, table, ATTN_DTYPE_INT32, 2, 1, 1, 0, 0),
                      .slot_mapping = tensor(&tslots, slots, ATTN_DTYPE_INT64, 1, 2, 0, 0, 0)};
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_OK,
           "two slots for four tokens: %s", error.text);
    slots[1] = 12;
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_E_INVALID, "one slot twice");
    is_str(error.param, "slot_mapping", "is named");
    attn_group_close(g);
    free(buf.memory);
    attn_context_destroy(context);
}

int main(void) {
    test_trace();
    test_timeline();
    test_check_forward_slots();
    test_check_index("index");
    test_check_index("all");
    test_check_values();
    test_check_other_lists();
    test_shadow();
    test_together();
    test_check_cross();
    remove_fake();
    return tap_done();
}
