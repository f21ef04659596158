/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc_watch.c: counts the allocations that a plugin's own code makes, and what of them it has not returned.
 * The plugin's relocation entries for malloc and its relatives are pointed at counting functions; other
 * objects of the process (an OpenMP runtime, libc itself) are left alone, because their pools are allowed.
 * Only x86-64 and AArch64 ELF with RELA relocations.
 */
#include "check_engine.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_long num_calls;
static atomic_int is_counting;
static _Atomic(const char *) last_call;

/* What the plugin took while it was watched and has not returned: an open hash table from address to bytes.
 * An address that comes again was returned where nobody saw it; one that was not taken here is not looked
 * at. */
enum { NUM_SLOTS = 1 << 14 };
static struct taken {
    uintptr_t address; /* 0: free */
    size_t bytes;
} slots[NUM_SLOTS];
static size_t num_taken, bytes_taken;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t home_of(uintptr_t address) {
    return (size_t)(((uint64_t)address >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 50) % NUM_SLOTS;
}

/* The slot of an address, or the free one where it would go. */
static struct taken *slot_of(uintptr_t address) {
    size_t i = home_of(address);
    while (slots[i].address != 0 && slots[i].address != address)
        i = (i + 1) % NUM_SLOTS;
    return &slots[i];
}

/* Takes an entry out and closes the gap, so that every search still ends at the first free slot. */
static void clear_slot(struct taken *t) {
    size_t gap = (size_t)(t - slots);
    bytes_taken -= t->bytes;
    num_taken--;
    for (size_t i = (gap + 1) % NUM_SLOTS; slots[i].address != 0; i = (i + 1) % NUM_SLOTS)
        if ((i - home_of(slots[i].address)) % NUM_SLOTS >= (i - gap) % NUM_SLOTS) {
            slots[gap] = slots[i];
            gap = i;
        }
    slots[gap] = (struct taken){0, 0};
}

static void count(const char *name) {
    if (!atomic_load(&is_counting)) return;
    atomic_fetch_add(&num_calls, 1);
    atomic_store(&last_call, name);
}
/* Before the memory is returned: afterwards it may be another thread's. */
static void forget(const void *p) {
    if (!atomic_load(&is_counting) || p == NULL) return;
    pthread_mutex_lock(&lock);
    struct taken *t = slot_of((uintptr_t)p);
    if (t->address != 0) clear_slot(t);
    pthread_mutex_unlock(&lock);
}
static void *remember(void *p, size_t bytes) {
    if (!atomic_load(&is_counting) || p == NULL) return p;
    forget(p);
    pthread_mutex_lock(&lock);
    if (num_taken < NUM_SLOTS / 2) { /* a plugin with more than that fails long before */
        *slot_of((uintptr_t)p) = (struct taken){(uintptr_t)p, bytes};
        num_taken++;
        bytes_taken += bytes;
    }
    pthread_mutex_unlock(&lock);
    return p;
}

/* Which of the coming allocations has no memory; 0: none. Those of C++ always have: operator new throws. */
static atomic_int calls_to_failure;
static int fails(void) {
    int left = atomic_load(&calls_to_failure);
    return atomic_load(&is_counting) && left > 0 && atomic_fetch_sub(&calls_to_failure, 1) == 1;
}
void alloc_watch_fail(int nth) {
    atomic_store(&calls_to_failure, nth);
}
int alloc_watch_has_failed(void) {
    return atomic_load(&calls_to_failure) <= 0;
}

static void *watch_new(size_t n) {
    return count("operator new"), remember(malloc(n), n);
}
static void *watch_malloc(size_t n) {
    if (fails()) return NULL;
    return count("malloc"), remember(malloc(n), n);
}
static void *watch_calloc(size_t n, size_t m) {
    if (fails()) return NULL;
    return count("calloc"), remember(calloc(n, m), n * m);
}
static char *watch_strdup(const char *text) {
    return count("strdup"), remember(strdup(text), strlen(text) + 1);
}
static void *watch_realloc(void *p, size_t n) {
    if (fails()) return NULL;
    count("realloc");
    forget(p);
    return remember(realloc(p, n), n);
}
static void watch_free(void *p) {
    if (p != NULL) count("free");
    forget(p);
    free(p);
}
static void *watch_aligned_alloc(size_t a, size_t n) {
    if (fails()) return NULL;
    return count("aligned_alloc"), remember(aligned_alloc(a, n), n);
}
static int watch_posix_memalign(void **p, size_t a, size_t n) {
    if (fails()) return ENOMEM;
    count("posix_memalign");
    int code = posix_memalign(p, a, n);
    if (code == 0) remember(*p, n);
    return code;
}
static void *watch_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    return count("mmap"), mmap(at, n, prot, flags, fd, offset);
}

/* Threads that the plugin's own code started, until they end. */
static atomic_long num_threads;
struct thread_start {
    void *(*run)(void *);
    void *arg;
};
static void *watched_thread(void *p) {
    struct thread_start start = *(struct thread_start *)p;
    free(p);
    void *result = start.run(start.arg);
    atomic_fetch_sub(&num_threads, 1);
    return result;
}
static int watch_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                                void *arg) {
    struct thread_start *start = malloc(sizeof *start);
    if (start == NULL) return ENOMEM;
    *start = (struct thread_start){run, arg};
    atomic_fetch_add(&num_threads, 1);
    int code = pthread_create(thread, attributes, watched_thread, start);
    if (code != 0) {
        atomic_fetch_sub(&num_threads, 1);
        free(start);
    }
    return code;
}
/* Handlers that the plugin's own code leaves with libc. C++ registers the destructors of its static
 * objects by the same function, with the object as argument; atexit of C has none. */
static _Atomic(const char *) handler;
static int watch_cxa_atexit(void (*run)(void *), void *arg, void *object) {
    extern int __cxa_atexit(void (*run)(void *), void *arg, void *object);
    if (arg == NULL) atomic_store(&handler, "atexit");
    return __cxa_atexit(run, arg, object);
}
static int watch_on_exit(void (*run)(int, void *), void *arg) {
    atomic_store(&handler, "on_exit");
    return on_exit(run, arg);
}
static int watch_register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
                                 void *object) {
    extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
                                 void *object);
    atomic_store(&handler, "pthread_atfork");
    return __register_atfork(prepare, parent, child, object);
}
static FILE *watch_fopen(const char *path, const char *mode) {
    return count("fopen"), fopen(path, mode);
}
static void *watch_reallocarray(void *p, size_t n, size_t m) {
    count("reallocarray");
    forget(p);
    return remember(reallocarray(p, n, m), n * m);
}
static void *watch_memalign(size_t a, size_t n) {
    return count("memalign"), remember(memalign(a, n), n);
}
static int watch_usleep(unsigned us) {
    return count("usleep"), usleep(us);
}

/* operator new and delete of C++ are malloc and free as far as anybody can tell. */
typedef void watched_t(void);
static const struct {
    const char *name;
    watched_t *to;
} watched[] = {
    {"malloc", (watched_t *)watch_malloc},
    {"calloc", (watched_t *)watch_calloc},
    {"strdup", (watched_t *)watch_strdup},
    {"realloc", (watched_t *)watch_realloc},
    {"free", (watched_t *)watch_free},
    {"aligned_alloc", (watched_t *)watch_aligned_alloc},
    {"posix_memalign", (watched_t *)watch_posix_memalign},
    {"mmap", (watched_t *)watch_mmap},
    {"mmap64", (watched_t *)watch_mmap},
    {"memalign", (watched_t *)watch_memalign},
    {"reallocarray", (watched_t *)watch_reallocarray},
    {"pthread_create", (watched_t *)watch_pthread_create},
    {"fopen", (watched_t *)watch_fopen},
    {"fopen64", (watched_t *)watch_fopen},
    {"usleep", (watched_t *)watch_usleep},
    {"__cxa_atexit", (watched_t *)watch_cxa_atexit},
    {"on_exit", (watched_t *)watch_on_exit},
    {"__register_atfork", (watched_t *)watch_register_atfork},
    {"_Znwm", (watched_t *)watch_new},
    {"_Znam", (watched_t *)watch_new},
    {"_ZdlPv", (watched_t *)watch_free},
    {"_ZdaPv", (watched_t *)watch_free},
    {"_ZdlPvm", (watched_t *)watch_free},
    {"_ZdaPvm", (watched_t *)watch_free},
    {"_ZnwmRKSt9nothrow_t", (watched_t *)watch_malloc},
    {"_ZnamRKSt9nothrow_t", (watched_t *)watch_malloc},
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

size_t alloc_watch_bytes(void) {
    pthread_mutex_lock(&lock);
    size_t bytes = bytes_taken;
    pthread_mutex_unlock(&lock);
    return bytes;
}

const char *alloc_watch_handler(void) {
    return atomic_load(&handler);
}

long alloc_watch_threads(void) {
    return atomic_load(&num_threads);
}
