/* SPDX-License-Identifier: Apache-2.0 */
/* PTX to ops: statements, operands, kernels (PTX ISA, "Syntax"). What it does not know is an error that
 * quotes the line. */
#include "parse.h"

#include <ctype.h>

/* How wide a constant is as operand `index` of an op. */
static uint32_t constant_width(const char *name, uint32_t index) {
    const char *last = NULL;
    for (const char *dot = strchr(name, '.'); dot != NULL; dot = strchr(dot + 1, '.'))
        if (strchr("busf", dot[1]) != NULL && isdigit((unsigned char)dot[2])) last = dot + 1;
    const uint32_t width = last ? parse_width(last) : 4;
    if (!strncmp(name, "shl.", 4) || !strncmp(name, "shr.", 4)) return index == 2 ? 4 : width;
    if (!strncmp(name, "bfi.", 4)) return index > 2 ? 4 : width;
    if (!strncmp(name, "bfe.", 4)) return index > 1 ? 4 : width;
    if (!strncmp(name, "mbarrier.", 9)) return 4;
    return width == 1 ? 2 : width;
}

static void take_operand(parser_t *p, const char *name, op_t *op, operand_t *list, uint32_t *num) {
    char word[200];
    operand_t o = {0};
    parse_space(p);
    const int negate = parse_take(p, '!'), is_negative = parse_take(p, '-');
    parse_word(p, word, sizeof word);
    if (word[0] == '\0') {
        parse_fail(p, "an operand of %s that the model does not read", name);
        return;
    }
    const uint32_t width = constant_width(name, *num);
    if (isdigit((unsigned char)word[0])) {
        const int is_float = word[0] == '0' && (word[1] == 'f' || word[1] == 'd');
        uint64_t x = is_float ? strtoull(word + 2, NULL, 16) : strtoull(word, NULL, 0);
        if (is_negative) x = 0 - x;
        o = (operand_t){.at = parse_new_constant(p, x, width),
                        .width = (uint8_t)width,
                        .is_constant = 1,
                        .value = (int64_t)x};
    } else if (!strcmp(word, "_")) {
        o = (operand_t){.at = p->sink, .width = 8};
    } else if (!parse_find(p, word, width, &o)) {
        parse_fail(p, "%s is not declared", word);
        return;
    }
    o.negate = (uint8_t)negate;
    list[(*num)++] = o;
    parse_space(p);
    if (op != NULL && (*p->at == '+' || *p->at == '-')) /* of an address */
        op->offset = strtoll(*p->at == '+' ? p->at + 1 : p->at, (char **)&p->at, 0);
}

static void take_jump(parser_t *p, label_t **list, uint32_t *count, uint32_t *room, const char *name) {
    GROW(*list, *count, *room);
    if (p->call != 0) /* the body may be there more than once */
        snprintf((*list)[*count].name, sizeof(*list)->name, "%.180s@%u", name, (unsigned)p->call);
    else
        snprintf((*list)[*count].name, sizeof(*list)->name, "%s", name);
    (*list)[(*count)++].op = p->kernel->num_ops;
}

void parse_label(parser_t *p, const char *name) {
    take_jump(p, &p->labels, &p->num_labels, &p->room_labels, name);
}

int model_find_op(const char *name, op_t *op) {
    static const op_name_t *const tables[] = {model_integer_ops, model_predicate_ops, model_float_ops,
                                              model_warp_ops,    model_convert_ops,   model_async_ops,
                                              model_barrier_ops, model_tensor_ops,    model_product_ops};
    for (unsigned t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (const op_name_t *n = tables[t]; n->name != NULL; n++)
            if (!strcmp(n->name, name)) {
                op->run = n->run, op->kind = n->kind, op->variant = n->variant;
                return 1;
            }
    return model_find_memory(name, op) || model_find_cvt(name, op) || model_find_product(name, op);
}

/* ld.param and st.param of a call's arguments and results, which are registers here. */
static int is_argument(parser_t *p, const char *name) {
    char word[200];
    operand_t o;
    if (strncmp(name, "ld.param.", 9) != 0 && strncmp(name, "st.param.", 9) != 0) return 0;
    const char *const at = p->at;
    p->at += strcspn(p->at, "[;");
    const int is_address = parse_take(p, '[');
    parse_word(p, word, sizeof word);
    p->at = at;
    for (const named_t *n = p->named; n < p->named + p->num_named && is_address; n++)
        if (n->count == 0 && !strcmp(n->name, word)) return parse_find(p, word, 4, &o);
    return 0;
}

static void take_op(parser_t *p) {
    kernel_t *k = p->kernel;
    char name[160];
    operand_t list[600];
    uint32_t num = 0;
    op_t op = {0};
    parse_space(p);
    const char *const start = p->at;
    if (parse_take(p, '@')) {
        operand_t guard;
        char word[96];
        op.guard_not = (uint8_t)parse_take(p, '!');
        parse_word(p, word, sizeof word);
        if (!parse_find(p, word, 4, &guard) || guard.width != 0) {
            parse_fail(p, "no predicate %s", word);
            return;
        }
        op.guard = guard.at;
    }
    parse_word(p, name, sizeof name);
    parse_space(p);
    if (*p->at == ':') { /* a label */
        p->at++;
        parse_label(p, name);
        return;
    }
    if (!strncmp(name, "call", 4)) {
        parse_call(p);
        return;
    }
    if (is_argument(p, name)) {
        char type[16];
        snprintf(type, sizeof type, "%s", strrchr(name, '.'));
        snprintf(name, sizeof name, "mov%s", type);
    }
    const int returns = p->call != 0 && !strcmp(name, "ret");
    if (returns) snprintf(name, sizeof name, "bra");
    if (!model_find_op(name, &op)) {
        parse_fail(p, "the model has no %.*s",
                   (int)strcspn(start, "\n;") < 150 ? (int)strcspn(start, "\n;") : 150, start);
        return;
    }
    if (op.kind == OP_BRANCH) {
        char to[200] = "return";
        if (!returns) parse_word(p, to, sizeof to);
        take_jump(p, &p->jumps, &p->num_jumps, &p->room_jumps, to);
    } else {
        const int is_move = !strncmp(name, "mov.", 4);
        parse_space(p);
        op.is_move = (uint8_t)is_move;
        if (is_move && *p->at == '{') op.variant = 1;
        while (!p->failed && num < 590) {
            parse_space(p);
            if (*p->at == ';') break;
            if (parse_take(p, ',') || parse_take(p, '{') || parse_take(p, '}') || parse_take(p, ']') ||
                parse_take(p, '|'))
                continue;
            take_operand(p, name, parse_take(p, '[') ? &op : NULL, list, &num);
        }
    }
    if (!parse_take(p, ';')) {
        parse_fail(p, "the model does not read: %.120s", start);
        return;
    }
    const size_t length = (size_t)(p->at - start);
    char *text = malloc(length + 1);
    memcpy(text, start, length);
    text[length] = '\0';
    op.text = text;
    operand_t *o = malloc((num ? num : 1) * sizeof *o);
    memcpy(o, list, num * sizeof *o);
    op.o = o, op.num = num;
    GROW(k->ops, k->num_ops, p->room_ops);
    k->ops[k->num_ops++] = op;
}

static void take_params(parser_t *p) {
    kernel_t *k = p->kernel;
    char word[200];
    parse_take(p, '(');
    while (!p->failed && !parse_take(p, ')')) {
        declared_t d;
        parse_declared(p, word, sizeof word, &d);
        parse_take(p, ',');
        if (k->num_params == 32 || word[0] == '\0') {
            parse_fail(p, "parameters of %s that the model does not read", k->name);
            return;
        }
        const uint32_t at = (k->param_bytes + d.align - 1) / d.align * d.align;
        k->param_at[k->num_params] = at;
        k->param_size[k->num_params] = d.width * d.count;
        k->param_words[k->num_params++] = parse_new_words(p, 8);
        k->param_bytes = at + d.width * d.count;
    }
}

void parse_body(parser_t *p) {
    char word[64];
    const int first = p->scope;
    p->scope++;
    while (!p->failed && p->scope > first) {
        parse_space(p);
        const char *const start = p->at;
        if (*p->at == '\0')
            parse_fail(p, "%s does not end", p->kernel->name);
        else if (parse_take(p, '{'))
            p->scope++;
        else if (parse_take(p, '}')) {
            while (p->num_named > 0 && p->named[p->num_named - 1].scope == p->scope)
                p->num_named--;
            p->scope--;
        } else if (parse_take(p, ';'))
            continue;
        else if (*p->at == '.') {
            parse_word(p, word, sizeof word);
            if (!strcmp(word, ".reg") || !strcmp(word, ".param"))
                parse_registers(p);
            else if (!strcmp(word, ".shared"))
                parse_variable(p, SPACE_SHARED, 0);
            else if (!strcmp(word, ".local"))
                parse_variable(p, SPACE_LOCAL, 0);
            else if (!strcmp(word, ".pragma"))
                p->at += strcspn(p->at, ";");
            else
                parse_fail(p, "the model does not read: %.120s", start);
        } else
            take_op(p);
    }
}

static void finish_kernel(parser_t *p) {
    kernel_t *k = p->kernel;
    for (uint32_t i = 0; i < p->num_jumps && !p->failed; i++) {
        uint32_t found = ~0u;
        for (uint32_t j = 0; j < p->num_labels; j++)
            if (!strcmp(p->labels[j].name, p->jumps[i].name)) found = p->labels[j].op;
        if (found == ~0u) parse_fail(p, "no label %s", p->jumps[i].name);
        k->ops[p->jumps[i].op].target = found;
    }
    const uint32_t align = p->dynamic_align > 16 ? (uint32_t)p->dynamic_align : 16;
    k->shared_bytes = (k->shared_bytes + align - 1) / align * align;
    k->num_words = (k->num_words + 15) & ~15u;
    k->first_words = malloc(k->num_words * sizeof(uint32_t));
    memset(k->first_words, 0xff, k->num_words * sizeof(uint32_t));
    for (uint32_t i = 0; i < p->num_constants; i++)
        for (int l = 0; l < LANES; l++) {
            const uint64_t x = p->constants[i].value;
            uint32_t *at = k->first_words + p->constants[i].at;
            if (p->constants[i].width == 8)
                ((uint64_t *)at)[l] = x;
            else if (p->constants[i].width == 2)
                ((uint16_t *)at)[l] = (uint16_t)x;
            else
                at[l] = (uint32_t)x;
        }
}

static void take_kernel(parser_t *p) {
    kernel_t *k = calloc(1, sizeof *k);
    k->next = p->module->kernels;
    p->module->kernels = k;
    p->kernel = k;
    p->num_named = p->num_labels = p->num_jumps = p->num_constants = p->room_ops = 0;
    p->locals = NULL;
    k->num_words = 16; /* 0 says "none" */
    p->sink = parse_new_words(p, 8);
    parse_word(p, k->name, sizeof k->name);
    take_params(p);
    while (!p->failed && !parse_take(p, '{')) { /* .maxntid 128, 1, 1 */
        char word[64];
        parse_word(p, word, sizeof word);
        if (word[0] == '\0' && *p->at != '\0') p->at++;
        if (*p->at == '\0') parse_fail(p, "%s has no body", k->name);
    }
    parse_body(p);
    if (!p->failed) finish_kernel(p);
    while (p->locals != NULL) {
        variable_t *v = p->locals;
        p->locals = v->next;
        free(v);
    }
}

module_t *model_parse(const char *text, char *why, size_t size) {
    static parser_t parser; /* large; one text at a time */
    parser_t *p = &parser;
    char word[64];
    memset(p, 0, sizeof *p);
    p->module = calloc(1, sizeof *p->module);
    p->module->text = strdup(text);
    p->at = p->module->text, p->why = why, p->why_size = size;
    parse_functions(p, p->module->text);
    for (int is_extern = 0; !p->failed;) {
        parse_space(p);
        if (*p->at == '\0') break;
        parse_word(p, word, sizeof word);
        if (!strcmp(word, ".version") || !strcmp(word, ".target") || !strcmp(word, ".address_size") ||
            !strcmp(word, ".file"))
            p->at += strcspn(p->at, "\n");
        else if (!strcmp(word, ".extern"))
            is_extern = 1;
        else if (!strcmp(word, ".shared"))
            parse_variable(p, SPACE_SHARED, is_extern), is_extern = 0;
        else if (!strcmp(word, ".global") || !strcmp(word, ".const"))
            parse_variable(p, SPACE_GLOBAL, 0);
        else if (!strcmp(word, ".entry"))
            take_kernel(p);
        else if (!strcmp(word, ".func"))
            parse_skip(p);
        else if (strcmp(word, ".visible") != 0 && strcmp(word, ".weak") != 0)
            parse_fail(p, "the model does not read: %s%.100s", word, p->at);
    }
    free(p->named), free(p->labels), free(p->jumps);
    if (!p->failed) return p->module;
    model_free(p->module);
    return NULL;
}

void model_free(module_t *m) {
    while (m->kernels != NULL) {
        kernel_t *k = m->kernels;
        m->kernels = k->next;
        for (uint32_t i = 0; i < k->num_ops; i++)
            free((void *)k->ops[i].o), free((void *)k->ops[i].text);
        free(k->ops), free(k->first_words), free(k);
    }
    while (m->variables != NULL) {
        struct variable *v = m->variables;
        m->variables = v->next;
        model_memory_remove(v->data);
        free(v->data), free(v);
    }
    free(m->text), free(m);
}
