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
 * long context of the largest group; as many tokens and requests as the problem says. */
enum { PLAIN, OTHER_SIZES, OTHER_TYPE, EIGHT_BITS, LONG, FAR, STEEP, LARGE_GROUP, FULL, NUM_KINDS };

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

static void one_value_with(check_t *c, const attn_option_spec_t *s, const char *text, uint64_t features,
                           int kind) {
    kit_case_t k;
    kit_result_t got;
    uint32_t count;
    const attn_option_value_t *defaults = check_option_defaults(c->plugin, &count);
    if (!start(c, &k)) return;
    if (kind != PLAIN) {
        if (k.problem.role != ATTN_ROLE_DECODER) return;
        make_kind(c, &k, kind);
        if (!check_is_served(c, &k)) return;
    }
    if (features != 0) {
        if (k.problem.role != ATTN_ROLE_DECODER || (c->can.features & features) != features) return;
        k.problem.features |= features & ~(ATTN_F_SOFT_CAP | ATTN_F_SLIDING_WINDOW);
        if (features & ATTN_F_SOFT_CAP) k.problem.logits_soft_cap = 5;
        if (features & ATTN_F_SLIDING_WINDOW) k.problem.sliding_window = 13;
        if (!check_is_served(c, &k)) return;
    }
    attn_option_value_t *values = malloc(count * sizeof *values);
    if (values == NULL) abort();
    memcpy(values, defaults, count * sizeof *values);
    check_option_parse(s, text, &values[c->arg]);
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
    int status = kit_run(c->backend, &k, in, &memory, &got);
    surroundings_read(&after);
    if (surroundings_differ(&before, &after, what, sizeof what))
        check_fail(c, "%s = %s: the calls of a run %s", s->name, text, what);
    if (status == ATTN_OK && got.fault[0] != '\0')
        check_fail(c, "%s = %s: %s", s->name, text, got.fault);
    else if (status == ATTN_OK) {
        char before[sizeof c->report->text];
        const int was_failed = c->report->is_failed;
        if (!check_against_oracle(c, &k, in, &got) && !was_failed) {
            snprintf(before, sizeof before, "%s", c->report->text);
            snprintf(c->report->text, sizeof c->report->text, "%s = %s: %.700s", s->name, text, before);
        }
    } else if (strcmp(got.operation, "open") != 0 ||
               (strstr(got.error.param, s->name) == NULL && strstr(got.error.text, s->name) == NULL))
        check_fail(
            c,
            "%s = %s: %s gave %d, %s; a value that cannot be served here is refused by open, by the name "
            "of the option",
            s->name, text, got.operation, status, got.error.text);
    kit_result_free(&got);
    kit_inputs_free(in);
    free(values);
}

/* The plain case, and on the host what a choice of kernels may forget: sinks, slopes, a cap, a window, other
 * sizes, up to kind `last`. */
static void one_value_up_to(check_t *c, const attn_option_spec_t *s, const char *text, int last) {
    static const uint64_t also[] = {ATTN_F_SINK, ATTN_F_ALIBI, ATTN_F_SOFT_CAP, ATTN_F_SLIDING_WINDOW};
    one_value_with(c, s, text, 0, PLAIN);
    if (c->memory->kind != NULL) return;
    for (size_t i = 0; i < sizeof also / sizeof also[0]; i++)
        one_value_with(c, s, text, also[i], PLAIN);
    for (int kind = PLAIN + 1; kind <= last; kind++)
        one_value_with(c, s, text, 0, kind);
}
static void one_value(check_t *c, const attn_option_spec_t *s, const char *text) {
    one_value_up_to(c, s, text, NUM_KINDS - 1);
}

static void option(check_t *c) {
    const attn_option_spec_t *s = check_option_spec(c->plugin, c->arg);
    char text[64];
    one_value(c, s, s->default_value);
    if (s->type == ATTN_OPTION_BOOL) {
        one_value(c, s, "yes");
        one_value(c, s, "no");
    } else if (s->type == ATTN_OPTION_INT && (s->min_int != 0 || s->max_int != 0)) {
        const int64_t values[] = {s->min_int, s->min_int + 1, s->max_int - 1, s->max_int};
        for (size_t i = 0; i < 4; i++) {
            snprintf(text, sizeof text, "%lld", (long long)values[i]);
            if (values[i] < s->min_int || values[i] > s->max_int) continue;
            one_value_up_to(c, s, text, i == 0 || i == 3 ? NUM_KINDS - 1 : LONG);
        }
    } else if (s->type == ATTN_OPTION_INT) {
        one_value(c, s, "0");
        one_value(c, s, "1");
    } else if (s->type == ATTN_OPTION_DOUBLE && (s->min_double != 0 || s->max_double != 0)) {
        for (int i = 0; i < 3; i++) {
            snprintf(text, sizeof text, "%.17g",
                     i == 0   ? s->min_double
                     : i == 1 ? s->max_double
                              : (s->min_double + s->max_double) / 2);
            one_value(c, s, text);
        }
    } else if (s->type == ATTN_OPTION_ENUM && s->choices != NULL) {
        for (const char *at = s->choices; *at != '\0';) {
            size_t n = strcspn(at, " ");
            snprintf(text, sizeof text, "%.*s", (int)n, at);
            one_value(c, s, text);
            at += n + (at[n] == ' ');
        }
    }
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
}
