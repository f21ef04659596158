/* SPDX-License-Identifier: Apache-2.0 */
/* The instances of the dense kernels: a row here is an object of its own (dense_objects.h), a row of the
 * table by which flash_config.c chooses, and an entry of the tables of kernels that plugins carry
 * (flash_kernels.h). */
#ifndef DENSE_INSTANCES_H
#define DENSE_INSTANCES_H

/* Head-size classes of the portable kernels. A head size runs in the smallest class that holds it, padded
 * with zeros.
 *  X(NAME, head size of keys, of values, ...) */
#define DENSE_SM80_CLASSES(X, ...)                                                                           \
    X(d64, 64, 64, __VA_ARGS__)                                                                              \
    X(d96, 96, 96, __VA_ARGS__)                                                                              \
    X(d128, 128, 128, __VA_ARGS__)                                                                           \
    X(d192v128, 192, 128, __VA_ARGS__)                                                                       \
    X(d192, 192, 192, __VA_ARGS__)                                                                           \
    X(d256, 256, 256, __VA_ARGS__)

/* Those of Hopper prefill. Sizes between classes run padded, except 72 and 80, which vision models use. Of
 * two classes of one size the second serves windows in which its blocks hold fewer keys that nobody sees.
 *  X(NAME, head size of keys, of values, warpgroups of 64 query rows, keys of a block, Q buffers,
 *    keys of a block of the kernels with soft cap and ALiBi, which need registers for them, ...) */
#define DENSE_SM90_CLASSES(X, ...)                                                                           \
    X(d64, 64, 64, 3, 112, 2, 112, __VA_ARGS__)                                                              \
    X(d64short, 64, 64, 3, 80, 2, 80, __VA_ARGS__)                                                           \
    X(d72, 72, 72, 3, 96, 2, 96, __VA_ARGS__)                                                                \
    X(d80, 80, 80, 3, 96, 2, 96, __VA_ARGS__)                                                                \
    X(d96, 96, 96, 3, 112, 2, 80, __VA_ARGS__)                                                               \
    X(d128, 128, 128, 2, 128, 2, 128, __VA_ARGS__)                                                           \
    X(d192v128, 192, 128, 2, 128, 1, 128, __VA_ARGS__)                                                       \
    X(d192, 192, 192, 2, 96, 1, 96, __VA_ARGS__)                                                             \
    X(d256, 256, 256, 2, 80, 1, 80, __VA_ARGS__)

/* Hopper prefill over a paged e4m3 cache, whose rows are one line of 128 bytes: under e4m3 queries products
 * of bytes, under others keys widened to f16. Columns as above. */
#define DENSE_SM90_E4M3_CLASSES(X, ...)                                                                      \
    X(e4m3, d128, 128, 128, 2, 128, 2, 128, __VA_ARGS__)                                                     \
    X(widened, d128, 128, 128, 2, 128, 2, 128, __VA_ARGS__)

/* Encoders of short requests on Hopper (resident_sm90.cuh).
 *  X(NAME, head size, ...) */
#define DENSE_RESIDENT_CLASSES(X, ...)                                                                       \
    X(d64, 64, __VA_ARGS__)                                                                                  \
    X(d80, 80, __VA_ARGS__)                                                                                  \
    X(d96, 96, __VA_ARGS__)                                                                                  \
    X(d128, 128, __VA_ARGS__)

/* What is compiled: every class for every type of keys; Hopper's for keys in rows and in pages. Appended to a
 * row: the type and whether keys are paged. */
#define DENSE_SM80_INSTANCES(X, ...)                                                                         \
    DENSE_SM80_CLASSES(X, f16, __VA_ARGS__)                                                                  \
    DENSE_SM80_CLASSES(X, bf16, __VA_ARGS__)                                                                 \
    DENSE_SM80_CLASSES(X, e4m3, __VA_ARGS__)
#define DENSE_SM90_INSTANCES(X, ...)                                                                         \
    DENSE_SM90_CLASSES(X, f16, rows, __VA_ARGS__)                                                            \
    DENSE_SM90_CLASSES(X, f16, pages, __VA_ARGS__)                                                           \
    DENSE_SM90_CLASSES(X, bf16, rows, __VA_ARGS__)                                                           \
    DENSE_SM90_CLASSES(X, bf16, pages, __VA_ARGS__)
#define DENSE_RESIDENT_INSTANCES(X, ...)                                                                     \
    DENSE_RESIDENT_CLASSES(X, f16, __VA_ARGS__)                                                              \
    DENSE_RESIDENT_CLASSES(X, bf16, __VA_ARGS__)

#endif
