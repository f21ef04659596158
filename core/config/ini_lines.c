/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inih 55 splits long lines, cuts long section names, joins indented lines and skips text after ']' without
 * a word. Every line is therefore checked here first, and inih only sees lines on which it and a person
 * agree.
 */
#include "config/ini_lines.h"

#include <attn/attn_plugin_util.h>
#include "config/ini_table.h"

#include <string.h>

static int refuse(struct attni_ini_lines *in, const char *what, const char *do_this) {
    return in->failed =
               attn_fail(in->error, ATTN_E_PARSE, "", "%s:%u: %s; %s", in->source, in->line, what, do_this);
}

static int is_blank(char c) {
    return c == ' ' || c == '\t';
}

static int is_comment(char c) {
    return c == ';' || c == '#';
}

static int check_bytes(struct attni_ini_lines *in, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return in->failed =
                       attn_fail(in->error, ATTN_E_PARSE, "",
                                 "%s:%u: byte 0x%02x at column %zu is not text; is this an INI file?",
                                 in->source, in->line, c, i + 1);
    }
    if (length > ATTNI_INI_LINE_MAX)
        return in->failed = attn_fail(in->error, ATTN_E_PARSE, "",
                                      "%s:%u: the line has %zu bytes, at most %d are read; shorten it",
                                      in->source, in->line, length, ATTNI_INI_LINE_MAX);
    return 0;
}

/* Copies the name between the brackets with blanks trimmed and collapsed. */
static int check_section(struct attni_ini_lines *in, const char *text) {
    const char *close = strchr(text, ']');
    if (!close) return refuse(in, "the section header has no ']'", "write [name] on one line");
    const char *rest = close + 1;
    while (is_blank(*rest))
        rest++;
    if (*rest && !is_comment(*rest)) return refuse(in, "text after ']'", "put the key on a line of its own");
    size_t length = 0;
    for (const char *p = text + 1; p < close; p++) {
        if (is_blank(*p) && (!length || is_blank(p[1]) || p + 1 == close)) continue;
        if (*p == ';' || *p == '[')
            return refuse(in, "a section name holds ';' or '['", "use letters, digits, '_', '-' and blanks");
        if (length >= ATTNI_INI_NAME_MAX)
            return refuse(in, "the section name is longer than 49 bytes", "shorten it");
        in->section[length++] = is_blank(*p) ? ' ' : *p;
    }
    in->section[length] = 0;
    if (!length) return refuse(in, "the section has no name", "write [name]");
    return 0;
}

static int check_assignment(struct attni_ini_lines *in, const char *text) {
    size_t length = strcspn(text, "=:;");
    if (text[length] != '=')
        return refuse(in, "neither a [section] nor 'key = value'",
                      "write key = value, or start a comment with ;");
    while (length && is_blank(text[length - 1]))
        length--;
    if (!length) return refuse(in, "no key before '='", "write key = value");
    if (length > ATTNI_INI_NAME_MAX) return refuse(in, "the key is longer than 49 bytes", "shorten it");
    return 0;
}

static int check_line(struct attni_ini_lines *in, const char *text) {
    const char *start = text;
    while (is_blank(*start))
        start++;
    if (!*start || is_comment(*start)) return 0;
    if (start > text)
        return refuse(in, "the line is indented",
                      "start it in the first column (a value cannot go on in a second line)");
    return *start == '[' ? check_section(in, start) : check_assignment(in, start);
}

char *attni_ini_next_line(char *buffer, int size, void *stream) {
    struct attni_ini_lines *in = stream;
    if (in->failed || in->next == in->end) return NULL;
    const char *text = in->next;
    if (!in->line && in->end - text >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) text += 3;
    const char *newline = memchr(text, '\n', (size_t)(in->end - text));
    size_t length = (size_t)((newline ? newline : in->end) - text);
    in->next = newline ? newline + 1 : in->end;
    in->line++;
    in->section[0] = 0;
    if (length && text[length - 1] == '\r') length--;
    if (check_bytes(in, text, length)) return NULL;
    if (size <= 0 || length >= (size_t)size) {
        refuse(in, "the line does not fit inih's buffer", "shorten it");
        return NULL;
    }
    memcpy(buffer, text, length);
    buffer[length] = 0;
    return check_line(in, buffer) ? NULL : buffer;
}
