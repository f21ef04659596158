/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc_faults.c: every allocation of the API and of the CPU plugins fails once, in a child of its own: while
 * the plugins are loaded for the first time (cold), and when they have been (warm; then nothing may be
 * leaked). The child must end with an answer or with an error that says so, and do everything right
 * afterwards. A short run tries every 9th; ATTN_TEST_LONG=1 all. ATTN_TEST_ONLY=N tries one, for a debugger.
 */
#include "fault_world.h"

#include <dlfcn.h>
#include <errno.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
int main(void) {
    skip_all("a sanitizer's allocator, or another C library");
}
#else
static int armed, spared;
static long made, live, fails_at = -1; /* since armed; allocations that live */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);
extern void __libc_free(void *p);

/* The run-time library of OpenMP ends the process when it gets no memory while it is loaded, which nobody who
 * loads it can prevent. What it asks for does not fail. */
static int is_spared(const void *caller) {
    Dl_info info;
    spared = dladdr(caller, &info) != 0 && info.dli_fname != NULL && strstr(info.dli_fname, "omp") != NULL;
    return spared;
}

static int fails(const void *caller) {
    if (armed && made++ == fails_at && !is_spared(caller)) {
        errno = ENOMEM;
        return 1;
    }
    live++;
    return 0;
}

/* These stand before the C library's for everything in the process: libattn, plugins, the loader. */
void *malloc(size_t n) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
    if (p != NULL) live--;
    if (!fails(__builtin_return_address(0))) return __libc_realloc(p, n);
    if (p != NULL) live++;
    return NULL;
}
void free(void *p) {
    if (p != NULL) live--;
    __libc_free(p);
}
void *aligned_alloc(size_t alignment, size_t n) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, n);
}
void *memalign(size_t alignment, size_t n) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, n);
}
int posix_memalign(void **p, size_t alignment, size_t n) {
    void *room = fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, n);
    if (room != NULL) *p = room;
    return room != NULL ? 0 : ENOMEM;
}

/* In a child: one run in which allocation n fails, one without, and what is left. */
static enum outcome child(int is_warm, long n) {
    const int descriptors = open_descriptors();
    if (is_warm && fault_world_run() != SERVED) return NOT_USABLE;
    if (is_warm && fault_world_run() != SERVED) return NOT_USABLE; /* what grows once has grown */
    const long before = live;
    fails_at = n, made = 0, armed = 1;
    enum outcome got = fault_world_run();
    armed = 0;
    if (got > REFUSED) return got;
    if (fault_world_run() != SERVED) return NOT_USABLE;
    if (open_descriptors() != descriptors) return LEFT_OPEN;
    if (is_warm && live != before) return LEAKED;
    return spared ? SPARED : got;
}

static int in_child(int is_warm, long n) {
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        limit_child();
        _exit(STATUS_OF_OUTCOMES + (int)child(is_warm, n));
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) bail_out("no child");
    fault_world_empty();
    return status;
}

/* How many allocations a run makes, asked of a child. */
static long count(int is_warm) {
    int ends[2];
    long n = 0;
    if (pipe(ends) != 0) bail_out("no pipe");
    const pid_t pid = fork();
    if (pid == 0) {
        enum outcome first = is_warm ? fault_world_run() : SERVED;
        armed = 1;
        if (first != SERVED || fault_world_run() != SERVED) _exit(1);
        if (write(ends[1], &made, sizeof made) != (ssize_t)sizeof made) _exit(1);
        _exit(0);
    }
    close(ends[1]);
    if (read(ends[0], &n, sizeof n) != (ssize_t)sizeof n) bail_out("without a fault it does not run");
    close(ends[0]);
    waitpid(pid, NULL, 0);
    fault_world_empty();
    return n;
}

int main(void) {
    const char *only = getenv("ATTN_TEST_ONLY");
    const long stride = fault_stride(9), first = (long)(tap_seed() % 9) % stride;
    fault_world_start();
    for (int is_warm = 0; is_warm < 2; is_warm++) {
        const char *what = is_warm ? "allocations, plugins loaded before" : "allocations, first load";
        struct tally t = {0};
        const long total = count(is_warm);
        int bad = 0;
        ok(total > 100, "%s: %ld in a run", what, total);
        for (long n = only != NULL ? atol(only) : first; n < total; n += only != NULL ? total : stride)
            bad += tally_add(&t, in_child(is_warm, n), what, n);
        tally_show(&t, what);
        is_int(bad, 0, "%s: whichever fails, an answer or an error, and all is well afterwards", what);
    }
    fault_world_end();
    return tap_done();
}
#endif
