/* SPDX-License-Identifier: Apache-2.0 */
/* TRITON_MLA without a device: its tiles fit the shared memory of every architecture, and its kernels compile
 * for each of them, whole numbers and odd ones of tiles, both caches; what does not fit is refused. Compiling
 * is skipped where NVRTC is not installed. */
#include "../../tap.h"

#include "latent_config.h"

#include <sys/wait.h>
#include <unistd.h>

/* Bytes of shared memory that a block may have: CUDA C++ Programming Guide, compute capabilities. */
static const struct {
    int cc, kib;
} archs[] = {{75, 64},   {80, 163},  {86, 99},   {87, 163}, {89, 99}, {90, 227},
             {100, 227}, {103, 227}, {110, 227}, {120, 99}, {121, 99}};
enum { NUM_ARCHS = sizeof archs / sizeof archs[0] };

static const struct {
    uint32_t latent, rope, kv;
} sizes[] = {{512, 64, 0}, {512, 64, ATTN_KV_FP8_E4M3},
             {256, 64, 0}, {400, 48, ATTN_KV_FP8_E4M3},
             {16, 16, 0},  {768, 64, 0}};
enum { NUM_SIZES = sizeof sizes / sizeof sizes[0] };

static attn_problem_t problem_of(uint32_t heads, uint32_t latent, uint32_t rope, uint32_t kv,
                                uint32_t dtype) {
    return (attn_problem_t){.struct_size = sizeof(attn_problem_t),
                            .role = ATTN_ROLE_MLA,
                            .dtype = dtype,
                            .kv_cache_dtype = kv,
                            .num_heads = heads,
                            .head_size = latent + rope,
                            .kv_lora_rank = latent,
                            .qk_rope_head_dim = rope};
}

static void memory_is_enough(void) {
    for (int i = 0; i < NUM_ARCHS; i++) {
        int bad = 0, cut = 0, pairs = 0;
        for (uint32_t latent = 16; latent <= 1024; latent += 16)
            for (uint32_t rope = 16; rope <= 256; rope += 16) {
                for (uint32_t heads = 16; heads <= 128; heads *= 8) {
                    const attn_problem_t p = problem_of(heads, latent, rope, 0, ATTN_DTYPE_FLOAT16);
                    latent_config c;
                    if (latent_configure(&p, 64, archs[i].cc, &c) != 0) {
                        cut++;
                        continue;
                    }
                    bad += c.smem > archs[i].kib * 1024 || (heads == 16 && c.rows == 64) ||
                           (c.ctas == 2 && 2 * (c.smem + 1024) > (archs[i].kib + 1) * 1024);
                    pairs += c.ctas == 2;
                }
            }
        diag("sm_%d: %d pairs of sizes do not fit, %d run two blocks at once", archs[i].cc, cut, pairs);
        ok(bad == 0, "sm_%d: every tile fits %d KiB", archs[i].cc, archs[i].kib);
        const attn_problem_t few = problem_of(16, 512, 64, 0, ATTN_DTYPE_FLOAT16),
                             many = problem_of(128, 512, 64, 0, ATTN_DTYPE_FLOAT16),
                             most = problem_of(128, 1024, 256, 0, ATTN_DTYPE_FLOAT16);
        latent_config c;
        int status = latent_configure(&few, 64, archs[i].cc, &c);
        ok(status == 0 && c.rows == 32, "sm_%d: rank 512 has tiles of 32 rows and %d keys, %d bytes",
           archs[i].cc, c.keys, c.smem);
        status = latent_configure(&many, 64, archs[i].cc, &c);
        ok(status == 0 && c.rows == (archs[i].kib >= 163 ? 64 : 32) && c.ctas <= 2,
           "sm_%d: of 128 heads, tiles of %d rows and %d keys, %d bytes", archs[i].cc, c.rows, c.keys,
           c.smem);
        is_int(latent_configure(&most, 64, archs[i].cc, &c), archs[i].kib == 64 ? -1 : 0,
               "sm_%d: rank 1024 with rope 256 %s", archs[i].cc,
               archs[i].kib == 64 ? "does not fit" : "fits");
    }
}

/* Code of architecture i, of machine or, with is_virtual, PTX. */
static int compiles(int i, int s, int is_virtual) {
    ATTN_INIT(attn_error_t, e);
    const triton_toolchain_t tools = {.cache_dir = "", .nvrtc = ""};
    const uint32_t dtype = archs[i].cc == 75 || s & 1 ? ATTN_DTYPE_FLOAT16 : ATTN_DTYPE_BFLOAT16;
    const uint32_t heads = (i + s) & 1 ? 128 : 16;
    const attn_problem_t p = problem_of(heads, sizes[s].latent, sizes[s].rope, sizes[s].kv, dtype);
    latent_config c;
    triton_code_t code;
    if (latent_configure(&p, 48, archs[i].cc, &c) != 0) return 0;
    c.is_virtual = is_virtual;
    const int status = latent_make_code(&c, &tools, &code, &e);
    int good = status == ATTN_OK && code.count == 2;
    for (int n = 0; good && n < code.count; n++)
        good =
            is_virtual ? strstr(code.cubin[n], ".target sm_") != NULL : !memcmp(code.cubin[n], "\177ELF", 4);
    if (!good) diag("sm_%d, latent %u, rope %u: %s", archs[i].cc, sizes[s].latent, sizes[s].rope, e.text);
    if (status == ATTN_OK) triton_free_code(&code);
    fflush(stdout);
    return good;
}

static void everything_compiles(void) {
    const int all = getenv("ATTN_TEST_LONG") != NULL;
    for (int i = 0; i < NUM_ARCHS; i++) {
        pid_t children[NUM_SIZES + 1];
        int n = 0, failed = 0, status;
        for (int s = 0; s < NUM_SIZES; s++) /* the usual sizes everywhere; each of the others somewhere */
            if (all || s == 0 || i % (NUM_SIZES - 1) == s - 1) {
                if (archs[i].cc == 75 && sizes[s].latent == 768) continue;
                fflush(stdout);
                if ((children[n++] = fork()) == 0) _exit(compiles(i, s, 0) ? 0 : 1);
            }
        if (archs[i].cc == 75) {
            fflush(stdout);
            if ((children[n++] = fork()) == 0) _exit(compiles(i, 0, 1) ? 0 : 1);
        }
        for (int c = 0; c < n; c++)
            failed += children[c] < 0 || waitpid(children[c], &status, 0) != children[c] || status != 0;
        is_int(failed, 0, "sm_%d: %d kinds compile", archs[i].cc, n);
    }
}

int main(void) {
    ATTN_INIT(attn_error_t, e);
    triton_nvrtc_t nvrtc;
    memory_is_enough();
    if (triton_nvrtc_open(&nvrtc, "", 90, &e) != ATTN_OK) {
        diag("not compiled: %s", e.text);
        return tap_done();
    }
    triton_nvrtc_close(&nvrtc);
    everything_compiles();
    return tap_done();
}
