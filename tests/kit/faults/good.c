/* SPDX-License-Identifier: Apache-2.0 */
/* The example plugin as it is, built the way of the bad ones. Caught by: nothing */
#include "bad.h"

#include "bad_plugin.h"
