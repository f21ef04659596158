/* SPDX-License-Identifier: Apache-2.0 */
/* NVRTC through dlopen: the plugin loads, and lists what it can do, where no CUDA is installed. The kernels
 * include each other by name; the only foreign name is stdint.h, which NVRTC gets from us, so no toolkit
 * header is read. */
#if !defined _GNU_SOURCE
#define _GNU_SOURCE 1 /* dladdr */
#endif
#include "triton_compile.h"

#include "kernels/library.h"
#include "triton_kernel_text.h"

#include <stdlib.h>

static const char stdint_text[] = "typedef signed char int8_t; typedef unsigned char uint8_t; typedef short "
                                  "int16_t; typedef unsigned short uint16_t;\n"
                                  "typedef int int32_t; typedef unsigned int uint32_t; typedef long long "
                                  "int64_t; typedef unsigned long long uint64_t;\n"
                                  "typedef unsigned long long uintptr_t;\n#define INT64_C(x) x##LL\n";

uint64_t triton_source_hash(uint64_t h) {
    for (const struct triton_source *s = triton_sources; s->name != NULL; s++) {
        h = attn_fingerprint64(h, s->name, strlen(s->name) + 1);
        h = attn_fingerprint64(h, s->text, strlen(s->text) + 1);
    }
    return attn_fingerprint64(h, stdint_text, sizeof stdint_text);
}

/* What was installed with this wheel comes before whatever else the machine has. */
static void *find_library(const char *path) {
    static const char *const packages[] = {"nvidia/cu13/lib/libnvrtc.so.13",
                                           "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", NULL};
    static const char configured[] = ATTN_CUDA_LIBDIR "/libnvrtc.so";
    static const char *const names[] = {"libnvrtc.so.13",
                                        "libnvrtc.so.12",
                                        "libnvrtc.so",
                                        configured,
                                        "/usr/local/cuda/lib64/libnvrtc.so",
                                        "/opt/cuda/lib64/libnvrtc.so",
                                        NULL};
    const char *const given[] = {path, NULL};
    if (path != NULL && path[0] != '\0') return library_open(given);
    Dl_info self;
    void *library = dladdr(stdint_text, &self) != 0 ? library_open_beside(self.dli_fname, packages) : NULL;
    return library != NULL ? library : library_open(names);
}

/* NVRTC 13.0 asks for its builtins by name only, which finds them where they are
 * loaded already. */
static void load_builtins(int major, int minor) {
    char cuda13[80], cuda12[80];
    const char *const names[] = {cuda13, cuda12, NULL};
    Dl_info self;
    snprintf(cuda13, sizeof cuda13, "nvidia/cu%d/lib/libnvrtc-builtins.so.%d.%d", major, major, minor);
    snprintf(cuda12, sizeof cuda12, "nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.%d.%d", major, minor);
    if (dladdr(stdint_text, &self) != 0) library_open_beside(self.dli_fname, names);
}

/* Machine code of one minor runs on later minors of the same major, so the newest that NVRTC knows will
 * do. */
static int best_arch(void *library, int cc) {
    int (*count)(int *) = NULL, (*list)(int *) = NULL, n = 0, best = 0;
    int archs[64];
    if (!library_symbol(library, "nvrtcGetNumSupportedArchs", &count) ||
        !library_symbol(library, "nvrtcGetSupportedArchs", &list))
        return cc;
    if (count(&n) != 0 || n < 1 || n > 64 || list(archs) != 0) return cc;
    for (int i = 0; i < n; i++)
        if (archs[i] / 10 == cc / 10 && archs[i] <= cc && archs[i] > best) best = archs[i];
    return best;
}

int triton_nvrtc_open(triton_nvrtc_t *n, const char *path, int cc, attn_error_t *error) {
    memset(n, 0, sizeof *n);
    n->library = find_library(path);
    if (n->library == NULL) {
        if (path != NULL && path[0] != '\0')
            return attn_fail(error, ATTN_E_DEVICE, "nvrtc",
                             "libnvrtc does not load: %s; correct option nvrtc of triton_like", dlerror());
        return attn_fail(
            error, ATTN_E_DEVICE, "nvrtc",
            "libnvrtc.so was not found: TRITON_ATTN compiles its kernels with it. Install NVRTC of CUDA 12 "
            "or 13 (pip: nvidia-cuda-nvrtc, Debian: libnvrtc12, CUDA repository: cuda-nvrtc-13-0), or set "
            "option nvrtc to its path");
    }
    int (*version)(int *, int *) = NULL;
    const library_function wanted[] = {{"nvrtcVersion", &version},
                                       {"nvrtcCreateProgram", &n->create},
                                       {"nvrtcCompileProgram", &n->compile},
                                       {"nvrtcGetCUBINSize", &n->cubin_size},
                                       {"nvrtcGetCUBIN", &n->cubin},
                                       {"nvrtcGetPTXSize", &n->ptx_size},
                                       {"nvrtcGetPTX", &n->ptx},
                                       {"nvrtcGetProgramLogSize", &n->log_size},
                                       {"nvrtcGetProgramLog", &n->get_log},
                                       {"nvrtcDestroyProgram", &n->destroy},
                                       {"nvrtcGetErrorString", &n->error_string}};
    const int ok = library_symbols(n->library, wanted, sizeof wanted / sizeof wanted[0]) == NULL &&
                   version(&n->major, &n->minor) == 0;
    if (ok) load_builtins(n->major, n->minor);
    int status = ATTN_OK;
    if (!ok)
        status = attn_fail(error, ATTN_E_DEVICE, "nvrtc",
                           "the libnvrtc that was found lacks a function; CUDA 12 or 13 is needed");
    else if ((n->arch = best_arch(n->library, cc)) == 0)
        status = attn_fail(error, ATTN_E_DEVICE, "device",
                           "NVRTC %d.%d does not know sm_%d; install a newer one", n->major, n->minor, cc);
    if (status != ATTN_OK) triton_nvrtc_close(n);
    return status;
}

void triton_nvrtc_close(triton_nvrtc_t *n) {
    if (n->library != NULL) dlclose(n->library);
    n->library = NULL;
}

static int fail_compile(const triton_nvrtc_t *n, void *program, int code, attn_error_t *error) {
    size_t size = 0;
    char *text = NULL;
    const char *first = "";
    if (program != NULL && n->log_size(program, &size) == 0 && size > 1 &&
        (text = malloc(size + 1)) != NULL) {
        text[size] = '\0';
        if (n->get_log(program, text) == 0) {
            first = strstr(text, "error");
            first = first != NULL ? first : text;
            text[strcspn(text, "\n") < size ? (size_t)(first - text) + strcspn(first, "\n") : size] = '\0';
        }
    }
    attn_fail(error, code == 1 ? ATTN_E_NO_MEMORY : ATTN_E_INTERNAL, "nvrtc",
              "compiling for sm_%d failed: %s: %s", n->arch, n->error_string(code), first);
    free(text);
    return code == 1 ? ATTN_E_NO_MEMORY : ATTN_E_INTERNAL;
}

int triton_nvrtc_compile(const triton_nvrtc_t *n, const char *source, const char *macros, void **cubin,
                         size_t *bytes, attn_error_t *error) {
    /* stdint.h has the place of the list's end */
    enum { NUM_HEADERS = sizeof triton_sources / sizeof triton_sources[0] };
    const char *names[NUM_HEADERS], *texts[NUM_HEADERS], *options[64];
    char arch[32], lines[TRITON_MACROS_SIZE];
    int num_headers = 0, num_options = 0;
    names[num_headers] = "stdint.h", texts[num_headers++] = stdint_text;
    for (const struct triton_source *s = triton_sources; s->name != NULL; s++)
        names[num_headers] = s->name, texts[num_headers++] = s->text;
    snprintf(arch, sizeof arch, "--gpu-architecture=%s_%d%s", n->is_virtual ? "compute" : "sm", n->arch,
             n->arch == 90 ? "a" : ""); /* a: wgmma */
    options[num_options++] = arch;
    options[num_options++] = "--std=c++17";
    options[num_options++] = "-default-device"; /* constexpr functions of the headers */
    snprintf(lines, sizeof lines, "%s", macros);
    for (char *save = NULL, *line = strtok_r(lines, "\n", &save); line != NULL && num_options < 64;
         line = strtok_r(NULL, "\n", &save))
        options[num_options++] = line;
    void *program = NULL;
    int code = n->create(&program, source, "attn_triton.cu", num_headers, texts, names);
    if (code == 0) {
        triton_signals_keep();
        code = n->compile(program, num_options, options);
        triton_signals_restore(n);
    }
    if (code == 0) code = (n->is_virtual ? n->ptx_size : n->cubin_size)(program, bytes);
    *cubin = NULL;
    if (code == 0 && (*cubin = malloc(*bytes ? *bytes : 1)) == NULL) code = 1;
    if (code == 0) code = (n->is_virtual ? n->ptx : n->cubin)(program, *cubin);
    int status = code == 0 ? ATTN_OK : fail_compile(n, program, code, error);
    if (status != ATTN_OK) {
        free(*cubin);
        *cubin = NULL;
    }
    if (program != NULL) n->destroy(&program);
    return status;
}
