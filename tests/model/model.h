/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: a GPU without a device. driver.c is a libcuda.so.1 whose modules are PTX (nvrtc.c gives that),
 * and whose kernels run on this processor, a warp of 32 lanes at a time.
 *
 * It is stricter than a GPU where a GPU may be lucky: every access is checked against what was allocated;
 * shared memory and new device memory begin as NaN; a cp.async writes at once what nobody may rely on,
 * and its bytes when its group is waited for and no earlier; what wgmma reads must stay until it is
 * waited for; accesses of shared memory must be ordered (races.c); warps and blocks take turns by a seed.
 * Its numbers are not the device's bit for bit: products are summed in double and rounded once,
 * approximations are the C library's, rounded. It does not see orders of global memory between threads,
 * that the lanes of a warp are done when one of them arrives at an mbarrier for all, and what only many
 * blocks at once do. */
#ifndef ATTN_TESTS_MODEL_H
#define ATTN_TESTS_MODEL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 32 };
enum { SPACE_GENERIC, SPACE_GLOBAL, SPACE_SHARED, SPACE_PARAM };

typedef struct warp warp_t;
typedef struct op op_t;
typedef struct cta cta_t;

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
    OP_NOTHING
};

typedef struct kernel {
    char name[256];
    op_t *ops;
    uint32_t num_ops, num_words;
    uint32_t *first_words;                               /* what registers of a warp begin with: constants */
    uint32_t tid[3], ctaid[3], nctaid[3], ntid[3], lane; /* words of special registers; 0: not used */
    uint32_t param_bytes, shared_bytes;
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
    int is_mn;
    uint32_t group;
} product_t;

struct warp {
    uint32_t *regs;
    cta_t *cta;
    const kernel_t *kernel;
    uint32_t alive, here, held; /* lanes that did not exit; that run now; that wait at a warp-wide op */
    uint32_t pc, merge;         /* where others of this warp come in */
    uint32_t pcs[LANES];
    uint32_t index;
    const op_t *waits; /* the barrier of the block it stands at */
    int yields;        /* it waits for others, by a try that failed */
    copy_t *copies;
    uint32_t num_copies, room_copies, groups[LANES];
    product_t products[256];
    uint32_t num_products, product_group;
    uint32_t products_done; /* groups that were waited for */
    uint32_t *in_flight;    /* of 16 words of registers: group + 1 of the wgmma that writes them */
    uint32_t clocks[LANES], turn, fences; /* races.c */
};

struct cta {
    uint8_t *shared;
    uint32_t shared_bytes;
    const uint8_t *params;
    uint32_t param_bytes;
    warp_t *warps;
    uint32_t num_warps, num_threads, block[3];
    uint32_t arrived[16], wanted[16]; /* of a barrier: threads that came; how many it is for, 0: all */
    uint32_t any[16], every[16];      /* of their predicates */
    uint64_t random;
    int failed;
    void *words; /* races.c */
    uint32_t *reads, carried[80][LANES], carriers[64], num_carriers;
};

/* Runs one launch; 0, or -1 after a line on stderr. */
int model_launch(const kernel_t *k, const uint32_t grid[3], const uint32_t block[3], uint32_t dynamic_bytes,
                 const uint8_t *params);
/* The seed of orders and of early and late copies: ATTN_MODEL_SEED, else 1. */
uint64_t model_random(uint64_t *state);

/* What may be accessed: 1 where [p, p + bytes) lies in one allocation. */
int model_memory_has(const void *p, size_t bytes);
void model_memory_add(const void *p, size_t bytes);
size_t model_memory_remove(const void *p);
/* The place of a lane's access, or NULL after a message. */
uint8_t *model_at(warp_t *w, const op_t *op, uint32_t space, uint64_t address, uint32_t bytes, int lane);
/* While wgmma is under way: an op that touches its accumulators. mov hands them on, which PTX does to name
 * them anew. */
void model_accumulators(warp_t *w, const op_t *op);
void model_fault(warp_t *w, const op_t *op, int lane, const char *what, uint64_t address);

/* races.c: accesses to shared memory, and what orders them. */
void model_races_start(cta_t *cta);
void model_races_end(cta_t *cta);
void model_races_give(warp_t *w, uint32_t key);
void model_races_take(warp_t *w, uint32_t key);
void model_races_forget(cta_t *cta, uint32_t key);
void model_races_read(warp_t *w, const op_t *op, uint32_t at, uint32_t bytes, int lane);
/* how: WRITE_SAME is of the value that is there, which hurts nobody; WRITE_STARTS begins a copy,
 * WRITE_ARRIVES ends it. */
enum { WRITE_PLAIN, WRITE_SAME, WRITE_STARTS, WRITE_ARRIVES };
void model_races_write(warp_t *w, const op_t *op, uint32_t at, uint32_t bytes, int lane, int how);
int model_races_engine(warp_t *w, const op_t *op, uint32_t at);

#define REG(T, i)       ((T *)(w->regs + op->o[i].at))
#define IS_SET(word, l) ((word) >> (l)&1)
#define EACH(...)                                                                                            \
    do {                                                                                                     \
        if (mask == ~0u) {                                                                                   \
            _Pragma("GCC ivdep") for (int l = 0; l < LANES; l++) {                                           \
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
    model_convert_ops[], model_async_ops[];

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
