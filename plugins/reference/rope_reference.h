/* SPDX-License-Identifier: Apache-2.0 */
/* rope_reference.h: the table of attn.draft.rope_write/0 in the reference plugin. */
#ifndef ROPE_REFERENCE_H
#define ROPE_REFERENCE_H

#include <attn/draft/attn_rope_write.h>

extern const attn_rope_extension_t ref_rope_extension;

#endif
