/* SPDX-License-Identifier: Apache-2.0 */
/* A device that describes more than this plugin knows is refused. Caught by: structs, a longer attn_device_t
 * that describes more */
#include "bad.h"
#define attn_intake_known attn_intake

#include "bad_plugin.h"
