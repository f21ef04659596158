/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_compile.h: a draft extension of backends that compile kernels when a problem is opened: the same work
 * ahead of time, for a device that need not be present. A draft may change in every release; its number is
 * part of the id.
 *
 *     const attn_compile_extension_t *x = ops->get_extension(NULL, ATTN_COMPILE_EXTENSION);
 *     if (x != NULL) x->compile(&problem, &device, options, num_options, NULL, &report, &error);
 */
#ifndef ATTN_DRAFT_COMPILE_H
#define ATTN_DRAFT_COMPILE_H

#include <attn/attn_plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_COMPILE_EXTENSION "attn.draft.compile/0"

/* What happened; written on success. */
typedef struct attn_compile_report {
    uint32_t struct_size;
    uint32_t num_programs; /* that the problem needs */
    uint32_t num_cached;   /* of them, found where they are kept */
    uint32_t reserved0;
    uint64_t bytes; /* of machine code */
} attn_compile_report_t;

typedef struct attn_compile_extension {
    uint32_t struct_size;
    uint32_t reserved0;
    /* Makes the code that open would make for this problem on this device (compute_capability is what counts)
     * and keeps it where the options say. options as in open; host may be NULL. [any thread] */
    int (*compile)(const attn_problem_t *problem, const attn_device_t *device,
                   const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                   attn_compile_report_t *report, attn_error_t *error);
} attn_compile_extension_t;

#ifdef __cplusplus
}
#endif
#endif
