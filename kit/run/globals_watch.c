/* SPDX-License-Identifier: Apache-2.0 */
/*
 * globals_watch.c: the writable data of a loaded file, found by its program headers: what the linker made
 * read-only after relocation is left out, thread-local data of the calling thread is in.
 */
#include "surroundings.h"

#include <attn/attn_plugin_util.h>

#include <link.h>
#include <stdlib.h>
#include <unistd.h>

struct search {
    const char *path;
    uint64_t print;
    size_t size;
};

static int add_file(struct dl_phdr_info *info, size_t size, void *arg) {
    struct search *s = arg;
    char real[4096];
    (void)size;
    if (info->dlpi_name == NULL || info->dlpi_name[0] == '\0' || realpath(info->dlpi_name, real) == NULL ||
        strcmp(real, s->path) != 0)
        return 0;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t relro_from = 0, relro_to = 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_GNU_RELRO) {
            relro_from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            relro_to = (relro_from + info->dlpi_phdr[i].p_memsz) / page * page;
        }
    s->print = 1;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type == PT_LOAD && (h->p_flags & PF_W)) {
            uintptr_t from = info->dlpi_addr + h->p_vaddr, to = from + h->p_memsz;
            if (relro_from <= from && from < relro_to) from = relro_to;
            if (from >= to) continue;
            s->print = attn_fingerprint64(s->print, (const void *)from, to - from);
            s->size += to - from;
        } else if (h->p_type == PT_TLS && info->dlpi_tls_data != NULL) {
            s->print = attn_fingerprint64(s->print, info->dlpi_tls_data, h->p_memsz);
            s->size += h->p_memsz;
        }
    }
    return 1;
}

uint64_t globals_print(const char *path, size_t *size) {
    char real[4096]; /* the path may be ./plugin.so, or a link */
    struct search s = {realpath(path, real) != NULL ? real : path, 0, 0};
    dl_iterate_phdr(add_file, &s);
    *size = s.size;
    return s.print;
}
