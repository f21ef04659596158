/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unicode.c: the few properties of characters that a tokeniser asks for. With libunistring
 * (HAVE_UNISTRING) they are Unicode's; without it the program reads ASCII alone, and says so where a
 * text has more: a vector of other tokens would only look right.
 */
#include "embed.h"

#include <stdlib.h>
#include <string.h>

#ifdef HAVE_UNISTRING
#include <unicase.h>
#include <unictype.h>
#include <uninorm.h>
#endif

static int is_ascii(uint32_t c) {
#ifndef HAVE_UNISTRING
    if (c >= 0x80)
        die("character U+%04X: this program was built without libunistring and reads ASCII alone",
            (unsigned)c);
#endif
    return c < 0x80;
}

int unicode_is_space(uint32_t c) {
    if (is_ascii(c)) return c == ' ' || (c >= '\t' && c <= '\r');
#ifdef HAVE_UNISTRING
    return uc_is_property_white_space(c);
#else
    return 0;
#endif
}

int unicode_is_punctuation(uint32_t c) {
    if (is_ascii(c))
        return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
               (c >= '{' && c <= '~');
#ifdef HAVE_UNISTRING
    return uc_is_general_category(c, UC_PUNCTUATION);
#else
    return 0;
#endif
}

int unicode_is_control(uint32_t c) {
    if (is_ascii(c)) return c < ' ' || c == 0x7f;
#ifdef HAVE_UNISTRING
    return uc_is_general_category(c, UC_CONTROL) || uc_is_general_category(c, UC_FORMAT) ||
           uc_is_general_category(c, UC_PRIVATE_USE);
#else
    return 0;
#endif
}

uint32_t unicode_lower(uint32_t c) {
    if (is_ascii(c)) return c >= 'A' && c <= 'Z' ? c + 32 : c;
#ifdef HAVE_UNISTRING
    return uc_tolower(c);
#else
    return c;
#endif
}

uint32_t *unicode_strip_accents(const uint32_t *text, size_t *n) {
#ifdef HAVE_UNISTRING
    size_t length = 0;
    uint32_t *out = u32_normalize(UNINORM_NFD, text, *n, NULL, &length);
    if (out == NULL) die("no memory for a text of %zu characters", *n);
    *n = 0;
    for (size_t i = 0; i < length; i++)
        if (!uc_is_general_category(out[i], UC_NON_SPACING_MARK)) out[(*n)++] = out[i];
    return out;
#else
    uint32_t *out = room((*n + 1) * sizeof *out);
    memcpy(out, text, *n * sizeof *out);
    for (size_t i = 0; i < *n; i++)
        (void)is_ascii(out[i]);
    return out;
#endif
}
