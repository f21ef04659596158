/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of compiled kernels. A file is code that will run, so the folder must be ours alone: owned by
 * the caller, mode 0700. Files are written under another name and renamed, so that concurrent writers and a
 * crash leave whole files; whatever is wrong with a file only means that it is compiled again. */
#include "triton_compile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct store_header {
    char magic[8];
    uint64_t bytes;
    uint64_t hash;
} store_header_t;
static const char store_magic[8] = "attncb0";

int triton_store_check(const char *dir, attn_error_t *error) {
    struct stat st;
    if (dir[0] != '/')
        return attn_fail(error, ATTN_E_INVALID, "cache_dir", "cache_dir is \"%s\"; expected an absolute path",
                         dir);
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return attn_fail(error, ATTN_E_IO, "cache_dir", "cache_dir %s cannot be made: %s", dir,
                         strerror(errno));
    if (lstat(dir, &st) != 0 || !S_ISDIR(st.st_mode))
        return attn_fail(error, ATTN_E_IO, "cache_dir", "cache_dir %s is not a folder", dir);
    if (st.st_uid != geteuid() || (st.st_mode & 077) != 0)
        return attn_fail(
            error, ATTN_E_TRUST, "cache_dir",
            "cache_dir %s must belong to the caller alone (owner %u, mode %04o): code is loaded from it; "
            "chmod 700 it or name another",
            dir, (unsigned)st.st_uid, (unsigned)(st.st_mode & 07777));
    return ATTN_OK;
}

static int read_all(int fd, void *to, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t got = read(fd, (char *)to + at, n - at);
        if (got <= 0 && errno != EINTR) return -1;
        at += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

static int write_all(int fd, const void *from, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t put = write(fd, (const char *)from + at, n - at);
        if (put < 0 && errno != EINTR) return -1;
        at += put > 0 ? (size_t)put : 0;
    }
    return 0;
}

int triton_store_load(const char *dir, const char *key, void **cubin, size_t *bytes,
                      const attn_host_t *host) {
    char path[4200];
    struct stat st;
    store_header_t h;
    snprintf(path, sizeof path, "%s/%s.cubin", dir, key);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return -1;
    *cubin = NULL;
    errno = 0;
    int good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
               (st.st_mode & 022) == 0 && read_all(fd, &h, sizeof h) == 0 &&
               memcmp(h.magic, store_magic, sizeof h.magic) == 0 && h.bytes > 0 && h.bytes < (1u << 28) &&
               st.st_size == (off_t)(sizeof h + h.bytes) && (*cubin = malloc(h.bytes)) != NULL &&
               read_all(fd, *cubin, h.bytes) == 0 && attn_fingerprint64(0, *cubin, h.bytes) == h.hash;
    close(fd);
    if (!good) {
        free(*cubin);
        *cubin = NULL;
        triton_log(host, ATTN_LOG_WARN, "%s is damaged or not trusted; the kernel is compiled again", path);
        return -1;
    }
    *bytes = h.bytes;
    return 0;
}

void triton_store_save(const char *dir, const char *key, const void *cubin, size_t bytes,
                       const attn_host_t *host) {
    char path[4200], temporary[4200];
    store_header_t h = {.bytes = bytes, .hash = attn_fingerprint64(0, cubin, bytes)};
    memcpy(h.magic, store_magic, sizeof h.magic);
    snprintf(path, sizeof path, "%s/%s.cubin", dir, key);
    snprintf(temporary, sizeof temporary, "%s/%s.XXXXXX", dir, key);
    int fd = mkstemp(temporary);
    int bad =
        fd < 0 || write_all(fd, &h, sizeof h) != 0 || write_all(fd, cubin, bytes) != 0 || fsync(fd) != 0;
    int saved = errno;
    if (fd >= 0 && close(fd) != 0 && !bad) bad = 1, saved = errno;
    if (!bad && rename(temporary, path) != 0) bad = 1, saved = errno;
    if (bad) {
        if (fd >= 0) unlink(temporary);
        triton_log(host, ATTN_LOG_WARN, "%s is not kept: %s; the next open compiles again", path,
                   strerror(saved));
    }
}
