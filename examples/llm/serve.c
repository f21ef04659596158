/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.c: serves requests with a Llama-like checkpoint, greedily. Every step takes all running requests:
 * one token of those that generate, chunks of the prompts of the others (continuous batching). Pages of
 * texts that begin alike are shared. When pages run out the youngest request gives its own back and waits;
 * it is computed again later, mostly from pages that are still there.
 *
 *     llm FOLDER REQUESTS [--device cuda:0] [--backend NAME] [--pages N] [--tokens N] [--requests N]
 *         [--quiet]
 *
 * REQUESTS: a line each, "MAX_NEW TOKEN TOKEN ..", in numbers. Prints the new tokens of each, a line each,
 * and on stderr what every step did.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llm.h"

const char *const program = "llm";

typedef struct request {
    int32_t *tokens; /* prompt, then what was generated */
    int32_t num_prompt, num_tokens, max_tokens;
    int32_t num_computed; /* tokens whose K and V are in the cache */
    int32_t *pages, num_pages;
    int32_t num_published; /* pages that others can find, from the first */
    uint64_t hash;         /* of the text to the end of the last published page */
    int is_running, is_done;
} request_t;

typedef struct server {
    config_t config;
    limits_t limits;
    pages_t *pages;
    request_t *requests; /* in order of arrival; earlier ones go first */
    int num_requests, num_running;
    int *batch; /* [max_reqs] requests of the step, in batch order */
    step_t step;
    int64_t computed, shared, preempted; /* tokens, tokens, times */
} server_t;

static int pages_for(int32_t tokens) {
    return (tokens + BLOCK - 1) / BLOCK;
}

static void stop(server_t *s, request_t *r) {
    /* the last first: the head of a text is the more useful part, so it is forgotten last */
    while (r->num_pages > 0)
        pages_release(s->pages, r->pages[--r->num_pages]);
    r->num_computed = r->num_published = 0;
    r->hash = 0;
    r->is_running = 0;
    s->num_running--;
}

/* Begins a request, or begins it again: takes the pages that others have computed. The last token is
 * computed in any case, since its output is wanted. */
static void start(server_t *s, request_t *r) {
    r->is_running = 1;
    s->num_running++;
    while (r->num_computed + BLOCK < r->num_tokens) {
        const int32_t *tokens = r->tokens + r->num_computed;
        const uint64_t hash = pages_hash(r->hash, tokens);
        const int32_t page = pages_find(s->pages, hash, tokens);
        if (page < 0) break;
        r->pages[r->num_pages++] = page;
        r->num_published++;
        r->hash = hash;
        r->num_computed += BLOCK;
        s->shared += BLOCK;
    }
}

/* Pages for n more tokens of a request that runs. Younger ones lose theirs if it must be. 0: there are not
 * enough even so. */
static int make_room(server_t *s, request_t *r, int32_t n) {
    while (r->num_pages < pages_for(r->num_computed + n)) {
        int32_t page = pages_take(s->pages);
        if (page >= 0) {
            r->pages[r->num_pages++] = page;
            continue;
        }
        request_t *youngest = &s->requests[s->num_requests - 1];
        while (youngest > r && !youngest->is_running)
            youngest--;
        if (youngest == r) return 0;
        stop(s, youngest);
        s->preempted++;
    }
    return 1;
}

/* Chooses what the step computes: n[i] tokens of request batch[i], oldest first. */
static int schedule(server_t *s, int32_t *n) {
    int count = 0, left = s->limits.max_tokens;
    for (int i = 0; i < s->num_requests && left > 0 && count < s->limits.max_reqs; i++) {
        request_t *r = &s->requests[i];
        if (r->is_done) continue;
        if (!r->is_running) {
            start(s, r);
            /* one that begins preempts nobody, and leaves a page for each that runs */
            int32_t first = r->num_tokens - r->num_computed < left ? r->num_tokens - r->num_computed : left;
            int wanted = pages_for(r->num_computed + first) - r->num_pages;
            if (s->num_running > 1 && wanted + s->num_running > pages_free_count(s->pages)) {
                s->shared -= r->num_computed;
                stop(s, r);
                break;
            }
        }
        const int32_t rest = r->num_tokens - r->num_computed;
        n[count] = rest < left ? rest : left;
        if (!make_room(s, r, n[count])) break;
        left -= n[count];
        s->batch[count++] = i;
    }
    return count;
}

/* The step's arrays; requests with one token first, as many backends want it. */
static void compose(server_t *s, const int32_t *n, int count) {
    step_t *step = &s->step;
    int order[count], at = 0, row = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < count; i++)
            if ((n[i] != 1) == pass) order[at++] = i;
    step->num_reqs = count;
    step->num_logits = 0;
    step->starts[0] = 0;
    int batch[count];
    memcpy(batch, s->batch, sizeof batch);
    for (int i = 0; i < count; i++) {
        const request_t *r = &s->requests[s->batch[i] = batch[order[i]]];
        for (int32_t t = 0; t < n[order[i]]; t++, row++) {
            step->tokens[row] = r->tokens[r->num_computed + t];
            step->position[row] = r->num_computed + t;
        }
        step->starts[i + 1] = row;
        step->lens[i] = r->num_computed + n[order[i]];
        memcpy(step->table + (int64_t)i * step->table_width, r->pages,
               (size_t)r->num_pages * sizeof *r->pages);
        if (step->lens[i] == r->num_tokens) step->logit_rows[step->num_logits++] = row - 1;
    }
    step->num_tokens = row;
}

static int is_end(const config_t *c, int32_t token) {
    for (int i = 0; i < c->num_ends; i++)
        if (c->ends[i] == token) return 1;
    return 0;
}

/* After a step: pages that became full are published, new tokens appended, requests that are done stop. */
static void finish(server_t *s) {
    int wanted = 0;
    for (int i = 0; i < s->step.num_reqs; i++) {
        request_t *r = &s->requests[s->batch[i]];
        s->computed += s->step.lens[i] - r->num_computed;
        r->num_computed = s->step.lens[i];
        for (; (r->num_published + 1) * BLOCK <= r->num_computed; r->num_published++) {
            const int32_t *tokens = r->tokens + r->num_published * BLOCK;
            r->hash = pages_hash(r->hash, tokens);
            pages_publish(s->pages, r->pages[r->num_published], r->hash, tokens);
        }
        if (r->num_computed < r->num_tokens) continue;
        const int32_t token = s->step.next[wanted++];
        r->tokens[r->num_tokens++] = token;
        if (r->num_tokens < r->max_tokens && !is_end(&s->config, token)) continue;
        r->is_done = 1;
        stop(s, r);
    }
}

static void read_requests(server_t *s, const char *path) {
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t size = 0;
    if (f == NULL) die("%s: cannot be read", path);
    for (int number = 1; getline(&line, &size, f) >= 0; number++) {
        request_t r = {.tokens = room(((uint64_t)s->config.max_len + 1) * sizeof *r.tokens)};
        char *at = line, *next;
        const long new_tokens = strtol(at, &at, 10);
        for (long t; t = strtol(at, &next, 10), next != at; at = next) {
            if (t < 0 || t >= s->config.vocabulary || r.num_prompt == s->config.max_len)
                die("%s:%d: token %ld; from 0 to %lld, and at most %lld of them", path, number, t,
                    (long long)s->config.vocabulary - 1, (long long)s->config.max_len);
            r.tokens[r.num_prompt++] = (int32_t)t;
        }
        if (new_tokens < 1 || new_tokens > s->config.max_len - r.num_prompt || r.num_prompt == 0 ||
            at[strspn(at, " \r\n")] != '\0')
            die("%s:%d: expected MAX_NEW from 1 and a prompt in numbers, together at most %lld", path,
                number, (long long)s->config.max_len);
        r.num_tokens = r.num_prompt;
        r.max_tokens = r.num_prompt + (int32_t)new_tokens;
        if (pages_for(r.max_tokens) > s->limits.num_pages)
            die("%s:%d: %d tokens need %d pages; give --pages", path, number, (int)r.max_tokens,
                pages_for(r.max_tokens));
        r.pages = room((uint64_t)pages_for(r.max_tokens) * sizeof *r.pages);
        s->requests = realloc(s->requests, (size_t)(s->num_requests + 1) * sizeof r);
        if (s->requests == NULL) die("no memory");
        s->requests[s->num_requests++] = r;
    }
    free(line);
    fclose(f);
}

static void open_step(server_t *s) {
    const uint64_t reqs = (uint64_t)s->limits.max_reqs, tokens = (uint64_t)s->limits.max_tokens;
    s->step.table_width = pages_for((int32_t)s->limits.max_len);
    s->step.starts = room((reqs + 1) * sizeof(int32_t));
    s->step.lens = room(reqs * sizeof(int32_t));
    s->step.table = room(reqs * (uint64_t)s->step.table_width * sizeof(int32_t));
    s->step.tokens = room(tokens * sizeof(int32_t));
    s->step.position = room(tokens * sizeof(int32_t));
    s->step.logit_rows = room(reqs * sizeof(int32_t));
    s->step.next = room(reqs * sizeof(int32_t));
    s->batch = room(reqs * sizeof *s->batch);
}

static void close_server(server_t *s) {
    int32_t *const all[] = {s->step.starts,   s->step.lens,       s->step.table, s->step.tokens,
                            s->step.position, s->step.logit_rows, s->step.next};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    for (int i = 0; i < s->num_requests; i++) {
        free(s->requests[i].tokens);
        free(s->requests[i].pages);
    }
    free(s->requests);
    free(s->batch);
    pages_close(s->pages);
}

int main(int argc, char **argv) {
    const char *device = "cpu", *backend = NULL;
    int is_quiet = 0;
    server_t s = {.limits = {.max_reqs = 16, .max_tokens = 256, .num_pages = 256}};
    if (argc < 3)
        die("usage: llm FOLDER REQUESTS [--device D] [--backend B] [--pages N] [--tokens N] "
            "[--requests N] [--quiet]");
    for (int i = 3; i < argc; i++) {
        int *number = strcmp(argv[i], "--pages") == 0      ? &s.limits.num_pages
                      : strcmp(argv[i], "--tokens") == 0   ? &s.limits.max_tokens
                      : strcmp(argv[i], "--requests") == 0 ? &s.limits.max_reqs
                                                           : NULL;
        const char **text = strcmp(argv[i], "--device") == 0    ? &device
                            : strcmp(argv[i], "--backend") == 0 ? &backend
                                                                : NULL;
        if (strcmp(argv[i], "--quiet") == 0) {
            is_quiet = 1;
            continue;
        }
        if ((number == NULL && text == NULL) || i + 1 == argc)
            die("%s: no such option, or no value", argv[i]);
        if (text != NULL) *text = argv[++i];
        if (number != NULL && (*number = atoi(argv[++i])) < 1) die("%s: expected a number from 1", argv[i]);
        if (number != NULL && *number > 1 << 20) die("%s is more than %d", argv[i], 1 << 20);
    }
    config_read(argv[1], &s.config);
    checkpoint_t *checkpoint = checkpoint_open(argv[1]);
    s.limits.max_len = s.config.max_len;
    read_requests(&s, argv[2]);
    s.pages = pages_open(s.limits.num_pages);
    open_step(&s);
    llama_t *llama = llama_open(checkpoint, &s.config, &s.limits);
    attention_t *attention = attention_open(argv[1], &s.config, &s.limits, device, backend);

    int32_t *n = room((uint64_t)s.limits.max_reqs * sizeof *n);
    for (int step = 0, count; (count = schedule(&s, n)) > 0; step++) {
        compose(&s, n, count);
        llama_step(llama, attention, &s.step);
        finish(&s);
        if (!is_quiet)
            fprintf(stderr, "step %d: %d requests, %d tokens, %d pages free\n", step, count,
                    s.step.num_tokens, pages_free_count(s.pages));
    }
    fprintf(stderr, "%s: %lld tokens computed, %lld shared, %lld times preempted\n",
            attention_backend(attention), (long long)s.computed, (long long)s.shared, (long long)s.preempted);
    for (int i = 0; i < s.num_requests; i++)
        for (int32_t t = s.requests[i].num_prompt; t < s.requests[i].num_tokens; t++)
            printf("%d%c", (int)s.requests[i].tokens[t], t + 1 < s.requests[i].num_tokens ? ' ' : '\n');
    free(n);
    attention_close(attention);
    llama_close(llama);
    checkpoint_close(checkpoint);
    close_server(&s);
    return 0;
}
