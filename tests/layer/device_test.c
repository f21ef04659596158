/* SPDX-License-Identifier: Apache-2.0 */
/* Devices by text. The CUDA driver is one of ours (layer_fake_driver.c) or a broken file, put where the
 * linker looks by running the program again. */
#include "layer_testing.h"

#include <attn/draft/attn_device.h>

#include <dlfcn.h>

static attn_error_t error = {.struct_size = sizeof error};
static attn_device_t d;

static int parse(const char *text) {
    error.param[0] = error.text[0] = '\0';
    return attn_device_parse(text, &d, &error);
}

static void test_words(void) {
    is_int(parse("cpu"), ATTN_OK, "cpu");
    ok(d.type == kDLCPU && d.id == 0 && d.compute_capability == 0 && d.num_sms > 0 && d.memory_bytes > 0,
       "is this machine");
    is_int(d.struct_size, sizeof d, "struct_size");
    is_int(parse("CPU"), ATTN_OK, "in any case");
    is_int(parse("sm_90"), ATTN_OK, "sm_90");
    ok(d.type == kDLCUDA && d.id == -1 && d.compute_capability == 90, "is hypothetical");
    is_str(d.name, "sm_90 (not present)", "and says so");
    is_int(parse("sm_100a"), ATTN_OK, "sm_100a");
    is_int(d.compute_capability, 100, "is 100");
    is_int(parse("sm_120f") || d.compute_capability != 120, 0, "sm_120f");
    static const char *const bad[] = {"",      "gpu",    "sm_",     "sm_a",
                                      "sm_9",  "sm_90b", "sm_1000", "sm_99999999999",
                                      "cuda:", "cuda:x", "cuda:-1", "cuda:9999999999",
                                      "cuda0", "cpu0",   "sm_9 0"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        is_int(parse(bad[i]), ATTN_E_INVALID, "'%s' is refused", bad[i]);
        ok(strcmp(error.param, "device") == 0 && strstr(error.text, "write cpu"), "with what to write");
    }
    is_int(attn_device_parse("cpu", NULL, &error), ATTN_E_INVALID, "no output");
}

/* Scales of an fp8 cache from the first call: read from the device's memory, written to the tensors that the
 * engine gave. */
static void test_measured_scales(void) {
    static float k[4][2][8], v[4][2][8], k_scale = 1, v_scale = 1, cache[1];
    int64_t slots[3] = {0, 1, 2};
    struct tensor tk, tv, tks, tvs, tslots, tcache;
    attn_context_t *context = fake_context("");
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_layer_options_t o = {.struct_size = sizeof o, .calculate_kv_scales = 1};
    attn_group_t *g = NULL;
    attn_layer_t *layer = NULL;
    p.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    p.num_kv_heads = 2;
    if (parse("cuda:1") != ATTN_OK ||
        attn_group_open(context, &p, &d, "FAKE_CUDA", &g, NULL, &error) != ATTN_OK)
        bail_out("%s", error.text);
    is_int(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_E_INVALID,
           "scales to measure and nowhere to put them");
    has_str(error.text, "give float32 device tensors of one element in options.scales", "with what to do");
    o.scales.k = tensor(&tks, &k_scale, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
    o.scales.v = tensor(&tvs, &v_scale, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
    is_int(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_E_INVALID, "tensors of the host");
    tks.t.device = tvs.t.device = (DLDevice){kDLCUDA, 1};
    is_int(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_OK, "tensors of the device: %s", error.text);
    k[1][1][3] = -30, k[3][0][0] = 99, v[2][0][7] = 5; /* the last row has no slot */
    attn_kv_update_t u = {.struct_size = sizeof u,
                          .key = tensor(&tk, k, ATTN_DTYPE_FLOAT32, 3, 4, 2, 8, 0),
                          .value = tensor(&tv, v, ATTN_DTYPE_FLOAT32, 3, 4, 2, 8, 0),
                          .slot_mapping = tensor(&tslots, slots, ATTN_DTYPE_INT64, 1, 3, 0, 0, 0),
                          .kv_cache = tensor(&tcache, cache, ATTN_DTYPE_UINT8, 4, 32, 2, 4, 16)};
    tk.t.device = tv.t.device = tslots.t.device = tcache.t.device = (DLDevice){kDLCUDA, 1};
    int captured;
    is_int(attn_layer_update_kv_cache(layer, &u, &captured, &error), ATTN_E_DEVICE,
           "a first call in a captured stream");
    has_str(error.text, "error 900", "fails with the driver's number");
    is_int(attn_layer_update_kv_cache(layer, &u, NULL, &error), ATTN_OK, "the first call: %s", error.text);
    ok(k_scale == 30.0f / 200 && v_scale == 5.0f / 100, "wrote max|K| / 200 = %g and max|V| / 100 = %g",
       (double)k_scale, (double)v_scale);
    float have[2] = {0};
    attn_layer_scales(layer, NULL, &have[0], &have[1]);
    ok(have[0] == k_scale && have[1] == v_scale, "which are the layer's scales");
    k[0][0][0] = 77;
    is_int(attn_layer_update_kv_cache(layer, &u, &captured, &error), ATTN_OK, "the next call does not wait");
    ok(k_scale == 30.0f / 200, "and measures nothing");
    attn_layer_destroy(layer);
    attn_group_close(g);
    attn_context_destroy(context);
}

/* Sink tokens before every request of a backend that knows none: lengths, table and slots lie behind its
 * metadata. */
static void test_sinks(void) {
    enum { SINK = 8, REQS = 2 };
    static float numbers[SINK][1][8], cache[64 * 4 * 16];
    attn_context_t *context = fake_context("");
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_group_t *g = NULL;
    attn_layer_t *layer = NULL;
    p.static_sink_len = SINK;
    if (parse("cuda:1") != ATTN_OK ||
        attn_group_open(context, &p, &d, "FAKE_CUDA", &g, NULL, &error) != ATTN_OK)
        bail_out("%s", error.text);
    const DLDevice gpu = {kDLCUDA, 1};
    struct tensor sink_t, table_t, lens_t, starts_t, query_t, output_t, cache_t;
    attn_layer_options_t o = {.struct_size = sizeof o};
    o.sink_key = o.sink_value = tensor(&sink_t, numbers, ATTN_DTYPE_FLOAT32, 3, SINK, 1, 8, 0);
    sink_t.t.device = gpu;
    is_int(attn_layer_create(g, "sink", &o, &layer, &error), ATTN_OK, "a sink layer: %s", error.text);
    struct buffers buf = alloc_buffers(g);
    int32_t starts[] = {0, 1, 2}, lens[] = {5, 0}, table[REQS][2] = {{7, 9}, {-1, -1}};
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = REQS,
                      .num_actual_tokens = 2,
                      .query_start_loc_host = starts,
                      .seq_lens_host = lens};
    lens[1] = 3, table[1][0] = 11;
    b.block_table = tensor(&table_t, table, ATTN_DTYPE_INT32, 2, REQS, 2, 0, 0);
    b.seq_lens = tensor(&lens_t, lens, ATTN_DTYPE_INT32, 1, REQS, 0, 0, 0);
    b.query_start_loc = tensor(&starts_t, starts, ATTN_DTYPE_INT32, 1, REQS + 1, 0, 0, 0);
    table_t.t.device = lens_t.t.device = starts_t.t.device = gpu;
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_E_INVALID,
           "no table that the host can read");
    has_str(error.param, "block_table_host", "is named");
    b.block_table_host = &table[0][0];
    b.block_table_host_stride = 2;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    const int *num_sent = driver != NULL ? dlsym(driver, "fake_num_sent") : NULL;
    const int sent_before = num_sent != NULL ? *num_sent : 0;
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_OK, "a batch: %s", error.text);
    is_int(num_sent != NULL ? *num_sent - sent_before : -1, 1, "goes to the device in one copy");
    if (driver != NULL) dlclose(driver);
    /* slots of 8 tokens in blocks 1 and 2 of four, then lengths and table for max_num_seqs requests */
    const int64_t *slots = NULL;
    for (uint64_t at = 0; at + 64 < buf.space.metadata_bytes && slots == NULL; at += 256) {
        const int64_t *s = (const int64_t *)(const void *)((const char *)buf.space.metadata + at);
        if (s[0] == 4 && s[7] == 11) slots = s;
    }
    if (!ok(slots != NULL, "the slots of the sink tokens are in the metadata")) return;
    const int32_t *sent = (const int32_t *)(const void *)(slots + SINK), *rows = sent + p.max_num_seqs + 1;
    const int64_t columns = (p.max_model_len + 3) / 4 + 2;
    ok(sent[0] == 5 + SINK && sent[1] == 3 + SINK, "longer requests: %d and %d", sent[0], sent[1]);
    ok(rows[0] == 1 && rows[1] == 2 && rows[2] == 7 && rows[3] == 9,
       "whose tables begin with the sink's blocks");
    ok(rows[columns] == 1 && rows[columns + 1] == 2 && rows[columns + 2] == 11, "each");
    attn_forward_t f = {.struct_size = sizeof f,
                        .query = tensor(&query_t, numbers, ATTN_DTYPE_FLOAT32, 3, 2, 2, 8, 0),
                        .output = tensor(&output_t, cache, ATTN_DTYPE_FLOAT32, 3, 2, 2, 8, 0),
                        .kv_cache = tensor(&cache_t, cache, ATTN_DTYPE_FLOAT32, 4, 32, 1, 4, 16)};
    query_t.t.device = output_t.t.device = cache_t.t.device = gpu;
    cache_t.t.device.device_id = 0;
    is_int(attn_layer_forward(layer, &f, &buf.space, NULL, &error), ATTN_E_INVALID, "a cache on another GPU");
    has_str(error.text, "kv_cache is on cuda:0, but this group runs on cuda:1", "is refused by name");
    cache_t.t.device = gpu;
    cache_t.shape[0] = 2;
    is_int(attn_layer_forward(layer, &f, &buf.space, NULL, &error), ATTN_E_INVALID,
           "a cache that ends before block 2, where half of the sink tokens are");
    has_str(error.param, "kv_cache", "is refused by name, too");
    cache_t.shape[0] = 32;
    is_int(attn_layer_forward(layer, &f, &buf.space, NULL, &error), ATTN_OK,
           "and forward writes the sink tokens: %s", error.text);
    attn_layer_destroy(layer);
    attn_group_close(g);
    attn_context_destroy(context);
    free(buf.memory);
}

/* What calls on one device leave behind: its own context, one, and nothing current; none on the device that a
 * thread has that chose none. */
static void test_contexts(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *memory = NULL, *stream = NULL, *previous = NULL;
    const int *contexts = driver != NULL ? dlsym(driver, "fake_num_contexts") : NULL;
    int (*depth)(void) = NULL;
    if (driver != NULL) *(void **)&depth = dlsym(driver, "fake_depth");
    const attn_device_kind_t *cuda = attn_device_kind(kDLCUDA);
    char there[8] = "written", here[8] = "";
    if (contexts == NULL || cuda == NULL || depth == NULL) bail_out("no counts");
    is_int(contexts[1], 1, "scales and sinks of cuda:1 took its context once");
    is_int(cuda->alloc(1, sizeof there, &memory, &error), ATTN_OK, "memory of cuda:1: %s", error.text);
    is_int(cuda->stream_create(1, &stream, &error), ATTN_OK, "a stream");
    is_int(cuda->copy_to(1, memory, there, sizeof there, NULL, &error) ||
               cuda->copy_from(1, here, memory, sizeof here, NULL, &error) || strcmp(here, there) != 0,
           0, "a copy there and back");
    is_int(depth(), 0, "nothing is current afterwards");
    is_int(cuda->enter(1, &previous, &error), ATTN_OK, "a caller enters it");
    is_int(depth(), 1, "while it lasts");
    cuda->leave(1, previous);
    cuda->stream_destroy(1, stream);
    void *first = NULL, *event = NULL;
    is_int(cuda->stream_create_first(1, &first, &error), ATTN_OK, "a stream that goes first: %s", error.text);
    is_int(cuda->event_create(1, &event, &error) || cuda->event_record(1, event, first, &error) ||
               cuda->stream_wait(1, first, event, &error),
           0, "waits for an event: %s", error.text);
    is_int(cuda->stream_wait(1, first, NULL, &error), ATTN_E_DEVICE, "and not for none");
    cuda->event_destroy(1, event);
    cuda->stream_destroy(1, first);
    cuda->free(1, memory);
    is_int(depth(), 0, "and leaves it");
    is_int(contexts[1], 1, "one context for all of that");
    is_int(contexts[0], 0, "and none on cuda:0, which nobody named");
    dlclose(driver);
}

/* In the second process: LD_LIBRARY_PATH has a libcuda.so.1 of the kind that the argument names. */
static int test_driver(const char *kind) {
    if (strcmp(kind, "good") == 0) {
        is_int(parse("cuda:1"), ATTN_OK, "cuda:1 of two");
        ok(d.type == kDLCUDA && d.id == 1 && d.compute_capability == 90 && d.num_sms == 132,
           "with what the driver says");
        ok(d.memory_bytes == (UINT64_C(141) << 30), "memory");
        is_str(d.name, "Fake GPU 1", "name");
        is_int(parse("cuda") || d.id != 0, 0, "cuda is cuda:0");
        is_int(parse(NULL) || d.type != kDLCUDA, 0, "and the default");
        is_int(parse("cuda:2"), ATTN_E_DEVICE, "cuda:2 of two");
        has_str(error.text, "has 2 CUDA devices", "says how many there are");
        test_measured_scales();
        test_sinks();
        test_contexts();
        remove_fake();
        return tap_done();
    }
    is_int(parse("cuda:0"), ATTN_E_DEVICE, "%s driver", kind);
    has_str(error.text,
            strcmp(kind, "broken") == 0    ? "no CUDA driver"
            : strcmp(kind, "stopped") == 0 ? "error 100"
                                           : "error 201",
            "says why");
    is_int(parse(NULL) || d.type != kDLCPU, 0, "the default is then the CPU");
    return tap_done();
}

/* Runs this program in another environment, its lines as remarks of ours; 0: all of it passed. */
static int run_again(const char *self, const char *folder, const char *kind) {
    char command[2048];
    const char *old = getenv("LD_LIBRARY_PATH");
    snprintf(command, sizeof command,
             "{ LD_LIBRARY_PATH='%s:%s' ATTN_FAKE_DRIVER=%s '%s' %s; echo status $?; } | sed 's/^/# /'",
             folder, old != NULL ? old : "", kind, self, kind);
    char line[512];
    int status = -1;
    FILE *f = popen(command, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        sscanf(line, "# status %d", &status);
        printf("%s", line);
    }
    if (f != NULL) pclose(f);
    return status;
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/attn-driver-XXXXXX", from[512], link_path[600], self[512];
    if (argc > 1) return test_driver(argv[1]);
    test_words();
    const char *build = getenv("ATTN_TEST_BUILDDIR");
    snprintf(from, sizeof from, "%s/tests/layer/.libs/layer_fake_driver.so", build != NULL ? build : ".");
    if (access(from, R_OK) != 0)
        snprintf(from, sizeof from, "%s/layer_fake_driver.so", build != NULL ? build : ".");
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0 || mkdtemp(folder) == NULL || access(from, R_OK) != 0) bail_out("no %s", from);
    self[n] = '\0';
    if (from[0] != '/') bail_out("ATTN_TEST_BUILDDIR must be absolute");
    snprintf(link_path, sizeof link_path, "%s/libcuda.so.1", folder);
    if (symlink(from, link_path) != 0) bail_out("no link");
    is_int(run_again(self, folder, "good"), 0, "a driver with two devices");
    is_int(run_again(self, folder, "stopped"), 0, "a driver that does not start");
    is_int(run_again(self, folder, "failing"), 0, "a driver that knows nothing about its device");
    unlink(link_path);
    FILE *f = fopen(link_path, "w");
    if (f != NULL) {
        fprintf(f, "this is no library\n");
        fclose(f);
    }
    is_int(run_again(self, folder, "broken"), 0, "a driver that is no library");
    unlink(link_path);
    rmdir(folder);
    return tap_done();
}
