/* SPDX-License-Identifier: Apache-2.0 */
/* The sink is multiplied by the softmax scale. Caught by: numerics, feature sink */
#include "bad.h"

#define simple_start(sink, has_sink, max, sum) simple_start((sink)*l->scale, has_sink, max, sum)

#include "bad_plugin.h"
