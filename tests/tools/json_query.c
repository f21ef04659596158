/* SPDX-License-Identifier: Apache-2.0 */
/* json_query.c: json_query PATH <JSON: prints what stands at a dotted path ("kinds.0.problem"; "kinds.#"
 * counts), for shell tests. Status 1: not JSON, or nothing there. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    json_error_t why;
    json_t *root = json_loadf(stdin, JSON_REJECT_DUPLICATES, &why);
    if (!root) {
        fprintf(stderr, "json_query: line %d: %s\n", why.line, why.text);
        return 1;
    }
    const json_t *at = root;
    json_t *count = NULL;
    for (char *part = argc > 1 ? strtok(argv[1], ".") : NULL; part && at; part = strtok(NULL, ".")) {
        if (!strcmp(part, "#")) {
            at = count = json_integer((json_int_t)json_array_size(at));
            break;
        }
        at = json_is_array(at) ? json_array_get(at, strtoul(part, NULL, 10)) : json_object_get(at, part);
    }
    if (json_is_string(at))
        puts(json_string_value(at));
    else if (at && json_dumpf(at, stdout, JSON_ENCODE_ANY | JSON_COMPACT) == 0)
        putchar('\n');
    int status = at ? 0 : 1;
    json_decref(count);
    json_decref(root);
    return status;
}
