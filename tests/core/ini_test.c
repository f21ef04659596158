/* SPDX-License-Identifier: Apache-2.0 */
/* The INI reader: what it takes, and for each thing that it refuses the place and the words. */
#include "core_testing.h"
#include "config/ini_table.h"

static int read_text(struct attni_ini *ini, const char *text, attn_error_t *err) {
    return attni_ini_add_text(ini, "test.ini", text, strlen(text), err);
}

static void test_accepts(void) {
    struct attni_ini ini = {0};
    attn_error_t err = ERROR_INIT;
    const char *text = "\xEF\xBB\xBF; a comment\n\n"
                       "# another\n"
                       "  ; indented comment\n"
                       "[attn] ; about it\r\n"
                       "plugins = a, b   ; ours\r\n"
                       "fallback=warn\n"
                       "[  select \t decoder   sm_90 ]\n"
                       "backend = X\n"
                       "empty =\n"
                       "[attn]\n"
                       "load = no";
    is_int(read_text(&ini, text, &err), ATTN_OK, "a full example is read: %s", err.text);
    const struct attni_ini_entry *entry = attni_ini_find(&ini, "attn", "plugins");
    is_str(entry ? entry->value : NULL, "a, b", "comment and carriage return are cut");
    is_int(entry ? entry->line : 0, 6, "the line number counts comments and blank lines");
    is_str(entry ? entry->source : NULL, "test.ini", "the source is kept");
    entry = attni_ini_find(&ini, "select decoder sm_90", "backend");
    is_str(entry ? entry->value : NULL, "X", "blanks in section names collapse");
    entry = attni_ini_find(&ini, "select decoder sm_90", "empty");
    is_str(entry ? entry->value : NULL, "", "an empty value stays empty");
    entry = attni_ini_find(&ini, "attn", "load");
    is_int(entry ? entry->line : 0, 12, "a section may be reopened, the last line needs no newline");
    ok(!attni_ini_find(&ini, "attn", "nothing"), "an absent key is NULL");
    ok(!ini.entries[0].key && !strcmp(ini.entries[0].section, "attn"),
       "section lines are entries of their own");

    is_int(attni_ini_add_text(&ini, "later.ini", "[attn]\nfallback = quiet\n", 24, &err), ATTN_OK,
           "a second source");
    entry = attni_ini_find(&ini, "attn", "fallback");
    is_str(entry ? entry->value : NULL, "quiet", "the later source wins");
    is_str(entry ? entry->source : NULL, "later.ini", "and is named");
    is_int(attni_ini_add_value(&ini, "api", "attn", "fallback", "error", &err), ATTN_OK, "a single value");
    is_str(attni_ini_find(&ini, "attn", "fallback")->value, "error", "wins again");

    size_t before = ini.count;
    is_int(read_text(&ini, "[attn]\nload = yes\nload = no\n", &err), ATTN_E_PARSE, "a failing source");
    is_int(ini.count, before, "leaves the table as it was");
    attni_ini_free(&ini);
    is_int(ini.count, 0, "free empties the table");
}

static void test_refuses(void) {
    static const struct {
        const char *text, *place, *words;
    } cases[] = {
        {"key = value\n", "test.ini:1:", "before any section"},
        {"[attn]\n\nload\n", "test.ini:3:", "neither a [section] nor"},
        {"[attn]\nload: yes\n", "test.ini:2:", "neither a [section] nor"},
        {"[attn]\nload ; = no\n", "test.ini:2:", "neither a [section] nor"},
        {"[attn]\n = value\n", "test.ini:2:", "indented"},
        {"[attn]\n= value\n", "test.ini:2:", "no key before '='"},
        {"[attn]\nload = yes\n  more\n", "test.ini:3:", "indented"},
        {"[attn\nload = yes\n", "test.ini:1:", "no ']'"},
        {"[]\n", "test.ini:1:", "no name"},
        {"[ \t ]\n", "test.ini:1:", "no name"},
        {"[attn] load = no\n", "test.ini:1:", "text after ']'"},
        {"[at;tn]\n", "test.ini:1:", "holds ';' or '['"},
        {"[[attn]]\n", "test.ini:1:", "text after ']'"},
        {"[at[tn]\n", "test.ini:1:", "holds ';' or '['"},
        {"[attn]\nload = yes\nload = yes\n", "test.ini:3:", "already given in line 2"},
        {"[attn]\nlo\x01"
         "ad = yes\n",
         "test.ini:2:", "byte 0x01 at column 3"},
        {"[attn]\n\x7f"
         "ELF = yes\n",
         "test.ini:2:", "byte 0x7f at column 1"},
        {"[a23456789 123456789 123456789 123456789 12345678xY]\n", "test.ini:1:", "longer than 49"},
        {"[attn]\na234567890123456789012345678901234567890123456789xY = 1\n",
         "test.ini:2:", "longer than 49"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct attni_ini ini = {0};
        attn_error_t err = ERROR_INIT;
        is_int(read_text(&ini, cases[i].text, &err), ATTN_E_PARSE, "refused: %s", cases[i].words);
        has_str(err.text, cases[i].place, "at its place");
        has_str(err.text, cases[i].words, "with the words");
        is_int(ini.count, 0, "and nothing is kept");
        attni_ini_free(&ini);
    }
}

static void test_limits(void) {
    struct attni_ini ini = {0};
    attn_error_t err = ERROR_INIT;
    char text[512];
    snprintf(text, sizeof text, "[attn]\nk = %0*d\n", ATTNI_INI_LINE_MAX - 4, 7);
    is_int(read_text(&ini, text, &err), ATTN_OK, "a line of %d bytes is read", ATTNI_INI_LINE_MAX);
    is_int(strlen(ini.entries[1].value), ATTNI_INI_LINE_MAX - 4, "as a whole");
    snprintf(text, sizeof text, "[attn]\nk = %0*d\n", ATTNI_INI_LINE_MAX - 3, 7);
    is_int(read_text(&ini, text, &err), ATTN_E_PARSE, "one byte more is refused");
    has_str(err.text, "the line has 197 bytes, at most 196", "with both numbers");
    snprintf(text, sizeof text, "[%049d]\n", 7);
    is_int(read_text(&ini, text, &err), ATTN_OK, "a section name of 49 bytes is read");
    snprintf(text, sizeof text, "[%050d]\n", 7);
    is_int(read_text(&ini, text, &err), ATTN_E_PARSE, "one of 50 bytes is refused");
    is_int(attni_ini_add_text(&ini, "nul.ini", "[attn]\nlo\0ad = no\n", 18, &err), ATTN_E_PARSE,
           "a NUL is refused");
    has_str(err.text, "nul.ini:2: byte 0x00 at column 3", "with its place");
    attni_ini_free(&ini);

    char *many = malloc(ATTNI_INI_FILE_MAX + 2);
    size_t used = (size_t)sprintf(many, "[attn]\n");
    for (int i = 0; i < ATTNI_INI_ENTRIES_MAX; i++)
        used += (size_t)sprintf(many + used, "k%d = 1\n", i);
    is_int(read_text(&ini, many, &err), ATTN_E_PARSE, "too many keys are refused");
    has_str(err.text, "more than 4096 entries", "with the limit");
    for (int i = 0; i <= ATTNI_INI_ENTRIES_MAX; i++)
        memcpy(many + 4 * i, "[a]\n", 4);
    many[4 * (ATTNI_INI_ENTRIES_MAX + 1)] = 0;
    is_int(read_text(&ini, many, &err), ATTN_E_PARSE, "too many sections are refused");
    memset(many, '\n', ATTNI_INI_FILE_MAX + 1);
    is_int(attni_ini_add_text(&ini, "big.ini", many, ATTNI_INI_FILE_MAX + 1, &err), ATTN_E_PARSE,
           "a source that is too big is refused");
    has_str(err.text, "big.ini:1:", "by name");
    free(many);
    attni_ini_free(&ini);
}

static void test_files(void) {
    struct attni_ini ini = {0};
    attn_error_t err = ERROR_INIT;
    is_int(attni_ini_add_file(&ini, in_scratch("none.ini"), &err), ATTN_E_IO, "an absent file is an error");
    has_str(err.text, "none.ini", "that names it");
    is_int(attni_ini_add_file(&ini, scratch, &err), ATTN_E_IO, "a folder is no file");
    has_str(err.text, "not a regular file", "and is called so");
    const char *path = write_text("a.ini", "[attn]\nload = no\n");
    is_int(attni_ini_add_file(&ini, path, &err), ATTN_OK, "a file is read");
    is_str(ini.entries[1].source, path, "and is the source of its entries");
    attni_ini_free(&ini);
}

/* Random bytes and random lines: never a crash, always an error with a place. */
static void test_noise(void) {
    uint64_t seed = tap_seed();
    static const char *const pieces[] = {"[attn]", "\n",   " ", "=", "load", "no", ";",
                                         "]",      "\xff", "[", ",", "\r\n", "\t"};
    int wrong_errors = 0, read = 0;
    for (int round = 0; round < 3000; round++) {
        char text[256] = "";
        size_t used = 0;
        int count = (int)tap_rand_in(&seed, 0, 20);
        for (int i = 0; i < count; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s",
                                     pieces[tap_rand_in(&seed, 0, sizeof pieces / sizeof *pieces - 1)]);
        struct attni_ini ini = {0};
        attn_error_t err = ERROR_INIT;
        int code = read_text(&ini, text, &err);
        read += code == ATTN_OK;
        wrong_errors += code != ATTN_OK && (code != ATTN_E_PARSE || strncmp(err.text, "test.ini:", 9) != 0);
        attni_ini_free(&ini);
    }
    is_int(wrong_errors, 0, "every refusal of noise has a place");
    ok(read > 50, "some noise is valid (%d of 3000)", read);
}

int main(void) {
    make_scratch();
    test_accepts();
    test_refuses();
    test_limits();
    test_files();
    test_noise();
    return tap_done();
}
