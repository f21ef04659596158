/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of compiled kernels under pressure: processes that write and read the same files at the same
 * time, files that a killed process left, a full disk, and several processes that compile the same problem
 * into an empty folder. */
#if !defined _GNU_SOURCE
#define _GNU_SOURCE 1 /* unshare */
#endif
#include "../../tap.h"

#include "triton_compile.h"

#include <attn/attn.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RACERS = 4, ROUNDS = 40, KEYS = 2, LARGEST = 40000 };
static char folder[] = "/tmp/attn-triton-race-XXXXXX";
static int logged;

static void count_line(void *ctx, uint32_t level, const char *text) {
    (void)ctx, (void)level;
    if (logged++ < 3) diag("%s", text);
}
static const attn_host_t host = {.struct_size = sizeof host, .log = count_line};

/* Bytes that follow from the first one and the length, so that a mixture of two writers shows. */
static size_t make_code(unsigned char *code, int writer, int round) {
    size_t n = 2000 + (size_t)(writer * 7919 + round * 104729) % (LARGEST - 2000);
    for (size_t i = 0; i < n; i++)
        code[i] = (unsigned char)(writer * 50 + round + (int)(i * n >> 7));
    return n;
}
static int is_whole(const unsigned char *code, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (code[i] != (unsigned char)(code[0] + (int)(i * n >> 7))) return 0;
    return 1;
}

static int race(int writer) {
    static unsigned char code[LARGEST];
    char key[32];
    int found = 0, broken = 0;
    for (int round = 0; round < ROUNDS; round++) {
        void *back = NULL;
        size_t bytes = 0, n = make_code(code, writer, round);
        snprintf(key, sizeof key, "sm_90-%d", round % KEYS);
        triton_store_save(folder, key, code, n, &host);
        if (triton_store_load(folder, key, &back, &bytes, &host) == 0) {
            found++;
            broken += !is_whole(back, bytes);
            free(back);
        }
    }
    return found == ROUNDS && broken == 0 && logged == 0 ? 0 : 1;
}

static int count_files(const char *dir) {
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    if (d != NULL) closedir(d);
    return n;
}

/* Runs f(i) in `count` processes at once; the number that did not return 0. */
static int in_processes(int count, int (*f)(int)) {
    pid_t children[RACERS];
    int bad = 0;
    fflush(stdout);
    for (int i = 0; i < count; i++)
        if ((children[i] = fork()) == 0) _exit(f(i));
    for (int i = 0; i < count; i++) {
        int status = 1;
        bad += children[i] < 0 || waitpid(children[i], &status, 0) != children[i] || status != 0;
    }
    return bad;
}

/* Nothing is kept, a line says so, and no part of a file stays. */
static int save_fails(const char *dir) {
    static unsigned char code[LARGEST];
    void *back = NULL;
    size_t bytes = 0;
    logged = 0;
    int before = count_files(dir);
    triton_store_save(dir, "sm_90-full", code, sizeof code, &host);
    int lines = logged;
    return lines == 1 && count_files(dir) == before &&
                   triton_store_load(dir, "sm_90-full", &back, &bytes, &host) != 0
               ? 0
               : 1;
}

static int file_limit(int unused) {
    struct rlimit limit = {4096, 4096};
    (void)unused;
    signal(SIGXFSZ, SIG_IGN);
    return setrlimit(RLIMIT_FSIZE, &limit) == 0 ? save_fails(folder) : 1;
}

enum { NO_MOUNT = 77 };
static int full_disk(int unused) {
    char dir[] = "/tmp/attn-triton-small-XXXXXX";
    (void)unused;
    if (mkdtemp(dir) == NULL) return 1;
    int status = NO_MOUNT;
    if (geteuid() == 0 && unshare(CLONE_NEWNS) == 0 &&
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
        mount("tmpfs", dir, "tmpfs", 0, "size=16k,mode=700") == 0) {
        status = save_fails(dir);
        umount(dir);
    }
    rmdir(dir);
    return status;
}

static const char *problem_text;
static int compile(int unused) {
    ATTN_INIT(attn_error_t, e);
    attn_problem_t p;
    triton_config_t c;
    triton_code_t code;
    triton_toolchain_t tools = {.cache_dir = folder, .nvrtc = "", .host = &host};
    (void)unused;
    if (attn_problem_parse(problem_text, &p, &e) != ATTN_OK || triton_configure(&p, 80, &c) != 0 ||
        triton_make_code(&c, &tools, &code, &e) != ATTN_OK) {
        diag("%s", e.text);
        return 1;
    }
    int good = code.count == 1 && code.bytes[0] > 1000 && logged == 0;
    triton_free_code(&code);
    return good ? 0 : 1;
}

int main(void) {
    ATTN_INIT(attn_error_t, e);
    if (mkdtemp(folder) == NULL) bail_out("no temporary folder");
    int bad = in_processes(RACERS, race);
    ok(bad == 0, "%d processes write and read %d files %d times: each load is a whole file (%d saw another)",
       RACERS, KEYS, ROUNDS, bad);
    is_int(count_files(folder), KEYS, "no temporary file is left");

    char path[128];
    snprintf(path, sizeof path, "%s/sm_90-0.cubin.tmp", folder);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    void *back = NULL;
    size_t bytes = 0;
    ok(fd >= 0 && write(fd, "half", 4) == 4 && close(fd) == 0 &&
           triton_store_load(folder, "sm_90-0", &back, &bytes, &host) == 0 && is_whole(back, bytes),
       "what a killed process left does not matter");
    free(back);

    ok(in_processes(1, file_limit) == 0, "a file that cannot grow: nothing is kept, and the log says so");
    fflush(stdout);
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(full_disk(0));
    if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == NO_MOUNT)
        skip(1, "a full disk: no right to mount one");
    else
        ok(status == 0, "a full disk: nothing is kept, and the log says so");

    triton_nvrtc_t nvrtc;
    if (triton_nvrtc_open(&nvrtc, "", 80, &e) != ATTN_OK)
        skip(2, "%s", e.text);
    else {
        triton_nvrtc_close(&nvrtc);
        problem_text = "role=mm_encoder mask=full dtype=float32 num_heads=2 head_size=32 scale=0.1";
        int before = count_files(folder);
        bad = in_processes(3, compile);
        ok(bad == 0, "three processes compile one problem at once (%d failed)", bad);
        is_int(count_files(folder), before + 1, "and leave one file");
    }
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0) diag("%s is left", folder);
    return tap_done();
}
