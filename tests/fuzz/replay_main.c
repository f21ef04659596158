/* SPDX-License-Identifier: Apache-2.0 */
/* replay_main.c: a fuzz harness without a fuzzer. Feeds each file of the corpus, each of its prefixes of a
 * few lengths and seeded mutations of it to the harness; surviving is the check. Runs in make check with
 * every compiler. */
#include <dirent.h>

#include "../tap.h"

#ifndef HARNESS
#error "HARNESS is the name of the folder in tests/fuzz/corpus"
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_SIZE = 1 << 16, MUTATIONS = 300 };

/* A copy of exactly that size, so that a read past the end is seen by a sanitizer. */
static void feed(const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact) bail_out("no memory");
    memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static size_t mutate(uint8_t *data, size_t size, uint64_t *rng) {
    static const uint8_t spice[] = {0,   '\n', '=', '[', ']',  '{',  '}', '"',
                                    ',', ' ',  '-', '9', 0x7f, 0x80, 0xff};
    for (int64_t edits = tap_rand_in(rng, 1, 4); edits > 0; edits--) {
        size_t at = size ? (size_t)tap_rand_in(rng, 0, (int64_t)size - 1) : 0;
        size_t run = (size_t)tap_rand_in(rng, 1, 40);
        switch (tap_rand_in(rng, 0, 4)) {
        case 0: /* another byte */
            if (size) data[at] = (uint8_t)tap_rand(rng);
            break;
        case 1: /* a byte that means something */
            if (size) data[at] = spice[tap_rand(rng) % sizeof spice];
            break;
        case 2: /* a run is taken out */
            if (at + run < size) {
                memmove(data + at, data + at + run, size - at - run);
                size -= run;
            }
            break;
        case 3: /* a run comes twice */
            if (at + run < size && size + run < INPUT_SIZE) {
                memmove(data + at + run, data + at, size - at);
                size += run;
            }
            break;
        default: /* the end is missing */
            size = at;
        }
    }
    return size;
}

/* The files of one folder, below the source tree. Returns how many. */
static int feed_folder(const char *name, uint64_t *rng) {
    char folder[1024], path[2048];
    const char *top = getenv("ATTN_TEST_SRCDIR");
    snprintf(folder, sizeof folder, "%s/%s", top ? top : ".", name);
    DIR *dir = opendir(folder);
    if (!dir) bail_out("no corpus %s", folder);
    static uint8_t file[INPUT_SIZE], work[INPUT_SIZE];
    int files = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *f = fopen(path, "rb");
        if (!f) bail_out("cannot read %s", path);
        size_t size = fread(file, 1, sizeof file, f);
        fclose(f);
        feed(file, size);
        for (size_t cut = 1; cut < size; cut += 1 + size / 50)
            feed(file, size - cut);
        for (int i = 0; i < MUTATIONS; i++) {
            memcpy(work, file, size);
            feed(work, mutate(work, size, rng));
        }
        ok(1, "%s, its prefixes and %d mutations", entry->d_name, MUTATIONS);
        files++;
    }
    closedir(dir);
    return files;
}

int main(void) {
    uint64_t rng = tap_seed();
    feed((const uint8_t *)"", 0);
    ok(1, "no bytes at all");
    int files = feed_folder("tests/fuzz/corpus/" HARNESS, &rng);
#ifdef SEEDS
    files += feed_folder(SEEDS, &rng);
#endif
    ok(files > 0, "%d files in the corpus", files);
    return tap_done();
}
