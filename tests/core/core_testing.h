/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of core/ share: a scratch folder that the trust rules accept, files in it, contexts from a
 * text.
 */
#ifndef ATTN_TESTS_CORE_TESTING_H
#define ATTN_TESTS_CORE_TESTING_H

#include "../tap.h"

#include <attn/attn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define ERROR_INIT                                                                                           \
    { .struct_size = sizeof(attn_error_t) }

static char scratch[256]; /* absolute; removed at exit */

TAP_UNUSED static void remove_scratch(void) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", scratch);
    if (scratch[0] && system(command) != 0) diag("could not remove %s", scratch);
}

TAP_UNUSED static const char *make_scratch(void) {
    const char *base = getenv("TMPDIR");
    umask(022);
    snprintf(scratch, sizeof scratch, "%s/attn-test-XXXXXX", base && base[0] == '/' ? base : "/tmp");
    if (!mkdtemp(scratch)) bail_out("no scratch folder %s", scratch);
    chmod(scratch, 0755);
    atexit(remove_scratch);
    return scratch;
}

/* For tests that mean nothing in a library that loads no plugins. */
TAP_UNUSED static void needs_loading(void) {
#ifdef ATTN_NO_PLUGIN_LOADING
    skip_all("built with --disable-plugin-loading");
#endif
}

/* "SCRATCH/name" in one of eight rotating buffers. */
TAP_UNUSED static const char *in_scratch(const char *name) {
    static char paths[8][512];
    static int next;
    next = (next + 1) % 8;
    snprintf(paths[next], sizeof paths[next], "%s/%s", scratch, name);
    return paths[next];
}

TAP_UNUSED static const char *write_bytes(const char *name, const void *bytes, size_t length) {
    const char *path = in_scratch(name);
    unlink(path); /* a plugin that is mapped must not change under its user */
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, length, file) != length) bail_out("cannot write %s", path);
    fclose(file);
    return path;
}

TAP_UNUSED static const char *write_text(const char *name, const char *text) {
    return write_bytes(name, text, strlen(text));
}

/* A variant of tests/core/badplugins/test_plugin.c as SCRATCH/name. */
TAP_UNUSED static const char *copy_plugin(const char *variant, const char *name) {
    char path[512];
    const char *build = getenv("ATTN_TEST_BUILDDIR");
    snprintf(path, sizeof path, "%s/tests/core/badplugins/%s", build ? build : ".", variant);
    FILE *file = fopen(path, "rb");
    if (!file) bail_out("cannot read %s; run make check", path);
    static char bytes[1 << 21];
    size_t length = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    const char *copy = write_bytes(name, bytes, length);
    chmod(copy, 0755);
    return copy;
}

/* Messages of the last contexts, one a line. */
static char logged[8192];

TAP_UNUSED static void keep_log(void *ctx, uint32_t level, const char *text) {
    size_t used = strlen(logged);
    (void)ctx;
    snprintf(logged + used, sizeof logged - used, "%u %s\n", level, text);
}

/* A context from a text alone, with plugin_dir in the scratch folder. */
TAP_UNUSED static int context_of(const char *text, attn_context_t **context, attn_error_t *err) {
    attn_context_options_t options = {.struct_size = sizeof options,
                                      .flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG,
                                      .config_text = text,
                                      .plugin_dir = scratch,
                                      .log = keep_log,
                                      .log_level = ATTN_LOG_DEBUG};
    logged[0] = 0;
    *context = NULL;
    return attn_context_create(&options, context, err);
}

/* A problem that the test plugins serve. */
TAP_UNUSED static attn_problem_t plain_problem(void) {
    attn_problem_t problem = {.struct_size = sizeof problem,
                              .role = ATTN_ROLE_DECODER,
                              .mask = ATTN_MASK_CAUSAL,
                              .dtype = ATTN_DTYPE_BFLOAT16,
                              .num_heads = 8,
                              .num_kv_heads = 2,
                              .head_size = 128,
                              .scale = 0.08838834764831845};
    return problem;
}

TAP_UNUSED static attn_device_t device_cpu(void) {
    attn_device_t device = {.struct_size = sizeof device, .type = kDLCPU, .name = "cpu"};
    return device;
}

TAP_UNUSED static attn_device_t device_sm(int compute_capability) {
    attn_device_t device = {
        .struct_size = sizeof device, .type = kDLCUDA, .id = -1, .compute_capability = compute_capability};
    return device;
}

#endif
