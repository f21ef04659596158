/* SPDX-License-Identifier: Apache-2.0 */
/* Which programs a configuration needs, and where their machine code comes from. */
#include "triton_compile.h"

#include <attn/draft/attn_compile.h>

#include <pthread.h>
#include <stdlib.h>

void triton_log(const attn_host_t *host, uint32_t level, const char *format, ...) {
    char text[512];
    va_list args;
    if (host == NULL || host->log == NULL) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    host->log(host->ctx, level, text);
}

typedef struct job {
    const triton_nvrtc_t *nvrtc;
    const char *source, *macros;
    void *cubin;
    size_t bytes;
    int status;
    attn_error_t error;
} job_t;

static void *compile(void *arg) {
    job_t *j = arg;
    j->status = triton_nvrtc_compile(j->nvrtc, j->source, j->macros, &j->cubin, &j->bytes, &j->error);
    return NULL;
}

/* The programs: prefill alone, because it takes longest; everything else beside it, but for the second
 * decode, which has macros of its own. */
static void list_programs(const triton_config_t *c, int has_wide, triton_request_t *r) {
    int n = 0;
    r->kinds[n] = TRITON_PROGRAM_PREFILL;
    r->sources[n++] = c->rope > 0 ? "#include \"triton_rope.cuh\"\n"
                      : c->exact && c->page > 0
                          ? "#include \"triton_exact.cuh\"\n#include \"triton_write.cuh\"\n"
                      : c->exact   ? "#include \"triton_exact.cuh\"\n"
                      : c->copiers ? "#include \"triton_prefill_split_sm90.cuh\"\n"
                      : c->wgmma   ? "#include \"triton_prefill_sm90.cuh\"\n"
                                   : "#include \"triton_prefill.cuh\"\n";
    if (c->rope == 0 && !c->exact && c->page > 0) {
        r->kinds[n] = TRITON_PROGRAM_DECODE;
        r->sources[n++] = c->has_decode ? "#include \"triton_decode.cuh\"\n#include \"triton_write.cuh\"\n"
                                        : "#include \"triton_write.cuh\"\n";
    }
    if (c->rope == 0 && has_wide) {
        r->kinds[n] = TRITON_PROGRAM_WIDE;
        r->sources[n++] = "#include \"triton_decode.cuh\"\n";
    }
    r->count = n;
}

/* Two independent hashes of 64 bits: an accident is out of the question, and nobody else can write into the
 * folder. */
static void make_key(const triton_nvrtc_t *n, const char *source, const char *macros, char key[64]) {
    uint64_t h[2];
    for (int i = 0; i < 2; i++) {
        int32_t head[5] = {i, n->major, n->minor, n->arch, 1 + n->is_virtual};
        h[i] = attn_fingerprint64(0, head, sizeof head);
        h[i] = triton_source_hash(h[i]);
        h[i] = attn_fingerprint64(h[i], source, strlen(source) + 1);
        h[i] = attn_fingerprint64(h[i], macros, strlen(macros) + 1);
    }
    snprintf(key, 64, "sm_%d-%016llx%016llx", n->arch, (unsigned long long)h[0], (unsigned long long)h[1]);
}

static int compile_missing(const triton_nvrtc_t *nvrtc, const triton_request_t *r, triton_code_t *code,
                           attn_error_t *error) {
    const int count = r->count;
    job_t jobs[TRITON_MAX_PROGRAMS];
    pthread_t threads[TRITON_MAX_PROGRAMS];
    int running[TRITON_MAX_PROGRAMS] = {0}, status = ATTN_OK, left = 0;
    memset(jobs, 0, sizeof jobs);
    for (int i = 0; i < count; i++)
        left += code->cubin[i] == NULL;
    for (int i = 0; i < count; i++) {
        if (code->cubin[i] != NULL) continue;
        jobs[i] = (job_t){.nvrtc = nvrtc,
                          .source = r->sources[i],
                          .macros = r->macros[i],
                          .error = {.struct_size = sizeof(attn_error_t)}};
        running[i] = --left > 0 && pthread_create(&threads[i], NULL, compile, &jobs[i]) == 0;
        if (!running[i]) compile(&jobs[i]);
    }
    for (int i = 0; i < count; i++) {
        if (running[i]) pthread_join(threads[i], NULL);
        if (jobs[i].nvrtc == NULL) continue;
        code->cubin[i] = jobs[i].cubin;
        code->bytes[i] = jobs[i].bytes;
        if (jobs[i].status != ATTN_OK && status == ATTN_OK)
            status = attn_fail(error, jobs[i].status, jobs[i].error.param, "%s", jobs[i].error.text);
    }
    return status;
}

int triton_make_programs(const triton_request_t *r, const triton_toolchain_t *tools, triton_code_t *code,
                         attn_error_t *error) {
    char keys[TRITON_MAX_PROGRAMS][64];
    int found[TRITON_MAX_PROGRAMS] = {0};
    triton_nvrtc_t nvrtc;
    memset(code, 0, sizeof *code);
    int is_stored = tools->cache_dir != NULL && tools->cache_dir[0] != '\0';
    int status = is_stored ? triton_store_check(tools->cache_dir, error) : ATTN_OK;
    if (status == ATTN_OK) status = triton_nvrtc_open(&nvrtc, tools->nvrtc, r->cc, error);
    if (status != ATTN_OK) return status;
    nvrtc.is_virtual = r->is_virtual;
    code->count = r->count;
    memcpy(code->kind, r->kinds, sizeof code->kind);
    for (int i = 0; i < code->count; i++) {
        make_key(&nvrtc, r->sources[i], r->macros[i], keys[i]);
        found[i] = is_stored && triton_store_load(tools->cache_dir, keys[i], &code->cubin[i], &code->bytes[i],
                                                  tools->host) == 0;
        code->from_cache += found[i] || triton_memory_load(keys[i], &code->cubin[i], &code->bytes[i]) == 0;
    }
    status = compile_missing(&nvrtc, r, code, error);
    triton_nvrtc_close(&nvrtc);
    for (int i = 0; i < code->count && status == ATTN_OK; i++) {
        triton_memory_save(keys[i], code->cubin[i], code->bytes[i]);
        if (is_stored && !found[i])
            triton_store_save(tools->cache_dir, keys[i], code->cubin[i], code->bytes[i], tools->host);
    }
    if (status != ATTN_OK) triton_free_code(code);
    return status;
}

int triton_make_code(const triton_config_t *c, const triton_toolchain_t *tools, triton_code_t *code,
                     attn_error_t *error) {
    char macros[TRITON_MACROS_SIZE], wide_macros[TRITON_MACROS_SIZE];
    triton_request_t r = {.cc = c->cc};
    triton_config_t wide;
    memset(code, 0, sizeof *code);
    list_programs(c, triton_config_wide(c, &wide) == 0, &r);
    int written = triton_config_macros(c, macros, sizeof macros);
    for (int i = 0; i < r.count; i++) {
        const int is_wide = r.kinds[i] == TRITON_PROGRAM_WIDE;
        r.macros[i] = is_wide ? wide_macros : macros;
        if (is_wide && written > 0) written = triton_config_macros(&wide, wide_macros, sizeof wide_macros);
    }
    if (written < 0)
        return attn_fail(error, ATTN_E_INTERNAL, "", "the macros of a kernel do not fit their buffer");
    return triton_make_programs(&r, tools, code, error);
}

int triton_give_report(attn_compile_report_t *report, triton_code_t *code, attn_error_t *error) {
    attn_compile_report_t full = {.struct_size = sizeof full,
                                  .num_programs = (uint32_t)code->count,
                                  .num_cached = (uint32_t)code->from_cache};
    for (int i = 0; i < code->count; i++)
        full.bytes += code->bytes[i];
    triton_free_code(code);
    return report != NULL ? attn_give(report, &full, sizeof full, "report", error) : ATTN_OK;
}

void triton_free_code(triton_code_t *code) {
    for (int i = 0; i < TRITON_MAX_PROGRAMS; i++)
        free(code->cubin[i]);
    memset(code, 0, sizeof *code);
}
