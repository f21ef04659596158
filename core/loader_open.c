/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One plugin file, in the order: trust, seen before, ELF, dlopen, symbol in that very file, descriptor,
 * name. RTLD_LOCAL keeps plugins from each other's symbols; RTLD_NODELETE and no dlclose, because threads,
 * thread-local storage and exit handlers of kernels do not survive an unmapping.
 */
#include "fail.h"
#include "loader.h"
#include "trust.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static int check_not_seen(const struct attni_plugin *plugin, const struct attni_plugins *others,
                          attn_error_t *err) {
    for (size_t i = 0; i < others->count; i++) {
        const struct attni_plugin *other = others->items[i];
        if (other != plugin && other->has_identity && other->refusal.code == ATTN_OK &&
            other->inode == plugin->inode && other->device == plugin->device)
            return attni_fail_param(
                err, ATTN_E_EXISTS, "path",
                "%s of plugin '%s' is the file that plugin '%s' was loaded from (%s); remove one of them",
                plugin->path, plugin->name, other->name, other->path);
    }
    return 0;
}

static int explain_dlopen(const char *path, attn_error_t *err) {
    const char *said = dlerror();
    if (!said) said = "dlopen gave no reason";
    if (strstr(said, "cannot open shared object file"))
        return attni_fail(err, ATTN_E_NOT_FOUND,
                          "a library that the plugin needs is missing: %s; look with: ldd %s", said, path);
    if (strstr(said, "undefined symbol"))
        return attni_fail(
            err, ATTN_E_ABI,
            "the plugin was linked incompletely: %s; link it with -Wl,-z,defs, look with: ldd -r %s", said,
            path);
    return attni_fail(err, ATTN_E_ABI, "the dynamic linker refuses the plugin: %s; look with: ldd %s", said,
                      path);
}

/* A dependency may export the symbol too; only the one in the plugin's own file counts. */
static int find_symbol(void *handle, const struct attni_plugin *plugin, const void **exported, size_t *size,
                       attn_error_t *err) {
    const void *symbol = dlsym(handle, ATTN_PLUGIN_SYMBOL_NAME);
    if (!symbol)
        return attni_fail(
            err, ATTN_E_ABI,
            "%s has no symbol %s; export the descriptor with ATTN_PLUGIN_EXPORT, or it is no libattn plugin",
            plugin->path, ATTN_PLUGIN_SYMBOL_NAME);
    Dl_info where;
    const ElfW(Sym) *entry = NULL;
    struct stat status;
    if (!dladdr1(symbol, &where, (void **)&entry, RTLD_DL_SYMENT) || !where.dli_fname ||
        stat(where.dli_fname, &status) || status.st_ino != plugin->inode || status.st_dev != plugin->device)
        return attni_fail(err, ATTN_E_TRUST,
                          "symbol %s of %s lies in another file (%s); a plugin must hold its own descriptor",
                          ATTN_PLUGIN_SYMBOL_NAME, plugin->path,
                          where.dli_fname ? where.dli_fname : "unknown");
    *exported = symbol;
    *size = entry ? (size_t)entry->st_size : 0;
    return 0;
}

static int check_name(const struct attni_plugin *plugin, const struct attni_plugins *others,
                      attn_error_t *err) {
    const char *own = plugin->info.name;
    for (size_t i = 0; i < others->count; i++) {
        const struct attni_plugin *other = others->items[i];
        if (other != plugin && other->refusal.code == ATTN_OK && other->info.name &&
            !strcmp(other->info.name, own))
            return attni_fail_param(err, ATTN_E_EXISTS, "name",
                                    "%s and %s both call themselves plugin '%s'; remove one of them",
                                    other->path, plugin->path, own);
    }
    if (strcmp(own, plugin->name) != 0)
        return attni_fail_param(err, ATTN_E_INVALID, "name",
                                "%s calls itself '%s' but is configured as '%s'; write [plugin %s]",
                                plugin->path, own, plugin->name, own);
    return 0;
}

/* Backends are chosen by name, so a name must mean one of them. */
static int check_backend_names(const struct attni_plugin *plugin, const struct attni_plugins *others,
                               attn_error_t *err) {
    for (uint32_t k = 0; k < plugin->backend_count; k++) {
        const char *name = plugin->backends[k].shown.name;
        for (uint32_t j = 0; j < k; j++)
            if (!strcasecmp(plugin->backends[j].shown.name, name))
                return attni_fail_param(err, ATTN_E_EXISTS, "backends",
                                        "%s has backend %s twice; rename one of them", plugin->path, name);
        for (size_t i = 0; i < others->count; i++)
            for (uint32_t j = 0; j < others->items[i]->backend_count; j++)
                if (others->items[i] != plugin && !strcasecmp(others->items[i]->backends[j].shown.name, name))
                    return attni_fail_param(err, ATTN_E_EXISTS, "backends",
                                            "backend %s is in plugin '%s' (%s) and in plugin '%s' (%s); "
                                            "switch one off: [plugin %s] enabled = no",
                                            name, others->items[i]->name, others->items[i]->path,
                                            plugin->name, plugin->path, plugin->name);
    }
    return 0;
}

int attni_plugin_open(struct attni_plugin *plugin, const struct attni_plugins *others, attn_error_t *err) {
#ifdef ATTN_NO_PLUGIN_LOADING
    (void)others, (void)explain_dlopen, (void)find_symbol, (void)check_name, (void)check_not_seen,
        (void)check_backend_names;
    return attni_fail(err, ATTN_E_STATE,
                      "plugin '%s' is not loaded: this libattn was built with --disable-plugin-loading",
                      plugin->name);
#else
    struct attni_trusted_file file;
    int code = attni_trust_check(plugin->path, &file, err);
    if (code) return code;
    free(plugin->path);
    plugin->path = file.path;
    plugin->device = file.device;
    plugin->inode = file.inode;
    plugin->has_identity = 1;
    if ((code = check_not_seen(plugin, others, err))) return code;
    if ((code = attni_elf_check(plugin->path, err))) return code;
    void *handle = dlopen(plugin->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) return explain_dlopen(plugin->path, err);
    const void *exported = NULL;
    size_t size = 0;
    if ((code = find_symbol(handle, plugin, &exported, &size, err))) return code;
    if ((code = attni_descriptor_take(plugin, exported, size, err))) return code;
    code = check_name(plugin, others, err);
    if (!code) code = check_backend_names(plugin, others, err);
    if (code) attni_descriptor_drop(plugin);
    return code;
#endif
}
