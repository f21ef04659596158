/* SPDX-License-Identifier: Apache-2.0 */
/* elf_symbols.c: what a shared object exports, read from its dynamic symbol table without loading it. */
#include "check_engine.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the linker itself may export. */
static int is_linker_symbol(const char *name) {
    static const char *const names[] = {"_init", "_fini", "_edata", "_end", "__bss_start"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) return 1;
    return 0;
}

/* One section of symbols or of dynamic entries, bounds checked; NULL if it does not lie in the file. */
static const void *section_data(const char *file, size_t size, const Elf64_Shdr *s) {
    return s->sh_offset <= size && s->sh_size <= size - s->sh_offset ? file + s->sh_offset : NULL;
}

static int scan(const char *file, size_t size, const char *allowed, char *names, size_t names_size,
                int *num_unique, int *needs_libattn) {
    const Elf64_Ehdr *e = (const void *)file;
    if (size < sizeof *e || memcmp(e->e_ident, ELFMAG, SELFMAG) != 0 || e->e_ident[EI_CLASS] != ELFCLASS64)
        return -1;
    if (e->e_shentsize != sizeof(Elf64_Shdr) || e->e_shoff > size ||
        (size_t)e->e_shnum * sizeof(Elf64_Shdr) > size - e->e_shoff)
        return -1;
    const Elf64_Shdr *sections = (const void *)(file + e->e_shoff);
    int count = 0, found = 0;
    size_t at = 0;
    for (int i = 0; i < e->e_shnum; i++) {
        const Elf64_Shdr *s = &sections[i];
        if ((s->sh_type != SHT_DYNSYM && s->sh_type != SHT_DYNAMIC) || s->sh_link >= e->e_shnum) continue;
        const char *data = section_data(file, size, s),
                   *text = section_data(file, size, &sections[s->sh_link]);
        size_t text_size = sections[s->sh_link].sh_size;
        if (data == NULL || text == NULL || text_size == 0 || text[text_size - 1] != '\0') return -1;
        for (size_t j = 0; s->sh_type == SHT_DYNAMIC && (j + 1) * sizeof(Elf64_Dyn) <= s->sh_size; j++) {
            const Elf64_Dyn *d = (const Elf64_Dyn *)(const void *)data + j;
            if (d->d_tag == DT_NEEDED && d->d_un.d_val < text_size &&
                strstr(text + d->d_un.d_val, "libattn.so") != NULL)
                *needs_libattn = 1;
        }
        for (size_t j = 0; s->sh_type == SHT_DYNSYM && (j + 1) * sizeof(Elf64_Sym) <= s->sh_size; j++) {
            const Elf64_Sym *sym = (const Elf64_Sym *)(const void *)data + j;
            int bind = ELF64_ST_BIND(sym->st_info), visibility = ELF64_ST_VISIBILITY(sym->st_other);
            if (sym->st_shndx == SHN_UNDEF || bind == STB_LOCAL || visibility == STV_HIDDEN ||
                visibility == STV_INTERNAL || sym->st_name >= text_size)
                continue;
            const char *name = text + sym->st_name;
            found = 1;
            if (bind == STB_GNU_UNIQUE) ++*num_unique;
            if (strcmp(name, allowed) == 0 || is_linker_symbol(name)) continue;
            count++;
            if (at < names_size)
                at += (size_t)snprintf(names + at, names_size - at, "%s%s", at > 0 ? ", " : "", name);
        }
    }
    return found ? count : -1;
}

int elf_exports(const char *path, const char *allowed, char *names, size_t size, int *num_unique,
                int *needs_libattn) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC), count = -1;
    *num_unique = *needs_libattn = 0;
    if (size > 0) names[0] = '\0';
    if (fd < 0) return -1;
    if (fstat(fd, &st) == 0 && st.st_size > 0) {
        void *file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (file != MAP_FAILED) {
            count = scan(file, (size_t)st.st_size, allowed, names, size, num_unique, needs_libattn);
            munmap(file, (size_t)st.st_size);
        }
    }
    close(fd);
    return count;
}
