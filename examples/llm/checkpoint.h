/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.h: a checkpoint folder as Hugging Face writes it: weights in safetensors, mapped and checked,
 * and numbers out of config.json. The example in ../embed reads its model with it too.
 */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <jansson.h>
#include <stdint.h>

extern const char *const program; /* its name, for die: whoever has main defines it */
/* Ends the program with a message. */
__attribute__((format(printf, 1, 2), noreturn)) void die(const char *format, ...);
void *room(uint64_t bytes); /* zeroed; never NULL */

/* A matrix as it lies in the file, rows of cols values: float32, or bfloat16 if is_bf16. A vector has one
 * row. */
typedef struct weight {
    const void *data; /* NULL: of a dtype that is not served */
    int64_t rows, cols;
    int is_bf16, is_used;
    char *name;
} weight_t;

typedef struct checkpoint checkpoint_t;
/* model.safetensors, or the parts that model.safetensors.index.json names. */
checkpoint_t *checkpoint_open(const char *folder);
/* A weight of that shape by its name; NULL if there is none and it is not required. */
__attribute__((format(printf, 5, 6))) const weight_t *checkpoint_get(checkpoint_t *checkpoint, int64_t rows,
                                                                     int64_t cols, int is_required,
                                                                     const char *format, ...);
/* Dies if a weight was never asked for, and its name has none of the words in unused (up to a NULL): then the
 * model is another one than the program computes. */
void checkpoint_check_used(const checkpoint_t *checkpoint, const char *const *unused);
void checkpoint_close(checkpoint_t *checkpoint);

/* An object from a file of JSON; NULL if there is no such file and it is not required. */
json_t *config_load(const char *path, int is_required);
/* A number above 0, and a whole number from 1; the fallback where it is missing or null. */
double config_number(json_t *root, const char *name, double fallback);
int64_t config_whole(json_t *root, const char *name, int64_t fallback);

#endif
