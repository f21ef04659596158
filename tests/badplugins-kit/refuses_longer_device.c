/* SPDX-License-Identifier: Apache-2.0 */
/* A device that says more than this plugin knows is refused. Caught by: structs, a longer attn_device_t that says more */
#include "bad.h"
#define attn_intake_known attn_intake

#include "bad_plugin.h"
