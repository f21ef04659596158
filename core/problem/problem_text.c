/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A problem as one line of key=value words. One table of members drives both directions; members that are
 * zero are left out. Values without a name are written as numbers, so that any problem comes back exactly.
 */
#include "base/names.h"
#include "base/nearest.h"
#include "base/number_text.h"

#include <attn/attn.h>
#include <attn/attn_plugin_util.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum member_kind { COUNT32, COUNT64, REAL, FEATURES };

struct member {
    const char *name;
    size_t offset;
    enum member_kind kind;
    const struct attni_names *names; /* of COUNT32: an enumeration; else NULL */
};

#define MEMBER(name, kind, names)                                                                            \
    { #name, offsetof(attn_problem_t, name), kind, names }

static const struct member members[] = {
    MEMBER(role, COUNT32, &attni_roles),         MEMBER(mask, COUNT32, &attni_masks),
    MEMBER(dtype, COUNT32, &attni_dtypes),       MEMBER(out_dtype, COUNT32, &attni_dtypes),
    MEMBER(query_dtype, COUNT32, &attni_dtypes), MEMBER(kv_cache_dtype, COUNT32, &attni_kv_dtypes),
    MEMBER(kv_layout, COUNT32, &attni_layouts),  MEMBER(num_heads, COUNT32, NULL),
    MEMBER(num_kv_heads, COUNT32, NULL),         MEMBER(head_size, COUNT32, NULL),
    MEMBER(head_size_v, COUNT32, NULL),          MEMBER(block_size, COUNT32, NULL),
    MEMBER(sliding_window, COUNT32, NULL),       MEMBER(chunk_size, COUNT32, NULL),
    MEMBER(chunk_lookback, COUNT32, NULL),       MEMBER(rswa_window, COUNT32, NULL),
    MEMBER(static_sink_len, COUNT32, NULL),      MEMBER(scale, REAL, NULL),
    MEMBER(logits_soft_cap, REAL, NULL),         MEMBER(features, FEATURES, NULL),
    MEMBER(max_num_seqs, COUNT32, NULL),         MEMBER(max_num_batched_tokens, COUNT32, NULL),
    MEMBER(max_model_len, COUNT64, NULL),        MEMBER(num_blocks, COUNT64, NULL),
    MEMBER(kv_lora_rank, COUNT32, NULL),         MEMBER(qk_nope_head_dim, COUNT32, NULL),
    MEMBER(qk_rope_head_dim, COUNT32, NULL),     MEMBER(v_head_dim, COUNT32, NULL),
    MEMBER(topk, COUNT32, NULL),                 MEMBER(dcp_world_size, COUNT32, NULL),
    MEMBER(dcp_rank, COUNT32, NULL),             MEMBER(cp_interleave, COUNT32, NULL),
    MEMBER(max_mm_ranges, COUNT32, NULL),        MEMBER(max_num_batched_keys, COUNT32, NULL),
};

enum { MEMBERS = sizeof members / sizeof *members, LONGEST_VALUE = 1023 };

/* ------------------------------------------------------------------- format */

static void format_features(uint64_t features, char *text, size_t size) {
    size_t used = 0;
    for (unsigned bit = 0; bit < 64; bit++) {
        if (!(features >> bit & 1)) continue;
        const char *name = attn_feature_name(bit);
        char number[8];
        snprintf(number, sizeof number, "bit%u", bit);
        used += (size_t)snprintf(text + used, size - used, "%s%s", used ? "," : "", name ? name : number);
    }
}

/* The value as text; "" if it is zero and is left out. */
static void format_value(const struct member *member, const attn_problem_t *problem, char *text,
                         size_t size) {
    const char *at = (const char *)problem + member->offset;
    uint64_t bits = 0;
    memcpy(&bits, at, member->kind == COUNT32 ? 4 : 8);
    text[0] = 0;
    if (!bits) return;
    const char *name = member->names ? attni_name_of(member->names, (uint32_t)bits) : NULL;
    double real;
    switch (member->kind) {
    case COUNT32:
        snprintf(text, size, name ? "%s" : "%s%u", name ? name : "", (unsigned)bits);
        break;
    case COUNT64:
        snprintf(text, size, "%lld", (long long)bits);
        break;
    case FEATURES:
        format_features(bits, text, size);
        break;
    case REAL:
        memcpy(&real, &bits, sizeof real);
        attni_double_format(real, text, size);
        break;
    }
}

int attn_problem_format(const attn_problem_t *problem, char *text, size_t size) {
    attn_problem_t copy;
    int code = attn_intake(&copy, sizeof copy, problem, "problem", NULL);
    if (code != ATTN_OK) return code;
    if (!text && size) return ATTN_E_INVALID;
    for (size_t i = 0; i < sizeof copy.reserved / sizeof *copy.reserved; i++)
        if (copy.reserved[i]) return ATTN_E_TOO_NEW; /* there is no text for it */
    size_t length = 0;
    char value[LONGEST_VALUE + 1];
    if (size) text[0] = 0;
    for (size_t i = 0; i < MEMBERS; i++) {
        format_value(&members[i], &copy, value, sizeof value);
        if (!value[0]) continue;
        int written = snprintf(size > length ? text + length : NULL, size > length ? size - length : 0,
                               "%s%s=%s", length ? " " : "", members[i].name, value);
        length += (size_t)written;
    }
    return (int)length;
}

/* -------------------------------------------------------------------- parse */

/* Where the text is being read, for messages. */
struct position {
    const char *text;
    attn_error_t *error;
};

static int wrong(const struct position *in, const char *at, const char *param, const char *what) {
    return attn_fail(in->error, ATTN_E_PARSE, param, "column %zu: %s", (size_t)(at - in->text) + 1, what);
}

static const struct member *find_member(const char *name) {
    for (size_t i = 0; i < MEMBERS; i++)
        if (!strcmp(members[i].name, name)) return &members[i];
    return NULL;
}

static int unknown_key(const struct position *in, const char *at, const char *key) {
    const char *names[MEMBERS];
    char near[96], what[320];
    for (size_t i = 0; i < MEMBERS; i++)
        names[i] = members[i].name;
    snprintf(what, sizeof what, "unknown key '%.60s'%s", key,
             attni_did_you_mean(near, sizeof near, key, names, MEMBERS));
    return wrong(in, at, key, what);
}

static int unknown_name(const struct position *in, const char *at, const char *param, const char *value,
                        const struct attni_names *table) {
    const char *names[ATTNI_NAMES_MAX];
    char near[96], what[440];
    size_t count = attni_names_list(table, names);
    int used = snprintf(what, sizeof what, "%s has no value '%.60s'%s; known are:", param, value,
                        attni_did_you_mean(near, sizeof near, value, names, count));
    for (size_t i = 0; i < count && (size_t)used < sizeof what; i++)
        used += snprintf(what + used, sizeof what - (size_t)used, " %s", names[i]);
    return wrong(in, at, param, what);
}

/* A whole decimal number within bounds. Returns 0 if the text is something else. */
static int parse_whole(const char *text, long long low, long long high, long long *value) {
    char *end;
    if (!isdigit((unsigned char)text[text[0] == '-'])) return 0;
    errno = 0;
    *value = strtoll(text, &end, 10);
    return !errno && !*end && *value >= low && *value <= high;
}

static int parse_features(const struct position *in, const char *at, char *value, uint64_t *features) {
    *features = 0;
    for (char *word = value, *next; word; word = next) {
        if ((next = strchr(word, ','))) *next++ = 0;
        long bit = attni_value_of(&attni_features, word);
        long long number;
        if (bit < 0 && !strncmp(word, "bit", 3) && parse_whole(word + 3, 0, 63, &number)) bit = (long)number;
        if (bit < 0) return unknown_name(in, at + (word - value), "features", word, &attni_features);
        *features |= UINT64_C(1) << bit;
    }
    return ATTN_OK;
}

static int parse_value(const struct position *in, const struct member *member, const char *at, char *value,
                       attn_problem_t *problem) {
    char *to = (char *)problem + member->offset;
    long long whole = 0;
    double real = 0;
    uint64_t features;
    int code;
    switch (member->kind) {
    case COUNT32:
        if (member->names && attni_value_of(member->names, value) >= 0)
            whole = attni_value_of(member->names, value);
        else if (!parse_whole(value, 0, UINT32_MAX, &whole))
            return member->names
                       ? unknown_name(in, at, member->name, value, member->names)
                       : wrong(in, at, member->name, "expected a whole number from 0 to 4294967295");
        memcpy(to, &(uint32_t){(uint32_t)whole}, sizeof(uint32_t));
        return ATTN_OK;
    case COUNT64:
        if (!parse_whole(value, INT64_MIN, INT64_MAX, &whole))
            return wrong(in, at, member->name, "expected a whole number of at most 64 bits");
        memcpy(to, &(int64_t){whole}, sizeof(int64_t));
        return ATTN_OK;
    case REAL:
        if (isspace((unsigned char)value[0]) || *attni_double_parse(value, &real) || isnan(real))
            return wrong(in, at, member->name, "expected a number such as 0.125");
        memcpy(to, &real, sizeof real);
        return ATTN_OK;
    case FEATURES:
        break;
    }
    if ((code = parse_features(in, at, value, &features))) return code;
    memcpy(to, &features, sizeof features);
    return ATTN_OK;
}

static int parse_word(const struct position *in, const char *at, size_t length, uint64_t *seen,
                      attn_problem_t *problem) {
    char word[LONGEST_VALUE + 64];
    if (length >= sizeof word) return wrong(in, at, "", "the word is longer than 1000 bytes");
    memcpy(word, at, length);
    word[length] = 0;
    char *equals = strchr(word, '=');
    if (!equals) return wrong(in, at, "", "expected key=value");
    *equals = 0;
    const struct member *member = find_member(word);
    if (!member) return unknown_key(in, at, word);
    if (*seen >> (member - members) & 1)
        return wrong(in, at, member->name, "duplicate key; keep one of them");
    *seen |= UINT64_C(1) << (member - members);
    const char *value_at = at + (equals + 1 - word);
    if (!equals[1]) return wrong(in, value_at, member->name, "the value is missing");
    return parse_value(in, member, value_at, equals + 1, problem);
}

int attn_problem_parse(const char *text, attn_problem_t *problem, attn_error_t *error) {
    if (!text || !problem)
        return attn_fail(error, ATTN_E_INVALID, text ? "problem" : "text", "%s is NULL",
                         text ? "problem" : "text");
    struct position in = {text, error};
    attn_problem_t parsed = {.struct_size = sizeof parsed};
    uint64_t seen = 0;
    _Static_assert(MEMBERS <= 64, "seen has 64 bits");
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, " \t\r\n");
        int code = length ? parse_word(&in, at, length, &seen, &parsed) : ATTN_OK;
        if (code != ATTN_OK) return code;
        at += length + (at[length] != 0);
    }
    *problem = parsed;
    return ATTN_OK;
}
