/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.c: examination of a plugin file in a child process (probe.h). The child writes what it found, and what it is
 * about to do, into shared memory; whatever happens to it, the parent knows how far it came.
 */
#include "probe.h"

#include "../core/loader.h" /* attni_elf_check, which is compiled into the command */

#include <attn/attn_plugin_util.h>

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

/* Letters, digits and '_'; backends in capitals. */
static int probe_is_name(const char *name, int is_backend) {
    if (name == NULL || *name == '\0' || strlen(name) > 63) return 0;
    for (const char *c = name; *c != '\0'; c++)
        if (!(isalnum((unsigned char)*c) || *c == '_') || (is_backend && islower((unsigned char)*c)))
            return 0;
    return 1;
}

static int probe_backend_at(const attn_plugin_t *plugin, uint32_t i, probe_shared_t *shared) {
    probe_result_t *r = &shared->result;
    snprintf(shared->step, sizeof shared->step, "reading backend %u of its table", i);
    const attn_backend_t *b = plugin->backends[i];
    if (b == NULL || !ATTN_HAS(b, attn_backend_t, ops))
        return probe_fail(r, ATTN_E_ABI, "backend %u is missing or its struct_size ends before ops", i);
    if (!probe_is_name(b->name, 1))
        return probe_fail(r, ATTN_E_ABI,
                          "the name of backend %u is '%.40s'; it must be capitals, digits and '_'", i,
                          b->name != NULL ? b->name : "(null)");
    if (b->capabilities == NULL || !ATTN_HAS(b->capabilities, attn_capabilities_t, device_types))
        return probe_fail(r, ATTN_E_ABI, "backend %s has no table of capabilities, or a short one", b->name);
    if (b->ops == NULL || !ATTN_HAS_OP(b->ops, open) || !ATTN_HAS_OP(b->ops, close) ||
        !ATTN_HAS_OP(b->ops, kv_cache_shape) || !ATTN_HAS_OP(b->ops, space_needed) ||
        !ATTN_HAS_OP(b->ops, build_metadata) || !ATTN_HAS_OP(b->ops, forward))
        return probe_fail(
            r, ATTN_E_ABI,
            "backend %s lacks one of open, close, kv_cache_shape, space_needed, build_metadata, "
            "forward: give them all",
            b->name);
    if (i >= PROBE_MAX_BACKENDS) return ATTN_OK;
    probe_backend_t *out = &r->backends[i];
    PROBE_COPY(out->name, b->name);
    PROBE_COPY(out->doc, b->doc);
    uint32_t size = b->capabilities->struct_size;
    memcpy(&out->capabilities, b->capabilities,
           size < sizeof out->capabilities ? size : sizeof out->capabilities);
    out->capabilities.head_sizes = out->capabilities.head_sizes_v = out->capabilities.compute_capabilities =
        NULL;
    out->capabilities.block_sizes = NULL;
    return ATTN_OK;
}

/* Everything that the child does. */
static int probe_examine(const char *path, probe_shared_t *shared) {
    probe_result_t *r = &shared->result;
    snprintf(shared->step, sizeof shared->step, "loading it (its constructors run then)");
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return probe_fail(r, ATTN_E_IO, "%s; the usual cause is a missing dependency: look with ldd %s",
                          dlerror(), path);
    snprintf(shared->step, sizeof shared->step, "reading %s", ATTN_PLUGIN_SYMBOL_NAME);
    const attn_plugin_t *plugin = dlsym(handle, ATTN_PLUGIN_SYMBOL_NAME);
    if (plugin == NULL)
        return probe_fail(r, ATTN_E_ABI, "it does not export %s: not a plugin of ABI major %d",
                          ATTN_PLUGIN_SYMBOL_NAME, ATTN_ABI_MAJOR);
    Dl_info info;
    struct stat mine, theirs;
    if (dladdr(plugin, &info) == 0 || stat(path, &mine) != 0 || stat(info.dli_fname, &theirs) != 0 ||
        mine.st_ino != theirs.st_ino || mine.st_dev != theirs.st_dev)
        return probe_fail(r, ATTN_E_ABI, "its %s lies in another file, %s", ATTN_PLUGIN_SYMBOL_NAME,
                          info.dli_fname != NULL ? info.dli_fname : "unknown");
    if (plugin->magic != ATTN_PLUGIN_MAGIC)
        return probe_fail(r, ATTN_E_ABI, "its magic is 0x%016llx; 0x%016llx was wanted",
                          (unsigned long long)plugin->magic, (unsigned long long)ATTN_PLUGIN_MAGIC);
    r->abi_major = plugin->abi_major;
    r->abi_minor = plugin->abi_minor;
    if (plugin->abi_major != ATTN_ABI_MAJOR)
        return probe_fail(r, ATTN_E_ABI,
                          "it was built for ABI %u.%u, this is %d.%d: build it again with these headers",
                          plugin->abi_major, plugin->abi_minor, ATTN_ABI_MAJOR, ATTN_ABI_MINOR);
    if (!ATTN_HAS(plugin, attn_plugin_t, backends))
        return probe_fail(r, ATTN_E_ABI, "its struct_size is %u and ends before backends",
                          plugin->struct_size);
    if (!probe_is_name(plugin->name, 0))
        return probe_fail(r, ATTN_E_ABI, "its name is '%.40s'; it must be letters, digits and '_'",
                          plugin->name != NULL ? plugin->name : "(null)");
    PROBE_COPY(r->name, plugin->name);
    PROBE_COPY(r->version, plugin->version);
    PROBE_COPY(r->vendor, plugin->vendor);
    PROBE_COPY(r->license, plugin->license);
    PROBE_COPY(r->build_id, plugin->build_id);
    r->num_backends = plugin->num_backends;
    r->num_options = plugin->num_options;
    if (plugin->num_backends == 0 || plugin->backends == NULL)
        return probe_fail(r, ATTN_E_ABI, "it holds no backend");
    for (uint32_t i = 0; i < plugin->num_backends; i++)
        if (probe_backend_at(plugin, i, shared) != ATTN_OK) return r->status;
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
    char real[4096]; /* a name without a slash would make dlopen search the library path */
    if (realpath(path, real) == NULL || access(real, R_OK) != 0)
        return probe_fail(result, ATTN_E_IO, "%s cannot be read: %s", path, strerror(errno));
    attn_error_t error = {.struct_size = sizeof error};
    int code = attni_elf_check(real, &error);
    if (code != ATTN_OK) return probe_fail(result, code, "%s", error.text);
    probe_shared_t *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return probe_fail(result, ATTN_E_NO_MEMORY, "no memory for the examination");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR); /* what a constructor prints is not our output */
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        probe_examine(real, shared);
        shared->is_done = 1;
        exit(0);
    }
    int status = 0, is_late = child > 0 ? probe_wait(child, timeout_ms, &status) : 0;
    *result = shared->result;
    if (child < 0)
        probe_fail(result, ATTN_E_NO_MEMORY, "no child process: %s", strerror(errno));
    else if (is_late)
        probe_fail(result, ATTN_E_INTERNAL, "no end within %u ms while %s: it hangs", timeout_ms,
                   shared->step);
    else if (WIFSIGNALED(status))
        probe_fail(result, ATTN_E_INTERNAL, "it ended the process with signal %d (%s) while %s",
                   WTERMSIG(status), strsignal(WTERMSIG(status)), shared->step);
    else if (!shared->is_done)
        probe_fail(result, ATTN_E_INTERNAL, "it left the process with status %d while %s",
                   WEXITSTATUS(status), shared->step);
    munmap(shared, sizeof *shared);
    return result->status;
}
