/* SPDX-License-Identifier: Apache-2.0 */
/* From a configuration to machine code: NVRTC, and a folder that keeps what it made. No device is needed
 * here. */
#ifndef TRITON_COMPILE_H
#define TRITON_COMPILE_H

#include "triton_config.h"

/* Where code comes from and goes to; strings are borrowed during a call, "" means none. */
typedef struct triton_toolchain {
    const char *cache_dir;   /* absolute */
    const char *nvrtc;       /* path of libnvrtc; "" looks for it */
    const attn_host_t *host; /* for log lines; may be NULL */
} triton_toolchain_t;

/* The options of the plugin. */
enum {
    TRITON_OPTION_CACHE_DIR,
    TRITON_OPTION_NVRTC,
    TRITON_OPTION_SEGMENTS,
    TRITON_OPTION_ARCH,
    TRITON_NUM_OPTIONS
};
/* What the options say about compiling. */
triton_toolchain_t triton_toolchain_of(const attn_option_value_t *options, uint32_t num_options,
                                       const attn_host_t *host);

enum { TRITON_PROGRAM_PREFILL, TRITON_PROGRAM_DECODE, TRITON_PROGRAM_WIDE, TRITON_MAX_PROGRAMS };

typedef struct triton_code {
    int count;
    void *cubin[TRITON_MAX_PROGRAMS]; /* malloc */
    size_t bytes[TRITON_MAX_PROGRAMS];
    int kind[TRITON_MAX_PROGRAMS];
    int from_cache;
} triton_code_t;

/* Programs of one text and macros, "-DX=1\n..", each. */
typedef struct triton_request {
    int count;
    const char *sources[TRITON_MAX_PROGRAMS];
    int kinds[TRITON_MAX_PROGRAMS];
    const char *macros[TRITON_MAX_PROGRAMS];
    int cc;
    int is_virtual; /* PTX, which the driver compiles for the device that is there */
} triton_request_t;
int triton_make_programs(const triton_request_t *request, const triton_toolchain_t *tools,
                         triton_code_t *code, attn_error_t *error);
/* Every program of a configuration, from the folder or this process's memory where it is there, else compiled
 * (in parallel) and stored. */
int triton_make_code(const triton_config_t *config, const triton_toolchain_t *tools, triton_code_t *code,
                     attn_error_t *error);
void triton_free_code(triton_code_t *code);
/* The report of attn.draft.compile/0, if one is wanted; frees the code. */
struct attn_compile_report;
int triton_give_report(struct attn_compile_report *report, triton_code_t *code, attn_error_t *error);

/* A line to the host's log. */
ATTN_PRINTF(3, 4) void triton_log(const attn_host_t *host, uint32_t level, const char *format, ...);

/* NVRTC, loaded while it is needed. */
typedef struct triton_nvrtc {
    void *library;
    int major, minor;
    int arch; /* best supported architecture for the one asked for */
    int is_virtual;
    int (*create)(void **, const char *, const char *, int, const char *const *, const char *const *);
    int (*compile)(void *, int, const char *const *);
    int (*cubin_size)(void *, size_t *);
    int (*cubin)(void *, char *);
    int (*ptx_size)(void *, size_t *);
    int (*ptx)(void *, char *);
    int (*log_size)(void *, size_t *);
    int (*get_log)(void *, char *);
    int (*destroy)(void **);
    const char *(*error_string)(int);
} triton_nvrtc_t;
int triton_nvrtc_open(triton_nvrtc_t *n, const char *path, int cc, attn_error_t *error);
void triton_nvrtc_close(triton_nvrtc_t *n);
/* The text of one program; macros as lines. *cubin is malloc'ed. */
int triton_nvrtc_compile(const triton_nvrtc_t *n, const char *source, const char *macros, void **cubin,
                         size_t *bytes, attn_error_t *error);
/* Around a compilation: the signal handlers that NVRTC changes, kept and put back. */
void triton_signals_keep(void);
void triton_signals_restore(const triton_nvrtc_t *n);
/* Hash over everything that NVRTC is given. */
uint64_t triton_source_hash(uint64_t seed);

/* The folder. Loading returns 0 with *cubin set, else there is nothing usable. Storing never fails
 * anybody. */
int triton_store_check(const char *dir, attn_error_t *error);
int triton_store_load(const char *dir, const char *key, void **cubin, size_t *bytes, const attn_host_t *host);
void triton_store_save(const char *dir, const char *key, const void *cubin, size_t bytes,
                       const attn_host_t *host);
/* The same in this process's memory, for the last 32 programs. */
int triton_memory_load(const char *key, void **cubin, size_t *bytes);
void triton_memory_save(const char *key, const void *cubin, size_t bytes);

#endif
