/* SPDX-License-Identifier: Apache-2.0 */
/* The objects that the instances become. configure preprocesses this file: one object a semicolon, FAMILY
 * ARGUMENTS, which instance.sh turns into a source: the family's header and INSTANCE(ARGUMENTS). */
#include "dense_instances.h"

#define DECODE(NAME, DK, DV, TYPE, ...)                               decode_sm80 TYPE NAME;
#define PORTABLE_PREFILL(NAME, DK, DV, TYPE, ...)                     prefill_sm80 TYPE NAME;
#define HOPPER_PREFILL(NAME, DK, DV, WG, BK, QB, FK, TYPE, KEYS, ...) prefill_sm90 TYPE NAME KEYS;
#define BYTE_PREFILL(KIND, NAME, DK, DV, WG, BK, QB, FK, ...)         prefill_sm90_##KIND NAME;
#define RESIDENT(NAME, D, TYPE, ...)                                  resident_sm90 TYPE NAME;

DENSE_SM80_INSTANCES(DECODE, )
DENSE_SM80_INSTANCES(PORTABLE_PREFILL, )
DENSE_SM90_INSTANCES(HOPPER_PREFILL, )
DENSE_SM90_E4M3_CLASSES(BYTE_PREFILL, )
DENSE_RESIDENT_INSTANCES(RESIDENT, )
