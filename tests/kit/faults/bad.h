/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bad.h: plugins that are wrong in one way each, made from examples/plugin by replacing one rule or one
 * operation. A file says `#include "bad.h"`, then either defines a macro over a rule of simple_rules.h, or
 * includes bad_kernel.h and defines BAD_FORWARD, BAD_OPEN .. with an operation of its own, and ends with
 * `#include "bad_plugin.h"`. The comment at the head of each file names the group of `attn check` that has to
 * catch it.
 */
#ifndef BAD_H
#define BAD_H

#include <attn/attn_plugin_util.h>

#include <stdlib.h>

#include "../../../examples/plugin/simple_rules.h"

#endif
