/* SPDX-License-Identifier: Apache-2.0 */
/* out_file.c: a file that appears at once. */
#include "base/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int write_all(int fd, const struct attni_bytes *part) {
    const char *at = part->data;
    for (size_t left = part->size; left > 0;) {
        ssize_t n = write(fd, at, left < (1u << 30) ? left : 1u << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        at += n;
        left -= (size_t)n;
    }
    return 0;
}

/* The entry of the renamed file is in its folder; where a file system cannot say so, the file itself is
 * safe. */
static void sync_folder(const char *path) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int length = slash == NULL ? 0 : slash == path ? 1 : (int)(slash - path);
    if (snprintf(folder, sizeof folder, "%.*s", length ? length : 1, length ? path : ".") >=
        (int)sizeof folder)
        return;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

int attni_out_file_write(const char *path, const struct attni_bytes *parts, size_t count, mode_t mode) {
    char fresh[PATH_MAX];
    struct stat there;
    if (snprintf(fresh, sizeof fresh, "%s.XXXXXX", path) >= (int)sizeof fresh) return ENAMETOOLONG;
    /* the rename below would put a file in the place of a device or of a link */
    if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode)) return ENOTSUP;
    int fd = mkostemp(fresh, O_CLOEXEC | O_NOFOLLOW); /* O_EXCL, mode 0600 */
    if (fd < 0) return errno;
    int failed = 0;
    for (size_t i = 0; failed == 0 && i < count; i++)
        failed = write_all(fd, &parts[i]);
    if (failed == 0 && fchmod(fd, mode) != 0) failed = errno;
    if (failed == 0 && fsync(fd) != 0) failed = errno;
    if (close(fd) != 0 && failed == 0) failed = errno;
    if (failed == 0 && rename(fresh, path) != 0) failed = errno;
    if (failed != 0)
        unlink(fresh);
    else
        sync_folder(path);
    return failed;
}
