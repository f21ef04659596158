/* SPDX-License-Identifier: Apache-2.0 */
/*
 * syscall_faults.c: every system call that a run of the API makes, from reading the configuration to writing
 * what the hooks record, fails once, in a child that is traced. Per call: the errors that it may give, reads
 * and writes of a single byte, a close that reports an error. The child must end with an answer or with an
 * error that has a text, and do everything right afterwards. A short run tries every 23rd; ATTN_TEST_LONG=1
 * all.
 */
#include "fault_world.h"

#if !defined(__x86_64__) || !defined(__linux__) || defined(__SANITIZE_ADDRESS__) ||                          \
    defined(__SANITIZE_THREAD__)
int main(void) {
    skip_all("x86-64 Linux without sanitizers only");
}
#else
#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>

enum { NO_TRACE = 99 };
enum { SHORT = -1 }; /* in place of an error: one byte is transferred */
static const struct fault {
    long call;
    const char *name;
    int errors[5];
    int after; /* 1: the call is made, and then said to have failed */
} faults[] = {
    {SYS_openat, "openat", {ENOMEM, EMFILE, EINTR, EACCES}, 0},
    {SYS_open, "open", {ENOMEM, EMFILE, EINTR}, 0},
    {SYS_read, "read", {EIO, EINTR, SHORT}, 0},
    {SYS_pread64, "pread", {EIO, SHORT}, 0},
    {SYS_write, "write", {ENOSPC, EIO, EINTR, SHORT}, 0},
    {SYS_writev, "writev", {ENOSPC, EINTR}, 0},
    {SYS_mmap, "mmap", {ENOMEM}, 0},
    {SYS_mprotect, "mprotect", {ENOMEM}, 0},
    {SYS_brk, "brk", {ENOMEM}, 0},
    {SYS_newfstatat, "fstatat", {ENOMEM, EIO, ELOOP}, 0},
    {SYS_fstat, "fstat", {EIO}, 0},
    {SYS_stat, "stat", {ENOMEM, EIO}, 0},
    {SYS_lstat, "lstat", {ENOMEM, EIO}, 0},
    {SYS_statx, "statx", {ENOMEM}, 0},
    {SYS_readlink, "readlink", {ENOMEM, EIO}, 0},
    {SYS_getdents64, "getdents", {EIO}, 0},
    {SYS_lseek, "lseek", {EIO}, 0},
    {SYS_fcntl, "fcntl", {EINVAL}, 0},
    {SYS_ftruncate, "ftruncate", {EIO, EINTR}, 0},
    {SYS_fsync, "fsync", {EIO, EINTR}, 0},
    {SYS_fdatasync, "fdatasync", {EIO}, 0},
    {SYS_rename, "rename", {EACCES, ENOSPC}, 0},
    {SYS_renameat2, "renameat2", {EINVAL, ENOSPC}, 0},
    {SYS_unlink, "unlink", {EIO}, 0},
    {SYS_close, "close", {EIO, EINTR}, 1},
    {SYS_getrandom, "getrandom", {EAGAIN, ENOSYS}, 0},
    {SYS_sched_getaffinity, "sched_getaffinity", {EINVAL}, 0},
    {SYS_clone, "clone", {EAGAIN}, 0},
    {SYS_clone3, "clone3", {EAGAIN, ENOSYS}, 0},
    {SYS_getcwd, "getcwd", {ENOMEM}, 0},
    {SYS_access, "access", {EACCES}, 0},
    {SYS_flock, "flock", {EINTR}, 0},
};
enum { NUM_FAULTS = sizeof faults / sizeof faults[0] };
static long made[NUM_FAULTS]; /* of one run without faults */

/* The run to be hurt lies between two marks. */
static void mark(void) {
    (void)syscall(SYS_getpgid, 0);
}

static void child(void) {
    limit_child();
    const int descriptors = open_descriptors();
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(NO_TRACE);
    raise(SIGSTOP);
    mark();
    enum outcome got = fault_world_run();
    mark();
    if (got > REFUSED) _exit(STATUS_OF_OUTCOMES + (int)got);
    if (fault_world_run() != SERVED) _exit(STATUS_OF_OUTCOMES + NOT_USABLE);
    _exit(STATUS_OF_OUTCOMES + (int)(open_descriptors() != descriptors ? LEFT_OPEN : got));
}

static int fault_of(long call) {
    for (int i = 0; i < NUM_FAULTS; i++)
        if (faults[i].call == call) return i;
    return -1;
}

/* Runs a child; call number n of faults[which] gets that error. which -1: counts all of them. */
static int traced(int which, long n, int error) {
    int status = 0, is_entry = 1, marks = 0, is_pending = 0;
    long seen_calls = 0;
    struct user_regs_struct regs;
    const pid_t pid = fork();
    if (pid == 0) child();
    if (pid < 0 || waitpid(pid, &status, 0) != pid) bail_out("no child");
    if (!WIFSTOPPED(status)) return status;
    ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *)(uintptr_t)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
    for (long signal = 0; ptrace(PTRACE_SYSCALL, pid, NULL, (void *)signal) == 0;) {
        if (waitpid(pid, &status, 0) != pid) bail_out("the child is gone");
        if (!WIFSTOPPED(status)) return status;
        signal = WSTOPSIG(status) == (SIGTRAP | 0x80) ? 0 : WSTOPSIG(status);
        if (signal != 0) continue;
        if (ptrace(PTRACE_GETREGS, pid, NULL, &regs) != 0) bail_out("no registers");
        if (is_entry) {
            const long call = (long)regs.orig_rax;
            const int at = fault_of(call);
            marks += call == SYS_getpgid;
            if (at >= 0 && marks == 1 && which < 0) made[at]++;
            is_pending = at >= 0 && at == which && marks == 1 && seen_calls++ == n;
            if (is_pending && error == SHORT) {
                if (regs.rdx > 1) regs.rdx = 1;
                ptrace(PTRACE_SETREGS, pid, NULL, &regs);
                break;
            } else if (is_pending && !faults[at].after) {
                regs.orig_rax = (unsigned long long)-1;
                ptrace(PTRACE_SETREGS, pid, NULL, &regs);
            }
        } else if (is_pending) {
            regs.rax = (unsigned long long)-(long long)error;
            ptrace(PTRACE_SETREGS, pid, NULL, &regs);
            break;
        } else if (marks == 2) {
            break;
        }
        is_entry = !is_entry;
    }
    ptrace(PTRACE_DETACH, pid, NULL, NULL); /* nothing more to see; the rest is faster without us */
    waitpid(pid, &status, 0);
    return status;
}

int main(void) {
    const long stride = fault_stride(23);
    long turn = (long)(tap_seed() % 23);
    struct tally all = {0};
    int bad = 0;
    fault_world_start();
    const int status = traced(-1, 0, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_TRACE) skip_all("this process may not trace another");
    ok(WIFEXITED(status) && WEXITSTATUS(status) == STATUS_OF_OUTCOMES + SERVED, "without a fault it runs");
    fault_world_empty();
    for (int f = 0; f < NUM_FAULTS; f++) {
        struct tally t = {0};
        char what[64];
        for (int e = 0; e < 5 && faults[f].errors[e] != 0; e++)
            for (long n = 0; n < made[f]; n++) {
                const int error = faults[f].errors[e];
                if (++turn % stride != 0) continue;
                snprintf(what, sizeof what, "%s, %s", faults[f].name,
                         error == SHORT ? "one byte" : strerrorname_np(error));
                const int one = traced(f, n, error);
                bad += tally_add(&t, one, what, n);
                tally_add(&all, one, NULL, n);
                fault_world_empty();
            }
        snprintf(what, sizeof what, "%s (%ld calls)", faults[f].name, made[f]);
        if (made[f] > 0) tally_show(&t, what);
    }
    tally_show(&all, "system calls");
    is_int(bad, 0, "whichever fails, an answer or an error, and all is well afterwards");
    fault_world_end();
    return tap_done();
}
#endif
