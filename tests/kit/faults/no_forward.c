/* SPDX-License-Identifier: Apache-2.0 */
/* The table of operations has no forward. Caught by: abi */
#include "bad.h"
#include "bad_kernel.h"

#define BAD_FORWARD NULL

#include "bad_plugin.h"
