/* SPDX-License-Identifier: Apache-2.0 */
/* cudart_text.h: texts of kernels. */
#ifndef ATTN_TESTS_MODEL_CUDART_TEXT_H
#define ATTN_TESTS_MODEL_CUDART_TEXT_H

enum { NAME_SIZE = 512 };
/* A module with the kernel of this name alone, and its name there, NAME_SIZE bytes; NULL: there is none. */
char *cudart_text(const char *name, char *there);

#endif
