/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs appear whole or not at all: no room, no memory, links and devices in their place. */
#include "base/out_file.h"
#include "base/tensor_file.h"
#include "core_testing.h"
#include "load/mm_scale_file.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>

static char folder[300];

static const char *in_folder(const char *name) {
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* What a file holds, at most 4095 bytes. */
static const char *content(const char *path) {
    static char text[4096];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = '\0';
    return text;
}

static int entries(void) {
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static int write_text_to(const char *path, const char *text) {
    const struct attni_bytes parts[2] = {{text, strlen(text)}, {"\n", 1}};
    return attni_out_file_write(path, parts, 2, 0640);
}

static void test_good(void) {
    struct stat st;
    const char *path = in_folder("a");
    is_int(write_text_to(path, "one"), 0, "a new file");
    is_str(content(path), "one\n", "of all parts");
    is_int(write_text_to(path, "two"), 0, "in the place of another");
    is_str(content(path), "two\n", "which is gone");
    ok(stat(path, &st) == 0 && (st.st_mode & 07777) == 0640, "with the mode that was asked for");
    is_int(entries(), 1, "and nothing beside it");
    is_int(write_text_to("/nowhere/at/all", "x"), ENOENT, "a folder that is not there");
}

static void test_kinds(void) {
    char link[400];
    snprintf(link, sizeof link, "%s", in_folder("link"));
    if (symlink("a", link)) bail_out("no link");
    is_int(write_text_to(link, "three"), ENOTSUP, "a link");
    is_str(content(in_folder("a")), "two\n", "leads nowhere");
    unlink(link);
    if (mkfifo(link, 0600)) bail_out("no pipe");
    alarm(20);
    is_int(write_text_to(link, "three"), ENOTSUP, "a pipe");
    alarm(0);
    unlink(link);
    is_int(write_text_to("/dev/full", "three"), ENOTSUP, "a device");
}

/* Every write beyond 100 bytes fails, as on a full disk. */
static void limit(rlim_t bytes) {
    struct rlimit l;
    getrlimit(RLIMIT_FSIZE, &l);
    l.rlim_cur = bytes;
    if (setrlimit(RLIMIT_FSIZE, &l)) bail_out("no limit");
}

static void test_no_room(void) {
    static char much[5000];
    memset(much, 'x', sizeof much - 1);
    signal(SIGXFSZ, SIG_IGN);
    limit(100);
    int code = write_text_to(in_folder("a"), much);
    limit(RLIM_INFINITY);
    is_int(code, EFBIG, "no room");
    is_str(content(in_folder("a")), "two\n", "leaves what was there");
    is_int(entries(), 1, "and nothing beside it");

    const double scale[ATTNI_MM_SCALES] = {1, 2, 3};
    struct attni_mm_table table = {NULL, 0}, back;
    attn_error_t err = ERROR_INIT;
    char path[400], name[32];
    snprintf(path, sizeof path, "%s", in_folder("scales.json"));
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "layers.%d", i);
        if (attni_mm_table_add(&table, name, scale)) bail_out("no memory");
    }
    is_int(attni_mm_table_write(&table, path, 1, &err), ATTN_OK, "a file of scales: %s", err.text);
    int bad = 0;
    for (rlim_t room = 0; room < 2000; room += 97) {
        limit(room);
        code = attni_mm_table_write(&table, path, 2, &err);
        limit(RLIM_INFINITY);
        bad += code != ATTN_E_IO || attni_mm_table_read(&back, path, &err) != ATTN_OK || back.count != 40 ||
               back.entries[0].scale[0] != 1;
        attni_mm_table_free(&back);
    }
    is_int(bad, 0, "without room for another the old one stays, and the error says so");
    attni_mm_table_free(&table);
    unlink(path);

    struct attni_tensor_file f = {.max_bytes = 1 << 20};
    const int64_t shape[1] = {500};
    float *data = attni_tensor_file_add(&f, "t", ATTN_DTYPE_FLOAT32, 1, shape);
    if (!data) bail_out("no memory");
    memset(data, 0, 2000);
    limit(100);
    code = attni_tensor_file_write(&f, in_folder("calls"));
    limit(RLIM_INFINITY);
    is_int(code, EFBIG, "a recording without room");
    is_int(entries(), 1, "is not there");
    attni_tensor_file_free(&f);
}

static long countdown = -1;

static void *failing_malloc(size_t size) {
    return countdown >= 0 && countdown-- == 0 ? NULL : malloc(size);
}

static void test_no_memory(void) {
    const double scale[ATTNI_MM_SCALES] = {1, 2, 3};
    struct attni_mm_table table = {NULL, 0}, back;
    attn_error_t err = ERROR_INIT;
    char path[400];
    snprintf(path, sizeof path, "%s", in_folder("scales.json"));
    if (attni_mm_table_add(&table, "a", scale) || attni_mm_table_add(&table, "b", scale))
        bail_out("no memory");
    attni_mm_table_write(&table, path, 1, &err);
    json_set_alloc_funcs(failing_malloc, free);
    int bad = 0, failures = 0;
    for (long n = 0; n < 200; n++) {
        countdown = n;
        int code = attni_mm_table_write(&table, path, 1, &err);
        countdown = -1;
        failures += code != ATTN_OK;
        bad += attni_mm_table_read(&back, path, &err) != ATTN_OK || back.count != 2;
        attni_mm_table_free(&back);
    }
    is_int(bad, 0, "whichever allocation of the JSON fails, the file is whole");
    ok(failures > 10, "%d of them failed the call", failures);
    attni_mm_table_free(&table);
}

int main(void) {
    snprintf(folder, sizeof folder, "%s", make_scratch());
    test_good();
    test_kinds();
    test_no_room();
    test_no_memory();
    return tap_done();
}
