/* SPDX-License-Identifier: Apache-2.0 */
/* The extensions of the reference backend. */
#ifndef INDEXER_REFERENCE_H
#define INDEXER_REFERENCE_H

#include <attn/attn_plugin.h>

/* attn.draft.indexer/0, or NULL. */
const void *ref_get_extension(attn_instance_t *instance, const char *id);

#endif
