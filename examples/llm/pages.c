/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.c: the pool of cache pages. A page is full when it holds BLOCK computed tokens; then it is published
 * under the hash of the whole text up to its end, and a request that begins with the same text uses it too.
 * Pages that nobody uses wait in a queue, the one given back first at its head, and can still be found there:
 * so a preempted request mostly finds its own pages again.
 */
#include <stdlib.h>
#include <string.h>

#include "llm.h"

enum { NONE = -1 };

typedef struct page {
    int users;
    int is_published;
    uint64_t hash;
    int32_t tokens[BLOCK];
    int32_t before, after; /* in the queue of unused pages */
    int32_t same_bucket;   /* next published page of the bucket */
} page_t;

struct pages {
    page_t *page;
    int32_t *bucket;
    int num_pages, num_free;
    int32_t first, last; /* of the queue */
};

static int32_t *bucket_of(pages_t *p, uint64_t hash) {
    return &p->bucket[hash % (uint64_t)p->num_pages];
}

static void enqueue(pages_t *p, int32_t id) {
    p->page[id].before = p->last, p->page[id].after = NONE;
    *(p->last == NONE ? &p->first : &p->page[p->last].after) = id;
    p->last = id;
    p->num_free++;
}

static void dequeue(pages_t *p, int32_t id) {
    page_t *page = &p->page[id];
    *(page->before == NONE ? &p->first : &p->page[page->before].after) = page->after;
    *(page->after == NONE ? &p->last : &p->page[page->after].before) = page->before;
    p->num_free--;
}

pages_t *pages_open(int num_pages) {
    pages_t *p = room(sizeof *p);
    *p = (pages_t){.page = room((uint64_t)num_pages * sizeof(page_t)),
                   .bucket = room((uint64_t)num_pages * sizeof(int32_t)),
                   .num_pages = num_pages,
                   .first = NONE,
                   .last = NONE};
    for (int32_t i = 0; i < num_pages; i++)
        p->bucket[i] = NONE;
    for (int32_t i = 0; i < num_pages; i++)
        enqueue(p, i);
    return p;
}

int pages_free_count(const pages_t *p) {
    return p->num_free;
}

static void unpublish(pages_t *p, int32_t id) {
    int32_t *link = bucket_of(p, p->page[id].hash);
    while (*link != id)
        link = &p->page[*link].same_bucket;
    *link = p->page[id].same_bucket;
    p->page[id].is_published = 0;
}

int32_t pages_take(pages_t *p) {
    int32_t id = p->first;
    if (id == NONE) return NONE;
    dequeue(p, id);
    if (p->page[id].is_published) unpublish(p, id);
    p->page[id].users = 1;
    return id;
}

void pages_release(pages_t *p, int32_t id) {
    if (--p->page[id].users == 0) enqueue(p, id);
}

/* FNV-1a over the hash before and the tokens. */
uint64_t pages_hash(uint64_t before, const int32_t *tokens) {
    uint64_t h = (UINT64_C(0xcbf29ce484222325) ^ before) * UINT64_C(0x100000001b3);
    for (int i = 0; i < BLOCK; i++)
        h = (h ^ (uint32_t)tokens[i]) * UINT64_C(0x100000001b3);
    return h;
}

int32_t pages_find(pages_t *p, uint64_t hash, const int32_t *tokens) {
    for (int32_t id = *bucket_of(p, hash); id != NONE; id = p->page[id].same_bucket) {
        page_t *page = &p->page[id];
        if (page->hash != hash || memcmp(page->tokens, tokens, sizeof page->tokens) != 0) continue;
        if (page->users++ == 0) dequeue(p, id);
        return id;
    }
    return NONE;
}

void pages_publish(pages_t *p, int32_t id, uint64_t hash, const int32_t *tokens) {
    page_t *page = &p->page[id];
    if (page->is_published) return;
    page->is_published = 1;
    page->hash = hash;
    memcpy(page->tokens, tokens, sizeof page->tokens);
    page->same_bucket = *bucket_of(p, hash);
    *bucket_of(p, hash) = id;
}

void pages_close(pages_t *p) {
    free(p->page);
    free(p->bucket);
    free(p);
}
