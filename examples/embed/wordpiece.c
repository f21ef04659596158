/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wordpiece.c: the tokeniser of BERT. A text is cleaned (spaces, control characters, accents, case), cut
 * at spaces and around punctuation and ideographs, and each word is taken apart into the longest pieces
 * that the vocabulary has, from the left; pieces within a word are written ##piece there. A word that
 * cannot be taken apart is [UNK].
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "embed.h"

enum { MAX_TOKENS = 1 << 20, MAX_WORD = 100 /* characters, as in BERT's own */ };
enum { CLS, SEP, UNK, PAD, MASK, NUM_SPECIAL };
static const char *const special_text[NUM_SPECIAL] = {"[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"};

struct wordpiece {
    char *file; /* vocab.txt, lines ended by 0 */
    int64_t count;
    struct entry {
        const char *text;
        int32_t size, id;
    } * table; /* [mask + 1], hashed */
    uint32_t mask;
    int32_t special[NUM_SPECIAL]; /* -1: the vocabulary has none */
    int is_lower, is_stripped, is_ideograph_alone;
};

/* Where a token is, or where it would be. */
static struct entry *place(const wordpiece_t *w, const char *text, size_t size) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    struct entry *e;
    for (uint32_t i = hash;; i++) {
        e = &w->table[i & w->mask];
        if (e->text == NULL || ((size_t)e->size == size && memcmp(e->text, text, size) == 0)) return e;
    }
}

static int32_t find(const wordpiece_t *w, const char *text, size_t size) {
    const struct entry *e = place(w, text, size);
    return e->text != NULL ? e->id : -1;
}

static char *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    long end = -1;
    if (f != NULL && fseek(f, 0, SEEK_END) == 0) end = ftell(f);
    if (end < 0 || end > 1 << 28 || fseek(f, 0, SEEK_SET) != 0) die("%s: cannot be read", path);
    char *text = room((uint64_t)end + 1);
    *size = fread(text, 1, (size_t)end, f);
    fclose(f);
    if (*size != (size_t)end) die("%s: cannot be read", path);
    return text;
}

static int flag(json_t *root, const char *name, int fallback) {
    json_t *value = json_object_get(root, name);
    return value == NULL || json_is_null(value) ? fallback : json_is_true(value);
}

wordpiece_t *wordpiece_open(const char *folder) {
    wordpiece_t *w = room(sizeof *w);
    char path[4096];
    size_t size;
    snprintf(path, sizeof path, "%s/vocab.txt", folder);
    w->file = read_file(path, &size);
    int64_t lines = 1;
    for (size_t i = 0; i < size; i++)
        lines += w->file[i] == '\n';
    if (lines > MAX_TOKENS) die("%s: more than %d tokens", path, MAX_TOKENS);
    for (w->mask = 1; w->mask < 2 * lines;)
        w->mask = 2 * w->mask + 1;
    w->table = room(((uint64_t)w->mask + 1) * sizeof *w->table);
    for (char *line = w->file, *end = w->file + size; line < end;) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (stop == NULL) stop = end;
        size_t length = (size_t)(stop - line);
        if (length > 0 && line[length - 1] == '\r') length--;
        struct entry *e = place(w, line, length);
        if (e->text == NULL) *e = (struct entry){line, (int32_t)length, (int32_t)w->count};
        w->count++;
        line = stop + 1;
    }
    for (int i = 0; i < NUM_SPECIAL; i++)
        w->special[i] = find(w, special_text[i], strlen(special_text[i]));
    for (int i = 0; i <= UNK; i++)
        if (w->special[i] < 0) die("%s has no %s: no vocabulary of WordPiece", path, special_text[i]);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    json_t *root = config_load(path, 0);
    w->is_lower = flag(root, "do_lower_case", 1);
    w->is_stripped = flag(root, "strip_accents", w->is_lower);
    w->is_ideograph_alone = flag(root, "tokenize_chinese_chars", 1);
    json_decref(root);
    return w;
}

int64_t wordpiece_size(const wordpiece_t *w) {
    return w->count;
}

void wordpiece_close(wordpiece_t *w) {
    free(w->file);
    free(w->table);
    free(w);
}

/* One character of UTF-8 from text; the bytes that it takes, 0 if it is none. */
static int decode(const unsigned char *text, size_t size, uint32_t *c) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const int n = text[0] < 0x80       ? 1
                  : text[0] >> 5 == 6  ? 2
                  : text[0] >> 4 == 14 ? 3
                  : text[0] >> 3 == 30 ? 4
                                       : 0;
    if (n == 0 || (size_t)n > size) return 0;
    *c = n == 1 ? text[0] : text[0] & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if (text[i] >> 6 != 2) return 0;
        *c = *c << 6 | (text[i] & 0x3f);
    }
    return *c >= least[n] && *c <= 0x10ffff && (*c < 0xd800 || *c > 0xdfff) ? n : 0;
}

static int encode(uint32_t c, char *to) {
    if (c < 0x80) return to[0] = (char)c, 1;
    const int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6)
        to[i] = (char)(0x80 | (c & 0x3f));
    to[0] = (char)(0xff00 >> n | c);
    return n;
}

/* The blocks that BERT takes for words of one character each. */
static int is_ideograph(uint32_t c) {
    static const uint32_t blocks[][2] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},
                                         {0x20000, 0x2a6df}, {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f},
                                         {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f}};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        if (c >= blocks[i][0] && c <= blocks[i][1]) return 1;
    return 0;
}

typedef struct tokens {
    int32_t *ids;
    int count, max;
} tokens_t;

static void push(tokens_t *t, int32_t id) {
    if (t->count < t->max) t->ids[t->count++] = id;
}

static void take_apart(const wordpiece_t *w, const uint32_t *word, size_t n, tokens_t *t) {
    char text[2 + 4 * MAX_WORD] = "##";
    int ends[MAX_WORD + 1], first = t->count;
    if (n > MAX_WORD) {
        push(t, w->special[UNK]);
        return;
    }
    ends[0] = 2;
    for (size_t i = 0; i < n; i++)
        ends[i + 1] = ends[i] + encode(word[i], text + ends[i]);
    for (size_t from = 0, to; from < n; from = to) {
        int32_t id = -1;
        char saved[2], *start = text + ends[from] - (from > 0 ? 2 : 0);
        memcpy(saved, start, 2);
        if (from > 0) memcpy(start, "##", 2);
        for (to = n; to > from; to--)
            if ((id = find(w, start, (size_t)(text + ends[to] - start))) >= 0) break;
        memcpy(start, saved, 2);
        if (id < 0) { /* not even one character: the whole word is unknown */
            t->count = first;
            push(t, w->special[UNK]);
            return;
        }
        push(t, id);
    }
}

/* A text between special tokens. */
static void add_text(const wordpiece_t *w, const uint32_t *from, size_t count, tokens_t *t) {
    uint32_t *text = room((3 * (uint64_t)count + 1) * sizeof *text);
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t c = from[i];
        const int is_blank = c == '\t' || c == '\n' || c == '\r',
                  alone = w->is_ideograph_alone && is_ideograph(c);
        if (c == 0 || c == 0xfffd || (!is_blank && unicode_is_control(c))) continue;
        if (alone) text[n++] = ' ';
        text[n++] = unicode_is_space(c) ? ' ' : c;
        if (alone) text[n++] = ' ';
    }
    if (w->is_stripped) {
        uint32_t *plain = unicode_strip_accents(text, &n);
        free(text);
        text = plain;
    }
    for (size_t i = 0; i < n && w->is_lower; i++)
        text[i] = unicode_lower(text[i]);
    for (size_t start = 0, end; start < n && t->count < t->max; start = end) {
        end = start + 1;
        if (unicode_is_space(text[start])) continue;
        if (!unicode_is_punctuation(text[start]))
            while (end < n && !unicode_is_space(text[end]) && !unicode_is_punctuation(text[end]))
                end++;
        take_apart(w, text + start, end - start, t);
    }
    free(text);
}

int wordpiece_encode(const wordpiece_t *w, const char *text, size_t size, const char *name, int32_t *tokens,
                     int max) {
    tokens_t t = {tokens, 0, max - 1};
    uint32_t *chars = room(((uint64_t)size + 1) * sizeof *chars);
    size_t count = 0;
    push(&t, w->special[CLS]);
    for (size_t i = 0; i < size && t.count < t.max;) {
        int which = text[i] == '[' ? 0 : NUM_SPECIAL; /* special tokens are known in the text, as written */
        for (; which < NUM_SPECIAL; which++) {
            const size_t length = strlen(special_text[which]);
            if (w->special[which] >= 0 && size - i >= length &&
                memcmp(text + i, special_text[which], length) == 0)
                break;
        }
        if (which < NUM_SPECIAL) {
            add_text(w, chars, count, &t);
            count = 0;
            push(&t, w->special[which]);
            i += strlen(special_text[which]);
            continue;
        }
        const int n = decode((const unsigned char *)text + i, size - i, &chars[count]);
        if (n == 0) die("%s: byte %zu of the text is not UTF-8", name, i);
        count++;
        i += (size_t)n;
    }
    add_text(w, chars, count, &t);
    free(chars);
    tokens[t.count++] = w->special[SEP];
    return t.count;
}
