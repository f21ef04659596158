/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Edit distance with transpositions (optimal string alignment), blind to case, over names of at most 63
 * bytes: three rolling rows on the stack, no allocation. If that finds nothing, a name that contains
 * the word.
 */
#include "base/nearest.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { LONGEST = 63, FAR = 1000 };

static int smaller(int a, int b) {
    return a < b ? a : b;
}

static int edit_distance(const char *a, const char *b) {
    size_t length_a = strlen(a), length_b = strlen(b);
    if (length_a > LONGEST || length_b > LONGEST) return FAR;
    int rows[3][LONGEST + 1];
    int *before = rows[0], *above = rows[1], *now = rows[2];
    for (size_t j = 0; j <= length_b; j++)
        above[j] = (int)j;
    for (size_t i = 1; i <= length_a; i++) {
        now[0] = (int)i;
        int ca = tolower((unsigned char)a[i - 1]);
        for (size_t j = 1; j <= length_b; j++) {
            int cb = tolower((unsigned char)b[j - 1]);
            int best = smaller(smaller(above[j], now[j - 1]) + 1, above[j - 1] + (ca != cb));
            if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) &&
                cb == tolower((unsigned char)a[i - 2]))
                best = smaller(best, before[j - 2] + 1);
            now[j] = best;
        }
        int *free_row = before;
        before = above;
        above = now;
        now = free_row;
    }
    return above[length_b];
}

/* "cpu" in CPU_ATTN, "threads" in num_threads: a whole part between underscores. */
static int is_part(const char *word, const char *name) {
    size_t length = strlen(word);
    for (const char *at = name; length > 0 && at != NULL; at = strchr(at, '_')) {
        at += *at == '_';
        if (strncasecmp(at, word, length) == 0 && (at[length] == '_' || at[length] == '\0')) return 1;
    }
    return 0;
}

const char *attni_nearest(const char *word, const char *const *names, size_t count) {
    const char *found = NULL;
    int best = FAR;
    for (size_t i = 0; i < count; i++) {
        int distance = edit_distance(word, names[i]);
        if (distance < best) {
            best = distance;
            found = names[i];
        }
    }
    /* One typo in three letters is still the same word; more makes it another word. */
    size_t allowed = strlen(word) / 3;
    if (found && best <= (int)(allowed ? allowed : 1)) return found;
    for (size_t i = 0; i < count; i++)
        if (is_part(word, names[i])) return names[i];
    return NULL;
}

const char *attni_did_you_mean(char *buffer, size_t size, const char *word, const char *const *names,
                               size_t count) {
    const char *name = attni_nearest(word, names, count);
    if (name)
        snprintf(buffer, size, ", did you mean '%s'", name);
    else if (size)
        buffer[0] = 0;
    return buffer;
}
