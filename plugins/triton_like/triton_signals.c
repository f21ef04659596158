/* SPDX-License-Identifier: Apache-2.0 */
/* NVRTC handles SIGINT, SIGTERM and SIGXFSZ while it compiles and puts the old handlers back by signal(),
 * which changes their flags; two compilations at once may even leave its own there. Here the caller's come
 * back as they were. */
#if !defined _GNU_SOURCE
#define _GNU_SOURCE 1 /* dladdr */
#endif
#include "triton_compile.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

enum { NUM_TAKEN = 3 };
static const int taken[NUM_TAKEN] = {SIGINT, SIGTERM, SIGXFSZ};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before[NUM_TAKEN];
static int compiling;

static void *file_of(const void *address) {
    Dl_info info;
    return dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

void triton_signals_keep(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < NUM_TAKEN && compiling == 0; i++)
        sigaction(taken[i], NULL, &before[i]);
    compiling++;
    pthread_mutex_unlock(&lock);
}

void triton_signals_restore(const triton_nvrtc_t *n) {
    void *compile, *handler;
    memcpy(&compile, &n->compile, sizeof compile);
    pthread_mutex_lock(&lock);
    compiling--;
    for (int i = 0; i < NUM_TAKEN && compiling == 0; i++) {
        struct sigaction now;
        sigaction(taken[i], NULL, &now);
        memcpy(&handler, &now.sa_handler, sizeof handler);
        /* any other handler was set meanwhile by the program */
        if (now.sa_handler == before[i].sa_handler ||
            (file_of(handler) != NULL && file_of(handler) == file_of(compile)))
            sigaction(taken[i], &before[i], NULL);
    }
    pthread_mutex_unlock(&lock);
}
