/* SPDX-License-Identifier: Apache-2.0 */
/* ref_capabilities.h: the capability table, which open checks a problem against like the host does, and the
 * operations. */
#ifndef ATTN_REFERENCE_CAPABILITIES_H
#define ATTN_REFERENCE_CAPABILITIES_H

#include <attn/attn_plugin.h>

extern const attn_capabilities_t ref_capabilities;
extern const attn_backend_ops_t ref_ops;

#endif
