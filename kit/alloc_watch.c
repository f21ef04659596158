/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc_watch.c: counts the allocations that a plugin's own code makes. The plugin's relocation entries for malloc and
 * its relatives are pointed at counting functions; other objects of the process (an OpenMP runtime, libc itself) are
 * left alone, because their pools are allowed. Only x86-64 and AArch64 ELF with RELA relocations.
 */
#include "check_engine.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_long num_calls;
static atomic_int is_counting;
static _Atomic(const char *) last_call;

static void note(const char *name) {
    if (!atomic_load(&is_counting)) return;
    atomic_fetch_add(&num_calls, 1);
    atomic_store(&last_call, name);
}

static void *watch_malloc(size_t n) {
    return note("malloc"), malloc(n);
}
static void *watch_calloc(size_t n, size_t m) {
    return note("calloc"), calloc(n, m);
}
static void *watch_realloc(void *p, size_t n) {
    return note("realloc"), realloc(p, n);
}
static void watch_free(void *p) {
    if (p != NULL) note("free");
    free(p);
}
static void *watch_aligned_alloc(size_t a, size_t n) {
    return note("aligned_alloc"), aligned_alloc(a, n);
}
static int watch_posix_memalign(void **p, size_t a, size_t n) {
    return note("posix_memalign"), posix_memalign(p, a, n);
}
static void *watch_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    return note("mmap"), mmap(at, n, prot, flags, fd, offset);
}

/* operator new and delete of C++ are malloc and free as far as anybody can tell. */
typedef void watched_t(void);
static const struct {
    const char *name;
    watched_t *to;
} watched[] = {
    {"malloc", (watched_t *)watch_malloc},
    {"calloc", (watched_t *)watch_calloc},
    {"realloc", (watched_t *)watch_realloc},
    {"free", (watched_t *)watch_free},
    {"aligned_alloc", (watched_t *)watch_aligned_alloc},
    {"posix_memalign", (watched_t *)watch_posix_memalign},
    {"mmap", (watched_t *)watch_mmap},
    {"_Znwm", (watched_t *)watch_malloc},
    {"_Znam", (watched_t *)watch_malloc},
    {"_ZdlPv", (watched_t *)watch_free},
    {"_ZdaPv", (watched_t *)watch_free},
};

static int put_entry(uintptr_t *entry, watched_t *to) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)entry / page * page;
    if (mprotect((void *)first, page, PROT_READ | PROT_WRITE) != 0) return 0; /* RELRO made it read-only */
    *entry = (uintptr_t)to;
    return 1;
}

static int put_table(const struct link_map *map, const Elf64_Rela *table, size_t bytes,
                     const Elf64_Sym *symbols, const char *text) {
    int count = 0;
    for (size_t i = 0; i < bytes / sizeof *table; i++) {
        uint32_t symbol = (uint32_t)ELF64_R_SYM(table[i].r_info);
        if (symbol == 0) continue;
        const char *name = text + symbols[symbol].st_name;
        for (size_t j = 0; j < sizeof watched / sizeof watched[0]; j++)
            if (strcmp(name, watched[j].name) == 0)
                count += put_entry((uintptr_t *)(map->l_addr + table[i].r_offset), watched[j].to);
    }
    return count;
}

int alloc_watch_start(const char *path) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)path, (void)put_table;
    return 0; /* the sanitizer owns the allocator */
#elif defined(__x86_64__) || defined(__aarch64__)
    struct link_map *map = NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle == NULL || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == NULL) return 0;
    const Elf64_Rela *plt = NULL, *rela = NULL;
    const Elf64_Sym *symbols = NULL;
    const char *text = NULL;
    size_t plt_bytes = 0, rela_bytes = 0;
    for (const Elf64_Dyn *d = (const Elf64_Dyn *)map->l_ld; d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_JMPREL)
            plt = (const Elf64_Rela *)d->d_un.d_ptr;
        else if (d->d_tag == DT_PLTRELSZ)
            plt_bytes = d->d_un.d_val;
        else if (d->d_tag == DT_RELA)
            rela = (const Elf64_Rela *)d->d_un.d_ptr;
        else if (d->d_tag == DT_RELASZ)
            rela_bytes = d->d_un.d_val;
        else if (d->d_tag == DT_SYMTAB)
            symbols = (const Elf64_Sym *)d->d_un.d_ptr;
        else if (d->d_tag == DT_STRTAB)
            text = (const char *)d->d_un.d_ptr;
    }
    if (symbols == NULL || text == NULL) return 0;
    int count = 0;
    if (plt != NULL) count += put_table(map, plt, plt_bytes, symbols, text);
    if (rela != NULL) count += put_table(map, rela, rela_bytes, symbols, text);
    return count;
#else
    (void)path, (void)put_table;
    return 0;
#endif
}

void alloc_watch_on(int is_on) {
    atomic_store(&is_counting, is_on);
}

long alloc_watch_count(const char **last_name) {
    const char *name = atomic_load(&last_call);
    *last_name = name != NULL ? name : "";
    return atomic_load(&num_calls);
}
