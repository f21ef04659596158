/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.c: examination of a plugin file in a child process (probe.h). The child writes what it found, and
 * what it is about to do, into shared memory; whatever happens to it, the parent knows how far it got.
 */
#include "cmd/probe.h"

#include "load/loader.h" /* compiled into the command */

#include <attn/attn_plugin_util.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct probe_shared {
    char step[128]; /* what the child is doing */
    int is_done;
    probe_result_t result;
} probe_shared_t;

ATTN_PRINTF(3, 4) static int probe_fail(probe_result_t *r, int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(r->text, sizeof r->text, format, args);
    va_end(args);
    return r->status = status;
}

#define PROBE_COPY(DST, SRC) snprintf((DST), sizeof(DST), "%s", (SRC) != NULL ? (SRC) : "")

/* What the loader took in, as far as the result has room. */
static void probe_keep(const struct attni_plugin *plugin, probe_result_t *r) {
    const attn_plugin_t *info = &plugin->info;
    PROBE_COPY(r->name, info->name);
    PROBE_COPY(r->version, info->version);
    PROBE_COPY(r->vendor, info->vendor);
    PROBE_COPY(r->license, info->license);
    PROBE_COPY(r->build_id, info->build_id);
    r->num_backends = info->num_backends;
    r->num_options = info->num_options;
    for (uint32_t i = 0; i < plugin->backend_count && i < PROBE_MAX_BACKENDS; i++) {
        const struct attni_backend *b = &plugin->backends[i];
        probe_backend_t *out = &r->backends[i];
        PROBE_COPY(out->name, b->shown.name);
        PROBE_COPY(out->doc, b->shown.doc);
        out->capabilities = b->capabilities;
        out->capabilities.head_sizes = out->capabilities.head_sizes_v =
            out->capabilities.compute_capabilities = NULL;
        out->capabilities.block_sizes = NULL;
    }
}

/* Everything that the child does: the loader's last two steps. */
static int probe_examine(struct attni_plugin *plugin, probe_shared_t *shared) {
    static const struct attni_plugins none;
    probe_result_t *r = &shared->result;
    attn_error_t error = {.struct_size = sizeof error};
    const void *exported = NULL;
    size_t size = 0;
    snprintf(shared->step, sizeof shared->step, "loading it (its constructors run then)");
    int code = attni_plugin_map(plugin, &exported, &size, &error);
    snprintf(shared->step, sizeof shared->step, "reading its tables");
    if (code == ATTN_OK) {
        const attn_plugin_t *raw = exported;
        r->is_mapped = 1;
        if ((size == 0 || size >= offsetof(attn_plugin_t, flags)) && raw->magic == ATTN_PLUGIN_MAGIC) {
            r->abi_major = raw->abi_major;
            r->abi_minor = raw->abi_minor;
        }
        code = attni_plugin_intake(plugin, &none, exported, size, &error);
    }
    if (code != ATTN_OK) return probe_fail(r, code, "%s", error.text);
    probe_keep(plugin, r);
    snprintf(shared->step, sizeof shared->step, "ending the process (its destructors run then)");
    return r->status = ATTN_OK;
}

/* Waits for the child; kills it at the deadline. Returns 0 if it ended by itself. */
static int probe_wait(pid_t child, unsigned timeout_ms, int *status) {
    for (unsigned waited = 0;; waited += 10) {
        pid_t got;
        do
            got = waitpid(child, status, WNOHANG);
        while (got < 0 && errno == EINTR);
        if (got == child) return 0;
        if (waited >= timeout_ms) break;
        struct timespec pause = {0, 10 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    kill(child, SIGKILL);
    while (waitpid(child, status, 0) < 0 && errno == EINTR) {
    }
    return -1;
}

int probe_plugin(const char *path, unsigned timeout_ms, probe_result_t *result) {
    memset(result, 0, sizeof *result);
    if (timeout_ms == 0) timeout_ms = 5000;
    static const struct attni_plugins none;
    struct attni_plugin plugin = {.path = strdup(path)};
    attn_error_t error = {.struct_size = sizeof error};
    if (plugin.path == NULL) return probe_fail(result, ATTN_E_NO_MEMORY, "out of memory for the examination");
    int code = attni_plugin_examine(&plugin, &none, &error);
    if (code != ATTN_OK) {
        free(plugin.path);
        return probe_fail(result, code, "%s", error.text);
    }
    probe_shared_t *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        free(plugin.path);
        return probe_fail(result, ATTN_E_NO_MEMORY, "out of memory for the examination");
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR); /* what a constructor prints is not our output */
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        probe_examine(&plugin, shared);
        shared->is_done = 1;
        exit(0);
    }
    int status = 0, is_late = child > 0 ? probe_wait(child, timeout_ms, &status) : 0;
    *result = shared->result;
    if (child < 0)
        probe_fail(result, ATTN_E_NO_MEMORY, "no child process: %s", strerror(errno));
    else if (is_late)
        probe_fail(result, ATTN_E_INTERNAL, "timed out after %u ms while %s", timeout_ms, shared->step);
    else if (WIFSIGNALED(status))
        probe_fail(result, ATTN_E_INTERNAL, "it ended the process with signal %d (%s) while %s",
                   WTERMSIG(status), strsignal(WTERMSIG(status)), shared->step);
    else if (!shared->is_done)
        probe_fail(result, ATTN_E_INTERNAL, "it exited with status %d while %s", WEXITSTATUS(status),
                   shared->step);
    munmap(shared, sizeof *shared);
    free(plugin.path);
    return result->status;
}
