/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links are resolved first, so the checks see the real directories. Then each component from / down must be
 * owned by root or by the effective user and be writable by nobody else. A directory with the sticky bit
 * (/tmp) may be writable: others cannot replace an entry that is not theirs, and the entry is checked next.
 * The rule is OpenSSH's safe_path.
 */
#include "trust.h"

#include "fail.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)                    ? "a directory"
           : S_ISFIFO(mode)                 ? "a pipe"
           : S_ISSOCK(mode)                 ? "a socket"
           : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                                            : "a special file";
}

static int check_component(const char *path, const struct stat *status, attn_error_t *err) {
    unsigned mode = (unsigned)status->st_mode & 07777;
    if (status->st_uid != 0 && status->st_uid != geteuid())
        return attni_fail(err, ATTN_E_TRUST,
                          "%s is owned by user %u (mode %04o), wanted root or user %u; chown it or install "
                          "the plugin elsewhere",
                          path, (unsigned)status->st_uid, mode, (unsigned)geteuid());
    int sticky_directory = S_ISDIR(status->st_mode) && (mode & S_ISVTX);
    if ((mode & (S_IWGRP | S_IWOTH)) && !sticky_directory)
        return attni_fail(err, ATTN_E_TRUST,
                          "%s is writable by %s (mode %04o, owner %u), so others could change what is "
                          "loaded; chmod go-w it",
                          path, mode & S_IWOTH ? "everybody" : "its group", mode, (unsigned)status->st_uid);
    return 0;
}

/* Cuts the path at each '/' in turn, so that directories are checked from the root down. */
static int check_parents(char *path, attn_error_t *err) {
    struct stat status;
    if (lstat("/", &status) == 0) {
        int code = check_component("/", &status, err);
        if (code) return code;
    }
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int code = lstat(path, &status)
                       ? attni_fail(err, ATTN_E_TRUST, "cannot examine %s: %s", path, strerror(errno))
                       : check_component(path, &status, err);
        *slash = '/';
        if (code) return code;
    }
    return 0;
}

static int check_file(const char *path, struct attni_trusted_file *file, attn_error_t *err) {
    struct stat status;
    if (lstat(path, &status))
        return attni_fail(err, ATTN_E_TRUST, "cannot examine %s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return attni_fail(err, ATTN_E_TRUST, "%s is %s, wanted a regular file; name the plugin's .so", path,
                          kind_of(status.st_mode));
    file->device = status.st_dev;
    file->inode = status.st_ino;
    file->size = status.st_size;
    return check_component(path, &status, err);
}

int attni_trust_check(const char *path, struct attni_trusted_file *file, attn_error_t *err) {
    if (path[0] != '/')
        return attni_fail(err, ATTN_E_INVALID, "plugin path '%s' is not absolute; write it from / on", path);
    char *real = realpath(path, NULL);
    if (!real)
        return attni_fail(err, errno == ENOENT || errno == ENOTDIR ? ATTN_E_NOT_FOUND : ATTN_E_IO,
                          "cannot find %s: %s; install it there or mend the path", path, strerror(errno));
    struct attni_trusted_file found = {.path = real};
    int code = check_parents(real, err);
    if (!code) code = check_file(real, &found, err);
    if (code)
        free(real);
    else
        *file = found;
    return code;
}
