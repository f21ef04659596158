/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_ini.c: any bytes as a configuration. Either a table whose entries are found again, or an error with
 * its place. */
// SOURCES: core/*/*.c
#include <stdlib.h>
#include <string.h>

#include <attn/attn.h>

#include "config/ini_table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An error must be a terminated line that says where: "fuzz:LINE: ...". */
static void check_error(int code, const attn_error_t *err) {
    if (code >= 0 || err->code != code) abort();
    if (!memchr(err->text, '\0', sizeof err->text) || !err->text[0]) abort();
    if (strchr(err->text, '\n')) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct attni_ini ini = {0};
    attn_error_t err = {.struct_size = sizeof err};
    int code = attni_ini_add_text(&ini, "fuzz", (const char *)data, size, &err);
    if (code) {
        check_error(code, &err);
        if (strncmp(err.text, "fuzz:", 5) != 0) abort();
        if (ini.count) abort(); /* a source that failed leaves nothing behind */
    }
    for (size_t i = 0; i < ini.count; i++) {
        const struct attni_ini_entry *e = &ini.entries[i];
        if (e->key && attni_ini_find(&ini, e->section, e->key) != e)
            abort(); /* a key stands once in a source */
    }
    attni_ini_free(&ini);

    /* The same as text of the API: the schema checks sections, keys and values. */
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    attn_context_options_t options = {.struct_size = sizeof options,
                                      .flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG | ATTN_CONTEXT_NO_PLUGINS,
                                      .config_text = text};
    attn_context_t *context = NULL;
    memset(&err, 0, sizeof err);
    err.struct_size = sizeof err;
    code = attn_context_create(&options, &context, &err);
    if (code) check_error(code, &err);
    attn_context_destroy(context);
    free(text);
    return 0;
}
