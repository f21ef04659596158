/* SPDX-License-Identifier: Apache-2.0 */
/* tool_model.h: the kinds of layers that a command works on: those of a config.json, with the changes that
 * options request, or the one problem of a command line. */
#ifndef ATTN_TOOLS_TOOL_MODEL_H
#define ATTN_TOOLS_TOOL_MODEL_H

#include <attn/attn_model.h>

enum { TOOL_MAX_KINDS = 16 };

typedef struct tool_kind {
    attn_model_kind_t is;
    attn_problem_t problem;
} tool_kind_t;

typedef struct tool_model {
    attn_model_t *file; /* NULL: a problem of the command line */
    const char *type;   /* model_type, or "problem" */
    uint32_t num_kinds;
    tool_kind_t kinds[TOOL_MAX_KINDS];
} tool_model_t;

#endif
