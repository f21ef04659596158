/* SPDX-License-Identifier: Apache-2.0 */
/* Near-miss names: "unknown key 'plugin', did you mean 'plugins'". */
#ifndef ATTNI_NEAREST_H
#define ATTNI_NEAREST_H

#include <stddef.h>

/* The name of the array closest to word, or NULL if none is close enough to be a typo. */
const char *attni_nearest(const char *word, const char *const *names, size_t count);

/* ", did you mean 'NAME'" in buffer, or "" if nothing is near. Returns buffer. */
const char *attni_did_you_mean(char *buffer, size_t size, const char *word, const char *const *names,
                               size_t count);

#endif
