/* SPDX-License-Identifier: Apache-2.0 */
/* Which files may be loaded as code or obeyed as configuration: whoever can change them must be root or the
 * caller. */
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
 * Checks a regular file, every directory that leads to it, and every symbolic link on the way.
 * ATTN_E_INVALID: the path is not absolute, or the dynamic linker would read it as another; ATTN_E_NOT_FOUND:
 * no such file; ATTN_E_TRUST: the text names the path at fault, what it has and what to do. Reads the file
 * system only, and opens nothing. [any thread]
 */
int attni_trust_check(const char *path, struct attni_trusted_file *file, attn_error_t *error);

/* The same for a file that is read and not executed; a relative path counts from the current directory. */
int attni_trust_check_text(const char *path, attn_error_t *error);

/* The same for a folder that code is searched in. One that does not exist is fine where only root or the
 * caller can make it. */
int attni_trust_check_folder(const char *path, attn_error_t *error);

/* The folder `attn` beside libattn.so, so that an installation may be moved as a whole; NULL: there is none,
 * or libattn is part of the program. Lives as long as the process. [any thread] */
const char *attni_plugins_beside(void);

#endif
