/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are made to run somebody else's code, to keep the loader waiting or to be taken for another. */
#include "load/context.h"
#include "core_testing.h"
#include "base/trust.h"

#include <errno.h>

/* The state of the only plugin of a context made from an INI text. */
static int status_with(const char *ini, char *text, size_t size) {
    attn_error_t err = ERROR_INIT;
    attn_context_t *context;
    attn_plugin_info_t info = {.struct_size = sizeof info};
    int code = context_of(ini, &context, &err);
    is_int(code, ATTN_OK, "the context stands: %s", err.text);
    if (code != ATTN_OK || attn_context_plugin(context, 0, &info) != ATTN_OK) return 1;
    snprintf(text, size, "%s", info.reason);
    attn_context_destroy(context);
    return info.status;
}

static int status_of(const char *name, const char *file, char *text, size_t size) {
    char ini[1200];
    snprintf(ini, sizeof ini, "[attn]\nplugins = %s\n[plugin %s]\npath = %s\n", name, name, file);
    return status_with(ini, text, size);
}

static void test_kinds(void) {
    char text[512];
    if (mkfifo(in_scratch("pipe.so"), 0644)) bail_out("no pipe: %s", strerror(errno));
    alarm(20); /* an open that waits for a writer ends here */
    is_int(status_of("good", in_scratch("pipe.so"), text, sizeof text), ATTN_E_TRUST,
           "a pipe in place of a plugin");
    has_str(text, "is a pipe, expected a regular file", "is refused at once");
    attn_error_t err = ERROR_INIT;
    is_int(attni_elf_check(in_scratch("pipe.so"), &err), ATTN_E_ABI, "and is no ELF file");
    is_int(status_of("good", "/dev/zero", text, sizeof text), ATTN_E_TRUST, "a device");
    has_str(text, "is a device", "is refused at once");
    alarm(0);
}

/* The trusted file and the one that dlopen would open differ in what $LIB stands for. */
static void test_tokens(void) {
    static const char *const tokens[] = {"$LIB", "$ORIGIN", "${PLATFORM}"};
    char text[512], name[64];
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        mkdir(in_scratch(tokens[i]), 0755);
        snprintf(name, sizeof name, "%s/good.so", tokens[i]);
        copy_plugin("good.so", name);
        is_int(status_of("good", in_scratch(name), text, sizeof text), ATTN_E_TRUST, "%s in a path",
               tokens[i]);
        has_str(text, "which the dynamic linker replaces", "is refused");
    }
}

static void test_links(void) {
    char text[512];
    attn_error_t err = ERROR_INIT;
    struct attni_trusted_file file = {0};
    mkdir(in_scratch("open"), 0755);
    chmod(in_scratch("open"), 01777);
    copy_plugin("good.so", "good.so");
    if (symlink("../good.so", in_scratch("open/good.so"))) bail_out("no link");
    is_int(status_of("good", in_scratch("open/good.so"), text, sizeof text), ATTN_E_TRUST,
           "a link in a sticky folder that everybody writes");
    has_str(text, "is not followed; name the file itself", "is refused");
    chmod(in_scratch("open"), 0777);
    is_int(attni_trust_check(in_scratch("open/good.so"), &file, &err), ATTN_E_TRUST,
           "or in one without that bit");
    chmod(in_scratch("open"), 0755);
    if (symlink("open", in_scratch("folder"))) bail_out("no link");
    is_int(attni_trust_check(in_scratch("folder/good.so"), &file, &err), ATTN_OK,
           "links in own folders are followed: %s", err.text);
    has_str(file.path, "/good.so", "to the file");
    ok(!strstr(file.path, "open") && !strstr(file.path, "folder"), "under its real name %s", file.path);
    free(file.path);
}

static void test_runpath(void) {
    static const struct {
        const char *variant;
        int status;
        const char *words;
    } cases[] = {{"runpath_open", ATTN_E_TRUST, "its RUNPATH leads to /tmp: /tmp is writable by others"},
                 {"runpath_relative", ATTN_E_TRUST, "its RUNPATH has 'lib'; expected an absolute path"},
                 {"rpath_empty", ATTN_E_TRUST, "its RPATH has ''; expected an absolute path"},
                 {"runpath_token", ATTN_E_TRUST, "has '/usr/$LIB'"},
                 {"runpath_origin", ATTN_OK, ""}};
    char text[512], file[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(file, sizeof file, "%s.so", cases[i].variant);
        is_int(status_of(cases[i].variant, copy_plugin(file, file), text, sizeof text), cases[i].status,
               "%s: %s", cases[i].variant, text);
        has_str(text, cases[i].words, "says: %s", cases[i].words);
    }
    mkdir(in_scratch("libs"), 0755);
    chmod(in_scratch("libs"), 0777);
    is_int(status_of("runpath_origin", in_scratch("runpath_origin.so"), text, sizeof text), ATTN_E_TRUST,
           "the folder beside the plugin counts once it is there");
    has_str(text, "/libs is writable by everybody", "and is named");
    chmod(in_scratch("libs"), 0755);
}

/* dlopen goes by the name and returns what it has. */
static void test_replaced(void) {
    char text[512], ini[1200];
    attn_error_t err = ERROR_INIT;
    attn_context_t *context;
    attn_plugin_info_t info = {.struct_size = sizeof info};
    const char *path = copy_plugin("second.so", "second.so");
    is_int(status_of("second", path, text, sizeof text), ATTN_OK, "a plugin");
    is_str(text, "", "is loaded");
    is_int(status_of("second", path, text, sizeof text), ATTN_OK, "and again");
    is_str(text, "", "without a word");
    if (rename(copy_plugin("second.so", "newer.so"), path)) bail_out("no rename");
    snprintf(ini, sizeof ini, "[attn]\nplugins = second\n[plugin second]\npath = %s\n", path);
    is_int(context_of(ini, &context, &err), ATTN_OK, "once the file was replaced");
    attn_context_plugin(context, 0, &info);
    is_int(info.status, ATTN_OK, "the old code goes on");
    has_str(info.reason, "was replaced after this process loaded it; the old code, version 1.2, stays in use",
            "which is said");
    has_str(logged, "2 plugin second: ", "and logged as a warning");
    attn_context_destroy(context);
}

int main(void) {
    needs_loading();
    make_scratch();
    test_kinds();
    test_tokens();
    test_links();
    test_runpath();
    test_replaced();
    return tap_done();
}
