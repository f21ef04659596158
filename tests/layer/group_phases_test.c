/* SPDX-License-Identifier: Apache-2.0 */
/* Two backends in one group: which batch goes where, whose plan an address holds, what is refused. */
#include "hook_step.h"

#include <math.h>

static char trace_path[64];

/* How often the trace has a call of a backend: its lines say both. */
static int traced(const char *call, const char *backend) {
    static char line[4096];
    char one[64], other[64];
    int count = 0;
    snprintf(one, sizeof one, "\"event\":\"%s\"", call);
    snprintf(other, sizeof other, "\"backend\":\"%s\"", backend);
    FILE *f = fopen(trace_path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        count += strstr(line, one) != NULL && strstr(line, other) != NULL;
    if (f != NULL) fclose(f);
    return count;
}

static attn_context_t *context_of(const char *select, const char *more) {
    char text[2048];
    snprintf(text, sizeof text, "[select decoder]\nbackend = FAKE_PLAIN\n%s\n%s", select, more);
    return fake_context(text);
}

static attn_context_t *traced_context(const char *select) {
    char more[128];
    snprintf(trace_path, sizeof trace_path, "/tmp/attn-phases-%ld.jsonl", (long)getpid());
    unlink(trace_path);
    snprintf(more, sizeof more, "[hook trace]\nfile = %s\n", trace_path);
    return context_of(select, more);
}

/* The request's last `tokens` tokens of T. */
static void shorten(struct step *s, int tokens) {
    s->starts[1] = s->tensor_starts[1] = s->b.num_actual_tokens = tokens;
}

static int is_poisoned(const struct step *s) {
    return isnan(s->out[0][0][0]);
}

static void poison(struct step *s) {
    for (size_t i = 0; i < sizeof s->out / sizeof(float); i++)
        ((float *)s->out)[i] = NAN;
}

/* FAKE_NOOP leaves the output as it was, FAKE_PLAIN computes. */
static void test_batches(void) {
    struct step s;
    attn_context_t *context = traced_context("prefill_backend = fake_noop");
    open_step(&s, context, NULL);
    is_str(attn_group_backend(s.g)->name, "FAKE_PLAIN", "the group's backend is that of decode");
    is_str(attn_group_phase_backend(s.g, ATTN_PHASE_DECODE)->name, "FAKE_PLAIN", "of decode by phase");
    is_str(attn_group_phase_backend(s.g, ATTN_PHASE_PREFILL)->name, "FAKE_NOOP", "of prefill");
    ok(attn_group_phase_backend(s.g, 0) == NULL && attn_group_phase_backend(s.g, 3) == NULL &&
           attn_group_phase_backend(NULL, 1) == NULL,
       "there are two phases");
    has_str(logged, "decode by FAKE_PLAIN, prefill by FAKE_NOOP", "the log has both");

    is_int(update(&s), ATTN_OK, "the cache is written");
    is_int(traced("update_kv_cache", "FAKE_PLAIN"), 1, "by the group's backend");
    is_int(attn_group_phase(s.g, &s.b), ATTN_PHASE_PREFILL, "4 tokens are prefill");
    poison(&s);
    is_int(build(&s) || forward(&s), 0, "a batch with prefill");
    ok(is_poisoned(&s), "runs on the second backend");
    is_int(traced("build_metadata", "FAKE_NOOP"), 1, "which planned it");
    is_int(traced("forward", "FAKE_NOOP"), 1, "and the trace says so");
    is_int(traced("forward", "FAKE_PLAIN"), 0, "alone");

    shorten(&s, 1);
    is_int(attn_group_phase(s.g, &s.b), ATTN_PHASE_DECODE, "1 token is decode");
    is_int(build(&s) || forward(&s), 0, "a decode batch, in the same space");
    ok(!is_poisoned(&s), "runs on the first");
    is_int(traced("forward", "FAKE_PLAIN"), 1, "says the trace");
    is_int(fake_log_of(s.g)->builds, 1, "which planned this one only");

    shorten(&s, T);
    s.b.flags = ATTN_BATCH_CAPTURE;
    is_int(attn_group_phase(s.g, &s.b), ATTN_PHASE_DECODE, "what is captured is decode's, whatever it holds");
    poison(&s);
    is_int(build(&s) || forward(&s), 0, "a captured batch of 4 tokens");
    ok(!is_poisoned(&s), "is computed by the first");
    s.b.flags = 0;

    /* Two spaces at once: the layer follows the one it is given. */
    struct buffers second = alloc_buffers(s.g);
    is_int(build(&s), ATTN_OK, "prefill in one space");
    shorten(&s, 1);
    is_int(attn_group_build_metadata(s.g, &s.b, &second.space, NULL, &error), ATTN_OK, "decode in another");
    poison(&s);
    is_int(forward(&s), ATTN_OK, "the first space");
    ok(is_poisoned(&s), "is still prefill's");
    is_int(attn_layer_forward(s.layer, &s.f, &second.space, NULL, &error), ATTN_OK, "the second");
    ok(!is_poisoned(&s), "decode's");

    /* New tables of what was built go the short way of its own backend. */
    is_int(attn_group_update_block_table(s.g, &s.b, &second.space, NULL, &error), ATTN_OK, "new tables");
    is_int(fake_log_of(s.g)->table_updates, 1, "by the backend that built");
    is_int(attn_group_update_block_table(s.g, &s.b, &s.buf.space, NULL, &error), ATTN_OK,
           "over metadata of the other phase");
    is_int(fake_log_of(s.g)->table_updates, 1, "it is built anew");
    s.lens[0] = s.tensor_lens[0] = 3;
    is_int(attn_group_update_block_table(s.g, &s.b, &second.space, NULL, &error), ATTN_E_STATE,
           "another length is refused as ever");
    s.lens[0] = s.tensor_lens[0] = T;

    char *never = aligned_alloc(64, 4096);
    attn_space_t wild = s.buf.space;
    wild.metadata = never;
    is_int(attn_layer_forward(s.layer, &s.f, &wild, NULL, &error), ATTN_E_STATE,
           "metadata that nobody built");
    has_str(error.text, "FAKE_PLAIN and FAKE_NOOP", "names both");
    free(never);
    is_int(attn_layer_forward(s.layer, &s.f, NULL, NULL, &error), ATTN_OK, "the profiling run");
    ok(s.out[0][0][0] == 0, "gives zero");
    ok(attn_group_phase(NULL, &s.b) == 0 && attn_group_phase(s.g, NULL) == 0, "no group, no batch: no phase");
    free(second.memory);
    close_step(&s);
    attn_context_destroy(context);
    is_int(traced("close", "FAKE_NOOP"), 1, "both are closed");
    is_int(traced("close", "FAKE_PLAIN"), 1, "once");
    unlink(trace_path);
}

/* Many spaces, as an engine has that captures a graph for each size: none is forgotten. */
static void test_many_spaces(void) {
    enum { SPACES = 128 };
    struct step s;
    int lost = 0, astray = 0;
    attn_context_t *context = context_of("prefill_backend = FAKE_NOOP", "");
    open_step(&s, context, NULL);
    update(&s);
    char *memory = aligned_alloc(256, SPACES * 256);
    for (int i = 0; i < SPACES; i++) {
        s.buf.space.metadata = memory + (size_t)i * 256;
        shorten(&s, i % 2 ? T : 1);
        lost += build(&s) != ATTN_OK;
    }
    for (int i = 0; i < SPACES; i++) {
        s.buf.space.metadata = memory + (size_t)i * 256;
        shorten(&s, i % 2 ? T : 1);
        poison(&s);
        lost += forward(&s) != ATTN_OK;
        astray += is_poisoned(&s) != i % 2;
    }
    is_int(lost, 0, "%d spaces are known", SPACES);
    is_int(astray, 0, "each by its own backend");
    free(memory);
    close_step(&s);
    attn_context_destroy(context);
}

/* Opens a group; the record's warning goes to `warning`. */
static int try_open(attn_context_t *context, const attn_problem_t *p, const char *backend, char *decode,
                    char *prefill, char *warning) {
    attn_group_t *g = NULL;
    attn_selection_t *selection = NULL;
    attn_device_t d = cpu();
    error.param[0] = error.text[0] = decode[0] = prefill[0] = warning[0] = '\0';
    const int code = attn_group_open(context, p, &d, backend, &g, &selection, &error);
    if (selection != NULL) snprintf(warning, 600, "%s", selection->warning);
    if (code == ATTN_OK) {
        snprintf(decode, 40, "%s", attn_group_phase_backend(g, ATTN_PHASE_DECODE)->name);
        snprintf(prefill, 40, "%s", attn_group_phase_backend(g, ATTN_PHASE_PREFILL)->name);
        if (selection == NULL || selection->backend != attn_group_backend(g))
            bail_out("the record is of another backend than the group's");
    }
    attn_selection_free(selection);
    if (g != NULL) attn_group_close(g);
    return code;
}

static const struct open_case {
    const char *select, *more, *decode, *prefill, *warning; /* decode NULL: an error that has `warning` */
    const char *what;
} cases[] = {
    {"", "", "FAKE_PLAIN", "FAKE_PLAIN", "", "no keys"},
    {"decode_backend = FAKE_NOOP", "", "FAKE_NOOP", "FAKE_PLAIN", "", "decode alone named"},
    {"decode_backend = FAKE_NOOP\nprefill_backend = FAKE_NOOP", "", "FAKE_NOOP", "FAKE_NOOP", "",
     "one for both"},
    {"decode_backend = FAKE_NOOP\nprefill_backend = FAKE_BARE", "", "FAKE_NOOP", "FAKE_BARE", "",
     "neither is the choice for all"},
    {"prefill_backend = auto", "", "FAKE_PLAIN", "FAKE_PLAIN", "", "auto"},
    {"prefill_priority = FAKE_NARROW, FAKE_NOOP", "", "FAKE_PLAIN", "FAKE_NOOP", "", "the first that serves"},
    {"prefill_priority = FAKE_NARROW", "", "FAKE_PLAIN", "FAKE_PLAIN", "FAKE_NARROW does not serve",
     "none serves"},
    {"prefill_backend = FAKE_NARROW", "", NULL, NULL, "FAKE_NARROW was requested",
     "a named one that does not serve"},
    {"prefill_backend = FAKE_NARROW", "[attn]\nfallback = quiet\n", "FAKE_PLAIN", "FAKE_PLAIN",
     "FAKE_NARROW does not serve", "the same with a fallback"},
    {"decode_backend = NO_SUCH", "", NULL, NULL, "NO_SUCH", "a name that nobody has"},
    {"prefill_backend = FAKE_OTHER_PAGES", "", NULL, NULL, "differ, so they cannot share one", "other pages"},
    {"prefill_priority = FAKE_OTHER_PAGES", "", "FAKE_PLAIN", "FAKE_PLAIN",
     "differ, so they cannot share one", "other pages, from a list"},
    {"prefill_backend = FAKE_OTHER_PAGES", "[attn]\nfallback = warn\n", "FAKE_PLAIN", "FAKE_PLAIN",
     "FAKE_PLAIN does decode and prefill: the caches", "other pages, with a fallback"},
    {"decode_priority = FAKE_OTHER_PAGES", "", "FAKE_PLAIN", "FAKE_PLAIN", "cannot share one",
     "other pages of decode: the choice for all does both"},
    {"prefill_backend = FAKE_INCLUDES", "", NULL, NULL, "only one writes the cache in forward",
     "writes in forward"},
    {"prefill_backend = FAKE_ORDERED", "", NULL, NULL, "wants batches in an order", "an order of its own"},
    {"decode_backend = FAKE_ORDERED", "", "FAKE_ORDERED", "FAKE_PLAIN", "", "an order that decode has"},
};

static void test_open(void) {
    char decode[40], prefill[40], warning[600];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct open_case *c = &cases[i];
        attn_context_t *context = context_of(c->select, c->more);
        attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
        const int code = try_open(context, &p, NULL, decode, prefill, warning);
        if (c->decode == NULL) {
            ok(code == ATTN_E_UNSUPPORTED || code == ATTN_E_NOT_FOUND, "%s: refused", c->what);
            has_str(error.text, c->warning, "%s", c->what);
        } else {
            is_int(code, ATTN_OK, "%s", c->what);
            is_str(decode, c->decode, "decode of %s", c->what);
            is_str(prefill, c->prefill, "prefill of %s", c->what);
            has_str(warning, c->warning, "%s", c->what);
            if (c->warning[0] == '\0') is_str(warning, "", "without a warning");
            if (c->warning[0] != '\0') has_str(logged, c->warning, "the log has it too");
        }
        is_int(try_open(context, &p, "FAKE_BARE", decode, prefill, warning), ATTN_OK, "named by the engine");
        ok(strcmp(decode, "FAKE_BARE") == 0 && strcmp(prefill, "FAKE_BARE") == 0, "it is alone");
        attn_context_destroy(context);
    }
}

static void test_threshold(void) {
    struct step s;
    attn_context_t *context = context_of("decode_backend = FAKE_ORDERED", "");
    open_step(&s, context, NULL);
    shorten(&s, 3);
    is_int(attn_group_phase(s.g, &s.b), ATTN_PHASE_DECODE, "up to the threshold it is decode");
    shorten(&s, 4);
    is_int(attn_group_phase(s.g, &s.b), ATTN_PHASE_PREFILL, "above it prefill");
    close_step(&s);
    attn_context_destroy(context);
}

static void test_over_ranks(void) {
    char decode[40], prefill[40], warning[600];
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.dcp_world_size = 2;
    attn_context_t *context = context_of("prefill_priority = FAKE_NOOP", "");
    is_int(try_open(context, &p, NULL, decode, prefill, warning), ATTN_OK, "over ranks");
    is_str(prefill, "FAKE_PLAIN", "one backend does both");
    has_str(warning, "over ranks a group has one backend", "and says why");
    attn_context_destroy(context);
}

/* Absorbed projections of both lie in the layer's space, one behind the other. */
static void test_weights(void) {
    attn_context_t *context =
        fake_context("[select mla]\nbackend = FAKE_PLAIN\nprefill_backend = FAKE_ORDERED\n"
                     "decode_backend = FAKE_ORDERED\n");
    attn_context_destroy(context);
    context = fake_context("[select mla]\nbackend = FAKE_PLAIN\nprefill_backend = FAKE_BARE\n");
    attn_problem_t p = small_problem(ATTN_ROLE_MLA);
    attn_group_t *g = open_group(context, &p, NULL), *alone = open_group(context, &p, "FAKE_PLAIN");
    ATTN_INIT(attn_space_needed_t, both);
    ATTN_INIT(attn_space_needed_t, one);
    is_int(attn_group_space_needed(g, &both, &error) || attn_group_space_needed(alone, &one, &error), 0,
           "space");
    ok(both.weight_bytes == 64 + one.weight_bytes && both.alignment == one.alignment &&
           both.metadata_bytes == one.metadata_bytes && both.workspace_bytes == one.workspace_bytes,
       "buffers serve either backend, weights are of both");
    attn_group_close(alone);
    attn_group_close(g);
    attn_context_destroy(context);
}

static void test_records(void) {
    attn_context_t *context = context_of("prefill_priority = FAKE_NARROW, FAKE_NOOP", "");
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_device_t d = cpu();
    attn_selection_t *s = (attn_selection_t *)(void *)&p;
    is_int(attn_select_phase(context, &p, &d, ATTN_PHASE_DECODE, &s, &error), ATTN_OK,
           "a phase without keys");
    ok(s == NULL, "has no record");
    is_int(attn_select_phase(context, &p, &d, ATTN_PHASE_PREFILL, &s, &error), ATTN_OK, "one with a list");
    ok(s != NULL && s->num_candidates == 2 && s->candidates[0].num_reasons == 1 && s->candidates[1].is_chosen,
       "has every candidate with its reasons");
    attn_selection_free(s);
    is_int(attn_select_phase(context, &p, &d, 3, &s, &error), ATTN_E_INVALID, "no such phase");
    is_str(error.param, "phase", "by name");
    is_int(attn_select_phase(context, &p, &d, 1, NULL, &error), ATTN_E_INVALID, "no output");
    is_int(attn_select_phase(NULL, &p, &d, 1, &s, &error), ATTN_E_INVALID, "no context");
    attn_context_destroy(context);
}

int main(void) {
    test_batches();
    test_many_spaces();
    test_open();
    test_threshold();
    test_over_ranks();
    test_weights();
    test_records();
    remove_fake();
    return tap_done();
}
