/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlopen maps a truncated file and dies of SIGBUS on its missing pages, and its messages for foreign files
 * are thin. The headers are therefore read before: ELF, this machine, every loaded segment inside the file.
 */
#include <attn/attn_plugin_util.h>
#include "load/loader.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OUR_MACHINE EM_AARCH64
#else
#define OUR_MACHINE EM_NONE /* not checked: dlopen will tell */
#endif

static int check_segments(int fd, const ElfW(Ehdr) * header, unsigned long long size, const char *path,
                          attn_error_t *error) {
    for (unsigned i = 0; i < header->e_phnum; i++) {
        ElfW(Phdr) segment;
        off_t at = (off_t)(header->e_phoff + (unsigned long long)i * sizeof segment);
        unsigned long long end = 0;
        if (pread(fd, &segment, sizeof segment, at) != (ssize_t)sizeof segment)
            end = (unsigned long long)at + sizeof segment;
        else if (segment.p_type == PT_LOAD || segment.p_type == PT_DYNAMIC)
            end = (unsigned long long)segment.p_offset + segment.p_filesz;
        if (end > size)
            return attn_fail(error, ATTN_E_ABI, "",
                             "%s is cut short: it has %llu bytes and needs %llu; copy it again", path, size,
                             end);
    }
    return 0;
}

static int check_header(int fd, const char *path, attn_error_t *error) {
    struct stat status;
    ElfW(Ehdr) header;
    if (fstat(fd, &status))
        return attn_fail(error, ATTN_E_IO, "", "cannot examine %s: %s", path, strerror(errno));
    if (pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header ||
        memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
        return attn_fail(error, ATTN_E_ABI, "", "%s is not an ELF file; name a plugin built with -shared",
                         path);
    const unsigned long one = 1;
    int our_class = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
    int our_order = *(const unsigned char *)&one ? ELFDATA2LSB : ELFDATA2MSB;
    if (header.e_ident[EI_CLASS] != our_class || header.e_ident[EI_DATA] != our_order ||
        (OUR_MACHINE != EM_NONE && header.e_machine != OUR_MACHINE))
        return attn_fail(error, ATTN_E_ABI, "",
                         "%s is for ELF machine %u class %u, this process for machine %d class %d; build it "
                         "for this machine",
                         path, header.e_machine, header.e_ident[EI_CLASS], OUR_MACHINE, our_class);
    if (header.e_type != ET_DYN || header.e_phentsize != sizeof(ElfW(Phdr)))
        return attn_fail(error, ATTN_E_ABI, "",
                         "%s is an ELF file but not a shared object; link it with -shared", path);
    return check_segments(fd, &header, (unsigned long long)status.st_size, path, error);
}

int attni_elf_check(const char *path, attn_error_t *error) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return attn_fail(error, ATTN_E_IO, "", "cannot open %s: %s", path, strerror(errno));
    int code = check_header(fd, path, error);
    close(fd);
    return code;
}
