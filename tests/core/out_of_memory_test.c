/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Out of memory: every allocation of making a context, selecting and reading a model fails once, the first,
 * then the second, and so on. The linker's --wrap puts the functions below between core and libc
 * (tests/core/core_tests.am).
 */
#include "load/context.h"
#include "core_testing.h"

#include <attn/attn_model.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__wrap_strdup(const char *text);

static long countdown = -1; /* the allocation that fails; -1: none */
static long made;

static int fails_now(void) {
    made++;
    return countdown >= 0 && countdown-- == 0;
}

void *__wrap_malloc(size_t size) {
    return fails_now() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
    return fails_now() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size) {
    return fails_now() ? NULL : __real_realloc(old, size);
}

char *__wrap_strdup(const char *text) {
    return fails_now() ? NULL : __real_strdup(text);
}

static const char *const ini =
    "[attn]\nplugins = good, absent\nfallback = warn\n[plugin second]\n"
    "[select decoder]\nbackend = ABSENT\npriority = GOOD_ATTN, SECOND_ATTN\n[option good]\nsplits = 3\n";

/* The whole of it: ATTN_OK or the first failure. Leaves nothing behind. */
static int run(void) {
    attn_context_t *context = NULL;
    attn_selection_t *selection = NULL;
    attn_error_t err = ERROR_INIT;
    attn_problem_t problem = plain_problem();
    attn_device_t device = device_cpu();
    attn_context_options_t options = {.struct_size = sizeof options,
                                      .flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG,
                                      .config_file = in_scratch("memory.ini"),
                                      .config_text = "[attn]\nlog = off\n",
                                      .plugin_dir = scratch};
    int code = attn_context_create(&options, &context, &err);
    if (!code) code = attn_select(context, &problem, &device, NULL, &selection, &err);
    if (!code && strcmp(selection->backend->name, "GOOD_ATTN") != 0) code = 1;
    if (code < 0 && (err.code != code || !err.text[0])) code = 2; /* a failure must be explained */
    attn_model_t *model = NULL;
    static const char text[] = "{\"num_attention_heads\": 4, \"hidden_size\": 64, \"num_hidden_layers\": 2}";
    if (!code) code = attn_model_parse(text, strlen(text), "memory", &model, &err);
    attn_model_free(model);
    attn_selection_free(selection);
    attn_context_destroy(context);
    return code;
}

int main(void) {
    needs_loading();
    make_scratch();
    write_text("memory.ini", ini);
    copy_plugin("good.so", "good.so");
    copy_plugin("second.so", "second.so");
    is_int(run(), ATTN_OK, "with memory all is well");
    made = 0;
    is_int(run(), ATTN_OK, "again");
    long total = made;
    ok(total > 40, "%ld allocations", total);
    int other = 0;
    for (long n = 0; n < total; n++) {
        countdown = n;
        int code = run();
        countdown = -1;
        if (code != ATTN_E_NO_MEMORY && !other++)
            diag("allocation %ld failed and the result was %d", n, code);
    }
    is_int(other, 0, "whichever of them fails, the result is ATTN_E_NO_MEMORY");
    is_int(run(), ATTN_OK, "and afterwards all is well again");
    return tap_done();
}
