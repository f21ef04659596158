/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_engine.h: what a single check of the kit sees: the backend, the seed, and how to run a case and say
 * what is wrong. A check is a function; each file check_GROUP.c adds its checks to the list.
 */
#ifndef ATTN_KIT_CHECK_ENGINE_H
#define ATTN_KIT_CHECK_ENGINE_H

#include "../case/attn_case.h"
#include "check.h"

#include <attn/attn_plugin_util.h>

#include <time.h>

/* Shared between the child that runs a check and the parent that prints it. */
typedef struct check_report {
    int is_done, is_failed, is_skipped;
    int num_cases;      /* cases that ran */
    int num_left_out;   /* for lack of time, on a slow device */
    double seconds;     /* by the clock, from the start of the child to its end */
    char text[900];     /* the first failure, or why the check is skipped */
    char running[8192]; /* the case in progress, or that failed */
} check_report_t;

typedef struct check {
    const check_options_t *options;
    const attn_plugin_t *plugin;
    const attn_backend_t *raw;     /* the backend as the plugin has it */
    const attn_backend_t *backend; /* the same, its open with default options and a host */
    attn_capabilities_t can;
    const kit_memory_t *memory;
    int is_device_here; /* that memory is of */
    uint64_t seed;
    uint32_t arg; /* of this check */
    uint32_t
        /* ATTN_ROLE_MLA.. where the cases of this check are of latent attention; 0: of the other roles */
        role;
    check_report_t *report;
    struct timespec first_case;            /* when it began; 0: none has */
    const struct load_report *load_report; /* how loading the file went, in a process of its own */
} check_t;

typedef void check_func_t(check_t *c);

typedef struct check_list {
    struct check_entry {
        const char *group;
        char name[120];
        check_func_t *run;
        uint32_t arg, role;
        int needs_device; /* CHECK_TABLES, .. */
        int can_share;    /* leaves nothing behind, so that others may run in its process after it */
    } * items;
    int count, capacity;
    uint32_t role; /* of the checks that are being added */
    int can_share; /* likewise */
} check_list_t;

/* The memory of the check that runs in this process. */
const kit_memory_t *check_memory(void);
/* While it is on, the calls of c->backend are recorded into a graph, so that nothing waits for them. */
void check_recording(int is_on);

/* What a check needs: only the tables, operations on some device, operations on host memory. */
enum { CHECK_TABLES = 0, CHECK_RUNS = 1, CHECK_RUNS_ON_CPU = 2 };

/* Adds one check; name is a format. */
ATTN_PRINTF(6, 7)
void check_add(check_list_t *list, const char *group, int needs_device, check_func_t *run, uint32_t arg,
               const char *name, ...);

/* The first request of a batch as a batch of its own; its tensors and shapes are in t and shape. */
attn_batch_t first_request(const attn_batch_t *batch, DLTensor t[8], int64_t shape[8][4]);

/* One for each group: adds what applies to this backend. */
void check_abi_list(check_list_t *list, const check_t *c);
void check_structs_list(check_list_t *list, const check_t *c);
void check_capabilities_list(check_list_t *list, const check_t *c);
void check_numerics_list(check_list_t *list, const check_t *c);
void check_latent_list(check_list_t *list, const check_t *c);         /* part of numerics */
void check_static_sink_list(check_list_t *list, const check_t *c);    /* likewise */
void check_key_lengths_list(check_list_t *list, const check_t *c);    /* likewise */
void check_device_lengths_list(check_list_t *list, const check_t *c); /* likewise */
void check_memory_list(check_list_t *list, const check_t *c);
void check_offsets_list(check_list_t *list, const check_t *c);
void check_determinism_list(check_list_t *list, const check_t *c);
void check_capture_list(check_list_t *list, const check_t *c);
void check_errors_list(check_list_t *list, const check_t *c);
void check_threads_list(check_list_t *list, const check_t *c);
void check_first_list(check_list_t *list, const check_t *c); /* part of threads */
void check_leaks_list(check_list_t *list, const check_t *c);
void check_manners_list(check_list_t *list, const check_t *c);
/* Timings, which are not checks: each says its line by check_skip. */
void check_bench_list(check_list_t *list, const check_t *c);

void check_steps_list(check_list_t *list, const check_t *c);
void check_options_list(check_list_t *list, const check_t *c);
void check_relations_list(check_list_t *list, const check_t *c);
void check_families_list(check_list_t *list, const check_t *c);  /* part of numerics */
void check_levels_list(check_list_t *list, const check_t *c);    /* part of numerics */
void check_ends_list(check_list_t *list, const check_t *c);      /* part of numerics */
void check_limits_list(check_list_t *list, const check_t *c);    /* part of numerics */
void check_weights_list(check_list_t *list, const check_t *c);   /* part of numerics */
void check_nan_list(check_list_t *list, const check_t *c);       /* part of numerics */
void check_outputs_list(check_list_t *list, const check_t *c);   /* as well */
void check_write_list(check_list_t *list, const check_t *c);     /* likewise */
void check_usual_list(check_list_t *list, const check_t *c);     /* likewise */
void check_sizes_list(check_list_t *list, const check_t *c);     /* likewise */
void check_stored_list(check_list_t *list, const check_t *c);    /* likewise */
void check_paging_list(check_list_t *list, const check_t *c);    /* likewise */
void check_pairs_list(check_list_t *list, const check_t *c);     /* likewise */
void check_neutral_list(check_list_t *list, const check_t *c);   /* likewise */
void check_own_list(check_list_t *list, const check_t *c);       /* likewise */
void check_read_only_list(check_list_t *list, const check_t *c); /* part of memory */
void check_far_list(check_list_t *list, const check_t *c);       /* part of offsets */
void check_reasons_list(check_list_t *list, const check_t *c);   /* part of capabilities */
void check_defaults_list(check_list_t *list, const check_t *c);  /* part of capabilities */
void check_behind_list(check_list_t *list, const check_t *c);    /* part of determinism */
void check_many_list(check_list_t *list, const check_t *c);      /* part of steps */
void check_next_list(check_list_t *list, const check_t *c);      /* likewise */
void check_lone_list(check_list_t *list, const check_t *c);      /* part of offsets */
void check_state_list(check_list_t *list, const check_t *c);     /* part of manners */
void check_calls_list(check_list_t *list, const check_t *c);     /* part of memory */
void check_parts_list(check_list_t *list, const check_t *c);     /* part of numerics */
void check_team_list(check_list_t *list, const check_t *c);      /* part of manners */
void check_every_list(check_list_t *list, const check_t *c);     /* part of capabilities */
void check_left_list(check_list_t *list, const check_t *c);      /* part of manners */

/* Records a failure (the first one stays) and returns 0. */
ATTN_PRINTF(2, 3) int check_fail(check_t *c, const char *format, ...);
/* The check has nothing to do here. */
ATTN_PRINTF(2, 3) void check_skip(check_t *c, const char *format, ...);
/* The case that a crash from here on is attributed to. */
void check_running(check_t *c, const kit_case_t *k);

/* The smallest ordinary case that the table allows, three requests, of c->role if that is set; 0 if the kit
 * has none for this backend. */
int check_plain_case(const check_t *c, kit_case_t *k);
/* The same, or the check is skipped and says so; without its requests; without them, and of decoders alone.
 * */
int check_start(check_t *c, kit_case_t *k);
int check_start_without(check_t *c, kit_case_t *k);
int check_start_decoder(check_t *c, kit_case_t *k);
/* A case of that role of latent attention in sizes that the table allows, without requests; 0 if the kit has
 * none. */
int check_latent_case(const check_t *c, kit_case_t *k, uint32_t role, uint64_t seed);
/* Case i of those in which a batch says something of its requests: spans, prefixes, masks, biases, lengths on
 * the device; 1 if the backend serves it. */
enum { CHECK_NUM_SAID = 9 };
int check_said_case(const check_t *c, kit_case_t *k, int i);
/* Case i of those with something that is a layer's own: sinks, slopes, scales of its cache, queries and
 * outputs, biases; 1 if the backend serves it. */
enum { CHECK_NUM_LAYER = 7 };
int check_layer_case(const check_t *c, kit_case_t *k, int i);
/* The plain case, and on the host for i above 0 over each cache format and in each element type; 0: no such.
 */
enum { CHECK_NUM_KEPT = ATTN_KV_COUNT_ + 3 };
int check_kept_case(const check_t *c, kit_case_t *k, int i);
/* Problems of two features each against which supports_combination has a reason; how many. */
int check_refused(const check_t *c, attn_problem_t *all, int most);
/* 1 if neither supports_combination nor the kit has something against the case. */
int check_is_served(const check_t *c, const kit_case_t *k);
/* Multiplications of a case; random cases beyond MAX_WORK are left out, because a plain kernel needs seconds
 * for them. */
double check_work(const kit_case_t *k);
#define MAX_WORK 6e6
/* A small random case, of c->role if that is set. */
void check_random_case(const check_t *c, kit_case_t *k, uint64_t seed, int32_t max_len);
/* Rounds sizes to what the table allows: nearest advertised head size and block size. */
uint32_t check_head_size(const check_t *c, uint32_t wanted);
/* Heads as small and as few as long contexts want: two over one, where groups are served. */
void check_few_heads(const check_t *c, kit_case_t *k);
/* A head size of the table that rows of the case's cache format can have, where the case's own is none. */
void check_fit_size(const check_t *c, kit_case_t *k);
uint32_t check_block_size(const check_t *c, uint32_t wanted);
/* The fp8 cache with static scales that checks of no format in particular use: e4m3, else e5m2, else 0. */
uint32_t check_fp8_cache(const check_t *c);
/* The device of c->memory, as open wants it. */
void check_device(const check_t *c, attn_device_t *device);
/* The backend with default options and a host; on a GPU, with waits after each call once
 * check_wait_after_calls was told. */
const attn_backend_t *check_with_defaults(const attn_plugin_t *plugin, const attn_backend_t *backend);
void check_wait_after_calls(const kit_memory_t *memory);
/* Option i of a plugin; its value from text; the values of all from their defaults, in one static array. */
const attn_option_spec_t *check_option_spec(const attn_plugin_t *plugin, uint32_t i);
void check_option_parse(const attn_option_spec_t *s, const char *text, attn_option_value_t *v);
const attn_option_value_t *check_option_defaults(const attn_plugin_t *plugin, uint32_t *count);
/* Values other than the defaults from now on, "name=value,name=value"; -1 with a line in why for an unknown
 * name. */
int check_options_give(const attn_plugin_t *plugin, const char *text, char *why, size_t size);
/* Opens an instance of c->backend for a problem. */
int check_open(const check_t *c, const attn_problem_t *p, attn_instance_t **instance, attn_error_t *error);
/* The host that the kit gives to open. */
extern const attn_host_t check_host;

/* Runs a case on `backend` (c->backend, or one that wraps it) and on the oracle and compares; in_or_null:
 * inputs other than those of the seed. Returns 1 if all is well; a case that is not served counts as well and
 * is not counted. */
int check_run(check_t *c, const attn_backend_t *backend, const kit_case_t *k, const kit_inputs_t *in_or_null);
/* Compares a result with the oracle's; 1 if all is well. Frees nothing. */
int check_against_oracle(check_t *c, const kit_case_t *k, const kit_inputs_t *in, const kit_result_t *got);
/* Calls of backend with nothing in their arguments, refused by whatever is looked at first, and by what is
 * looked at late; the answers are not looked at. */
void check_bad_calls(check_t *c, const attn_backend_t *backend, const kit_case_t *k, const kit_inputs_t *in);
/* Runs it on backend alone; a status other than ATTN_OK is a failure. The result must be freed if 1 comes
 * back. */
int check_run_alone(check_t *c, const attn_backend_t *backend, const kit_case_t *k, const kit_inputs_t *in,
                    const kit_memory_t *memory, kit_result_t *result);

/* The oracle, linked in. */
extern const attn_backend_t kit_oracle;

/* A backend like target with the operations that are not NULL in replaced put in their place; these call
 * shim_target()->ops. One at a time in a process. */
const attn_backend_t *shim_make(const attn_backend_t *target, const attn_backend_ops_t *replaced);
const attn_backend_t *shim_target(void);
/* Replaces each tensor of a call by another view of it; the scale of queries, which is one number, not. */
typedef const DLTensor *shim_view_t(const DLTensor *t);
void shim_each_of_update(attn_kv_update_t *a, shim_view_t *view);
void shim_each_of_forward(attn_forward_t *a, shim_view_t *view);

/* CPU memory whose end (at_end) or start lies at a page that faults. */
typedef struct guard {
    char *base;
    size_t mapped;
} guard_t;
void *guard_alloc(guard_t *g, size_t bytes, size_t alignment, int at_end);
void guard_free(guard_t *g);

/* A tensor copied to such memory, exactly its elements; guard_return copies an output back and frees. */
typedef struct guarded {
    guard_t memory;
    const DLTensor *original;
    DLTensor copy;
    size_t bytes;
} guarded_t;
const DLTensor *guard_tensor(guarded_t *g, const DLTensor *t, size_t alignment, int at_end);
void guard_return(guarded_t *g, int is_output);

/* Counts the calls that the plugin's own code makes to the allocator while it is on, and the bytes that it
 * took in them and has not returned. watch_start returns how many functions are watched, 0 where that cannot
 * be done. */
int alloc_watch_start(const char *path);
void alloc_watch_on(int is_on);
/* Call number nth of those that it makes from now on, while watched, has no memory; whether it came. */
void alloc_watch_fail(int nth);
int alloc_watch_has_failed(void);
long alloc_watch_count(const char **last_name);
size_t alloc_watch_bytes(void);
/* Threads that the plugin's own code started while watched and that have not ended. */
long alloc_watch_threads(void);
/* The function by which it left a handler for the end of the process or for a fork; NULL: none. */
const char *alloc_watch_handler(void);

/* The dynamic symbols that a file exports, other than `allowed`; writes up to size bytes of their names.
 * Returns how many, or -1. *num_unique counts GNU unique symbols, *needs_libattn is 1 if it links to
 * libattn. */
int elf_exports(const char *path, const char *allowed, char *names, size_t size, int *num_unique,
                int *needs_libattn);

#endif
