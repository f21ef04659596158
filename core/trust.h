/* SPDX-License-Identifier: Apache-2.0 */
/* Which files may be loaded as code: the whole path must belong to root or to the caller. */
#ifndef ATTNI_TRUST_H
#define ATTNI_TRUST_H

#include <attn/attn_types.h>
#include <sys/types.h>

struct attni_trusted_file {
    char *path; /* absolute, symbolic links resolved; free() it */
    dev_t device;
    ino_t inode;
    long long size;
};

/*
 * Checks the file and every directory above it. ATTN_E_INVALID: the path is not absolute; ATTN_E_NOT_FOUND:
 * no such file; ATTN_E_TRUST: the text names the path at fault, what it has and what to do. Reads the file
 * system only.
 */
int attni_trust_check(const char *path, struct attni_trusted_file *file, attn_error_t *err);

#endif
