/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_watch.c: what happens when a file is loaded and when the process ends, seen from a child that has not
 * loaded it yet: constructors and destructors that print, start threads, keep files open, change the process
 * or read its environment.
 */
#include "surroundings.h"

#include <attn/attn_plugin.h>

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ------------------------------------------------------------- environment */

/* The list of variables lies on a page that faults; who faults there first is looked up, and the page
 * opened. */
static struct {
    char *page, **before;
    char path[4096]; /* of the plugin, as realpath says it: not ./plugin.so, nor a link to it */
    volatile sig_atomic_t num_reads;
    struct sigaction handler; /* of SIGSEGV, before */
} env;

static int is_code_of(const char *path, const void *address) {
    Dl_info info;
    char real[4096];
    return dladdr(address, &info) != 0 && info.dli_fname != NULL && realpath(info.dli_fname, real) != NULL &&
           strcmp(real, path) == 0;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    void *frames[8];
    (void)number, (void)context;
    const char *at = info->si_addr;
    if (at < env.page || at >= env.page + 4096) {
        sigaction(SIGSEGV, &env.handler, NULL);
        return;
    }
    mprotect(env.page, 4096, PROT_READ | PROT_WRITE);
    /* this function, the trampoline, getenv and its caller */
    int n = backtrace(frames, 8);
    for (int i = 2; i < n && i < 5; i++)
        if (is_code_of(env.path, frames[i])) {
            env.num_reads++;
            break;
        }
}

void environment_watch(const char *path) {
    void *warm[2];
    size_t count = 0;
    backtrace(warm, 2); /* loads the unwinder, which reads the environment itself */
    while (environ != NULL && environ[count] != NULL)
        count++;
    if (realpath(path, env.path) == NULL) env.path[0] = '\0';
    if (env.page == NULL)
        env.page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (env.page == MAP_FAILED || (count + 1) * sizeof *environ > 4096) {
        env.page = NULL;
        return;
    }
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (environ != (char **)(void *)env.page) {
        env.before = environ;
        memcpy(env.page, environ, (count + 1) * sizeof *environ);
        environ = (char **)(void *)env.page;
    }
    sigaction(SIGSEGV, &action, &env.handler);
    mprotect(env.page, 4096, PROT_NONE);
}

int environment_reads(void) {
    if (env.page != NULL) {
        mprotect(env.page, 4096, PROT_READ | PROT_WRITE);
        size_t n = 0; /* a list that was changed stays, so that whoever compares sees it */
        while (env.before != NULL && env.before[n] != NULL)
            n++;
        if (environ == (char **)(void *)env.page &&
            (env.before == NULL || memcmp(env.page, env.before, (n + 1) * sizeof *environ) == 0))
            environ = env.before;
        sigaction(SIGSEGV, &env.handler, NULL);
    }
    return env.num_reads;
}

/* ------------------------------------------------------------------ loading */

static load_report_t *shared;

static int is_for_cpus(const void *symbol) {
    const attn_plugin_t *plugin = symbol;
    int is_cpu = plugin != NULL && plugin->magic == ATTN_PLUGIN_MAGIC && plugin->num_backends > 0;
    for (uint32_t i = 0; is_cpu && i < plugin->num_backends; i++)
        is_cpu = plugin->backends[i]->capabilities->device_types == ATTN_BIT(kDLCPU);
    return is_cpu;
}

static void load_here(const char *path, int silence) {
    static surroundings_t before, now;
    char what[200];
    dup2(silence, STDOUT_FILENO);
    dup2(silence, STDERR_FILENO);
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE};
    for (size_t i = 0; i < sizeof deadly / sizeof deadly[0]; i++)
        signal(deadly[i], SIG_DFL);
    /* the usual OpenMP runtime reads the environment when it is loaded, and the first who reads is seen */
    dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL);
    surroundings_read(&before);
    const int threads = count_entries("/proc/self/task"), files = count_entries("/proc/self/fd");
    const uint64_t variables = environment_print();
    environment_watch(path);
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const int reads = environment_reads();
    surroundings_read(&now);
    if (file == NULL) _exit(0); /* which is said elsewhere */
    if (surroundings_differ(&before, &now, what, sizeof what))
        snprintf(shared->text, sizeof shared->text, "loading it %s", what);
    else if (count_entries("/proc/self/task") > threads)
        snprintf(shared->text, sizeof shared->text, "loading it starts a thread");
    else if (count_entries("/proc/self/fd") > files)
        snprintf(shared->text, sizeof shared->text, "loading it leaves a file open");
    else if (environment_print() != variables)
        snprintf(shared->text, sizeof shared->text, "loading it changes the environment");
    else if (reads > 0 && is_for_cpus(dlsym(file, ATTN_PLUGIN_SYMBOL_NAME)))
        snprintf(shared->text, sizeof shared->text,
                 "a constructor reads the environment; settings belong in the table of options");
    snprintf(shared->step, sizeof shared->step, "the end of the process");
    shared->is_done = 1;
    exit(0); /* destructors and exit handlers run */
}

void load_watch(const char *path, load_report_t *report) {
    int status = 0, silence = memfd_create("attn-load", MFD_CLOEXEC);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(report, 0, sizeof *report);
    if (shared == MAP_FAILED || silence < 0) return;
    snprintf(shared->step, sizeof shared->step, "loading it");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        load_here(path, silence);
    }
    if (child > 0 && waitpid(child, &status, 0) == child) {
        *report = *shared;
        if (report->text[0] != '\0')
            ;
        else if (WIFSIGNALED(status))
            snprintf(report->text, sizeof report->text, "%s: signal %d (%s)", shared->step, WTERMSIG(status),
                     strsignal(WTERMSIG(status)));
        else if (WEXITSTATUS(status) != 0)
            snprintf(report->text, sizeof report->text, "%s: status %d instead of 0", shared->step,
                     WEXITSTATUS(status));
        else if (lseek(silence, 0, SEEK_END) > 0)
            snprintf(report->text, sizeof report->text,
                     "it prints when it is loaded, or when the process ends");
    }
    close(silence);
    munmap(shared, sizeof *shared);
}
