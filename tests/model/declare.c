/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations and names of PTX: registers, variables, parameters, constants, special registers. */
#include "parse.h"

#include <ctype.h>
#include <stdarg.h>

void parse_fail(parser_t *p, const char *format, ...) {
    va_list args;
    if (p->failed) return;
    p->failed = 1;
    va_start(args, format);
    vsnprintf(p->why, p->why_size, format, args);
    va_end(args);
}
uint32_t parse_new_words(parser_t *p, uint32_t width) {
    kernel_t *k = p->kernel;
    const uint32_t words = width == 8 ? 64 : width == 2 ? 16 : width == 0 ? 1 : 32;
    if (width != 0) k->num_words = (k->num_words + 15) & ~15u;
    const uint32_t at = k->num_words;
    k->num_words += words;
    return at;
}
uint32_t parse_new_constant(parser_t *p, uint64_t value, uint32_t width) {
    for (uint32_t i = 0; i < p->num_constants; i++)
        if (p->constants[i].value == value && p->constants[i].width == width) return p->constants[i].at;
    if (p->num_constants == sizeof p->constants / sizeof p->constants[0]) {
        parse_fail(p, "too many constants");
        return 0;
    }
    const uint32_t at = parse_new_words(p, width);
    p->constants[p->num_constants].value = value;
    p->constants[p->num_constants].width = width;
    p->constants[p->num_constants++].at = at;
    return at;
}
uint32_t parse_width(const char *type) { /* ".b32" without its dot; 0 of predicates */
    if (!strcmp(type, "pred")) return 0;
    const int bits = atoi(type + strcspn(type, "0123456789"));
    return bits == 8 ? 1 : bits == 16 ? 2 : bits == 64 ? 8 : 4;
}

void parse_space(parser_t *p) {
    for (;;) {
        while (isspace((unsigned char)*p->at))
            p->at++;
        if (p->at[0] == '/' && p->at[1] == '/')
            p->at += strcspn(p->at, "\n");
        else if (p->at[0] == '/' && p->at[1] == '*')
            p->at = strstr(p->at, "*/") ? strstr(p->at, "*/") + 2 : p->at + strlen(p->at);
        else
            return;
    }
}
static int is_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.' || c == ':';
}
/* A word of names, opcodes and numbers; ':' counts inside it only doubled. */
void parse_word(parser_t *p, char *word, size_t size) {
    size_t n = 0;
    parse_space(p);
    while (is_word(*p->at) && (*p->at != ':' || p->at[1] == ':' || (n > 0 && p->at[-1] == ':'))) {
        if (n + 1 < size) word[n++] = *p->at;
        p->at++;
    }
    word[n] = '\0';
}
int parse_take(parser_t *p, char c) {
    parse_space(p);
    if (*p->at != c) return 0;
    p->at++;
    return 1;
}

void parse_name(parser_t *p, const char *name, uint32_t at, uint32_t width, uint32_t count) {
    GROW(p->named, p->num_named, p->room_named);
    named_t *n = &p->named[p->num_named++];
    snprintf(n->name, sizeof n->name, "%s", name);
    n->at = at, n->width = width, n->count = count, n->scope = p->scope;
    n->stride = width == 8 ? 64 : width == 4 ? 32 : width == 2 ? 16 : 1;
}
void parse_registers(parser_t *p) {
    char type[32], name[200];
    parse_word(p, type, sizeof type);
    const uint32_t width = parse_width(type + 1) == 1 ? 2 : parse_width(type + 1);
    do {
        uint32_t count = 0;
        parse_word(p, name, sizeof name);
        if (parse_take(p, '<')) {
            count = (uint32_t)strtoul(p->at, (char **)&p->at, 10);
            parse_take(p, '>');
        }
        const uint32_t at = parse_new_words(p, width);
        for (uint32_t i = 1; i < count; i++)
            parse_new_words(p, width);
        parse_name(p, name, at, width, count);
    } while (parse_take(p, ','));
    parse_take(p, ';');
}

void parse_declared(parser_t *p, char *name, size_t size, declared_t *d) {
    *d = (declared_t){.align = 1, .width = 1, .count = 1};
    for (;;) {
        parse_word(p, name, size);
        if (!strcmp(name, ".align")) {
            parse_space(p);
            d->align = (uint32_t)strtoul(p->at, (char **)&p->at, 10);
        } else if (name[0] != '.')
            break;
        else if (strcmp(name, ".param") != 0 && strcmp(name, ".ptr") != 0 && strcmp(name, ".global") != 0)
            d->width = parse_width(name + 1);
    }
    if (parse_take(p, '[')) {
        parse_space(p);
        d->count = (uint32_t)strtoul(p->at, (char **)&p->at, 10);
        parse_take(p, ']');
    }
    d->align = d->width > d->align ? d->width : d->align;
}

void parse_variable(parser_t *p, int space, int is_extern) {
    char word[200];
    declared_t d;
    parse_declared(p, word, sizeof word, &d);
    const uint32_t align = d.align, width = d.width, count = d.count;
    if (is_extern) {
        snprintf(p->dynamic, sizeof p->dynamic, "%s", word);
        p->dynamic_align = (int)align;
        parse_take(p, ';');
        return;
    }
    variable_t *v = calloc(1, sizeof *v), **list = space == SPACE_GLOBAL ? &p->module->variables : &p->locals;
    snprintf(v->name, sizeof v->name, "%s", word);
    v->space = space;
    v->next = *list;
    *list = v;
    const uint32_t bytes = width * count;
    if (space == SPACE_GLOBAL) {
        v->data = aligned_alloc(256, (bytes + 255) / 256 * 256);
        memset(v->data, 0, bytes);
        model_memory_add(v->data, bytes);
        if (parse_take(p, '=')) {
            const int is_list = parse_take(p, '{');
            for (uint32_t i = 0; i < count; i++) {
                parse_space(p);
                uint64_t x = p->at[0] == '0' && p->at[1] == 'f'
                                 ? strtoul(p->at + 2, (char **)&p->at, 16)
                                 : (uint64_t)strtoll(p->at, (char **)&p->at, 0);
                memcpy(v->data + i * width, &x, width);
                if (!is_list || !parse_take(p, ',')) break;
            }
            parse_take(p, '}');
        }
    } else {
        uint32_t *size = space == SPACE_LOCAL ? &p->kernel->local_bytes : &p->kernel->shared_bytes;
        v->offset = (*size + align - 1) / align * align;
        *size = v->offset + bytes;
    }
    if (!parse_take(p, ';')) parse_fail(p, "a declaration of %s that the model does not read", v->name);
}

static int find_special(parser_t *p, const char *name, operand_t *o) {
    kernel_t *k = p->kernel;
    uint32_t *slot = NULL;
    const int axis = name[0] != '\0' ? name[strlen(name) - 1] - 'x' : 0;
    if (axis >= 0 && axis < 3)
        slot = !strncmp(name, "%tid.", 5)      ? &k->tid[axis]
               : !strncmp(name, "%ntid.", 6)   ? &k->ntid[axis]
               : !strncmp(name, "%ctaid.", 7)  ? &k->ctaid[axis]
               : !strncmp(name, "%nctaid.", 8) ? &k->nctaid[axis]
                                               : NULL;
    if (axis >= 0 && axis < 3 && !strncmp(name, "%cluster_nctaid.", 16)) slot = &k->cluster[axis];
    if (!strcmp(name, "%laneid")) slot = &k->lane;
    if (!strcmp(name, "%cluster_ctarank")) slot = &k->rank;
    if (!strcmp(name, "%cluster_nctarank")) slot = &k->num_ranks;
    if (!strcmp(name, "%globaltimer")) {
        if (k->timer == 0) k->timer = parse_new_words(p, 8);
        *o = (operand_t){.at = k->timer, .width = 8};
        return 1;
    }
    if (slot == NULL) return 0;
    if (*slot == 0) *slot = parse_new_words(p, 4);
    *o = (operand_t){.at = *slot, .width = 4};
    return 1;
}
static int find_register(parser_t *p, const char *name, operand_t *o) {
    size_t digits = strlen(name);
    while (digits > 0 && isdigit((unsigned char)name[digits - 1]))
        digits--;
    const uint32_t number = (uint32_t)strtoul(name + digits, NULL, 10);
    for (uint32_t i = p->num_named; i-- > 0;) {
        const named_t *n = &p->named[i];
        if (n->count == 0 ? !strcmp(n->name, name)
                          : !strncmp(n->name, name, digits) && n->name[digits] == '\0' && number < n->count) {
            *o = (operand_t){.at = n->at + (n->count ? number * n->stride : 0), .width = (uint8_t)n->width};
            return 1;
        }
    }
    return 0;
}
/* Variables and parameters, whose value is an address. */
static int find_symbol(parser_t *p, const char *name, uint32_t width, operand_t *o) {
    kernel_t *k = p->kernel;
    if (p->dynamic[0] != '\0' && !strcmp(name, p->dynamic)) {
        const uint32_t align = (uint32_t)p->dynamic_align, at = (k->shared_bytes + align - 1) / align * align;
        *o = (operand_t){
            .at = parse_new_constant(p, at, width), .width = (uint8_t)width, .is_constant = 1, .value = at};
        return 1;
    }
    const size_t base = strlen(k->name);
    if (!strncmp(name, k->name, base) && !strncmp(name + base, "_param_", 7)) {
        const uint32_t i = (uint32_t)atoi(name + base + 7);
        if (i >= k->num_params) return 0;
        *o = (operand_t){.at = k->param_words[i], .width = 8};
        return 1;
    }
    for (int is_module = 0; is_module < 2; is_module++)
        for (const variable_t *v = is_module ? p->module->variables : p->locals; v != NULL; v = v->next) {
            if (strcmp(v->name, name) != 0) continue;
            const uint64_t value = v->space == SPACE_GLOBAL ? (uint64_t)(uintptr_t)v->data : v->offset;
            *o = (operand_t){.at = parse_new_constant(p, value, width),
                             .width = (uint8_t)width,
                             .is_constant = 1,
                             .value = (int64_t)value};
            return 1;
        }
    return 0;
}

int parse_find(parser_t *p, const char *name, uint32_t width, operand_t *o) {
    return find_special(p, name, o) || find_register(p, name, o) || find_symbol(p, name, width, o);
}
