/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries of CUDA that a plugin opens when it needs them, so that it loads, and says what it can do, where
 * they are missing. Once loaded they stay. */
#ifndef KERNELS_LIBRARY_H
#define KERNELS_LIBRARY_H

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

/* The first of the names that loads; NULL ends the list. NULL: none does, and dlerror says why of the last
 * one. */
static inline void *library_open(const char *const *names) {
    void *library = NULL;
    for (; *names != NULL && library == NULL; names++)
        library = dlopen(*names, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
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
