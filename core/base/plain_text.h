/* SPDX-License-Identifier: Apache-2.0 */
/* plain_text.h: texts of files and plugins end on terminals, where control characters act: cursor, colours,
 * the clipboard. */
#ifndef ATTNI_PLAIN_TEXT_H
#define ATTNI_PLAIN_TEXT_H

/* Bytes of the control character at text: C0 and DEL are one byte, C1 (U+0080 to U+009F) is two in UTF-8; 0:
 * it is none. */
static inline int attni_control_at(const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    if (c[0] != 0 && (c[0] < 0x20 || c[0] == 0x7f)) return 1;
    return c[0] == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f ? 2 : 0;
}

static inline int attni_text_is_plain(const char *text) {
    while (*text && !attni_control_at(text))
        text++;
    return !*text;
}

/* Every byte of a control character becomes `with`. */
static inline void attni_text_make_plain(char *text, char with) {
    for (int bytes; *text; text++)
        for (bytes = attni_control_at(text); bytes > 0; bytes--)
            *(bytes > 1 ? text++ : text) = with;
}

#endif
