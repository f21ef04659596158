/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One plugin file, in the order: trust, seen before, ELF, dlopen, symbol in that very file, descriptor,
 * name. RTLD_LOCAL keeps plugins from each other's symbols; RTLD_NODELETE and no dlclose, because threads,
 * thread-local storage and exit handlers of kernels do not survive an unmapping.
 */
#include <attn/attn_plugin_util.h>
#include "device/device_kind.h"
#include "load/loader.h"
#include "base/trust.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

/* dlopen goes by the name: a file that was replaced since is not mapped again, and its old code goes on.
 * Every name that this process mapped is therefore kept with what stood behind it. */
static int is_replaced(const char *path) {
    struct mapped {
        struct mapped *next;
        struct stat status;
        char path[];
    };
    static struct mapped *all;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct stat now;
    if (stat(path, &now)) return 0;
    pthread_mutex_lock(&lock);
    const struct mapped *m = all;
    while (m && strcmp(m->path, path) != 0)
        m = m->next;
    int changed = m && (m->status.st_ino != now.st_ino || m->status.st_dev != now.st_dev ||
                        m->status.st_size != now.st_size || m->status.st_mtim.tv_sec != now.st_mtim.tv_sec ||
                        m->status.st_mtim.tv_nsec != now.st_mtim.tv_nsec);
    struct mapped *added = m ? NULL : malloc(sizeof *added + strlen(path) + 1);
    if (added) {
        *added = (struct mapped){.next = all, .status = now};
        strcpy(added->path, path);
        all = added;
    }
    pthread_mutex_unlock(&lock);
    return changed;
}

static int check_not_seen(const struct attni_plugin *plugin, const struct attni_plugins *others,
                          attn_error_t *error) {
    for (size_t i = 0; i < others->count; i++) {
        const struct attni_plugin *other = others->items[i];
        if (other != plugin && other->has_identity && other->refusal.code == ATTN_OK &&
            other->inode == plugin->inode && other->device == plugin->device)
            return attn_fail(
                error, ATTN_E_EXISTS, "path",
                "%s of plugin '%s' is the file that plugin '%s' was loaded from (%s); remove one of them",
                plugin->path, plugin->name, other->name, other->path);
    }
    return 0;
}

static int explain_dlopen(const char *path, attn_error_t *error) {
    const char *said = dlerror();
    if (!said) said = "dlopen gave no reason";
    /* The linker appends the system's word to whatever it was doing. */
    const int scarce[] = {ENOMEM, EMFILE, ENFILE};
    for (size_t i = 0; i < sizeof scarce / sizeof *scarce; i++)
        if (strstr(said, strerror(scarce[i])))
            return attn_fail(
                error, ATTN_E_IO, "",
                "the process or the system is short of memory or file descriptors: %s; raise the limit "
                "(ulimit -n, ulimit -v) or free some before the context is made",
                said);
    if (strstr(said, "cannot open shared object file"))
        return attn_fail(error, ATTN_E_NOT_FOUND, "",
                         "a library that the plugin needs is missing: %s; see: ldd %s", said, path);
    if (strstr(said, "undefined symbol"))
        return attn_fail(error, ATTN_E_ABI, "",
                         "the plugin was linked incompletely: %s; link it with -Wl,-z,defs, see: ldd -r %s",
                         said, path);
    return attn_fail(error, ATTN_E_ABI, "", "the dynamic linker refuses the plugin: %s; see: ldd %s", said,
                     path);
}

/* A dependency may export the symbol too; only the one in the plugin's own file counts. */
static int find_symbol(void *handle, const struct attni_plugin *plugin, const void **exported, size_t *size,
                       attn_error_t *error) {
    const void *symbol = dlsym(handle, ATTN_PLUGIN_SYMBOL_NAME);
    if (!symbol)
        return attn_fail(error, ATTN_E_ABI, "",
                         "%s has no symbol %s; export the descriptor with ATTN_PLUGIN_EXPORT, or it is not a "
                         "libattn plugin",
                         plugin->path, ATTN_PLUGIN_SYMBOL_NAME);
    Dl_info where;
    const ElfW(Sym) *entry = NULL;
    struct stat status;
    if (!dladdr1(symbol, &where, (void **)&entry, RTLD_DL_SYMENT) || !where.dli_fname ||
        stat(where.dli_fname, &status) || status.st_ino != plugin->inode || status.st_dev != plugin->device)
        return attn_fail(error, ATTN_E_TRUST, "",
                         "symbol %s of %s is in another file (%s); a plugin must contain its own descriptor",
                         ATTN_PLUGIN_SYMBOL_NAME, plugin->path,
                         where.dli_fname ? where.dli_fname : "unknown");
    *exported = symbol;
    *size = entry ? (size_t)entry->st_size : 0;
    return 0;
}

static int check_name(const struct attni_plugin *plugin, const struct attni_plugins *others,
                      attn_error_t *error) {
    const char *own = plugin->info.name;
    for (size_t i = 0; i < others->count; i++) {
        const struct attni_plugin *other = others->items[i];
        if (other != plugin && other->refusal.code == ATTN_OK && other->info.name &&
            !strcmp(other->info.name, own))
            return attn_fail(error, ATTN_E_EXISTS, "name",
                             "%s and %s both have the plugin name '%s'; remove one of them", other->path,
                             plugin->path, own);
    }
    if (plugin->name && strcmp(own, plugin->name) != 0)
        return attn_fail(error, ATTN_E_INVALID, "name",
                         "%s is named '%s' but configured as '%s'; write [plugin %s]", plugin->path, own,
                         plugin->name, own);
    return 0;
}

/* Backends are chosen by name, so a name must mean one of them. */
static int check_backend_names(const struct attni_plugin *plugin, const struct attni_plugins *others,
                               attn_error_t *error) {
    for (uint32_t k = 0; k < plugin->backend_count; k++) {
        const char *name = plugin->backends[k].shown.name;
        for (uint32_t j = 0; j < k; j++)
            if (!strcasecmp(plugin->backends[j].shown.name, name))
                return attn_fail(error, ATTN_E_EXISTS, "backends",
                                 "%s: duplicate backend name %s; rename one of them", plugin->path, name);
        for (size_t i = 0; i < others->count; i++)
            for (uint32_t j = 0; j < others->items[i]->backend_count; j++)
                if (others->items[i] != plugin && !strcasecmp(others->items[i]->backends[j].shown.name, name))
                    return attn_fail(error, ATTN_E_EXISTS, "backends",
                                     "backend %s is in plugin '%s' (%s) and in plugin '%s' (%s); "
                                     "switch one off: [plugin %s] enabled = no",
                                     name, others->items[i]->name, others->items[i]->path, plugin->name,
                                     plugin->path, plugin->name);
    }
    return 0;
}

/* The device kinds that its backends bring: their tables. */
static int check_device_kinds(const struct attni_plugin *plugin, attn_error_t *error) {
    int code = ATTN_OK;
    for (uint32_t i = 0; code == ATTN_OK && i < plugin->backend_count; i++) {
        attn_device_kind_t taken;
        const attn_device_kind_t *kind = attni_backend_device_kind(&plugin->backends[i]);
        if (kind != NULL) code = attni_device_kind_check(kind, &taken, plugin->path, error);
    }
    return code;
}

int attni_plugin_examine(struct attni_plugin *plugin, const struct attni_plugins *others,
                         attn_error_t *error) {
    struct attni_trusted_file file;
    int code = attni_trust_check(plugin->path, &file, error);
    if (code != ATTN_OK) return code;
    free(plugin->path);
    plugin->path = file.path;
    plugin->device = file.device;
    plugin->inode = file.inode;
    plugin->has_identity = 1;
    code = check_not_seen(plugin, others, error);
    if (code == ATTN_OK) code = attni_elf_check(plugin->path, error);
    return code == ATTN_OK ? attni_elf_needs_check(plugin->path, error) : code;
}

int attni_plugin_map(struct attni_plugin *plugin, const void **exported, size_t *size, attn_error_t *error) {
    void *handle = dlopen(plugin->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) return explain_dlopen(plugin->path, error);
    plugin->is_replaced = is_replaced(plugin->path);
    return find_symbol(handle, plugin, exported, size, error);
}

int attni_plugin_intake(struct attni_plugin *plugin, const struct attni_plugins *others, const void *exported,
                        size_t size, attn_error_t *error) {
    int code = attni_descriptor_intake(plugin, exported, size, error);
    if (code != ATTN_OK) return code;
    code = check_name(plugin, others, error);
    if (code == ATTN_OK) code = check_backend_names(plugin, others, error);
    if (code == ATTN_OK) code = check_device_kinds(plugin, error);
    if (code != ATTN_OK) attni_descriptor_drop(plugin);
    return code;
}

int attni_plugin_open(struct attni_plugin *plugin, const struct attni_plugins *others, attn_error_t *error) {
#ifdef ATTN_NO_PLUGIN_LOADING
    (void)others;
    return attn_fail(error, ATTN_E_STATE, "",
                     "plugin '%s' is not loaded: this libattn was built with --disable-plugin-loading",
                     plugin->name);
#else
    const void *exported = NULL;
    size_t size = 0;
    int code = attni_plugin_examine(plugin, others, error);
    if (code == ATTN_OK) code = attni_plugin_map(plugin, &exported, &size, error);
    return code == ATTN_OK ? attni_plugin_intake(plugin, others, exported, size, error) : code;
#endif
}
