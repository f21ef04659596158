/* SPDX-License-Identifier: Apache-2.0 */
/* A table of instances of the dense kernels: const flash_kernels name = FLASH_KERNELS(DECODES, PREFILLS).
 * Both are macros (type, dk, dv, paged) of constants that say which instances the table has; what it has not
 * is not linked. The portable kernels serve keys in rows and in pages: they are asked for with paged 0. */
#ifndef FLASH_KERNELS_H
#define FLASH_KERNELS_H

#include "flash_launch.h"

#define FLASH_DECODE_NAME(TYPE, NAME)             flash_decode_##TYPE##_##NAME
#define FLASH_PREFILL_NAME(TYPE, NAME)            flash_prefill_sm80_##TYPE##_##NAME
#define FLASH_PREFILL_SM90_NAME(TYPE, NAME, KEYS) flash_prefill_sm90_##TYPE##_##NAME##_##KEYS
#define FLASH_PREFILL_E4M3_NAME(KIND, NAME)       flash_prefill_sm90_##KIND##_##NAME
#define FLASH_RESIDENT_NAME(TYPE, NAME)           flash_resident_sm90_##TYPE##_##NAME

#define FLASH_DECLARE_SM80(NAME, DK, DV, TYPE, ...)                                                          \
    int FLASH_DECODE_NAME(TYPE, NAME)(const flash_params *, const flash_decode_config *, int, void *);       \
    int FLASH_PREFILL_NAME(TYPE, NAME)(const flash_params *, const flash_prefill_config *, int, void *);
#define FLASH_DECLARE_SM90(NAME, DK, DV, WG, BK, QB, FK, TYPE, KEYS, ...)                                    \
    int FLASH_PREFILL_SM90_NAME(TYPE, NAME, KEYS)(const struct flash_sm90_params *, int, int, void *);
#define FLASH_DECLARE_E4M3(KIND, NAME, ...)                                                                  \
    int FLASH_PREFILL_E4M3_NAME(KIND, NAME)(const struct flash_sm90_params *, int, int, void *);
#define FLASH_DECLARE_RESIDENT(NAME, D, TYPE, ...)                                                           \
    int FLASH_RESIDENT_NAME(TYPE, NAME)(const struct flash_sm90_params *, int, int, void *);
DENSE_SM80_INSTANCES(FLASH_DECLARE_SM80, )
DENSE_SM90_INSTANCES(FLASH_DECLARE_SM90, )
DENSE_SM90_E4M3_CLASSES(FLASH_DECLARE_E4M3, )
DENSE_RESIDENT_INSTANCES(FLASH_DECLARE_RESIDENT, )

#define FLASH_DECODE_ENTRY(NAME, DK, DV, TYPE, USES)                                                         \
    [FLASH_TYPE_##TYPE - FLASH_F16][FLASH_CLASS_##NAME] =                                                    \
        USES(FLASH_TYPE_##TYPE, DK, DV, 0) ? FLASH_DECODE_NAME(TYPE, NAME) : 0,
#define FLASH_PREFILL_ENTRY(NAME, DK, DV, TYPE, USES)                                                        \
    [FLASH_TYPE_##TYPE - FLASH_F16][FLASH_CLASS_##NAME] =                                                    \
        USES(FLASH_TYPE_##TYPE, DK, DV, 0) ? FLASH_PREFILL_NAME(TYPE, NAME) : 0,
#define FLASH_PREFILL_SM90_ENTRY(NAME, DK, DV, WG, BK, QB, FK, TYPE, KEYS, USES)                             \
    [FLASH_TYPE_##TYPE - FLASH_F16][FLASH_SM90_CLASS_##NAME][FLASH_KEYS_##KEYS] =                            \
        USES(FLASH_TYPE_##TYPE, DK, DV, FLASH_KEYS_##KEYS) ? FLASH_PREFILL_SM90_NAME(TYPE, NAME, KEYS) : 0,
#define FLASH_PREFILL_E4M3_ENTRY(KIND, NAME, DK, DV, WG, BK, QB, FK, USES)                                   \
    [FLASH_E4M3_CLASS_##KIND##_##NAME] =                                                                     \
        USES(FLASH_E4M3, DK, DV, 1) ? FLASH_PREFILL_E4M3_NAME(KIND, NAME) : 0,
#define FLASH_RESIDENT_ENTRY(NAME, D, TYPE, USES)                                                            \
    [FLASH_TYPE_##TYPE - FLASH_F16][FLASH_RESIDENT_CLASS_##NAME] =                                           \
        USES(FLASH_TYPE_##TYPE, D, D, 0) ? FLASH_RESIDENT_NAME(TYPE, NAME) : 0,

#define FLASH_KERNELS(DECODES, PREFILLS)                                                                     \
    {                                                                                                        \
        .decode = {DENSE_SM80_INSTANCES(FLASH_DECODE_ENTRY, DECODES)},                                       \
        .prefill_sm80 = {DENSE_SM80_INSTANCES(FLASH_PREFILL_ENTRY, PREFILLS)},                               \
        .prefill_sm90 = {DENSE_SM90_INSTANCES(FLASH_PREFILL_SM90_ENTRY, PREFILLS)},                          \
        .prefill_e4m3 = {DENSE_SM90_E4M3_CLASSES(FLASH_PREFILL_E4M3_ENTRY, PREFILLS)},                       \
        .resident = {DENSE_RESIDENT_INSTANCES(FLASH_RESIDENT_ENTRY, PREFILLS)},                              \
    }

#endif
