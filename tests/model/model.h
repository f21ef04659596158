/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: a GPU without a device. driver.c is a libcuda.so.1 whose modules are PTX (nvrtc.c gives that, and
 * cudart.c to plugins that nvcc compiled), and whose kernels run on this processor, a warp of 32 lanes at a
 * time.
 *
 * It is stricter than a GPU where a GPU may be lucky: every access is checked against what was allocated;
 * shared memory and new device memory begin as NaN; a cp.async writes at once what nobody may rely on,
 * and its bytes when its group is waited for and no earlier; a bulk copy likewise, some time later, and only
 * who knows of its mbarrier's phase may touch them; what wgmma and bulk copies read must stay until they are
 * waited for; accesses of shared memory must be ordered (races.c); nothing may reach for a block that may
 * have ended; warps and clusters take turns by a seed. A wgmma is one of four warps: who has waited for it
 * may rely on all of it, as the kernels do.
 * Its numbers are not the device's bit for bit: products are summed in double and rounded once,
 * approximations are the C library's, rounded. It does not see orders of global memory between threads,
 * that the lanes of a warp are done when one of them arrives at an mbarrier for all, and what only many
 * clusters at once do. */
#ifndef ATTN_TESTS_MODEL_H
#define ATTN_TESTS_MODEL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 32 };
/* SPACE_CLUSTER: shared memory of a block of the cluster, by an address of mapa; else of this block. */
enum { SPACE_GENERIC, SPACE_GLOBAL, SPACE_SHARED, SPACE_PARAM, SPACE_CLUSTER, SPACE_LOCAL };
enum { CLUSTER_SHIFT = 24 }; /* of such an address: rank + 1 above it */

typedef struct warp warp_t;
typedef struct op op_t;
typedef struct cta cta_t;
typedef struct cluster cluster_t;

/* Registers of a warp are words: a value of 32 bits has 32 of them, one a lane, of 64 bits 64, of 16 bits
 * 16; a predicate is one word, a bit a lane. Constants and special registers are such values, too. */
typedef struct operand {
    uint32_t at;    /* first word */
    uint8_t width;  /* bytes; 0: a predicate */
    uint8_t negate; /* of a predicate */
    uint8_t is_constant;
    int64_t value; /* of a constant */
} operand_t;

typedef void (*handler_t)(warp_t *w, const op_t *op, uint32_t mask);

struct op {
    handler_t run;
    const operand_t *o; /* in the order of the text; braces are flat */
    uint32_t num;
    uint32_t guard; /* word of a predicate; 0: none */
    uint8_t guard_not;
    uint8_t kind; /* OP_* */
    uint8_t is_move;
    uint8_t space, size, vector, is_signed; /* of loads and stores */
    int32_t variant;                        /* what else the name says */
    int64_t offset;                         /* behind an address */
    uint32_t target;                        /* of a branch */
    const char *text;                       /* its line, for messages */
};
enum {
    OP_PLAIN,
    OP_BRANCH,
    OP_EXIT,
    OP_WARP,    /* all lanes that are left take part */
    OP_MEMBERS, /* those of a mask, its last operand */
    OP_BARRIER, /* of the block */
    OP_TRY,     /* may fail until another warp has run */
    OP_CLUSTER, /* a wait for the barrier of the cluster */
    OP_NOTHING
};

typedef struct kernel {
    char name[256];
    op_t *ops;
    uint32_t num_ops, num_words;
    uint32_t *first_words;                               /* what registers of a warp begin with: constants */
    uint32_t tid[3], ctaid[3], nctaid[3], ntid[3], lane; /* words of special registers; 0: not used */
    uint32_t rank, num_ranks, cluster[3], timer;         /* likewise */
    uint32_t param_bytes, shared_bytes, local_bytes;
    uint32_t num_params, param_at[32], param_size[32];
    uint32_t param_words[32]; /* where each one's address is, 64 bits */
    int dynamic_bytes;        /* that cuFuncSetAttribute allowed */
    struct kernel *next;
} kernel_t;

typedef struct module {
    char *text;
    kernel_t *kernels;
    struct variable *variables;
} module_t;

/* NULL and why, where the text has what the model has not. */
module_t *model_parse(const char *text, char *why, size_t size);
void model_free(module_t *m);
/* Fills run, kind and variant of an op by its name, "add.s32"; 0 where there is none. */
int model_find_op(const char *name, op_t *op);
int model_find_cvt(const char *name, op_t *op);
int model_find_memory(const char *name, op_t *op);
int model_find_product(const char *name, op_t *op);

typedef struct copy { /* a cp.async under way */
    uint32_t to;
    uint8_t lane, bytes;
    uint32_t group;
    const uint8_t *from; /* NULL: it was read when it was issued, or is zeros */
    uint8_t data[16];
} copy_t;
typedef struct product { /* a wgmma under way */
    const op_t *op;
    uint64_t a, b, desc_a, desc_b; /* hashes of what was read; where it was */
    int is_mn, is_mn_a, checked;
    uint32_t group, number;
} product_t;

/* An mbarrier: arrivals of a phase, those left, bytes of bulk copies that it waits for, phases that ended. */
typedef struct mbarrier {
    cta_t *cta;
    uint32_t at, slot; /* its clock */
    uint32_t wanted, left, first, phase;
    int64_t bytes;
    uint32_t *arriving, *done; /* what those know who arrived in this phase, and in those before */
    uint32_t by, clock;        /* the warp that made it, and when */
    uint32_t copied;           /* the phase of its last bulk copy, which `copy` of `copier` began */
    const op_t *copy;
    warp_t *copier;
} mbarrier_t;

struct warp {
    uint32_t *regs;
    cta_t *cta;
    const kernel_t *kernel;
    uint32_t alive, here, held; /* lanes that did not exit; that run now; that wait at a warp-wide op */
    uint32_t pc, merge;         /* where others of this warp come in */
    uint32_t pcs[LANES];
    uint32_t index, slot; /* in the block; in the cluster, its clock */
    const op_t *waits;    /* the barrier of the block, or of the cluster, it stands at */
    int yields;           /* it waits for others, by a try that failed */
    copy_t *copies;
    uint32_t num_copies, room_copies, groups[LANES];
    product_t products[256];
    uint32_t num_products, product_group, product_count;
    uint32_t products_done;       /* groups that were waited for */
    uint32_t *in_flight;          /* of 16 words of registers: group + 1 of the wgmma that writes them */
    uint32_t *clocks, *fenced;    /* races.c: what it may rely on; and at its last fence of the proxy */
    uint32_t turn, cluster_phase; /* phases of the cluster's barrier that it waits for */
    struct bulk_store *stores;    /* tensors.c */
    uint32_t num_stores, bulk_groups[LANES];
    uint8_t *local; /* local memory, a lane's after another's */
};

struct cta {
    uint8_t *shared;
    uint32_t shared_bytes;
    const uint8_t *params;
    uint32_t param_bytes;
    warp_t *warps;
    uint32_t num_warps, num_threads, block[3], rank;
    uint32_t arrived[16], wanted[16]; /* of a barrier: threads that came; how many it is for, 0: all */
    uint32_t any[16], every[16];      /* of their predicates */
    uint32_t *carried[16];            /* what they know */
    cluster_t *cluster;
    void *words; /* races.c */
    uint32_t *reads;
    uint16_t *barriers; /* of 8 bytes of shared memory: number + 1 of the mbarrier there */
    struct remote {     /* a warp of another block that touched this one's memory: at which of its clocks */
        uint32_t clock;
        const op_t *op;
    } * remote;
};

/* Blocks that run at once; one, if nobody asked for more. */
struct cluster {
    cta_t *ctas;
    uint32_t num_ctas, num_warps, num_readers; /* warps, then groups of four warps, whose wgmma reads */
    mbarrier_t barriers[256];
    uint32_t num_barriers;
    uint32_t *clocks;                          /* the memory of all clocks */
    uint32_t arrived, phase, *arriving, *done; /* of the cluster's barrier */
    struct flight *flights;
    uint32_t num_flights, room_flights;
    uint64_t random;
    int failed;
};
enum { MOST_BARRIERS = sizeof((struct cluster *)0)->barriers / sizeof(mbarrier_t) };

/* Runs one launch; 0, or -1 after a line on stderr. With ATTN_MODEL_LAUNCHES set it says each. */
int model_launch(const kernel_t *k, const uint32_t grid[3], const uint32_t block[3],
                 const uint32_t cluster[3], uint32_t dynamic_bytes, const uint8_t *params);
/* The seed of orders and of early and late copies: ATTN_MODEL_SEED, else 1. */
uint64_t model_random(uint64_t *state);
void model_run_warp(warp_t *w, uint32_t turn);
void model_lets_cluster_on(cluster_t *g); /* if all are at its barrier */

/* What may be accessed: 1 where [p, p + bytes) lies in one allocation. */
int model_memory_has(const void *p, size_t bytes);
void model_memory_add(const void *p, size_t bytes);
size_t model_memory_remove(const void *p);
/* The place of a lane's access, or NULL after a message; of shared memory also whose it is and where. */
typedef struct place {
    uint8_t *p;
    cta_t *cta; /* NULL: not shared memory */
    uint32_t at;
} place_t;
uint8_t *model_place(warp_t *w, const op_t *op, uint32_t space, uint64_t address, uint32_t bytes, int lane,
                     place_t *place);
uint8_t *model_at(warp_t *w, const op_t *op, uint32_t space, uint64_t address, uint32_t bytes, int lane);
/* While wgmma is under way: an op that touches its accumulators. mov hands them on, which PTX does to name
 * them anew. */
void model_accumulators(warp_t *w, const op_t *op);
void model_fault(warp_t *w, const op_t *op, int lane, const char *what, uint64_t address);
/* Whether the last operand is what createpolicy makes; else a fault. */
int model_is_policy(warp_t *w, const op_t *op, int lane);

/* barriers.c. The mbarrier at an address, or NULL after a message. */
mbarrier_t *model_barrier(warp_t *w, const op_t *op, uint32_t space, uint64_t address, int lane);
void model_barrier_bytes(mbarrier_t *b, int64_t bytes);
void model_barrier_arrive(mbarrier_t *b);

/* async.c, maps.c, tensors.c: what is under way beside the warps. */
enum { FLIGHT_TENSOR, FLIGHT_BULK, FLIGHT_ARRIVAL };
typedef struct tensor_map {
    uint64_t magic;
    uint8_t *data;
    uint64_t size[5], stride[5]; /* elements; bytes */
    uint16_t box[5];
    uint8_t rank, bytes, swizzle, fill;
} tensor_map_t;
enum { TENSOR_MAGIC = 0x5d5ac9e1 };
/* A row of a box: where its first element would be in the tensor, and in the box; elements [first, end) of it
 * are inside. */
typedef struct box_row {
    uint8_t *data;
    uint32_t at;
    int64_t first, end;
} box_row_t;
uint32_t model_box_bytes(const tensor_map_t *m);
uint32_t model_box_rows(const tensor_map_t *m);
box_row_t model_box_row(const tensor_map_t *m, const int32_t *place, uint32_t number);
uint32_t model_swizzled(const tensor_map_t *m, uint32_t at);
typedef struct flight {
    int kind, lane;
    warp_t *w;
    const op_t *op;
    cta_t *cta; /* whose memory it writes */
    uint32_t delay, to, bytes;
    mbarrier_t *b;
    tensor_map_t map;
    int32_t at[5];
    const uint8_t *from;
    copy_t *copies; /* of a FLIGHT_ARRIVAL */
    uint32_t num_copies;
} flight_t;
void model_flight_add(const flight_t *f);
/* Lets what is due arrive; `force`: at least one. 0: there is none. */
int model_flights_run(cluster_t *g, int force);
void model_tensor_arrives(const flight_t *f);
void model_stores_check(warp_t *w);
/* What reached for a block that need not have been there any more. */
void model_ends_check(cluster_t *g);

/* races.c: accesses to shared memory, and what orders them. */
void model_races_start(cluster_t *g);
void model_races_end(cluster_t *g);
void model_races_give(warp_t *w, uint32_t *carrier);
void model_races_take(warp_t *w, const uint32_t *carrier);
void model_races_join(const cluster_t *g, uint32_t *to, const uint32_t *from);
void model_races_fence(warp_t *w);
void model_races_forget(const cluster_t *g, uint32_t *carrier);
void model_races_read(warp_t *w, const op_t *op, cta_t *cta, uint32_t at, uint32_t bytes, int lane);
/* how: WRITE_SAME is of the value that is there, which hurts nobody; WRITE_STARTS begins a copy,
 * WRITE_ARRIVES ends it. */
enum { WRITE_PLAIN, WRITE_SAME, WRITE_STARTS, WRITE_ARRIVES };
void model_races_write(warp_t *w, const op_t *op, cta_t *cta, uint32_t at, uint32_t bytes, int lane, int how);
/* A bulk copy to global memory reads a word (number 0), or wgmma, the warp's number-th. 0 after a message. */
int model_races_engine(warp_t *w, const op_t *op, uint32_t at, uint32_t number);
uint32_t model_races_group(const warp_t *w); /* the slot of its group of warps */
/* A bulk copy of a lane begins to write; has written, for those who wait for b. 0 after a message. */
int model_races_bulk(warp_t *w, const op_t *op, cta_t *cta, uint32_t at, uint32_t bytes, int lane);
void model_races_landed(cta_t *cta, uint32_t at, uint32_t bytes, const mbarrier_t *b, int is_bulk);

#define REG(T, i)       ((T *)(w->regs + op->o[i].at))
#define IS_SET(word, l) ((word) >> (l)&1)
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed" /* what cannot be vectorized need not be */
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
#define EACH(...)                                                                                            \
    do {                                                                                                     \
        if (mask == ~0u) {                                                                                   \
            INDEPENDENT for (int l = 0; l < LANES; l++) {                                                    \
                __VA_ARGS__;                                                                                 \
            }                                                                                                \
        } else                                                                                               \
            for (uint32_t left_ = mask; left_ != 0; left_ &= left_ - 1) {                                    \
                const int l = __builtin_ctz(left_);                                                          \
                __VA_ARGS__;                                                                                 \
            }                                                                                                \
    } while (0)
#define FOUR(name, at16, at32, at64)                                                                         \
    {name ".b16", at16, 0, 0}, {name ".b32", at32, 0, 0}, {                                                  \
        name ".b64", at64, 0, 0                                                                              \
    }
/* One row of a table of ops; kinds that are not run have no function. */
typedef struct op_name {
    const char *name;
    handler_t run;
    uint8_t kind;
    int32_t variant;
} op_name_t;
extern const op_name_t model_integer_ops[], model_predicate_ops[], model_float_ops[], model_warp_ops[],
    model_convert_ops[], model_async_ops[], model_barrier_ops[], model_tensor_ops[], model_product_ops[];

static inline float as_float(uint32_t x) {
    float f;
    memcpy(&f, &x, 4);
    return f;
}
static inline uint32_t as_bits(float f) {
    uint32_t x;
    memcpy(&x, &f, 4);
    return x;
}
/* Element types in numbers.c: by rounding to nearest, ties to even. */
float f16_value(uint16_t x);
uint16_t f16_of(double x);
static inline float bf16_value(uint16_t x) {
    return as_float((uint32_t)x << 16);
}
uint16_t bf16_of(float x);
float e4m3_value(uint8_t x);
uint8_t e4m3_of(float x);
float e5m2_value(uint8_t x);
uint64_t lane_value(const warp_t *w, const operand_t *o, int lane);
void lane_set(warp_t *w, const operand_t *o, int lane, uint64_t x);

#endif
