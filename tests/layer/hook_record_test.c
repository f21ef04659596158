/* SPDX-License-Identifier: Apache-2.0 */
/* The record hook: what stands in its file, how much of it, that trouble with the file is the log's and not
 * the call's; and the reader of such files against damaged ones. */
#include "hook_step.h"

#include "run/replay_file.h"

static char folder[] = "/tmp/attn-record-XXXXXX", path[64];

static attn_context_t *record_context(const char *more) {
    char ini[600];
    unlink(path);
    snprintf(ini, sizeof ini, "[hook record]\nfile = %s\n%s", path, more);
    return fake_context(ini);
}

static st_file_t *open_file(void) {
    st_file_t *file = NULL;
    if (st_open(path, &file, &error) != ATTN_OK) bail_out("%s", error.text);
    return file;
}

static int calls_of(st_file_t *file) {
    return replay_file_calls(file, path, &error);
}

static const float *floats(const st_file_t *file, const char *name, float *values) {
    const st_tensor_t *t = st_find(file, name);
    if (t == NULL || t->dtype != ATTN_DTYPE_FLOAT32 || t->bytes > 4096) bail_out("no %s", name);
    return memcpy(values, t->data, (size_t)t->bytes);
}

static void test_tensors(void) {
    static struct step s;
    float values[1024];
    replay_call_t call = {0};
    attn_context_t *context = record_context("calls = 2\nfirst = 1\ntensors = yes\n");
    open_step(&s, context, "FAKE_PLAIN");
    is_int(build(&s) || update(&s) || forward(&s), 0, "a call before the first");
    ok(access(path, F_OK) != 0, "is not recorded");
    is_int(attn_layer_forward(s.layer, &s.f, NULL, NULL, &error), 0, "a profiling run");
    s.f.kv_cache = &s.tcache.t;
    s.q[0][0][0] = 0.5f;
    is_int(forward(&s), 0, "the first");
    struct stat st;
    ok(stat(path, &st) == 0 && (st.st_mode & 077) == 0, "the file is there and its owner's alone");
    s.out[5][1][7] = 9;
    is_int(attn_group_update_block_table(s.g, &s.b, &s.buf.space, NULL, &error) || forward(&s), 0,
           "the second");
    has_str(logged, "has 2 calls; recording ends", "the log says that it ended");
    s.q[0][0][0] = 0.25f;
    is_int(build(&s) || forward(&s), 0, "a call after the last");
    close_step(&s);
    attn_context_destroy(context);

    st_file_t *file = open_file();
    is_int(calls_of(file), 2, "two calls");
    is_int(replay_file_read(file, path, 0, &call, &error), 0, "the first is read: %s", error.text);
    is_str(call.backend, "FAKE_PLAIN", "its backend");
    is_int(call.has_tensors && call.has_returned && call.status == ATTN_OK, 1, "it returned");
    is_int(call.num_reqs * 100 + call.num_tokens, 104, "its batch");
    is_int(call.starts[1] * 10 + call.lens[0], 44, "its lengths");
    is_int(call.num_blocks * 10 + call.table_columns, 11, "the one block that it reads, of 32");
    is_int(call.table[0], 0, "numbered anew");
    is_int(call.query->shape[0], 4, "no padding");
    ok(floats(file, "calls.0.query", values)[0] == 0.5f, "the query");
    floats(file, "calls.0.kv_cache", values);
    is_int(call.kv_cache->bytes, 4 * 16 * 4, "a page");
    is_int(memcmp(values, &s.cache[12 * 16], 4 * 16 * 4), 0, "the page's numbers");
    floats(file, "calls.1.output", values);
    is_int(memcmp(values, s.out, 4 * 2 * 8 * 4), 0, "the output");
    is_int(call.lse->shape[0] * 10 + call.lse->shape[1], 24, "the LSE without padding");
    is_int(call.problem.num_heads * 10 + call.problem.block_size, 24, "the problem");
    replay_call_free(&call);
    is_int(replay_file_read(file, path, 2, &call, &error), ATTN_E_PARSE, "there is no third");
    replay_call_free(&call);
    st_close(file);
}

static void test_shapes(void) {
    static struct step s, other;
    replay_call_t call = {0};
    attn_context_t *context = record_context("calls = 3\n");
    open_step(&s, context, "FAKE_PLAIN");
    is_int(build(&s) || update(&s) || forward(&s), 0, "a call");
    close_step(&s);
    open_step(&other, context, "FAKE_BARE");
    is_int(build(&other) || forward(&other), 0, "a call of another group");
    close_step(&other);
    attn_context_destroy(context);
    st_file_t *file = open_file();
    is_int(calls_of(file), 2, "fewer calls than asked for, from both groups in one file");
    is_int(replay_file_read(file, path, 1, &call, &error), 0, "the second is read: %s", error.text);
    is_str(call.backend, "FAKE_BARE", "its backend");
    is_str(call.tensors, "no", "without tensors");
    has_str(call.shapes,
            "query=float32[6,2,8] kv_cache=float32[32,1,4,16] output=float32[6,2,8] lse=float32[2,6]",
            "but with shapes");
    is_int(st_find(file, "calls.1.query") == NULL && call.lens[0] == 4, 1, "and lengths");
    replay_call_free(&call);
    st_close(file);

    /* Memory that a driver shares with the processor is read as it is. */
    context = record_context("tensors = yes\n");
    open_step(&s, context, "FAKE_NOOP");
    s.tq.t.device.device_type = kDLCUDAManaged;
    is_int(build(&s) || forward(&s), 0, "a call with a query in managed memory");
    ok(strstr(logged, "2 [hook record]") == NULL, "is nothing to warn about");
    close_step(&s);
    attn_context_destroy(context);
    file = open_file();
    is_int(replay_file_read(file, path, 0, &call, &error), 0, "and recorded");
    is_str(call.tensors, "yes", "with its tensors");
    replay_call_free(&call);
    st_close(file);

    /* A layer that measures its own fp8 scales: what one call reads is not in its tensors. */
    attn_fp8_state_t state = {.calls = 3};
    context = record_context("tensors = yes\ncalls = 2\n");
    open_step(&s, context, "FAKE_PLAIN");
    s.f.weight_space = &state;
    s.f.weight_space_bytes = sizeof state;
    is_int(build(&s) || update(&s) || forward(&s), 0, "a call with dynamic scales");
    has_str(logged,
            "2 [hook record] call 1: only shapes are recorded: dynamic fp8 scales depend on earlier calls",
            "is logged");
    s.f.weight_space = NULL;
    s.f.weight_space_bytes = 0;
    is_int(forward(&s), 0, "and one without");
    close_step(&s);
    attn_context_destroy(context);
    file = open_file();
    is_int(replay_file_read(file, path, 0, &call, &error), 0, "the first is recorded");
    has_str(call.tensors, "dynamic fp8 scales", "with the reason");
    ok(!call.has_tensors && st_find(file, "calls.0.query") == NULL, "and without tensors");
    replay_call_free(&call);
    is_int(replay_file_read(file, path, 1, &call, &error) == 0 && call.has_tensors, 1,
           "the second with them");
    replay_call_free(&call);
    st_close(file);
}

static void test_trouble(void) {
    static struct step s;
    replay_call_t call = {0};
    attn_context_t *context = record_context("tensors = yes\n[option layer_fake]\nmode = fails\n");
    open_step(&s, context, "FAKE_PLAIN");
    is_int(build(&s) || update(&s), 0, "a step");
    is_int(forward(&s), ATTN_E_DEVICE, "whose call fails");
    close_step(&s);
    attn_context_destroy(context);
    st_file_t *file = open_file();
    is_int(replay_file_read(file, path, 0, &call, &error), 0, "is recorded");
    is_int(call.status, ATTN_E_DEVICE, "with its status");
    has_str(call.error, "on strike", "and its error");
    ok(call.output == NULL && call.query != NULL, "and without an output");
    replay_call_free(&call);
    st_close(file);

    context = record_context("tensors = yes\ncalls = 9\nmax_bytes = 2000\n");
    open_step(&s, context, "FAKE_PLAIN");
    int failed = build(&s) || update(&s);
    for (int i = 0; i < 9; i++)
        failed |= forward(&s);
    is_int(failed, 0, "calls beyond max_bytes");
    has_str(logged, "recording ends after", "end the recording");
    close_step(&s);
    attn_context_destroy(context);
    struct stat st = {0};
    ok(stat(path, &st) == 0 && st.st_size < 8000, "the file has %lld bytes with its header",
       (long long)st.st_size);
    file = open_file();
    int calls = calls_of(file);
    ok(calls > 0 && calls < 9, "%d calls are in it", calls);
    st_close(file);

    /* What is no file, as a device, is left alone. */
    context = record_context("tensors = yes\n");
    is_int(mkfifo(path, 0600), 0, "a pipe of that name");
    open_step(&s, context, "FAKE_PLAIN");
    is_int(build(&s) || update(&s) || forward(&s), 0, "a step goes well");
    close_step(&s);
    attn_context_destroy(context);
    has_str(logged, "cannot be written: Operation not supported",
            "and the log says that nothing was recorded");
    ok(stat(path, &st) == 0 && S_ISFIFO(st.st_mode), "nor was the pipe replaced");
    unlink(path);

    /* A full or vanished disk. */
    context = record_context("tensors = yes\n");
    open_step(&s, context, "FAKE_PLAIN");
    is_int(build(&s) || update(&s), 0, "a step");
    unlink(path);
    rmdir(folder);
    is_int(forward(&s), 0, "that goes well though its folder is gone");
    has_str(logged, "cannot be written: No such file or directory; recording ends", "as the log says");
    is_int(forward(&s), 0, "so does the next");
    close_step(&s);
    attn_context_destroy(context);
    context = record_context("");
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_device_t d = cpu();
    attn_group_t *g = NULL;
    is_int(attn_group_open(context, &p, &d, "FAKE_PLAIN", &g, NULL, &error), ATTN_E_IO,
           "a folder that is not there is refused when a group is opened");
    has_str(error.text, "name a file in a folder that can be written", "with what to do");
    attn_context_destroy(context);
    if (mkdir(folder, 0700) != 0) bail_out("no folder");

    /* A block number beyond the cache: the backend's business, but nothing to copy. */
    context = record_context("tensors = yes\n");
    open_step(&s, context, "FAKE_NOOP");
    s.tcache.shape[0] = 3;
    is_int(build(&s) || forward(&s), 0, "a cache with fewer blocks than the table names");
    has_str(logged, "names a block that the cache does not have", "is recorded as shapes");
    close_step(&s);
    attn_context_destroy(context);
}

/* Cut at every length and changed at random: refused or read, never a crash. */
static void test_damaged(void) {
    static struct step s;
    static unsigned char whole[65536], bytes[65536];
    uint64_t state = 7;
    attn_context_t *context = record_context("tensors = yes\n");
    open_step(&s, context, "FAKE_PLAIN");
    is_int(build(&s) || update(&s) || forward(&s), 0, "a call to damage");
    close_step(&s);
    attn_context_destroy(context);
    FILE *f = fopen(path, "rb");
    size_t size = f != NULL ? fread(whole, 1, sizeof whole, f) : 0;
    if (f != NULL) fclose(f);
    int refused = 0, read = 0;
    for (size_t cut = 0; cut < size; cut++) {
        st_file_t *file = NULL;
        refused += st_parse(whole, cut, "cut", &file, &error) == ATTN_E_PARSE;
        st_close(file);
    }
    is_int(refused, (long long)size, "every shorter file is refused");
    for (int i = 0; i < 3000; i++) {
        st_file_t *file = NULL;
        replay_call_t call = {0};
        memcpy(bytes, whole, size);
        for (int k = 0; k < 2; k++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            bytes[8 + (state >> 33) % (size - 8)] = (unsigned char)("0123456789=,]\"a"[(state >> 20) % 15]);
        }
        if (st_parse(bytes, size, "changed", &file, &error) != ATTN_OK) continue;
        if (replay_file_calls(file, "changed", &error) > 0) {
            read += replay_file_read(file, "changed", 0, &call, &error) == ATTN_OK;
            replay_call_free(&call);
        }
        st_close(file);
    }
    ok(read > 0 && read < 3000, "%d of 3000 changed files are read, the others refused", read);
}

int main(void) {
    if (mkdtemp(folder) == NULL) bail_out("no folder");
    snprintf(path, sizeof path, "%s/calls.safetensors", folder);
    test_tensors();
    test_shapes();
    test_trouble();
    test_damaged();
    unlink(path);
    rmdir(folder);
    remove_fake();
    return tap_done();
}
