/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of a DeepSeek-like model end to end: real shapes (latent 512, rope 64, nope and value 128), random
 * weights and activations, and what the model itself would compute, as multi-head attention over up-projected
 * keys in double. Written as an activations file and run by `attn run` as an engine would: pages, chunked
 * prefill, decode; dense and over selected tokens, through the backend of $ATTN_TEST_DEVICE (cpu). */
#include "../tap.h"

#include "tensor/safetensors.h"

#include <attn/attn.h>
#include <attn/attn_plugin_util.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    HEADS = 4,
    LATENT = 512,
    ROPE = 64,
    NOPE = 128,
    VALUE = 128,
    QUERY = NOPE + ROPE,
    PER_HEAD = NOPE + VALUE
};
enum { TOPK = 128, REQS = 3 };
static const int lens[REQS] = {150, 1, 37};
enum { TOKENS = 188 };

static uint16_t query[TOKENS * HEADS * QUERY], kv_c[TOKENS * LATENT], k_pe[TOKENS * ROPE],
    output[TOKENS * HEADS * VALUE];
static uint16_t kv_b[HEADS * PER_HEAD * LATENT];
static int32_t topk[TOKENS * TOPK];
static double up[TOKENS * HEADS * PER_HEAD];

static double of_bits(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* bfloat16, to nearest even. */
static uint16_t to_bits(double x) {
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void fill(uint16_t *to, int count, double size, uint64_t *seed) {
    for (int i = 0; i < count; i++) {
        double sum = 0; /* of four: near enough to normal */
        for (int k = 0; k < 4; k++)
            sum += (double)tap_rand_in(seed, -1000, 1000) / 1000;
        to[i] = to_bits(size * sum);
    }
}

/* k_nope and v of every token and head: kv_b_proj applied to kv_c. */
static void project(void) {
    for (int t = 0; t < TOKENS; t++)
        for (int j = 0; j < HEADS * PER_HEAD; j++) {
            double sum = 0;
            for (int l = 0; l < LATENT; l++)
                sum += of_bits(kv_c[t * LATENT + l]) * of_bits(kv_b[j * LATENT + l]);
            up[t * HEADS * PER_HEAD + j] = sum;
        }
}

static double score(int q, int k, int h) {
    const uint16_t *row = query + (q * HEADS + h) * QUERY;
    double sum = 0;
    for (int p = 0; p < NOPE; p++)
        sum += of_bits(row[p]) * up[(k * HEADS + h) * PER_HEAD + p];
    for (int r = 0; r < ROPE; r++)
        sum += of_bits(row[NOPE + r]) * of_bits(k_pe[k * ROPE + r]);
    return sum / sqrt(QUERY);
}

/* Multi-head attention of one request whose first token is `first`; the selected tokens alone if
 * is_sparse. */
static void attend(int first, int len, int is_sparse) {
    for (int i = 0; i < len; i++)
        for (int h = 0; h < HEADS; h++) {
            double acc[VALUE] = {0}, sum = 0;
            for (int j = 0; j < (is_sparse ? TOPK : i + 1); j++) {
                int k = is_sparse ? topk[(first + i) * TOPK + j] : j;
                if (k < 0) continue;
                double w = exp(score(first + i, first + k, h));
                sum += w;
                for (int v = 0; v < VALUE; v++)
                    acc[v] += w * up[((first + k) * HEADS + h) * PER_HEAD + NOPE + v];
            }
            for (int v = 0; v < VALUE; v++)
                output[((first + i) * HEADS + h) * VALUE + v] = to_bits(sum > 0 ? acc[v] / sum : 0);
        }
}

/* Each token takes a random subset of those before it, itself included, and -1 for the rest of its list. */
static void select_tokens(uint64_t *seed) {
    for (int r = 0, t = 0; r < REQS; r++)
        for (int i = 0; i < lens[r]; i++, t++) {
            int n = 0;
            for (int k = 0; k <= i && n < TOPK; k++)
                if (k == i || tap_rand_in(seed, 0, 2) > 0) topk[t * TOPK + n++] = k;
            while (n < TOPK)
                topk[t * TOPK + n++] = -1;
        }
}

/* words: more of the problem. */
static int write_file(const char *path, int is_sparse, const char *words) {
    char problem[512];
    snprintf(
        problem, sizeof problem,
        "role=%s mask=causal dtype=bfloat16 num_heads=%d head_size=%d kv_lora_rank=%d qk_nope_head_dim=%d "
        "qk_rope_head_dim=%d v_head_dim=%d scale=%.17g%s%s",
        is_sparse ? "mla_sparse" : "mla", HEADS, LATENT + ROPE, LATENT, NOPE, ROPE, VALUE, 1 / sqrt(QUERY),
        is_sparse ? " topk=128" : "", words);
    const st_pair_t metadata[] = {
        {"format", "attn-activations"},       {"layers", "3"},
        {"model", "a layer like DeepSeek's"}, {"cu_seqlens", "0,150,151,188"},
        {"layers.3.problem", problem},        {"layers.3.name", "model.layers.3.self_attn.attn"}};
    st_tensor_t t[6] = {{.name = "layers.3.query",
                         .ndim = 3,
                         .shape = {TOKENS, HEADS, QUERY},
                         .data = (void *)query,
                         .bytes = sizeof query},
                        {.name = "layers.3.kv_c",
                         .ndim = 2,
                         .shape = {TOKENS, LATENT},
                         .data = (void *)kv_c,
                         .bytes = sizeof kv_c},
                        {.name = "layers.3.k_pe",
                         .ndim = 2,
                         .shape = {TOKENS, ROPE},
                         .data = (void *)k_pe,
                         .bytes = sizeof k_pe},
                        {.name = "layers.3.kv_b_proj",
                         .ndim = 2,
                         .shape = {HEADS * PER_HEAD, LATENT},
                         .data = (void *)kv_b,
                         .bytes = sizeof kv_b},
                        {.name = "layers.3.output",
                         .ndim = 3,
                         .shape = {TOKENS, HEADS, VALUE},
                         .data = (void *)output,
                         .bytes = sizeof output},
                        {.name = "layers.3.topk_indices",
                         .ndim = 2,
                         .shape = {TOKENS, TOPK},
                         .data = (void *)topk,
                         .bytes = sizeof topk}};
    for (int i = 0; i < 6; i++)
        t[i].dtype = i == 5 ? ATTN_DTYPE_INT32 : ATTN_DTYPE_BFLOAT16;
    attn_error_t error = {.struct_size = sizeof error};
    int code = st_write(path, t, is_sparse ? 6 : 5, metadata, 6, &error);
    if (code != ATTN_OK) diag("%s", error.text);
    return code;
}

static const char *tool, *ini, *device;

static void run(const char *name, const char *path, const char *options, int wanted) {
    char command[2048];
    snprintf(command, sizeof command, "ATTN_CONFIG='%s' '%s' run '%s' --device %s %s >'%s.log' 2>&1", ini,
             tool, path, device, options, path);
    int status = system(command);
    status = WIFEXITED(status) ? WEXITSTATUS(status) : 100;
    ok(status == wanted, "%s", name);
    if (status == wanted) return;
    diag("%s: exit status %d, %d was wanted", command, status, wanted);
    snprintf(command, sizeof command, "sed 's/^/# /' '%s.log' | head -n 20", path);
    if (system(command) != 0) diag("no log");
}

/* Decode by one backend and prefill by another, whose prepared weights lie side by side. */
static void run_two(const char *dir, const char *path, const char *decode, const char *prefill) {
    char command[2048], pair[256], what[128];
    const char *const before = ini;
    snprintf(pair, sizeof pair, "%s/two.ini", dir);
    snprintf(
        command, sizeof command,
        "umask 077; (cat '%s'; printf '[select mla]\\ndecode_backend = %s\\nprefill_backend = %s\\n') >'%s'",
        before, decode, prefill, pair);
    ok(system(command) == 0, "a configuration of two backends");
    ini = pair;
    snprintf(what, sizeof what, "decode %s, prefill %s", decode, prefill);
    run(what, path, "--decode 4 --chunk 64", 0);
    ini = before;
    snprintf(command, sizeof command, "grep -q '%s' '%s.log'", what, path);
    ok(system(command) == 0, "and says so");
}

int main(void) {
    char dir[] = "/tmp/attn-mla-layer-XXXXXX", dense[64], sparse[64], default_tool[1024], default_ini[1024];
    const char *build = getenv("ATTN_TEST_BUILDDIR");
    uint64_t seed = tap_seed();
    if (build == NULL) build = ".";
    snprintf(default_tool, sizeof default_tool, "%s/tools/attn", build);
    snprintf(default_ini, sizeof default_ini, "%s/build.ini", build);
    tool = getenv("ATTN_TEST_TOOL") ? getenv("ATTN_TEST_TOOL") : default_tool;
    ini = getenv("ATTN_TEST_INI") ? getenv("ATTN_TEST_INI") : default_ini;
    device = getenv("ATTN_TEST_DEVICE") ? getenv("ATTN_TEST_DEVICE") : "cpu";
    if (access(tool, X_OK) != 0) skip_all("the attn command was not built");
    attn_device_t there;
    attn_error_t error = {.struct_size = sizeof error};
    if (attn_device_parse(device, &there, &error) != ATTN_OK) skip_all("%s", error.text);
    if (mkdtemp(dir) == NULL) bail_out("no folder under /tmp");
    snprintf(dense, sizeof dense, "%s/dense.safetensors", dir);
    snprintf(sparse, sizeof sparse, "%s/sparse.safetensors", dir);

    fill(query, TOKENS * HEADS * QUERY, 1, &seed);
    fill(kv_c, TOKENS * LATENT, 1, &seed);
    fill(k_pe, TOKENS * ROPE, 1, &seed);
    fill(kv_b, HEADS * PER_HEAD * LATENT, 0.04, &seed);
    project();
    for (int r = 0, first = 0; r < REQS; first += lens[r++])
        attend(first, lens[r], 0);
    ok(write_file(dense, 0, "") == ATTN_OK, "a dense layer as a file");
    run("one chunk a request, then decode", dense, "--decode 4 --chunk 512", 0);
    run("chunks of 16 tokens, pages of 16", dense, "--decode 2 --chunk 16 --block-size 16", 0);
    if (strcmp(device, "cpu") == 0) {
        run_two(dir, dense, "CPU_ATTN", "REFERENCE");
        run_two(dir, dense, "REFERENCE", "CPU_ATTN");
    }
    run("an fp8 cache", dense, "--kv-cache-dtype fp8 --chunk 64", 0);
    ok(write_file(dense, 0, " query_dtype=fp8_e4m3") == ATTN_OK, "the layer with fp8 queries");
    run("over an fp8 cache: near the model", dense, "--kv-cache-dtype fp8 --decode 4 --chunk 64", 0);
    run("over a 16-bit cache: refused", dense, "--chunk 64", 1);
    select_tokens(&seed);
    for (int r = 0, first = 0; r < REQS; first += lens[r++])
        attend(first, lens[r], 1);
    ok(write_file(sparse, 1, "") == ATTN_OK, "a sparse layer as a file");
    run("selected tokens, 16-bit cache", sparse, "--decode 4 --chunk 64", 0);
    run("selected tokens, 656-byte cache", sparse, "--kv-cache-dtype fp8_ds_mla --chunk 64", 0);
    for (int i = 0; i < TOKENS * HEADS * VALUE; i++)
        output[i] = to_bits(of_bits(output[i]) + 0.5);
    ok(write_file(dense, 0, "") == ATTN_OK, "a layer whose model computed something else");
    run("is told apart", dense, "--chunk 64", 1);
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    if (system(command) != 0) diag("%s stays", dir);
    return tap_done();
}
