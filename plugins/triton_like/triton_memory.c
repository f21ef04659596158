/* SPDX-License-Identifier: Apache-2.0 */
/* The code that this process compiled or read last: groups of layers with one problem, and problems that are
 * opened again, cost a copy. Without a cache_dir too; NVRTC keeps about 100 bytes of each compilation for
 * ever, so opening again and again would grow. */
#include "triton_compile.h"

#include <pthread.h>
#include <stdlib.h>

enum { NUM_KEPT = 32 };

typedef struct kept {
    char key[64];
    void *cubin;
    size_t bytes;
    unsigned long long used;
} kept_t;
static kept_t all[NUM_KEPT];
static unsigned long long now;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static kept_t *find(const char *key) {
    for (int i = 0; i < NUM_KEPT; i++)
        if (all[i].cubin != NULL && strcmp(all[i].key, key) == 0) return &all[i];
    return NULL;
}

static void *copy_of(const void *from, size_t bytes) {
    void *to = malloc(bytes);
    if (to != NULL) memcpy(to, from, bytes);
    return to;
}

int triton_memory_load(const char *key, void **cubin, size_t *bytes) {
    pthread_mutex_lock(&lock);
    kept_t *k = find(key);
    if (k != NULL && (*cubin = copy_of(k->cubin, k->bytes)) != NULL)
        *bytes = k->bytes, k->used = ++now;
    else
        k = NULL;
    pthread_mutex_unlock(&lock);
    return k != NULL ? 0 : -1;
}

void triton_memory_save(const char *key, const void *cubin, size_t bytes) {
    void *copy = copy_of(cubin, bytes);
    pthread_mutex_lock(&lock);
    kept_t *k = &all[0];
    for (int i = 1; i < NUM_KEPT; i++)
        if (all[i].used < k->used) k = &all[i];
    if (copy != NULL && find(key) == NULL) {
        free(k->cubin);
        *k = (kept_t){.cubin = copy, .bytes = bytes, .used = ++now};
        snprintf(k->key, sizeof k->key, "%s", key);
        copy = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(copy);
}

/* When the plugin is unloaded. */
__attribute__((destructor)) static void forget(void) {
    for (int i = 0; i < NUM_KEPT; i++)
        free(all[i].cubin);
    memset(all, 0, sizeof all);
}
