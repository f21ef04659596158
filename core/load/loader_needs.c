/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libraries of a plugin run their constructors as the plugin does. Where the plugin itself says where to
 * look, by DT_RUNPATH, DT_RPATH or a name with a slash in DT_NEEDED, those places have to pass the rule of
 * plugins: a folder that others may write, or one relative to the current directory, would let them choose
 * the code. What the system and the environment add is the caller's own.
 */
#include <attn/attn_plugin_util.h>
#include "load/loader.h"
#include "base/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ENTRIES = 4096, MAX_TEXT = 4 * PATH_MAX };

struct needs {
    int fd;
    const char *path; /* of the plugin */
    ElfW(Ehdr) header;
    ElfW(Addr) strings; /* address of the string table */
    attn_error_t *error;
};

/* The program header number i; 0: there is none. */
static int segment_at(const struct needs *n, unsigned i, ElfW(Phdr) * segment) {
    off_t at = (off_t)(n->header.e_phoff + (unsigned long long)i * sizeof *segment);
    return pread(n->fd, segment, sizeof *segment, at) == (ssize_t)sizeof *segment;
}

/* Where in the file an address lies, or -1. */
static off_t offset_of(const struct needs *n, ElfW(Addr) address) {
    ElfW(Phdr) s;
    for (unsigned i = 0; i < n->header.e_phnum && segment_at(n, i, &s); i++)
        if (s.p_type == PT_LOAD && address >= s.p_vaddr && address - s.p_vaddr < s.p_filesz)
            return (off_t)(address - s.p_vaddr + s.p_offset);
    return -1;
}

static int unclear(const struct needs *n, const char *what) {
    return attn_fail(n->error, ATTN_E_ABI, "", "%s: %s in its dynamic section cannot be read; link it again",
                     n->path, what);
}

/* One folder, or one file with a slash in its name, $ORIGIN in front replaced. */
static int check_place(const struct needs *n, const char *what, const char *text, size_t length,
                       int is_file) {
    char place[MAX_TEXT];
    const char *rest = text;
    ATTN_INIT(attn_error_t, why);
    size_t origin = length >= 7 && !memcmp(text, "$ORIGIN", 7)     ? 7
                    : length >= 9 && !memcmp(text, "${ORIGIN}", 9) ? 9
                                                                   : 0;
    if (origin && origin < length && text[origin] != '/') origin = 0;
    const char *slash = strrchr(n->path, '/');
    rest += origin;
    int used = snprintf(place, sizeof place, "%.*s%.*s", origin ? (int)(slash - n->path) : 0, n->path,
                        (int)(length - origin), rest);
    if (used >= (int)sizeof place) return unclear(n, what);
    if (place[0] != '/' || strchr(place, '$'))
        return attn_fail(
            n->error, ATTN_E_TRUST, "",
            "%s: its %s has '%.*s'; expected an absolute path or one below $ORIGIN: link it with "
            "-Wl,-rpath,'$ORIGIN/...'",
            n->path, what, (int)length, text);
    int code = is_file ? attni_trust_check_text(place, &why) : attni_trust_check_folder(place, &why);
    if (code == ATTN_OK || code == ATTN_E_NOT_FOUND) return ATTN_OK;
    return attn_fail(n->error, code, "", "%s: its %s leads to %.*s: %.300s", n->path, what, (int)length, text,
                     why.text);
}

static int check_entry(const struct needs *n, const ElfW(Dyn) * entry) {
    char text[MAX_TEXT];
    const char *what = entry->d_tag == DT_RPATH                                    ? "RPATH"
                       : entry->d_tag == DT_RUNPATH                                ? "RUNPATH"
                       : entry->d_tag == DT_NEEDED                                 ? "NEEDED"
                       : entry->d_tag == DT_AUXILIARY || entry->d_tag == DT_FILTER ? "filter"
                                                                                   : NULL;
    if (!what) return ATTN_OK;
    off_t at = offset_of(n, n->strings + entry->d_un.d_val);
    ssize_t got = at >= 0 ? pread(n->fd, text, sizeof text - 1, at) : -1;
    if (got <= 0) return unclear(n, what);
    text[got] = '\0';
    if (strlen(text) == sizeof text - 1) return unclear(n, what);
    int is_list = entry->d_tag == DT_RPATH || entry->d_tag == DT_RUNPATH;
    if (!is_list) return strchr(text, '/') ? check_place(n, what, text, strlen(text), 1) : ATTN_OK;
    int code = ATTN_OK;
    for (const char *folder = text; code == ATTN_OK && folder;) {
        size_t length = strcspn(folder, ":");
        code = check_place(n, what, folder, length, 0);
        folder = folder[length] ? folder + length + 1 : NULL;
    }
    return code;
}

static int check_dynamic(struct needs *n, const ElfW(Phdr) * dynamic) {
    ElfW(Dyn) entry;
    size_t count = dynamic->p_filesz / sizeof entry;
    if (count > MAX_ENTRIES) return unclear(n, "the table");
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < count; i++) {
            off_t at = (off_t)(dynamic->p_offset + i * sizeof entry);
            if (pread(n->fd, &entry, sizeof entry, at) != (ssize_t)sizeof entry)
                return unclear(n, "the table");
            if (entry.d_tag == DT_NULL) break;
            if (pass == 0 && entry.d_tag == DT_STRTAB) n->strings = entry.d_un.d_ptr;
            int code = pass == 1 ? check_entry(n, &entry) : ATTN_OK;
            if (code != ATTN_OK) return code;
        }
    return ATTN_OK;
}

int attni_elf_needs_check(const char *path, attn_error_t *error) {
    struct needs n = {.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), .path = path, .error = error};
    if (n.fd < 0) return attn_fail(error, ATTN_E_IO, "", "cannot open %s: %s", path, strerror(errno));
    int code = ATTN_OK;
    ElfW(Phdr) segment;
    if (pread(n.fd, &n.header, sizeof n.header, 0) != (ssize_t)sizeof n.header)
        code = unclear(&n, "the header");
    for (unsigned i = 0; code == ATTN_OK && i < n.header.e_phnum && segment_at(&n, i, &segment); i++)
        if (segment.p_type == PT_DYNAMIC) code = check_dynamic(&n, &segment);
    close(n.fd);
    return code;
}
