/* SPDX-License-Identifier: Apache-2.0 */
/* hf_unread.h: fields of a config.json that concern attention and were not read: what they mean is
 * missing from the problems, so they are named. */
#ifndef ATTNI_HF_UNREAD_H
#define ATTNI_HF_UNREAD_H

#include "model/hf_fields.h"

/* Whether a field of that name says something about attention layers, as far as a name can tell. [pure] */
int attni_hf_name_is_of_attention(const char *name);

/* Calls found with the path of each such field of the file that was not read and is not switched off (false,
 * 0, null, "",
 * []): "v_head_dim", "text_config.swa_num_key_value_heads". is_hybrid: layers of another kind are left out on
 * purpose, with their fields. */
void attni_hf_unread_each(const hf_reader_t *top, int is_hybrid, void (*found)(void *user, const char *path),
                          void *user);

#endif
