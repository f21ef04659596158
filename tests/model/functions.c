/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of PTX that kernels call. The body is parsed again at each call, with the call's arguments as its
 * parameters; its return is a jump to its end. Parameters are single values. */
#include "parse.h"

/* Behind a function, or behind its announcement, at p->at. */
void parse_skip(parser_t *p) {
    int depth = 0;
    for (; *p->at != '\0'; p->at++) {
        depth += (*p->at == '{') - (*p->at == '}');
        if (depth == 0 && (*p->at == '}' || *p->at == ';')) break;
        /* an announcement need not end with a semicolon before the next one */
        if (depth == 0 && *p->at == '\n' &&
            (!strncmp(p->at, "\n.func", 6) || !strncmp(p->at, "\n.visible", 9)))
            return;
    }
    if (*p->at != '\0') p->at++;
}
/* ( .param .b32 name, .. ) */
static uint32_t take_names(parser_t *p, char (*names)[200], uint32_t room) {
    uint32_t count = 0;
    char name[200];
    declared_t d;
    while (!parse_take(p, ')') && count < room && *p->at != '\0') {
        parse_declared(p, name, sizeof name, &d);
        snprintf(names[count++], sizeof *names, "%s", name);
        parse_take(p, ',');
    }
    return count;
}
void parse_functions(parser_t *p, const char *text) {
    const char *const start = p->at;
    for (const char *at = strstr(text, "\n.func"); at != NULL; at = strstr(at + 1, "\n.func")) {
        function_t f = {0};
        char result[1][200] = {""};
        p->at = at + strlen("\n.func");
        if (parse_take(p, '(')) take_names(p, result, 1);
        snprintf(f.result, sizeof f.result, "%.63s", result[0]);
        parse_word(p, f.name, sizeof f.name);
        if (parse_take(p, '(')) f.num_params = take_names(p, f.params, 16);
        if (!parse_take(p, '{')) continue;
        f.body = p->at;
        if (p->num_functions == sizeof p->functions / sizeof p->functions[0]) {
            parse_fail(p, "more functions than the model keeps");
            break;
        }
        p->functions[p->num_functions++] = f;
    }
    p->at = start;
}

/* call.uni (result), name, (argument, ..); */
void parse_call(parser_t *p) {
    char result[200] = "", name[200], argument[200];
    operand_t o;
    const function_t *f = NULL;
    if (parse_take(p, '(')) {
        parse_word(p, result, sizeof result);
        parse_take(p, ')'), parse_take(p, ',');
    }
    parse_word(p, name, sizeof name);
    parse_take(p, ',');
    for (uint32_t i = 0; i < p->num_functions; i++)
        if (!strcmp(p->functions[i].name, name)) f = &p->functions[i];
    if (f == NULL) {
        parse_fail(p, "no function %s", name);
        return;
    }
    const uint32_t before = p->call, named = p->num_named;
    if (result[0] != '\0' && parse_find(p, result, 4, &o)) parse_name(p, f->result, o.at, o.width, 0);
    parse_take(p, '(');
    for (uint32_t i = 0; i < f->num_params; i++) {
        parse_word(p, argument, sizeof argument);
        if (!parse_find(p, argument, 4, &o)) parse_fail(p, "%s is not declared", argument);
        parse_name(p, f->params[i], o.at, o.width, 0);
        parse_take(p, ',');
    }
    parse_take(p, ')');
    const char *const behind = p->at;
    p->call = ++p->num_calls;
    p->at = f->body;
    parse_body(p);
    parse_label(p, "return");
    p->call = before, p->at = behind, p->num_named = named;
    if (!parse_take(p, ';')) parse_fail(p, "a call of %s that the model does not read", name);
}
