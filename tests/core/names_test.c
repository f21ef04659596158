/* SPDX-License-Identifier: Apache-2.0 */
/* The small helpers of core: near misses, names, numbers as text, errors, messages, arenas. */
#include "base/arena.h"
#include "core_testing.h"
#include <attn/attn_plugin_util.h>
#include "base/log.h"
#include "base/names.h"
#include "base/nearest.h"
#include "base/number_text.h"

#include <float.h>
#include <locale.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void test_nearest(void) {
    static const char *const keys[] = {"plugins", "fallback", "load", "plugin_dir"};
    char text[96];
    is_str(attni_nearest("plugin", keys, COUNT(keys)), "plugins", "a missing letter");
    is_str(attni_nearest("fallbcak", keys, COUNT(keys)), "fallback", "swapped letters");
    is_str(attni_nearest("LOAD", keys, COUNT(keys)), "load", "another case");
    is_str(attni_nearest("laod", keys, COUNT(keys)), "load", "swapped in a short word");
    is_str(attni_nearest("DIR", keys, COUNT(keys)), "plugin_dir", "a part of a name");
    ok(!attni_nearest("gin", keys, COUNT(keys)), "a piece of a part is none");
    ok(!attni_nearest("", keys, COUNT(keys)), "nor is nothing");
    ok(!attni_nearest("window", keys, COUNT(keys)), "another word has no neighbour");
    ok(!attni_nearest("x", keys, 0), "no names, no neighbour");
    ok(!attni_nearest("a-word-that-is-longer-than-the-sixty-three-bytes-of-the-distance-table", keys,
                      COUNT(keys)),
       "an absurd word has none");
    is_str(attni_did_you_mean(text, sizeof text, "plugin", keys, COUNT(keys)), ", did you mean 'plugins'",
           "the phrase");
    is_str(attni_did_you_mean(text, sizeof text, "window", keys, COUNT(keys)), "", "and none");
    is_str(attni_did_you_mean(text, 0, "window", keys, COUNT(keys)), "", "no room, no write");
}

static void test_tables(void) {
    static const struct attni_names *const tables[] = {&attni_roles,     &attni_masks,   &attni_dtypes,
                                                       &attni_kv_dtypes, &attni_layouts, &attni_reason_codes,
                                                       &attni_features};
    for (size_t t = 0; t < COUNT(tables); t++) {
        int good = 1;
        for (uint32_t value = tables[t]->first; value <= tables[t]->last; value++) {
            const char *name = attni_name_of(tables[t], value);
            const int is_unused =
                tables[t] == &attni_reason_codes ? value == 16 : tables[t] == &attni_features && value == 25;
            good &= is_unused ? name == NULL : name != NULL;
            good &= is_unused || attni_value_of(tables[t], name) == (long)value;
        }
        ok(good, "table %zu goes there and back", t);
        ok(!attni_name_of(tables[t], tables[t]->last + 1), "and ends");
        is_int(attni_value_of(tables[t], "no such name"), -1, "an unknown name has no value");
    }
    is_int(attni_value_of(&attni_kv_dtypes, "fp8"), ATTN_KV_FP8_E4M3, "fp8 is e4m3");
    is_int(attni_value_of(&attni_dtypes, "BF16"), ATTN_DTYPE_BFLOAT16, "aliases, in any case");
    ok(!attni_name_of(&attni_roles, 0), "0 has no name");
    is_str(attn_error_name(ATTN_E_TRUST), "ATTN_E_TRUST", "error names");
    is_str(attn_error_name(0), "ATTN_OK", "of success");
    is_str(attn_error_name(-99), "unknown", "of others");
    is_str(attn_error_name(1), "unknown", "of positive numbers");
    is_str(attn_reason_name(ATTN_REASON_SINK), "SINK", "reason names");
    is_str(attn_reason_name(ATTN_REASON_COUNT_), "unknown", "of others");
    is_str(attn_reason_name(-1), "unknown", "of negative numbers");
    ok(strlen(attn_version()) >= 5, "a version: %s", attn_version());
}

static int reads_back(double value) {
    char text[40];
    double back = 0;
    int length = attni_double_format(value, text, sizeof text);
    return length == (int)strlen(text) && !*attni_double_parse(text, &back) &&
           memcmp(&back, &value, sizeof value) == 0;
}

static void test_numbers(void) {
    uint64_t seed = tap_seed();
    char text[40];
    double value = 0;
    attni_double_format(0.125, text, sizeof text);
    is_str(text, "0.125", "short numbers stay short");
    ok(reads_back(1.0 / 3) && reads_back(DBL_MAX) && reads_back(DBL_MIN) && reads_back(-0.0) &&
           reads_back(4.9e-324) && reads_back(INFINITY),
       "extremes read back exactly");
    int exact = 1;
    for (int i = 0; i < 2000; i++) {
        uint64_t bits = tap_rand(&seed);
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value)) exact &= reads_back(value);
    }
    ok(exact, "2000 random bit patterns read back exactly");
    ok(*attni_double_parse("x1", &value) == 'x', "no number, nothing read");
    /*
     * A locale with a decimal comma must change nothing. Where none is installed the check is the same
     * as above.
     */
    const char *locale = setlocale(LC_ALL, "de_DE.UTF-8");
    diag("locale: %s", locale ? locale : "de_DE.UTF-8 is not installed, C");
    attni_double_format(2.5, text, sizeof text);
    is_str(text, "2.5", "a point in any locale");
    ok(!*attni_double_parse("2.5", &value) && value == 2.5, "read in any locale");
    setlocale(LC_ALL, "C");
}

static void test_errors(void) {
    attn_error_t err = ERROR_INIT;
    is_int(attn_fail(NULL, ATTN_E_IO, "", "nowhere"), ATTN_E_IO, "no struct, only the code");
    is_int(attn_fail(&err, ATTN_E_INVALID, "num_heads", "num_heads is %d", 0), ATTN_E_INVALID,
           "the code comes back");
    is_str(err.param, "num_heads", "the parameter");
    is_str(err.text, "num_heads is 0", "the text");
    char *long_text = malloc(2000);
    memset(long_text, 'x', 1999);
    long_text[1999] = 0;
    attn_fail(&err, ATTN_E_IO, "", "%s", long_text);
    free(long_text);
    is_int(strlen(err.text), sizeof err.text - 1, "long texts are cut");
    is_str(err.param, "", "no parameter, none left from before");

    /* An engine built with an older, shorter struct. */
    attn_error_t older;
    memset(&older, '#', sizeof older);
    older.struct_size = offsetof(attn_error_t, text) + 10;
    attn_fail(&older, ATTN_E_IO, "", "0123456789abcdef");
    ok(!strcmp(older.text, "012345678") && older.text[10] == '#', "nothing is written beyond struct_size");
    older.struct_size = 0;
    older.code = 77;
    attn_fail(&older, ATTN_E_IO, "", "x");
    is_int(older.code, 77, "a struct without a size is left alone");
}

static void test_log(void) {
    struct attni_log log = {.write = keep_log, .level = ATTN_LOG_WARN};
    logged[0] = 0;
    attni_log(&log, ATTN_LOG_INFO, "quiet");
    is_str(logged, "", "below the level nothing is said");
    attni_log(&log, ATTN_LOG_WARN, "two\nlines %d", 2);
    is_str(logged, "2 two lines 2\n", "a message is one line");
    log.write = NULL;
    attni_log(&log, ATTN_LOG_ERROR, "nobody");
    is_str(logged, "2 two lines 2\n", "no function, no message");
    is_int(attni_log_level("debug"), ATTN_LOG_DEBUG, "levels by name");
    is_int(attni_log_level("off"), 0, "off is 0");
    is_int(attni_log_level("loud"), -1, "others are none");
}

static void test_arena(void) {
    struct attni_arena arena = {0};
    char *first = attni_arena_alloc(&arena, 100);
    ok(first && !first[99], "memory is zeroed");
    is_str(attni_arena_text(&arena, "%d and %s", 3, "four"), "3 and four", "texts");
    ok(!attni_arena_alloc(&arena, SIZE_MAX / 2) && arena.failed, "running out is remembered");
    is_str(attni_arena_text(&arena, "x"), "", "and then texts are empty");
    attni_arena_free(&arena);
    ok(!arena.failed && !arena.pieces, "free starts anew");
}

int main(void) {
    test_nearest();
    test_tables();
    test_numbers();
    test_errors();
    test_log();
    test_arena();
    return tap_done();
}
