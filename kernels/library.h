/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries of CUDA that a plugin opens when it needs them, so that it loads, and says what it can do, where
 * they are missing. Once loaded they stay. */
#ifndef KERNELS_LIBRARY_H
#define KERNELS_LIBRARY_H

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

/* The first of the names that loads; NULL ends the list. NULL: none does, and dlerror says why of the last
 * one. */
static inline void *library_open(const char *const *names) {
    void *library = NULL;
    for (; *names != NULL && library == NULL; names++)
        library = dlopen(*names, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    return library;
}

/* The same for libraries of NVIDIA's Python packages, which pip puts beside the package libattn: names such
 * as nvidia/cu13/lib/libnvrtc.so.13. `plugin` is a file: only one of the wheel's own folder of plugins has
 * such neighbours. Not where others may write: whoever may put something beside libattn could replace it
 * too. */
static inline void *library_open_beside(const char *plugin, const char *const *names) {
    static const char wheel[] = "/libattn/_native/lib/attn/";
    char path[4096];
    struct stat s;
    const char *const slash = plugin != NULL && plugin[0] == '/' ? strrchr(plugin, '/') : NULL;
    const size_t folder = slash != NULL ? (size_t)(slash + 1 - plugin) : 0, inside = sizeof wheel - 1;
    if (folder <= inside || memcmp(plugin + folder - inside, wheel, inside) != 0) return NULL;
    const size_t site = folder - inside; /* of site-packages, without the slash at its end */
    if (site >= sizeof path) return NULL;
    memcpy(path, plugin, site);
    path[site] = '\0';
    if (stat(path, &s) != 0 || (s.st_mode & S_IWOTH) != 0) return NULL;
    void *library = NULL;
    for (; *names != NULL && library == NULL; names++) {
        const size_t length = strlen(*names);
        if (site + 1 + length >= sizeof path) continue;
        path[site] = '/';
        memcpy(path + site + 1, *names, length + 1);
        library = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    }
    return library;
}

/* The address of a function to where `function` points, without the cast that ISO C does not know. 0: there
 * is none. */
static inline int library_symbol(void *library, const char *name, void *function) {
    void *p = dlsym(library, name);
    memcpy(function, &p, sizeof p);
    return p != NULL;
}

typedef struct library_function {
    const char *name;
    void *to; /* where its address goes, as of library_symbol */
} library_function;

/* All of them; the name of the first that is missing, NULL if none is. */
static inline const char *library_symbols(void *library, const library_function *wanted, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!library_symbol(library, wanted[i].name, wanted[i].to)) return wanted[i].name;
    return NULL;
}

#endif
