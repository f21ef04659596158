/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule of the loader with a real file that breaks it (tests/core/badplugins/). */
#include "load/context.h"
#include "core_testing.h"
#include "load/loader.h"

#include <dlfcn.h>
#include <elf.h>

/* What the dynamic linker says to the next dlopen; NULL: it works. */
static const char *linker_says;
static void *(*real_dlopen)(const char *, int);
static char *(*real_dlerror)(void); /* found early: a look-up would forget what dlopen said */

void *dlopen(const char *file, int flags) {
    if (linker_says) return NULL;
    *(void **)&real_dlerror = dlsym(RTLD_NEXT, "dlerror");
    *(void **)&real_dlopen = dlsym(RTLD_NEXT, "dlopen");
    return real_dlopen(file, flags);
}
char *dlerror(void) {
    return linker_says ? (char *)(uintptr_t)linker_says : real_dlerror ? real_dlerror() : NULL;
}

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Loads one variant alone. Returns its status; the reason goes to text. */
static int load_variant(const char *variant, char *text, size_t size) {
    char ini[200], file[80];
    attn_error_t err = ERROR_INIT;
    attn_context_t *context;
    attn_plugin_info_t info = {.struct_size = sizeof info};
    snprintf(file, sizeof file, "%s.so", variant);
    copy_plugin(file, file);
    snprintf(ini, sizeof ini, "[attn]\nplugins = %s\n", variant);
    text[0] = 0;
    int code = context_of(ini, &context, &err);
    if (code) {
        snprintf(text, size, "%s", err.text);
        return code;
    }
    is_int(attn_context_plugin(context, 0, &info), ATTN_OK, "%s is listed", variant);
    snprintf(text, size, "%s", info.reason);
    ok((info.status == ATTN_OK) == (info.plugin != NULL) && (info.status == ATTN_OK) == !info.reason[0],
       "status, reason and tables agree");
    ok((info.status == ATTN_OK) == (attn_context_backend(context, 0) != NULL), "and so do the backends");
    if (info.status != ATTN_OK) has_str(logged, "2 plugin ", "a refusal is a warning in the log");
    attn_context_destroy(context);
    return info.status;
}

static void test_variants(void) {
    static const struct {
        const char *variant;
        int status;
        const char *words;
    } cases[] = {
        {"tail_zero", ATTN_OK, ""},
        {"wrong_magic", ATTN_E_ABI, "does not start with the plugin magic"},
        {"before_freeze", ATTN_E_ABI, "was built with a header of plugin ABI 1.0 from before its freeze"},
        {"short_struct", ATTN_E_ABI, "struct_size is 40, expected"},
        {"size_lie", ATTN_E_ABI, "struct_size is 4096, expected"},
        {"abi_major", ATTN_E_ABI, "was built for plugin ABI 8.0, this libattn has 1.0"},
        {"abi_minor", ATTN_OK, ""},
        {"tail_used", ATTN_E_TOO_NEW, "uses a member at byte"},
        {"flags", ATTN_E_TOO_NEW, "uses plugin flags 0x1"},
        {"bad_name", ATTN_E_ABI, "name is missing or not made of"},
        {"null_name", ATTN_E_ABI, "name is missing or not made of"},
        {"null_version", ATTN_E_ABI, "is NULL"},
        {"no_backends", ATTN_E_ABI, "has 0 backends"},
        {"null_backend", ATTN_E_INVALID, "backend is NULL"},
        {"twice_backend", ATTN_E_EXISTS, "duplicate backend name twice_backend"},
        {"backend_newer", ATTN_E_TOO_NEW, "uses a member at byte"},
        {"backend_flags", ATTN_E_TOO_NEW, "backend 0 uses flags 0x4"},
        {"backend_bad_name", ATTN_E_ABI, "backend 0 has no name, capabilities or ops"},
        {"no_ops", ATTN_E_ABI, "backend 0 has no name, capabilities or ops"},
        {"no_forward", ATTN_E_ABI, "backend no_forward has no operation forward"},
        {"null_list", ATTN_E_ABI, "has a list without entries"},
        {"zero_block", ATTN_E_ABI, "a block size 0"},
        {"no_roles", ATTN_E_ABI, "serves no role, no dtype or no device type"},
        {"no_symbol", ATTN_E_ABI, "has no symbol attn_plugin_v1"},
        {"bad_option", ATTN_E_ABI, "option 0 has no name, type, default_value or choices"},
        {"bad_option_size", ATTN_E_ABI, "options[0].struct_size is 4"},
        {"many_options", ATTN_E_ABI, "has 100000 options"},
        {"undefined", ATTN_E_ABI, "was linked incompletely"},
        {"bad_option_default", ATTN_E_ABI,
         "option splits has the invalid value 'many'; write a whole number"},
        {"default_out_of_bounds", ATTN_E_ABI,
         "option splits has the invalid value '99'; write a whole number from 0 to 64"},
        {"control_vendor", ATTN_E_ABI, "vendor, license or build_id is NULL or has control characters"},
        {"control_doc", ATTN_E_ABI, "the doc of backend control_doc has control characters"},
    };
    char text[512];
    for (size_t i = 0; i < COUNT(cases); i++) {
        is_int(load_variant(cases[i].variant, text, sizeof text), cases[i].status, "%s", cases[i].variant);
        has_str(text, cases[i].words, "says: %s", cases[i].words);
    }
    copy_plugin("holder.so", "holder.so");
    is_int(load_variant("borrowed", text, sizeof text), ATTN_E_TRUST, "a descriptor in another file");
    has_str(text, "holder.so", "is told with that file");
    is_int(load_variant("needs_gone", text, sizeof text), ATTN_E_NOT_FOUND, "a missing library");
    has_str(text, "gone.so", "is named");
    has_str(text, "see: ldd ", "with what to do");
}

/* Files that are no shared object of this machine, made from a good one. */
static void test_files(void) {
    static char bytes[1 << 21];
    attn_error_t err = ERROR_INIT;
    FILE *file = fopen(copy_plugin("good.so", "whole.so"), "rb");
    size_t length = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    is_int(attni_elf_check(in_scratch("whole.so"), &err), ATTN_OK, "the whole file: %s", err.text);
    int crashed = 0;
    for (size_t cut = 0; cut < length; cut += cut < 1024 ? 37 : length / 40) {
        attn_error_t why = ERROR_INIT;
        /* Section headers and symbol names behind the last segment are not needed to load. */
        int code = attni_elf_check(write_bytes("cut.so", bytes, cut), &why);
        crashed += cut < length / 2 && code != ATTN_E_ABI;
    }
    is_int(crashed, 0, "a file cut in its first half is always refused");
    attni_elf_check(write_bytes("cut.so", bytes, length / 3), &err);
    has_str(err.text, "is cut short", "and called so");
    is_int(attni_elf_check(write_bytes("cut.so", bytes, sizeof(Elf64_Ehdr) + 8), &err), ATTN_E_ABI,
           "cut inside the program headers");
    is_int(attni_elf_check(write_text("text.so", "#!/bin/sh\n"), &err), ATTN_E_ABI, "a script");
    has_str(err.text, "is not an ELF file", "is no ELF file");
    is_int(attni_elf_check(write_text("empty.so", ""), &err), ATTN_E_ABI, "an empty file");
    is_int(attni_elf_check(in_scratch("none.so"), &err), ATTN_E_IO, "an absent file");
    bytes[offsetof(Elf64_Ehdr, e_machine)] ^= 0x55;
    is_int(attni_elf_check(write_bytes("alien.so", bytes, length), &err), ATTN_E_ABI, "another machine");
    has_str(err.text, "build it for this machine", "with what to do");
    bytes[offsetof(Elf64_Ehdr, e_machine)] ^= 0x55;
    bytes[EI_CLASS] ^= 3;
    is_int(attni_elf_check(write_bytes("alien.so", bytes, length), &err), ATTN_E_ABI, "another word size");
    bytes[EI_CLASS] ^= 3;
    bytes[offsetof(Elf64_Ehdr, e_type)] = ET_REL;
    is_int(attni_elf_check(write_bytes("object.so", bytes, length), &err), ATTN_E_ABI, "an object file");
    has_str(err.text, "not a shared object", "is not linked");

    char text[512];
    attn_context_t *context;
    attn_plugin_info_t info = {.struct_size = sizeof info};
    is_int(context_of("[attn]\nplugins = text\n", &context, &err), ATTN_OK, "a script as a plugin");
    attn_context_plugin(context, 0, &info);
    is_int(info.status, ATTN_E_ABI, "is refused");
    attn_context_destroy(context);
    copy_plugin("good.so", "good.so");
    chmod(in_scratch("good.so"), 0777);
    is_int(context_of("[attn]\nplugins = good\n", &context, &err), ATTN_OK, "a plugin that everybody writes");
    attn_context_plugin(context, 0, &info);
    is_int(info.status, ATTN_E_TRUST, "is refused");
    has_str(info.reason, "writable by everybody", "with the reason");
    attn_context_destroy(context);
    chmod(in_scratch("good.so"), 0755);
    is_int(load_variant("good", text, sizeof text), ATTN_OK, "and taken when mended: %s", text);
}

static void status_of(attn_context_t *context, uint32_t index, attn_plugin_info_t *info) {
    *info = (attn_plugin_info_t){.struct_size = sizeof *info};
    if (attn_context_plugin(context, index, info)) bail_out("no plugin %u", index);
}

static void test_twice(void) {
    attn_context_t *context;
    attn_error_t err = ERROR_INIT;
    attn_plugin_info_t info;
    char ini[1200], want[700];
    copy_plugin("good.so", "good.so");
    copy_plugin("same_name.so", "same_name.so");
    copy_plugin("same_backend.so", "same_backend.so");
    if (link(in_scratch("good.so"), in_scratch("hard.so")) || symlink("good.so", in_scratch("soft.so")))
        bail_out("no links");

    is_int(context_of("[attn]\nplugins = good, hard, soft, same_name, same_backend\n", &context, &err),
           ATTN_OK, "five plugins, four of them too many: %s", err.text);
    status_of(context, 0, &info);
    is_int(info.status, ATTN_OK, "the first is loaded");
    status_of(context, 1, &info);
    is_int(info.status, ATTN_E_EXISTS, "the same inode");
    has_str(info.reason, "'hard' is the file that plugin 'good' was loaded from", "names both");
    status_of(context, 2, &info);
    is_int(info.status, ATTN_E_EXISTS, "the same file through a link");
    status_of(context, 3, &info);
    is_int(info.status, ATTN_E_EXISTS, "the same plugin name");
    snprintf(want, sizeof want, "%s/good.so and %s/same_name.so both have the plugin name 'good'", scratch,
             scratch);
    has_str(info.reason, want, "names both files");
    status_of(context, 4, &info);
    is_int(info.status, ATTN_E_EXISTS, "the same backend name, in another case");
    has_str(info.reason, "backend good_attn is in plugin 'good'", "names one plugin");
    has_str(info.reason, "and in plugin 'same_backend'", "and the other");
    ok(attn_context_backend(context, 0) && !attn_context_backend(context, 1), "one backend remains");
    ok(attn_context_plugin(context, 5, &info) == ATTN_E_NOT_FOUND, "the list ends");
    attn_context_destroy(context);

    snprintf(ini, sizeof ini, "[attn]\nplugins = other\n[plugin other]\npath = %s/good.so\n", scratch);
    is_int(context_of(ini, &context, &err), ATTN_OK, "a plugin under another name");
    status_of(context, 0, &info);
    is_int(info.status, ATTN_E_INVALID, "is refused");
    has_str(info.reason, "is named 'good' but configured as 'other'; write [plugin good]",
            "with what to write");
    attn_context_destroy(context);
}

static void test_paths(void) {
    attn_error_t err = ERROR_INIT;
    char path[300];
    is_int(attni_plugin_path("/dir", "a", NULL, path, sizeof path, &err), ATTN_OK, "no path");
    is_str(path, "/dir/a.so", "is the name below the plugin folder");
    attni_plugin_path("/dir", "a", "sub/b.so", path, sizeof path, &err);
    is_str(path, "/dir/sub/b.so", "a relative path too");
    attni_plugin_path("/dir", "a", "/opt/b.so", path, sizeof path, &err);
    is_str(path, "/opt/b.so", "an absolute path stands for itself");
    static const char *const leaving[] = {"..", "../b.so", "x/../../b.so", "x/.."};
    for (size_t i = 0; i < COUNT(leaving); i++)
        is_int(attni_plugin_path("/dir", "a", leaving[i], path, sizeof path, &err), ATTN_E_TRUST,
               "'%s' leaves it", leaving[i]);
    has_str(err.text, "leaves the plugin directory", "in words");
    is_int(attni_plugin_path("/dir", "a", "..b.so", path, sizeof path, &err), ATTN_OK,
           "a name may start with dots");
    is_int(attni_plugin_path("/dir", "a", NULL, path, 6, &err), ATTN_E_INVALID,
           "a path that does not fit is refused");
}

static void test_switches(void) {
    attn_context_t *context;
    attn_error_t err = ERROR_INIT;
    attn_plugin_info_t info;
    char ini[1200];
    is_int(context_of("[attn]\nplugins = good\nload = no\n", &context, &err), ATTN_OK, "load = no");
    status_of(context, 0, &info);
    is_int(info.status, ATTN_E_STATE, "loads nothing");
    has_str(info.reason, "[attn] load = no (api:3)", "and says who wanted it");
    attn_context_destroy(context);
    is_int(context_of("[attn]\nplugins = good\n[plugin good]\nenabled = no\n", &context, &err), ATTN_OK,
           "enabled = no");
    status_of(context, 0, &info);
    is_int(info.status, ATTN_E_STATE, "leaves one out");
    has_str(info.reason, "enabled = no (api:4)", "and says who wanted it");
    attn_context_destroy(context);

    snprintf(ini, sizeof ini,
             "[attn]\nplugins = good\n[plugin second]\npath = %s\n[option good]\nsplits = 4\n",
             copy_plugin("second.so", "dropped-in.so"));
    is_int(context_of(ini, &context, &err), ATTN_OK, "a section of its own loads a plugin: %s", err.text);
    status_of(context, 1, &info);
    is_str(info.name, "second", "that the list does not have");
    is_int(info.status, ATTN_OK, "by its path: %s", info.reason);
    is_str(info.version, "1.2", "with its version");
    ok(info.plugin && info.plugin->num_options == 7 && !strcmp(info.plugin->options[1].name, "fast"),
       "and its options");
    ok(info.plugin && !strcmp(info.plugin->backends[0]->name, "SECOND_ATTN"), "and its backends");
    attn_context_destroy(context);

    is_int(context_of("[attn]\nplugins = absent\n", &context, &err), ATTN_OK, "an absent plugin is no error");
    status_of(context, 0, &info);
    is_int(info.status, ATTN_E_NOT_FOUND, "but listed");
    has_str(logged, "2 plugin absent was refused", "and told");
    attn_context_destroy(context);
    is_int(context_of("[plugin absent]\nrequired = yes\n", &context, &err), ATTN_E_NOT_FOUND,
           "unless it is required");
    has_str(err.text, "required plugin 'absent' (api:2) did not load: cannot find", "with the whole story");
    is_int(context_of(NULL, &context, &err), ATTN_OK, "the built-in list is not installed");
    status_of(context, 0, &info);
    is_int(info.status, ATTN_E_NOT_FOUND, "so its plugins are listed as absent");
    has_str(info.reason, "not installed: there is no file ", "in plain words");
    ok(!strstr(logged, "2 plugin"), "without a warning: nobody asked for them by name");
    attn_context_destroy(context);
}

/* A plugin that is installed and cannot be loaded is news, whoever listed it. */
static void test_installed(void) {
    static const struct {
        const char *said, *words;
        int status;
    } cases[] = {
        {"libcudart.so.12: cannot open shared object file: No such file or directory", "is missing",
         ATTN_E_NOT_FOUND},
        {"cpu.so: cannot open shared object file: Too many open files", "short of memory or file desc",
         ATTN_E_IO},
        {"libm.so.6: cannot open shared object file: Cannot allocate memory", "short of memory", ATTN_E_IO},
        {"cpu.so: failed to map segment from shared object", "refuses the plugin", ATTN_E_ABI},
    };
    attn_context_t *context;
    attn_error_t err = ERROR_INIT;
    copy_plugin("cpu.so", "cpu.so");
    for (size_t i = 0; i < COUNT(cases); i++) {
        linker_says = cases[i].said;
        int code = context_of(NULL, &context, &err);
        linker_says = NULL;
        is_int(code, ATTN_OK, "an installed plugin of the built-in list: %s", cases[i].said);
        attn_plugin_info_t info;
        uint32_t at = 0;
        do
            status_of(context, at++, &info);
        while (strcmp(info.name, "cpu") != 0);
        is_int(info.status, cases[i].status, "is refused");
        has_str(info.reason, cases[i].words, "with the reason");
        has_str(logged, "2 plugin cpu was refused: ", "as a warning");
        attn_context_destroy(context);
    }
    unlink(in_scratch("cpu.so"));
    if (symlink("gone.so", in_scratch("cpu.so")) != 0) bail_out("no link");
    is_int(context_of(NULL, &context, &err), ATTN_OK, "a link to a file that is gone");
    has_str(logged, "2 plugin cpu was refused: cannot find ", "is a warning, too");
    attn_context_destroy(context);
    unlink(in_scratch("cpu.so"));
}

/* A function is there iff the ops table is long enough and the pointer is not NULL. */
static void test_intake(void) {
    static const attn_capabilities_t caps = {.struct_size = sizeof caps,
                                             .roles = ATTN_BIT(ATTN_ROLE_DECODER),
                                             .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32),
                                             .device_types = ATTN_BIT(kDLCPU)};
    attn_error_t err = ERROR_INIT;
    attn_backend_ops_t ops = {.struct_size = offsetof(attn_backend_ops_t, forward)};
    memset((char *)&ops + 8, 0x11, sizeof ops - 8);
    attn_backend_t backend = {.struct_size = sizeof backend, .name = "B", .capabilities = &caps, .ops = &ops};
    const attn_backend_t *backends[] = {&backend};
    attn_plugin_t raw = {.magic = ATTN_PLUGIN_MAGIC,
                         .struct_size = sizeof raw,
                         .abi_major = ATTN_ABI_MAJOR,
                         .abi_minor = ATTN_ABI_MINOR,
                         .name = "p",
                         .version = "",
                         .vendor = "",
                         .license = "",
                         .build_id = "",
                         .num_backends = 1,
                         .backends = backends};
    struct attni_plugin plugin = {.path = (char *)"memory", .name = (char *)"p"};
    is_int(attni_descriptor_intake(&plugin, &raw, sizeof raw, &err), ATTN_E_ABI,
           "forward behind the end of the table");
    has_str(err.text, "has no operation forward", "is not there, whatever the bytes are");
    ops.struct_size = offsetof(attn_backend_ops_t, prepare_weights);
    is_int(attni_descriptor_intake(&plugin, &raw, 0, &err), ATTN_OK, "a table up to forward is enough: %s",
           err.text);
    ok(!plugin.backends[0].ops.prepare_weights && !plugin.backends[0].ops.get_extension,
       "what lies beyond is NULL");
    is_int(plugin.backends[0].ops.struct_size, sizeof ops, "under the size that the host knows");
    attni_descriptor_drop(&plugin);
    ops.struct_size = 2;
    is_int(attni_descriptor_intake(&plugin, &raw, 0, &err), ATTN_E_INVALID,
           "a table without size is refused");
    is_int(attni_descriptor_intake(&plugin, &raw, 8, &err), ATTN_E_ABI,
           "a symbol of 8 bytes is no descriptor");
}

int main(void) {
    needs_loading();
    make_scratch();
    test_variants();
    test_files();
    test_twice();
    test_paths();
    test_switches();
    test_installed();
    test_intake();
    return tap_done();
}
