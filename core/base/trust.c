/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A walk from / down, one component after the other as the kernel takes them. Each must be owned by root or
 * by the effective user and be writable by nobody else. A directory with the sticky bit (/tmp) may be
 * writable: others cannot replace an entry that is not theirs, and the entry is checked next. But they can
 * make one, so links there are not followed. The rule is OpenSSH's safe_path.
 *
 * libattn's own folder is taken as it is, since whoever may write there owns libattn already; below it, so
 * may its owner and, if that folder is writable by its group, the same group. So a virtual environment made
 * under umask 002 works.
 */
#include "base/trust.h"

#include <attn/attn.h>
#include <attn/attn_plugin_util.h>

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_LINKS = 40 };

/* ------------------------------------------------------ libattn's own folder */

static struct {
    char path[PATH_MAX]; /* "" if it is not known */
    struct stat status;
    char plugins[PATH_MAX]; /* "" unless this is libattn.so and has a folder of plugins beside it */
} own;

/* The program's own file for a libattn that is linked in: its name in the link map is argv[0], which anybody
 * chooses. */
static void find_own(void) {
    char file[PATH_MAX] = "", real[PATH_MAX];
    Dl_info where;
    struct link_map *map = NULL;
    if (!dladdr1((void *)(uintptr_t)attn_version, &where, (void **)&map, RTLD_DL_LINKMAP) || !map) return;
    int is_library = map->l_name && map->l_name[0] == '/';
    if (is_library) {
        snprintf(file, sizeof file, "%s", map->l_name);
    } else if (!map->l_name || !map->l_name[0]) {
        ssize_t length = readlink("/proc/self/exe", file, sizeof file - 1);
        file[length > 0 ? length : 0] = '\0';
    }
    if (file[0] != '/' || !realpath(file, real)) return;
    char *slash = strrchr(real, '/');
    *slash = '\0';
    if (real[0] == '\0' || lstat(real, &own.status) || !S_ISDIR(own.status.st_mode)) return;
    snprintf(own.path, sizeof own.path, "%s", real);
    struct stat beside;
    int length = snprintf(file, sizeof file, "%s/attn", real);
    if (is_library && length < (int)sizeof file && !stat(file, &beside) && S_ISDIR(beside.st_mode))
        memcpy(own.plugins, file, sizeof file);
}

static const char *own_folder(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_own);
    return own.path;
}

const char *attni_plugins_beside(void) {
    return own_folder()[0] && own.plugins[0] ? own.plugins : NULL;
}

/* Whether `path` is `folder` or lies below it. */
static int is_below(const char *path, const char *folder) {
    size_t length = strlen(folder);
    return !strncmp(path, folder, length) && (path[length] == '/' || path[length] == '\0');
}

/* ----------------------------------------------------------------- components */

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)                    ? "a directory"
           : S_ISFIFO(mode)                 ? "a pipe"
           : S_ISSOCK(mode)                 ? "a socket"
           : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                                            : "a special file";
}

static int check_component(const char *path, const struct stat *status, attn_error_t *error) {
    const char *folder = own_folder();
    unsigned mode = (unsigned)status->st_mode & 07777, others = S_IWGRP | S_IWOTH;
    uid_t owner = geteuid();
    if (folder[0] && is_below(folder, path)) return 0;
    if (folder[0] && is_below(path, folder)) {
        owner = own.status.st_uid;
        if (own.status.st_mode & S_IWGRP && own.status.st_gid == status->st_gid) others = S_IWOTH;
    }
    if (status->st_uid != 0 && status->st_uid != geteuid() && status->st_uid != owner)
        return attn_fail(
            error, ATTN_E_TRUST, "",
            "%s is owned by user %u (mode %04o), expected root or user %u; chown it or name another "
            "file",
            path, (unsigned)status->st_uid, mode, (unsigned)geteuid());
    int sticky_directory = S_ISDIR(status->st_mode) && (mode & S_ISVTX);
    if ((mode & others) && !sticky_directory)
        return attn_fail(error, ATTN_E_TRUST, "",
                         "%s is writable by %s (mode %04o, owner %u), so others could change what is "
                         "loaded; chmod go-w it",
                         path, mode & S_IWOTH ? "everybody" : "its group", mode, (unsigned)status->st_uid);
    return 0;
}

/* ----------------------------------------------------------------------- walk */

struct walk {
    char at[PATH_MAX];   /* resolved so far: no link, no ".." */
    char rest[PATH_MAX]; /* still to be resolved */
    struct stat status;  /* of `at` */
    int links;
    attn_error_t *error;
};

static int too_long(const struct walk *w) {
    return attn_fail(w->error, ATTN_E_IO, "", "%.200s...: %s", w->at, strerror(ENAMETOOLONG));
}

/* The link `next` in the directory w->at: its target goes before the rest. */
static int follow(struct walk *w, const char *next) {
    char target[PATH_MAX], rest[PATH_MAX];
    if (w->status.st_mode & (S_IWGRP | S_IWOTH) && !(own_folder()[0] && is_below(w->at, own_folder())))
        return attn_fail(
            w->error, ATTN_E_TRUST, "",
            "%s is a symbolic link in a folder that others can write to (mode %04o), and is not followed; "
            "name the file itself",
            next, (unsigned)w->status.st_mode & 07777);
    ssize_t length = readlink(next, target, sizeof target - 1);
    if (length < 0)
        return attn_fail(w->error, ATTN_E_TRUST, "", "cannot examine %s: %s", next, strerror(errno));
    if (++w->links > MAX_LINKS)
        return attn_fail(w->error, ATTN_E_IO, "", "cannot find %s: %s; correct the path", next,
                         strerror(ELOOP));
    target[length] = '\0';
    if (snprintf(rest, sizeof rest, "%s/%s", target, w->rest) >= (int)sizeof rest) return too_long(w);
    memcpy(w->rest, rest, sizeof rest);
    if (target[0] == '/') {
        strcpy(w->at, "/");
        if (lstat("/", &w->status)) return attn_fail(w->error, ATTN_E_IO, "", "/: %s", strerror(errno));
    }
    return 0;
}

static void go_up(struct walk *w) {
    char *slash = strrchr(w->at, '/');
    *(slash == w->at ? slash + 1 : slash) = '\0';
    if (lstat(w->at, &w->status)) memset(&w->status, 0, sizeof w->status);
}

/* One component. ATTN_E_NOT_FOUND: it is not there. */
static int step(struct walk *w, const char *name, size_t length) {
    char next[PATH_MAX];
    struct stat status;
    if (length == 0 || (length == 1 && name[0] == '.')) return 0;
    if (length == 2 && !memcmp(name, "..", 2)) return go_up(w), 0;
    if (snprintf(next, sizeof next, "%s%s%.*s", w->at, w->at[1] ? "/" : "", (int)length, name) >=
        (int)sizeof next)
        return too_long(w);
    if (lstat(next, &status)) {
        int absent = errno == ENOENT || errno == ENOTDIR;
        return attn_fail(w->error, absent ? ATTN_E_NOT_FOUND : ATTN_E_IO, "",
                         "cannot find %s: %s; install it there or correct the path", next, strerror(errno));
    }
    if (S_ISLNK(status.st_mode)) return follow(w, next);
    strcpy(w->at, next);
    w->status = status;
    return S_ISDIR(status.st_mode) ? check_component(w->at, &w->status, w->error) : 0;
}

/* Ends with w->at, which is not a link, and its status; directories on the way are checked, w->at is if it is
 * one. */
static int walk(struct walk *w, const char *path, attn_error_t *error) {
    memset(w, 0, sizeof *w);
    w->error = error;
    strcpy(w->at, "/");
    if (lstat("/", &w->status)) return attn_fail(error, ATTN_E_IO, "", "/: %s", strerror(errno));
    if (snprintf(w->rest, sizeof w->rest, "%s", path) >= (int)sizeof w->rest) return too_long(w);
    int code = check_component("/", &w->status, error);
    while (code == ATTN_OK && w->rest[0]) {
        char name[PATH_MAX];
        size_t length = strcspn(w->rest, "/"), used = length + (w->rest[length] == '/');
        memcpy(name, w->rest, length);
        name[length] = '\0';
        memmove(w->rest, w->rest + used, strlen(w->rest + used) + 1);
        code = step(w, name, length);
    }
    return code;
}

static int check_file(const char *path, const char *wanted, struct attni_trusted_file *file,
                      attn_error_t *error) {
    struct walk *w = malloc(sizeof *w);
    if (!w) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory while examining %s", path);
    int code = walk(w, path, error);
    if (code == ATTN_OK && !S_ISREG(w->status.st_mode))
        code = attn_fail(error, ATTN_E_TRUST, "", "%s is %s, expected a regular file; %s", w->at,
                         kind_of(w->status.st_mode), wanted);
    if (code == ATTN_OK) code = check_component(w->at, &w->status, error);
    if (code == ATTN_OK && file) {
        *file =
            (struct attni_trusted_file){strdup(w->at), w->status.st_dev, w->status.st_ino, w->status.st_size};
        if (!file->path)
            code = attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory while examining %s", path);
    }
    free(w);
    return code;
}

int attni_trust_check(const char *path, struct attni_trusted_file *file, attn_error_t *error) {
    if (path[0] != '/')
        return attn_fail(error, ATTN_E_INVALID, "", "plugin path '%s' is not absolute; write it from / on",
                         path);
    int code = check_file(path, "name the plugin's .so", file, error);
    if (code != ATTN_OK || !strchr(file->path, '$')) return code;
    /* $LIB, $ORIGIN and $PLATFORM, also in braces: dlopen would open another file than the one checked */
    free(file->path);
    file->path = NULL;
    return attn_fail(
        error, ATTN_E_TRUST, "",
        "plugin path '%s' has a '$', which the dynamic linker replaces; rename the folder or file", path);
}

int attni_trust_check_text(const char *path, attn_error_t *error) {
    char absolute[2 * PATH_MAX], here[PATH_MAX];
    if (path[0] == '/') return check_file(path, "name an INI file", NULL, error);
    if (!getcwd(here, sizeof here))
        return attn_fail(error, ATTN_E_IO, "", "%s: no current directory: %s", path, strerror(errno));
    snprintf(absolute, sizeof absolute, "%s/%s", here, path);
    return check_file(absolute, "name an INI file", NULL, error);
}

int attni_trust_check_folder(const char *path, attn_error_t *error) {
    struct walk *w = malloc(sizeof *w);
    if (!w) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory while examining %s", path);
    int code = walk(w, path, error);
    if (code == ATTN_OK || code == ATTN_E_NOT_FOUND) {
        /* in a sticky folder anybody could create what is missing, or put files beside what exists */
        unsigned mode = (unsigned)w->status.st_mode & 07777;
        code = ATTN_OK;
        if (S_ISDIR(w->status.st_mode) && mode & (S_IWGRP | S_IWOTH) && mode & S_ISVTX)
            code =
                attn_fail(error, ATTN_E_TRUST, "",
                          "%s is writable by others (mode %04o), who could put a library there", w->at, mode);
    }
    free(w);
    return code;
}
