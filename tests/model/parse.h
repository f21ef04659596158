/* SPDX-License-Identifier: Apache-2.0 */
/* parse.h: what the two halves of the parser share: declare.c, declarations and names; parse.c,
 * statements. */
#ifndef ATTN_TESTS_MODEL_PARSE_H
#define ATTN_TESTS_MODEL_PARSE_H

#include "model.h"

typedef struct variable {
    char name[200];
    int space;
    uint32_t offset; /* of shared memory */
    uint8_t *data;   /* of global memory */
    struct variable *next;
} variable_t;
typedef struct named { /* a register, or a range of them: name0, name1 .. */
    char name[200];
    uint32_t at, width, count, stride; /* count 0: one */
    int scope;
} named_t;
typedef struct label {
    char name[200];
    uint32_t op;
} label_t;
typedef struct function { /* .func: its body is put where it is called */
    char name[200], result[64], params[16][200];
    uint32_t num_params;
    const char *body; /* behind its brace */
} function_t;
typedef struct parser {
    function_t functions[16];
    uint32_t num_functions, num_calls, call; /* the call at work; 0: none */
    module_t *module;
    kernel_t *kernel;
    const char *at;
    char *why;
    size_t why_size;
    named_t *named;
    uint32_t num_named, room_named;
    label_t *labels, *jumps;
    uint32_t num_labels, room_labels, num_jumps, room_jumps, room_ops;
    variable_t *locals; /* shared and local variables of this kernel */
    int scope, dynamic_align;
    char dynamic[200];
    struct {
        uint64_t value;
        uint32_t width, at;
    } constants[8192];
    uint32_t num_constants;
    uint32_t sink;
    int failed;
} parser_t;

void parse_fail(parser_t *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define GROW(array, count, room)                                                                             \
    do {                                                                                                     \
        if ((count) == (room)) {                                                                             \
            (room) = (room) ? 2 * (room) : 256;                                                              \
            (array) = realloc((array), (room) * sizeof *(array));                                            \
        }                                                                                                    \
    } while (0)
uint32_t parse_new_words(parser_t *p, uint32_t width);
uint32_t parse_new_constant(parser_t *p, uint64_t value, uint32_t width);
uint32_t parse_width(const char *type);
void parse_space(parser_t *p);
/* A word of names, opcodes and numbers; ':' counts inside it only doubled. */
void parse_word(parser_t *p, char *word, size_t size);
int parse_take(parser_t *p, char c);
void parse_registers(parser_t *p);
void parse_name(parser_t *p, const char *name, uint32_t at, uint32_t width, uint32_t count);
/* functions.c: bodies of functions, and statements of calls. */
void parse_functions(parser_t *p, const char *text);
void parse_call(parser_t *p);
void parse_skip(parser_t *p);
/* parse.c: the statements up to the brace that closes what an open one began. */
void parse_body(parser_t *p);
void parse_label(parser_t *p, const char *name);
/* .align N .b8 name[M], of a variable or a parameter. */
typedef struct declared {
    uint32_t align, width, count;
} declared_t;
void parse_declared(parser_t *p, char *name, size_t size, declared_t *d);
/* The rest of a declaration, with its values; `space` says where. */
void parse_variable(parser_t *p, int space, int is_extern);
/* A register, a special one, or an address: of a variable or a parameter, `width` bytes wide. 0: not
 * declared. */
int parse_find(parser_t *p, const char *name, uint32_t width, operand_t *o);

#endif
