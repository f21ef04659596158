/* SPDX-License-Identifier: Apache-2.0 */
/* out_file.h: every file that libattn and its command make goes out here, whole or not at all. */
#ifndef ATTNI_OUT_FILE_H
#define ATTNI_OUT_FILE_H

#include <stddef.h>
#include <sys/types.h>

struct attni_bytes {
    const void *data;
    size_t size;
};

/*
 * Writes the parts, one behind the other, to a new file beside `path` and renames it to `path` once it is on
 * the disk. Until then what was there stays as it is. mode: of the file, the umask is not applied. 0, or an
 * errno with nothing changed and nothing left behind; ENOTSUP: `path` is a symbolic link, a device, a folder:
 * anything that is not a regular file. [any thread]
 */
int attni_out_file_write(const char *path, const struct attni_bytes *parts, size_t count, mode_t mode);

#endif
