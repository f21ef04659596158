/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the interface as text: error codes, reason codes, the library's version. */
#include "base/names.h"

#include <attn/attn.h>

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0.1.0"
#endif

const char *attn_version(void) {
    return PACKAGE_VERSION;
}

const char *attn_error_name(int code) {
    static const char *const names[] = {
        "ATTN_OK",        "ATTN_E_INVALID",   "ATTN_E_UNSUPPORTED", "ATTN_E_NO_MEMORY",
        "ATTN_E_TOO_NEW", "ATTN_E_NOT_FOUND", "ATTN_E_IO",          "ATTN_E_PARSE",
        "ATTN_E_DEVICE",  "ATTN_E_STATE",     "ATTN_E_SPACE",       "ATTN_E_TRUST",
        "ATTN_E_ABI",     "ATTN_E_EXISTS",    "ATTN_E_FORKED",      "ATTN_E_INTERNAL",
    };
    int index = -code;
    return code <= 0 && index < (int)(sizeof names / sizeof *names) ? names[index] : "unknown";
}

const char *attn_reason_name(int code) {
    const char *name = code > 0 ? attni_name_of(&attni_reason_codes, (uint32_t)code) : NULL;
    return name ? name : "unknown";
}
