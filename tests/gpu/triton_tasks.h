/* SPDX-License-Identifier: Apache-2.0 */
/* triton_tasks.h: what the tests of TRITON_ATTN beside REFERENCE share: loading both, and cases that run in
 * several processes, because most of their time is compilation and the oracle. */
#ifndef ATTN_TESTS_GPU_TRITON_TASKS_H
#define ATTN_TESTS_GPU_TRITON_TASKS_H

#include "gpu_memory.h"
#include "part.h"
#include "../tap.h"

#include <sys/wait.h>
#include <unistd.h>

static const attn_backend_t *triton, *reference;

/* dir: the folder of the plugins, NULL for ./plugins-built. Skips where there is no device, and starts CUDA
 * in a child alone: this process must not before it forks. */
static void tasks_load(const char *dir) {
    char why[1300] = "", path[1024], cwd[900] = ".", file[1200];
    int status = 0;
    if (dir == NULL && getcwd(cwd, sizeof cwd) != NULL) {
        snprintf(path, sizeof path, "%s/plugins-built", cwd);
        dir = path;
    }
    fflush(stdout);
    pid_t probe = fork();
    if (probe == 0) _exit(gpu_start() == 0 ? 0 : 1);
    if (probe < 0 || waitpid(probe, &status, 0) != probe || status != 0) skip_all("no CUDA device");
    snprintf(file, sizeof file, "%s/triton_like.so", dir);
    triton = kit_load(file, "TRITON_ATTN", why, sizeof why);
    if (triton != NULL) snprintf(file, sizeof file, "%s/reference.so", dir);
    reference = triton ? kit_load(file, NULL, why, sizeof why) : NULL;
    if (reference == NULL) bail_out("%s: %s", file, why);
}

/* How many processes: what the text says, else one for each processor; 14 at most. */
static int tasks_jobs(const char *text) {
    const long jobs = text ? atol(text) : sysconf(_SC_NPROCESSORS_ONLN);
    return (int)(jobs < 1 ? 1 : jobs > 14 ? 14 : jobs);
}

typedef struct task_list {
    int count;
    int (*run)(int task, char *why, size_t size); /* 1: it passed */
    int (*process)(int task);                     /* modulo the number of processes: which one has it */
    const char *(*name)(int task);
    int shows_all; /* else those alone that fail */
} task_list_t;

/* Runs the tasks in `jobs` processes with a folder of compiled kernels, template `cache_dir` of mkdtemp,
 * which tasks_end deletes; says what failed; returns how many passed, or -1 - that where one did not. */
__attribute__((unused)) static int tasks_run(const task_list_t *list, int jobs, char *cache_dir) {
    static attn_option_value_t options[3];
    static const char *const option_names[3] = {"cache_dir", "nvrtc", "segments"};
    char names[64][64];
    pid_t children[64];
    int passed = 0, failed = 0;
    if (mkdtemp(cache_dir) == NULL) bail_out("no temporary folder");
    for (int i = 0; i < 3; i++)
        options[i] = (attn_option_value_t){.struct_size = sizeof options[i],
                                           .type = i < 2 ? ATTN_OPTION_STRING : ATTN_OPTION_INT,
                                           .name = option_names[i],
                                           .s = i == 0 ? cache_dir : ""};
    gpu.options = options, gpu.num_options = 3;
    for (int j = 0; j < jobs; j++) {
        snprintf(names[j], sizeof names[j], "/tmp/attn-tasks-%ld-%d", (long)getpid(), j);
        children[j] = fork();
        if (children[j] != 0) continue;
        FILE *f = fopen(names[j], "w");
        if (f == NULL || gpu_start() != 0) _exit(2);
        for (int i = 0; i < list->count; i++) {
            char why[1300] = "";
            if (list->process(i) % jobs != j || !part_takes()) continue;
            const int good = list->run(i, why, sizeof why);
            fprintf(f, "%d %s: %s\n", good, list->name(i), why);
            fflush(f);
        }
        fclose(f);
        _exit(0);
    }
    for (int j = 0; j < jobs; j++) {
        char line[1600];
        int status = 0;
        waitpid(children[j], &status, 0);
        FILE *f = fopen(names[j], "r");
        while (f != NULL && fgets(line, sizeof line, f) != NULL) {
            const int good = line[0] == '1';
            passed += good, failed += !good;
            if (!good || list->shows_all) diag("%s%s", good ? "" : "NOT ", line + 2);
        }
        if (f != NULL) fclose(f);
        unlink(names[j]);
        if (status != 0) diag("process %d ended with %d", j, status), failed++;
    }
    return failed == 0 && (passed == list->count || (part_is_short() && passed > 0)) ? passed : -1 - passed;
}

static void tasks_end(const char *cache_dir) {
    char command[640];
    snprintf(command, sizeof command, "rm -rf %s", cache_dir);
    if (system(command) != 0) diag("%s is left", cache_dir);
}

#endif
