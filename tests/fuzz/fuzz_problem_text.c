/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_problem_text.c: any text as a problem. What parses also formats, and what is formatted parses to the
 * same bytes. */
// SOURCES: core/*/*.c
#include <stdlib.h>
#include <string.h>

#include <attn/attn.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    ATTN_INIT(attn_problem_t, problem);
    ATTN_INIT(attn_problem_t, again);
    attn_error_t err = {.struct_size = sizeof err};
    int code = attn_problem_parse(text, &problem, &err);
    if (code) {
        if (code > 0 || err.code != code || !err.text[0] || !memchr(err.text, '\0', sizeof err.text)) abort();
    } else {
        char canonical[2048];
        int length = attn_problem_format(&problem, canonical, sizeof canonical);
        if (length < 0 || (size_t)length >= sizeof canonical || strlen(canonical) != (size_t)length) abort();
        if (attn_problem_parse(canonical, &again, &err)) abort();
        if (memcmp(&problem, &again, sizeof problem) != 0) abort();
        (void)attn_problem_check(&problem, &err);
    }
    free(text);
    return 0;
}
