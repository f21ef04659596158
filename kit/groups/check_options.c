/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_options.c: group options. Every value that the table of options allows is taken and gives right
 * numbers, or is refused with an error that names the option: bounds, each choice, both booleans, and the
 * default in words.
 */
#include "../case/case_families.h"
#include "../run/check_engine.h"
#include "../run/surroundings.h"

#include <math.h>
#include <stdlib.h>

/* A case of the first kind that the backend serves: dense, or latent. */
static int start(check_t *c, kit_case_t *k) {
    static const uint32_t latent[] = {ATTN_ROLE_MLA, ATTN_ROLE_MLA_SPARSE};
    if (check_plain_case(c, k)) return 1;
    for (size_t i = 0; i < sizeof latent / sizeof latent[0]; i++)
        if ((c->can.roles & ATTN_BIT(latent[i])) != 0 && check_latent_case(c, k, latent[i], c->seed)) {
            kit_case_add(k, 1, 37);
            kit_case_add(k, 5, 20);
            return 1;
        }
    check_skip(c, "the kit has no cases for its roles");
    return 0;
}

/* Other sizes than the plain case's, which a choice of kernels may not have in mind: a head size that is no
 * multiple of 16, pages and groups; another element type; a cache of 8 bits; a long context; one of more
 * parts than any default makes, in room for no more requests; scores that climb beyond the range of exp; a
 * long context of the largest group; the largest rows; as many tokens and requests as the problem says. */
enum {
    PLAIN,
    OTHER_SIZES,
    OTHER_TYPE,
    EIGHT_BITS,
    LONG,
    FAR,
    STEEP,
    LARGE_GROUP,
    LARGE_ROWS,
    FULL,
    NUM_KINDS
};

static void make_kind(const check_t *c, kit_case_t *k, int kind) {
    attn_problem_t *p = &k->problem;
    if (kind == OTHER_SIZES) {
        p->head_size = check_head_size(c, 40);
        p->block_size = check_block_size(c, 24);
        p->num_heads = c->can.max_group == 0 || c->can.max_group >= 5 ? 10 : p->num_heads;
    }
    if (kind == OTHER_TYPE && (c->can.dtypes & ATTN_BIT(ATTN_DTYPE_BFLOAT16))) p->dtype = ATTN_DTYPE_BFLOAT16;
    if (kind == EIGHT_BITS && check_fp8_cache(c) != 0) p->kv_cache_dtype = check_fp8_cache(c);
    if (kind == LONG) {
        k->num_reqs = 0;
        kit_case_add(k, 1, 2113);
        kit_case_add(k, 9, 1300);
    }
    if (kind == FAR) {
        check_few_heads(c, k);
        p->head_size = check_head_size(c, 16);
        k->num_reqs = 0;
        p->max_model_len = 36864; /* limits that the batch reaches: the room is for this and no more */
        p->max_num_seqs = p->max_num_batched_tokens = 2;
        kit_case_add(k, 1, 36000);
        kit_case_add(k, 1, 300);
    }
    if (kind == LARGE_GROUP) {
        p->num_kv_heads = 1;
        p->num_heads = c->can.max_group == 0 || c->can.max_group > 64 ? 64 : c->can.max_group;
        p->head_size = check_head_size(c, 8);
        p->max_num_seqs = p->max_num_batched_tokens = 1;
        p->max_model_len = 2113;
        k->num_reqs = 0;
        kit_case_add(k, 1, 2113);
    }
    if (kind == LARGE_ROWS) {
        p->head_size = check_head_size(c, 1024);
        p->max_num_seqs = 4;
        p->max_num_batched_tokens = p->max_model_len = 64;
    }
    if (kind == FULL) {
        check_few_heads(c, k);
        k->num_reqs = 0;
        p->max_model_len = 300;
        p->max_num_seqs = 4;
        p->max_num_batched_tokens = 290;
        for (int r = 0; r < 4; r++)
            kit_case_add(k, r == 1 ? 287 : 1, r == 1 ? 300 : 40);
    }
    if (kind == STEEP) {
        k->family = KIT_EQUAL_KEYS;
        k->num_reqs = 0;
        kit_case_add(k, 1, 900);
        kit_case_add(k, 40, 300);
    }
    check_fit_size(c, k);
    p->scale = 1 / sqrt((double)p->head_size);
}

/* Keys of one channel whose scores are 0, then about 120, then about 2000: each step is more than exp takes,
 * and the last keys alone count. */
static void climb(const kit_case_t *k, kit_inputs_t *in) {
    const kit_sizes_t z = kit_sizes(&k->problem);
    for (int64_t t = 0; t < in->num_tokens * z.heads; t++)
        for (int64_t d = 0; d < z.query; d++)
            in->query[t * z.query + d] = d == 0 ? 16 : 0;
    for (int r = 0; r < k->num_reqs; r++)
        for (int64_t i = in->key_start[r]; i < in->key_start[r + 1]; i++)
            for (int64_t h = 0; h < z.kv_heads; h++) {
                const int64_t at = i - in->key_start[r];
                const double score = at < 100 ? 0 : at < 200 ? 120 : 2000;
                in->key[(i * z.kv_heads + h) * z.key] =
                    kit_round(k->problem.dtype, score / (16 * k->problem.scale));
            }
}

/* Beside the instance another one of the same problem is open, opened later and with other values. */
static attn_option_value_t *values_beside;
static attn_instance_t *instance_beside;
static int open_beside(const attn_problem_t *problem, const attn_device_t *device,
                       const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                       attn_instance_t **instance, attn_error_t *error) {
    attn_error_t e = {.struct_size = sizeof e};
    const attn_backend_ops_t *ops = shim_target()->ops;
    const int status = ops->open(problem, device, options, num_options, host, instance, error);
    instance_beside = NULL;
    if (status == ATTN_OK &&
        ops->open(problem, device, values_beside, num_options, host, &instance_beside, &e) != ATTN_OK)
        instance_beside = NULL; /* the value may not be served here */
    return status;
}
static void close_both(attn_instance_t *instance) {
    shim_target()->ops->close(instance);
    if (instance_beside != NULL) shim_target()->ops->close(instance_beside);
}
static const attn_backend_ops_t beside_ops = {.open = open_beside, .close = close_both};

/* The defaults, and option i at a value. */
static attn_option_value_t *values_with(const check_t *c, uint32_t i, const char *text, uint32_t *count) {
    const attn_option_value_t *defaults = check_option_defaults(c->plugin, count);
    attn_option_value_t *values = malloc(*count * sizeof *values);
    if (values == NULL) abort();
    memcpy(values, defaults, *count * sizeof *values);
    check_option_parse(check_option_spec(c->plugin, i), text, &values[i]);
    return values;
}

/* Does an error of open name the option, or any of them (NULL)? */
static int is_named(const check_t *c, const attn_error_t *e, const char *name) {
    if (name != NULL) return strstr(e->param, name) != NULL || strstr(e->text, name) != NULL;
    for (uint32_t i = 0; i < c->plugin->num_options; i++)
        if (is_named(c, e, check_option_spec(c->plugin, i)->name)) return 1;
    return 0;
}

/* Opens an instance for a case with those values. */
static int open_with(const check_t *c, const kit_case_t *k, const attn_option_value_t *values, uint32_t count,
                     attn_instance_t **instance) {
    attn_device_t device;
    attn_error_t e = {.struct_size = sizeof e};
    check_device(c, &device);
    return c->backend->ops->open(&k->problem, &device, values, count, &check_host, instance, &e);
}

/* Is what an instance needs no more than 128 MiB? A value may be a number of threads, each with rows of
 * its own. */
static int has_small_room(const check_t *c, const kit_case_t *k, const attn_option_value_t *values,
                          uint32_t count) {
    attn_instance_t *instance = NULL;
    attn_error_t e = {.struct_size = sizeof e};
    attn_space_needed_t n = {.struct_size = sizeof n};
    if (open_with(c, k, values, count, &instance) != ATTN_OK) return 1;
    const int status = c->backend->ops->space_needed(instance, &n, &e);
    c->backend->ops->close(instance);
    return status != ATTN_OK || n.metadata_bytes + n.workspace_bytes <= (uint64_t)128 << 20;
}

/* One case with those values, which `label` says; beside: NULL, or the values of another instance. */
static void run_values(check_t *c, const char *label, const char *name, attn_option_value_t *values,
                       uint32_t count, attn_option_value_t *beside, uint64_t features, int kind) {
    kit_case_t k;
    kit_result_t got;
    if (!start(c, &k)) return;
    if (kind != PLAIN) {
        if (k.problem.role != ATTN_ROLE_DECODER) return;
        make_kind(c, &k, kind);
        if (!check_is_served(c, &k) || (kind == LARGE_ROWS && !has_small_room(c, &k, values, count))) return;
    }
    if (features != 0) {
        if (k.problem.role != ATTN_ROLE_DECODER || (c->can.features & features) != features) return;
        k.problem.features |= features & ~(ATTN_F_SOFT_CAP | ATTN_F_SLIDING_WINDOW);
        if (features & ATTN_F_SOFT_CAP) k.problem.logits_soft_cap = 5;
        if (features & ATTN_F_SLIDING_WINDOW) k.problem.sliding_window = 13;
        if (!check_is_served(c, &k)) return;
    }
    values_beside = beside;
    kit_memory_t memory = *c->memory;
    memory.options = values;
    memory.num_options = count;
    check_running(c, &k);
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL) abort();
    if (kind == STEEP) climb(&k, in);
    surroundings_t before, after;
    char what[200];
    surroundings_read(&before);
    int status =
        kit_run(beside != NULL ? shim_make(c->backend, &beside_ops) : c->backend, &k, in, &memory, &got);
    surroundings_read(&after);
    if (surroundings_differ(&before, &after, what, sizeof what))
        check_fail(c, "%s: the calls of a run %s", label, what);
    if (status == ATTN_OK && got.fault[0] != '\0')
        check_fail(c, "%s: %s", label, got.fault);
    else if (status == ATTN_OK) {
        char text[sizeof c->report->text];
        const int was_failed = c->report->is_failed;
        if (!check_against_oracle(c, &k, in, &got) && !was_failed) {
            snprintf(text, sizeof text, "%s", c->report->text);
            snprintf(c->report->text, sizeof c->report->text, "%.200s: %.690s", label, text);
        }
    } else if (strcmp(got.operation, "open") != 0 || !is_named(c, &got.error, name))
        check_fail(c,
                   "%s: %s gave %d, %s; a value that cannot be served here is refused by open, by the name "
                   "of the option",
                   label, got.operation, status, got.error.text);
    kit_result_free(&got);
    kit_inputs_free(in);
}

static void one_value_with(check_t *c, const attn_option_spec_t *s, const char *text, uint64_t features,
                           int kind, const char *beside) {
    uint32_t count;
    char label[200];
    attn_option_value_t *values = values_with(c, c->arg, text, &count);
    attn_option_value_t *other = beside != NULL ? values_with(c, c->arg, beside, &count) : NULL;
    snprintf(label, sizeof label, "%.80s = %.60s%s%.40s", s->name, text,
             beside != NULL ? " beside an instance with " : "", beside != NULL ? beside : "");
    run_values(c, label, s->name, values, count, other, features, kind);
    free(values);
    free(other);
}

/* The plain case, and on the host what a choice of kernels may forget: sinks, slopes, a cap, a window, other
 * sizes, up to kind `last`. */
static void one_value_up_to(check_t *c, const attn_option_spec_t *s, const char *text, int last) {
    static const uint64_t also[] = {ATTN_F_SINK, ATTN_F_ALIBI, ATTN_F_SOFT_CAP, ATTN_F_SLIDING_WINDOW};
    one_value_with(c, s, text, 0, PLAIN, NULL);
    if (c->memory->kind != NULL || last == PLAIN) return;
    const int before = c->report->num_cases; /* all at once, or where that is not served each of them */
    one_value_with(c, s, text, also[0] | also[1] | also[2] | also[3], PLAIN, NULL);
    for (size_t i = 0; i < sizeof also / sizeof also[0] && c->report->num_cases == before; i++)
        one_value_with(c, s, text, also[i], PLAIN, NULL);
    for (int kind = PLAIN + 1; kind <= last; kind++)
        one_value_with(c, s, text, 0, kind, NULL);
}
/* The values of the option that are tried, in words, at most MOST_VALUES. */
enum { MOST_VALUES = 64 };
static int values_to_try(const attn_option_spec_t *s, char texts[MOST_VALUES][64]) {
    int n = 0;
    snprintf(texts[n++], 64, "%s", s->default_value);
    if (s->type == ATTN_OPTION_BOOL) {
        snprintf(texts[n++], 64, "yes");
        snprintf(texts[n++], 64, "no");
    } else if (s->type == ATTN_OPTION_INT) {
        const int has_bounds = s->min_int != 0 || s->max_int != 0;
        const int64_t least = has_bounds ? s->min_int : 0, most = has_bounds ? s->max_int : 1;
        const int64_t values[] = {least, least + 1, most - 1, most};
        for (size_t i = 0; i < 4; i++)
            if (values[i] >= least && values[i] <= most)
                snprintf(texts[n++], 64, "%lld", (long long)values[i]);
    } else if (s->type == ATTN_OPTION_DOUBLE && (s->min_double != 0 || s->max_double != 0)) {
        const double values[] = {s->min_double, (s->min_double + s->max_double) / 2, s->max_double};
        for (size_t i = 0; i < 3; i++)
            snprintf(texts[n++], 64, "%.17g", values[i]);
    } else if (s->type == ATTN_OPTION_ENUM && s->choices != NULL) {
        for (const char *at = s->choices; *at != '\0' && n < MOST_VALUES;) {
            const size_t length = strcspn(at, " ");
            snprintf(texts[n++], 64, "%.*s", (int)length, at);
            at += length + (at[length] == ' ');
        }
    }
    return n;
}

static void option(check_t *c) {
    const attn_option_spec_t *s = check_option_spec(c->plugin, c->arg);
    static char texts[MOST_VALUES][64];
    const int n = values_to_try(s, texts);
    for (int i = 0; i < n; i++) {
        if (i > 0 && strcmp(texts[i], texts[0]) == 0) continue; /* the default again */
        const int is_inner = s->type == ATTN_OPTION_INT && i > 1 && i < n - 1;
        one_value_up_to(c, s, texts[i], is_inner ? PLAIN : NUM_KINDS - 1);
    }
    for (int i = 1; i < n && !c->report->is_failed; i += n > 2 ? n - 2 : 1) /* the ends beside each other */
        if (strcmp(texts[i], texts[n - i]) != 0) {
            one_value_with(c, s, texts[i], 0, PLAIN, texts[n - i]);
            if (c->memory->kind == NULL) one_value_with(c, s, texts[i], 0, FAR, texts[n - i]);
        }
}

/* The first value of an option, or the last, that an instance takes; its default where it takes neither. */
static void find_end(check_t *c, uint32_t i, int is_last, char text[64]) {
    static char texts[MOST_VALUES][64];
    const attn_option_spec_t *s = check_option_spec(c->plugin, i);
    const int n = values_to_try(s, texts);
    snprintf(text, 64, "%s", texts[0]);
    for (int at = 1; at < n; at++) {
        const char *tried = texts[is_last ? n - at : at];
        uint32_t count;
        kit_case_t k;
        attn_instance_t *instance = NULL;
        attn_option_value_t *values = values_with(c, i, tried, &count);
        const int status = start(c, &k) ? open_with(c, &k, values, count, &instance) : ATTN_E_UNSUPPORTED;
        free(values);
        if (status != ATTN_OK) continue;
        c->backend->ops->close(instance);
        snprintf(text, 64, "%s", tried);
        return;
    }
}

/* Each option at one end while all others are at the other one, and all at the same: sizes follow from
 * several. */
static void together(check_t *c) {
    enum { MOST_OPTIONS = 16 };
    static char ends[MOST_OPTIONS][2][64];
    uint32_t count;
    attn_option_value_t *values = values_with(c, 0, "", &count);
    const uint32_t most = count < MOST_OPTIONS ? count : MOST_OPTIONS;
    for (uint32_t i = 0; i < 2 * most; i++)
        find_end(c, i / 2, (int)(i % 2), ends[i / 2][i % 2]);
    for (uint32_t i = 0; i <= most; i++) /* the last: all at the same end */
        for (int is_last = 0; is_last < 2 && !c->report->is_failed; is_last++) {
            char label[200] = "";
            for (uint32_t j = 0; j < most; j++) {
                const attn_option_spec_t *s = check_option_spec(c->plugin, j);
                const char *text = ends[j][(i == j) == is_last];
                const size_t length = strlen(label);
                check_option_parse(s, text, &values[j]);
                snprintf(label + length, sizeof label - length, "%s%.60s = %.30s", j == 0 ? "" : ", ",
                         s->name, text);
            }
            run_values(c, label, NULL, values, count, NULL, 0, PLAIN);
            if (c->memory->kind != NULL) continue;
            run_values(c, label, NULL, values, count, NULL, 0, LONG);
            run_values(c, label, NULL, values, count, NULL, 0, FAR);
            run_values(c, label, NULL, values, count, NULL, 0, FULL);
        }
    free(values);
    if (c->report->num_cases == 0) check_skip(c, "no such combination is served");
}

/* The default is a value of its own type and bounds; choices are words. */
static void table(check_t *c) {
    for (uint32_t i = 0; i < c->plugin->num_options; i++) {
        const attn_option_spec_t *s = check_option_spec(c->plugin, i);
        const char *text = s->default_value != NULL ? s->default_value : "";
        attn_option_value_t v;
        char *end = NULL;
        check_option_parse(s, text, &v);
        const int has_ints = s->min_int != 0 || s->max_int != 0,
                  has_doubles = s->min_double != 0 || s->max_double != 0;
        if (s->type == ATTN_OPTION_INT) {
            strtoll(text, &end, 10);
            if (end == text || *end != '\0' || (has_ints && (v.i < s->min_int || v.i > s->max_int)))
                check_fail(c, "the default of %s is '%s'; no context could be created with it", s->name,
                           text);
            if (s->min_int > s->max_int) check_fail(c, "the minimum of %s is above its maximum", s->name);
        } else if (s->type == ATTN_OPTION_DOUBLE) {
            strtod(text, &end);
            if (end == text || *end != '\0' || !isfinite(v.d) ||
                (has_doubles && (v.d < s->min_double || v.d > s->max_double)))
                check_fail(c, "the default of %s is '%s'; no context could be created with it", s->name,
                           text);
        } else if (s->type == ATTN_OPTION_BOOL) {
            static const char *const words[] = {"yes", "no", "true", "false", "on", "off", "1", "0"};
            int is_known = 0;
            for (size_t w = 0; w < sizeof words / sizeof words[0]; w++)
                is_known |= strcmp(words[w], text) == 0;
            if (!is_known) check_fail(c, "the default of %s is '%s', neither yes nor no", s->name, text);
        } else if (s->type == ATTN_OPTION_ENUM && s->choices != NULL) {
            int is_known = 0;
            for (const char *at = s->choices; *at != '\0';) {
                size_t n = strcspn(at, " ");
                is_known |= n == strlen(text) && strncmp(at, text, n) == 0;
                if (n == 0)
                    check_fail(c, "the choices of %s are not words with one space between them", s->name);
                at += n + (at[n] == ' ');
            }
            if (!is_known) check_fail(c, "the default of %s is '%s', none of: %s", s->name, text, s->choices);
        }
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(check_option_spec(c->plugin, j)->name, s->name) == 0)
                check_fail(c, "duplicate option name %s", s->name);
        c->report->num_cases++;
    }
}

void check_options_list(check_list_t *list, const check_t *c) {
    if (c->plugin->num_options == 0 || c->plugin->options == NULL) return;
    check_add(list, "options", 0, table, 0, "defaults lie within their own types and bounds");
    for (uint32_t i = 0; i < c->plugin->num_options && i < 64; i++)
        check_add(list, "options", 1, option, i, "values of %s", check_option_spec(c->plugin, i)->name);
    if (c->plugin->num_options > 1)
        check_add(list, "options", 1, together, 0, "options at their ends together");
}
