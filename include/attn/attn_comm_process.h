/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_comm_process.h: whether two ranks are threads of one process, so that a pointer of one means the same
 * to the other. For attn_comm_nccl.h and attn_comm_staged.h, and for communicators of an engine's own that
 * give their ranks memory of peers. Header only; for Linux, where process numbers repeat in containers and
 * on other hosts.
 */
#ifndef ATTN_COMM_PROCESS_H
#define ATTN_COMM_PROCESS_H

#include <attn/attn_plugin_util.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Equal in the threads of one process, and nowhere else. */
typedef struct attn_comm_process {
    uint64_t boot;  /* of the running kernel; 0: not known, and nothing is equal */
    uint64_t space; /* of process numbers */
    uint64_t number;
} attn_comm_process_t;

/* [any thread] */
ATTN_UNUSED static attn_comm_process_t attn_comm_process_self(void) {
    attn_comm_process_t self;
    char id[64];
    struct stat there;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    memset(&self, 0, sizeof self);
    if (file != NULL && fgets(id, sizeof id, file) != NULL && stat("/proc/self/ns/pid", &there) == 0) {
        self.boot = attn_fingerprint64(0, id, strlen(id)) | 1;
        self.space = (uint64_t)there.st_ino;
        self.number = (uint64_t)getpid();
    }
    if (file != NULL) fclose(file);
    return self;
}

/* [any thread] */
ATTN_UNUSED static int attn_comm_process_is_same(const attn_comm_process_t *a, const attn_comm_process_t *b) {
    return a->boot != 0 && a->boot == b->boot && a->space == b->space && a->number == b->number;
}

#ifdef __cplusplus
}
#endif
#endif
