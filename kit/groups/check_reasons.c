/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_reasons.c: the part of group capabilities about what supports_combination says: engines and attn info
 * read the name in a reason, so it is one of the header's, and the text is there.
 */
#include "../run/check_engine.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

static int is_known(const char *name) {
    static const char *const members[] = {"role",
                                          "mask",
                                          "dtype",
                                          "out_dtype",
                                          "query_dtype",
                                          "kv_cache_dtype",
                                          "kv_layout",
                                          "num_heads",
                                          "num_kv_heads",
                                          "head_size",
                                          "head_size_v",
                                          "block_size",
                                          "sliding_window",
                                          "chunk_size",
                                          "chunk_lookback",
                                          "rswa_window",
                                          "static_sink_len",
                                          "scale",
                                          "logits_soft_cap",
                                          "features",
                                          "max_num_seqs",
                                          "max_num_batched_tokens",
                                          "max_model_len",
                                          "num_blocks",
                                          "kv_lora_rank",
                                          "qk_nope_head_dim",
                                          "qk_rope_head_dim",
                                          "v_head_dim",
                                          "topk",
                                          "dcp_world_size",
                                          "dcp_rank",
                                          "cp_interleave",
                                          "max_mm_ranges",
                                          "max_num_batched_keys",
                                          "device",
                                          "device_type",
                                          "compute_capability"};
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        if (strcmp(name, members[i]) == 0) return 1;
    for (unsigned bit = 0; bit < 64; bit++)
        if ((ATTN_F_KNOWN_ >> bit & 1) && strcmp(name, attn_feature_name(bit)) == 0) return 1;
    return 0;
}

static void look_at(check_t *c, const kit_case_t *k) {
    attn_reason_t items[8];
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 8, .items = items};
    attn_device_t device;
    check_device(c, &device);
    memset(items, 0, sizeof items);
    if (c->backend->ops->supports_combination(&k->problem, &device, &reasons) != ATTN_OK) return;
    for (uint32_t i = 0; i < reasons.count && i < 8 && !c->report->is_failed; i++) {
        check_running(c, k);
        c->report->num_cases++;
        if (memchr(items[i].param, 0, sizeof items[i].param) == NULL ||
            memchr(items[i].text, 0, sizeof items[i].text) == NULL)
            check_fail(c, "reason %u: its name or its text has no end", i);
        else if (items[i].code < 1 || items[i].code >= ATTN_REASON_COUNT_)
            check_fail(c, "reason %u has the code %d, which is none of attn_types.h", i, items[i].code);
        else if (items[i].text[0] == '\0')
            check_fail(c, "reason %u, of %s, has no text", i, items[i].param);
        else if (!is_known(items[i].param))
            check_fail(c, "reason %u names '%s', which is no member of attn_problem_t and no feature", i,
                       items[i].param);
    }
}

/* Two features of the table in a decoder with one of the masks, as members ask for them; i counts them. 0: no
 * such. */
enum { MOST_PAIRS = 38 * 38 * 3 };
static int pair_of_features(const check_t *c, kit_case_t *k, int i) {
    static const uint64_t implied = ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_RSWA | ATTN_F_DIFF_KV |
                                    ATTN_F_NON_CAUSAL | ATTN_F_PER_REQUEST_CAUSAL | ATTN_F_QUANT_QUERY,
                          others = ATTN_F_WEIGHTS | ATTN_F_LATENT | ATTN_F_DCP | ATTN_F_FP8_ATTENTION |
                                   ATTN_F_KEY_LENGTHS | ATTN_F_CONTIGUOUS_KV;
    const int first = i / 3 % 38, second = i / 3 / 38;
    const uint64_t both = UINT64_C(1) << first | UINT64_C(1) << second;
    attn_problem_t *p = &k->problem;
    if (first > second || (both & ~c->can.features) != 0 || (both & others) != 0) return 0;
    const uint32_t mask = ATTN_MASK_CAUSAL + (uint32_t)(i % 3);
    if (mask == ATTN_MASK_FULL && !(c->can.features & ATTN_F_NON_CAUSAL)) return 0;
    if (mask == ATTN_MASK_PER_REQUEST && !(c->can.features & ATTN_F_PER_REQUEST_CAUSAL)) return 0;
    if (!check_plain_case(c, k) || p->role != ATTN_ROLE_DECODER) return 0;
    p->mask = mask;
    p->features |= both & ~implied;
    if (both & ATTN_F_SLIDING_WINDOW) p->sliding_window = 16;
    if (both & ATTN_F_SOFT_CAP) p->logits_soft_cap = 20;
    if (both & ATTN_F_RSWA) p->rswa_window = 9;
    if (both & ATTN_F_CHUNKED_LOCAL) p->chunk_size = p->block_size;
    if (both & ATTN_F_CHUNK_LOOKBACK) p->sliding_window = 16, p->chunk_lookback = 1;
    return 1;
}

int check_refused(const check_t *c, attn_problem_t *all, int most) {
    attn_device_t device;
    int n = 0;
    if (c->backend->ops->supports_combination == NULL || c->role != 0) return 0;
    check_device(c, &device);
    for (int i = 0; i < MOST_PAIRS && n < most; i++) {
        kit_case_t k;
        attn_reasons_t reasons = {.struct_size = sizeof reasons};
        if (!pair_of_features(c, &k, i)) continue;
        if (c->backend->ops->supports_combination(&k.problem, &device, &reasons) == ATTN_OK &&
            reasons.count != 0)
            all[n++] = k.problem;
    }
    return n;
}

/* Every role and pair of what is asked for by members, with each cache format and group. */
static void reasons(check_t *c) {
    static const uint64_t bits[] = {0, ATTN_F_SINK, ATTN_F_ALIBI, ATTN_F_LSE, ATTN_F_PER_HEAD_SCALES};
    kit_case_t base;
    if (c->backend->ops->supports_combination == NULL) {
        check_skip(c, "no supports_combination");
        return;
    }
    if (!check_start(c, &base)) return;
    for (uint32_t role = 1; role < 32; role++)
        for (int i = 0; i < 5 * 32 && !c->report->is_failed; i++) {
            kit_case_t k = base;
            attn_problem_t *p = &k.problem;
            if (!(c->can.roles >> role & 1) || attn_role_is_mla(role) || role == ATTN_ROLE_MLA_PREFILL)
                continue;
            if (attn_role_is_mla(base.problem.role)) continue;
            p->role = role;
            p->mask = role == ATTN_ROLE_ENCODER_DECODER || i & 1 ? ATTN_MASK_FULL : ATTN_MASK_CAUSAL;
            p->features |= bits[i % 5];
            if (i & 2) p->sliding_window = 16;
            if (i & 4) p->logits_soft_cap = 20;
            if (i & 8 && (c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_FP8_E4M3)) && attn_role_has_cache(role))
                p->kv_cache_dtype = ATTN_KV_FP8_E4M3;
            if (i & 16) p->num_kv_heads = 1, p->head_size_v = p->head_size / 2;
            if (!attn_role_has_cache(role)) p->block_size = 0;
            look_at(c, &k);
        }
    for (int i = 0; i < MOST_PAIRS && c->role == 0 && !c->report->is_failed; i++) {
        kit_case_t k;
        if (pair_of_features(c, &k, i)) look_at(c, &k);
    }
    if (c->report->num_cases == 0) check_skip(c, "it has no reason against what was asked");
}

/* ------------------------------------------------------ a list that is another's */

enum { MOST_REASONS = 6, MOST_PROBLEMS = 24, MOST_ASKED = 4000, READERS = 4 };
typedef struct answer {
    attn_problem_t problem;
    int status;
    uint32_t count;
    attn_reason_t items[MOST_REASONS];
} answer_t;

static void ask(const check_t *c, const attn_problem_t *p, answer_t *a) {
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = MOST_REASONS, .items = a->items};
    attn_device_t device;
    memset(a, 0, sizeof *a);
    a->problem = *p;
    check_device(c, &device);
    a->status = c->backend->ops->supports_combination(p, &device, &reasons);
    a->count = reasons.count;
}
static int is_same(const answer_t *a, const answer_t *b) {
    if (a->status != b->status || a->count != b->count) return 0;
    for (uint32_t i = 0; i < a->count && i < MOST_REASONS; i++)
        if (a->items[i].code != b->items[i].code || strcmp(a->items[i].param, b->items[i].param) != 0 ||
            strcmp(a->items[i].text, b->items[i].text) != 0)
            return 0;
    return 1;
}

/* Problems of every kind that this backend has something to say of, and as many that it serves. */
static int gather(check_t *c, answer_t *all) {
    static attn_problem_t places[MOST_ASKED]; /* each at an address of its own */
    kit_case_t k;
    answer_t a;
    int num[2] = {0, 0};
    if (!check_start(c, &k)) return 0;
    for (int i = 0; i < MOST_ASKED && num[0] + num[1] < MOST_PROBLEMS; i++) {
        check_random_case(c, &k, c->seed * 4099 + (uint64_t)i, 60);
        if (i % 3 == 1 && attn_role_has_cache(k.problem.role)) k.problem.sliding_window = 16;
        if (i % 3 == 2) k.problem.features |= c->can.features & (ATTN_F_ALIBI | ATTN_F_SINK | ATTN_F_CASCADE);
        places[i] = k.problem;
        ask(c, &places[i], &a);
        if (a.status != ATTN_OK && a.count == 0) {
            check_running(c, &k);
            check_fail(c,
                       "supports_combination returned %d and gave no reason; a reason says no, an error that "
                       "the problem cannot be read",
                       a.status);
            return 0;
        }
        const int is_refused = a.count != 0;
        if (num[is_refused] < MOST_PROBLEMS / 2) all[num[0] + num[1]] = a, num[is_refused]++;
    }
    static attn_problem_t pairs[MOST_PROBLEMS];
    const int num_pairs = check_refused(c, pairs, MOST_PROBLEMS / 2 - num[1]);
    for (int i = 0; i < num_pairs && num[0] + num[1] < MOST_PROBLEMS; i++)
        ask(c, &pairs[i], &all[num[0] + num[1]]), num[1]++;
    return num[0] + num[1];
}

typedef struct reader {
    const check_t *c;
    const answer_t *all;
    int num, first, num_wrong;
} reader_t;
static void *read_answers(void *p) {
    reader_t *r = p;
    answer_t now;
    for (int i = 0; i < 40 * r->num; i++) {
        const answer_t *want = &r->all[(r->first + i) % r->num];
        ask(r->c, &want->problem, &now);
        r->num_wrong += !is_same(want, &now);
    }
    return NULL;
}

/* The list is the core's: its own reasons stand in it, it may have room for none, and several threads fill
 * lists at once. The problem is read anew in each call, wherever it lies. */
static void others_list(check_t *c) {
    static answer_t all[MOST_PROBLEMS];
    static attn_reason_t items[MOST_REASONS + 2];
    static attn_problem_t here;
    attn_device_t device;
    if (c->backend->ops->supports_combination == NULL) {
        check_skip(c, "no supports_combination");
        return;
    }
    const int n = gather(c, all);
    check_device(c, &device);
    for (int i = 0; i < n && !c->report->is_failed; i++) {
        answer_t again;
        const char *first = "of the core";
        attn_reasons_t list = {.struct_size = sizeof list, .capacity = 2, .count = 1, .items = items};
        memset(items, 0xa5, sizeof items);
        snprintf(items[0].text, sizeof items[0].text, "%s", first);
        here = all[i].problem;
        int status = c->backend->ops->supports_combination(&here, &device, &list);
        if (status != all[i].status || list.count != 1 + all[i].count)
            check_fail(c,
                       "supports_combination makes %u reasons of a list that has 1, and %u of an empty one; "
                       "it adds to the list, and reads the problem that is there now",
                       list.count, all[i].count);
        if (strcmp(items[0].text, first) != 0)
            check_fail(c, "supports_combination writes over a reason that was in the list");
        for (size_t j = 0; j < sizeof items[0]; j++)
            if (((unsigned char *)&items[2])[j] != 0xa5) {
                check_fail(c, "supports_combination writes beyond the capacity of the list");
                break;
            }
        list = (attn_reasons_t){.struct_size = sizeof list, .capacity = 1, .count = 1, .items = items};
        memset(items, 0xa5, sizeof items);
        (void)c->backend->ops->supports_combination(&here, &device, &list);
        if (((unsigned char *)&items[1])[0] != 0xa5 || ((unsigned char *)&items[0])[0] != 0xa5)
            check_fail(c, "supports_combination writes a reason where the list has no room");
        list = (attn_reasons_t){.struct_size = sizeof list};
        (void)c->backend->ops->supports_combination(&here, &device, &list);
        if (list.count != all[i].count)
            check_fail(c, "supports_combination counts %u reasons where there is no room for one, else %u",
                       list.count, all[i].count);
        ask(c, &here, &again);
        if (!is_same(&all[i], &again))
            check_fail(c, "supports_combination gives other reasons for an equal problem");
        c->report->num_cases++;
    }
    pthread_t threads[READERS];
    reader_t readers[READERS];
    for (int i = 0; i < READERS && n > 0; i++) {
        readers[i] = (reader_t){.c = c, .all = all, .num = n, .first = i * n / READERS};
        if (pthread_create(&threads[i], NULL, read_answers, &readers[i]) != 0) abort();
    }
    for (int i = 0; i < READERS && n > 0; i++) {
        pthread_join(threads[i], NULL);
        if (readers[i].num_wrong > 0)
            check_fail(c, "supports_combination gives other reasons while %d threads ask", (int)READERS);
    }
}

/* A query is asked for every problem of every layer, by threads that may hold locks: it takes no memory. */
static void no_allocation(check_t *c) {
    static answer_t all[MOST_PROBLEMS];
    const char *name = "";
    answer_t again;
    if (c->backend->ops->supports_combination == NULL) {
        check_skip(c, "no supports_combination");
        return;
    }
    const int n = gather(c, all);
    if (alloc_watch_start(c->options->path) == 0) {
        check_skip(c, "the plugin calls no allocator that could be watched");
        return;
    }
    alloc_watch_on(1);
    const long before = alloc_watch_count(&name);
    for (int i = 0; i < n; i++)
        ask(c, &all[i].problem, &again);
    const long calls = alloc_watch_count(&name) - before;
    alloc_watch_on(0);
    if (calls > 0) check_fail(c, "supports_combination calls %s; it must not allocate", name);
    c->report->num_cases += n;
}

/* A problem with reasons against it that open refuses, too, is refused there by one of their names. */
static void same_names(check_t *c) {
    static answer_t all[MOST_PROBLEMS];
    if (c->backend->ops->supports_combination == NULL) {
        check_skip(c, "no supports_combination");
        return;
    }
    const int n = gather(c, all);
    for (int i = 0; i < n && !c->report->is_failed; i++) {
        attn_instance_t *instance = NULL;
        attn_error_t e = {.struct_size = sizeof e};
        int is_named = 0;
        if (all[i].count == 0 || all[i].count > MOST_REASONS) continue;
        c->report->num_cases++;
        if (check_open(c, &all[i].problem, &instance, &e) == ATTN_OK) {
            c->backend->ops->close(instance);
            continue;
        }
        for (uint32_t j = 0; j < all[i].count; j++)
            is_named = is_named || strstr(e.param, all[i].items[j].param) != NULL ||
                       strstr(e.text, all[i].items[j].param) != NULL || strcmp(e.param, "features") == 0;
        if (!is_named)
            check_fail(c, "supports_combination refuses %s (%s), open refuses %s (%.200s)",
                       all[i].items[0].param, all[i].items[0].text, e.param, e.text);
    }
    if (c->report->num_cases == 0) check_skip(c, "it has no reason against what was asked");
}

void check_reasons_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "capabilities", 1, reasons, 0, "reasons name a member or a feature");
    check_add(list, "capabilities", 1, others_list, 0, "reasons are added to a list that is another's");
    check_add(list, "capabilities", CHECK_RUNS_ON_CPU, no_allocation, 0,
              "supports_combination takes no memory");
    check_add(list, "capabilities", CHECK_RUNS_ON_CPU, same_names, 0,
              "open refuses by the names of the reasons");
    check_every_list(list, c);
}
