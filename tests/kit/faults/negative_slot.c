/* SPDX-License-Identifier: Apache-2.0 */
/* Padding slots are written, before the first row of the cache. Caught by: memory, nothing is written */
#include "bad.h"

#define simple_is_padding(slot) ((void)(slot), 0)

#include "bad_plugin.h"
