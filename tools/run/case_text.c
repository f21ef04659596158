/* SPDX-License-Identifier: Apache-2.0 */
/* case_text.c: reads the words behind a problem. */
#include "run/case_text.h"

#include <math.h>
#include <stdlib.h>

#include "base/tool.h"
#include "kit/case/case_families.h"

enum { MAX_VALUE = 2048 };

static const char *const keys[] = {
    "query_lens", "seq_lens",  "common_prefix_len", "causal", "rswa_prefix_lens",
    "spans",      "amplitude", "padded_tokens",     "flags",  "seed",
    "inputs"};
enum { NUM_KEYS = sizeof keys / sizeof keys[0] };

int case_text_check(const char *tail) {
    unsigned seen = 0;
    for (const char *word = tail; word != NULL && *word != '\0';) {
        size_t length = strcspn(word, " "), name = strcspn(word, "= ");
        size_t i = 0;
        while (i < NUM_KEYS && (strlen(keys[i]) != name || strncmp(keys[i], word, name) != 0))
            i++;
        if (length > 0 && (i == NUM_KEYS || name + 1 >= length || (seen >> i & 1) != 0)) {
            char key[64];
            snprintf(key, sizeof key, "%.*s", (int)name, word);
            const char *near = i == NUM_KEYS ? tool_nearest(key, keys, NUM_KEYS) : NULL;
            tool_error("--problem: '%.*s' after the bar %s%s%s;  see attn-problem(7)",
                       length < 60 ? (int)length : 60, word,
                       i == NUM_KEYS          ? "is not a known key"
                       : (seen >> i & 1) != 0 ? "is given twice"
                                              : "has no value",
                       near != NULL ? ", did you mean " : "", near != NULL ? near : "");
            return -1;
        }
        if (length > 0) seen |= 1u << i;
        word += length + (word[length] != '\0');
    }
    return 0;
}

const char *case_text_value(const char *tail, const char *key, char *value, size_t size) {
    size_t length = strlen(key);
    for (const char *at = tail; at != NULL && (at = strstr(at, key)) != NULL; at++)
        if ((at == tail || at[-1] == ' ') && at[length] == '=') {
            snprintf(value, size, "%.*s", (int)strcspn(at + length + 1, " "), at + length + 1);
            return value;
        }
    return NULL;
}

int case_text_lens(const char *what, const char *text, int64_t *values) {
    int n = tool_parse_list(text, INT32_MAX, values, KIT_MAX_REQS);
    if (n < 1) tool_error("%s is '%s'; expected 1 to %d lengths, such as 1,5,33", what, text, KIT_MAX_REQS);
    return n;
}

/* A whole number from 0 to most, ended by one of the characters of ends; *at goes behind the number. */
static int read_count(const char **at, const char *ends, long long most, long long *value) {
    char *end;
    if (**at < '0' || **at > '9') return -1;
    *value = strtoll(*at, &end, 10);
    if (*value > most || strchr(ends, *end) == NULL) return -1; /* the end of the text is in every list */
    *at = end;
    return 0;
}

static int bad(const char *key, const char *value, const char *wanted) {
    tool_error("--problem: %s is '%.100s'; expected %s", key, value, wanted);
    return -1;
}

static int parse_count(const char *tail, const char *key, long long most, long long *to) {
    char value[MAX_VALUE];
    const char *at = case_text_value(tail, key, value, sizeof value);
    if (at == NULL || (read_count(&at, "", most, to) == 0 && *at == '\0')) return 0;
    return bad(key, value, "a whole number");
}

/* One number for each request. */
static int parse_list(const char *tail, const char *key, long long most, int count, int32_t *to) {
    char value[MAX_VALUE], wanted[80];
    const char *at = case_text_value(tail, key, value, sizeof value);
    snprintf(wanted, sizeof wanted, "a number from 0 to %lld for each of the %d requests", most, count);
    for (int i = 0; at != NULL && i < count; i++) {
        long long n;
        if (read_count(&at, ",", most, &n) != 0 || (*at == '\0') != (i == count - 1))
            return bad(key, value, wanted);
        to[i] = (int32_t)n;
        at += *at != '\0';
    }
    return 0;
}

/* start-end,start-end;.. by request, each with the same number of spans. */
static int parse_spans(const char *tail, kit_case_t *c) {
    static const char wanted[] = "begin-end,begin-end;.. with the same number of spans for each request";
    char value[MAX_VALUE];
    const char *at = case_text_value(tail, "spans", value, sizeof value);
    int columns = 0;
    for (int r = 0; at != NULL && r < c->num_reqs; r++) {
        for (int i = 0, is_last = 0; !is_last; i++) {
            long long begin, end;
            if (i == KIT_MAX_SPANS || read_count(&at, "-", INT32_MAX, &begin) != 0 || *at++ != '-' ||
                read_count(&at, ",;", INT32_MAX, &end) != 0)
                return bad("spans", value, wanted);
            c->spans[r][i][0] = (int32_t)begin;
            c->spans[r][i][1] = (int32_t)end;
            is_last = *at != ',';
            if (is_last && r > 0 && i + 1 != columns) return bad("spans", value, wanted);
            if (is_last) columns = i + 1;
            if (*at == ',') at++;
        }
        if ((*at == '\0') != (r == c->num_reqs - 1)) return bad("spans", value, wanted);
        at += *at != '\0';
    }
    if (columns > 0) c->num_spans = columns;
    return 0;
}

int case_text_details(const char *tail, kit_case_t *c) {
    char value[MAX_VALUE], *end;
    int32_t causal[KIT_MAX_REQS];
    long long flags = c->flags, prefix = c->common_prefix_len, padded = c->padded_tokens;
    for (int r = 0; r < c->num_reqs; r++)
        causal[r] = c->causal[r];
    if (parse_count(tail, "flags", UINT32_MAX, &flags) != 0 ||
        parse_count(tail, "common_prefix_len", INT32_MAX, &prefix) != 0 ||
        parse_count(tail, "padded_tokens", 1023, &padded) != 0 ||
        parse_list(tail, "causal", 1, c->num_reqs, causal) != 0 ||
        parse_list(tail, "rswa_prefix_lens", INT32_MAX, c->num_reqs, c->rswa_prefix_lens) != 0 ||
        parse_spans(tail, c) != 0)
        return -1;
    c->flags = (uint32_t)flags;
    c->common_prefix_len = (int32_t)prefix;
    c->padded_tokens = (int32_t)padded;
    for (int r = 0; r < c->num_reqs; r++)
        c->causal[r] = (uint8_t)causal[r];
    if (case_text_value(tail, "inputs", value, sizeof value) != NULL) {
        c->family = kit_family_of_name(value);
        if (c->family == KIT_NUM_FAMILIES)
            return bad("inputs", value, "a family of inputs, as attn check prints it");
    }
    if (case_text_value(tail, "amplitude", value, sizeof value) == NULL) return 0;
    if (c->family != KIT_USUAL)
        return bad("amplitude", value, "none beside inputs, which have their own sizes");
    c->amplitude = strtod(value, &end);
    if (*end != '\0' || !isfinite(c->amplitude) || c->amplitude < 0)
        return bad("amplitude", value, "a number from 0 on");
    return 0;
}
