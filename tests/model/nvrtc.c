/* SPDX-License-Identifier: Apache-2.0 */
/* An NVRTC whose machine code is PTX: it hands everything to the real one, asks for compute_XX where
 * sm_XX was asked for, and gives PTX as the cubin. The driver of this folder takes that.
 *
 * ATTN_MODEL_EDIT="header|from|to" replaces the first `from` of a header by `to`: a planted bug. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *function(const char *name) {
    static void *library;
    if (library == NULL) {
        const char *const names[] = {getenv("ATTN_MODEL_NVRTC"), ATTN_CUDA_LIBDIR "/libnvrtc.so",
                                     "/usr/local/cuda/lib64/libnvrtc.so",
                                     "/usr/lib/x86_64-linux-gnu/libnvrtc.so.12"};
        for (unsigned i = 0; i < sizeof names / sizeof names[0] && library == NULL; i++)
            if (names[i] != NULL) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) fprintf(stderr, "model: no NVRTC; ATTN_MODEL_NVRTC names one\n");
    }
    return library != NULL ? dlsym(library, name) : NULL;
}

enum { FAILED = 11 }; /* NVRTC_ERROR_INTERNAL_ERROR */
#define FORWARD(name, params, args)                                                                          \
    int name params {                                                                                        \
        int(*real) params = (int(*) params)function(#name);                                                  \
        return real != NULL ? real args : FAILED;                                                            \
    }
FORWARD(nvrtcVersion, (int *major, int *minor), (major, minor))
FORWARD(nvrtcGetNumSupportedArchs, (int *count), (count))
FORWARD(nvrtcGetSupportedArchs, (int *archs), (archs))
FORWARD(nvrtcGetPTXSize, (void *program, size_t *bytes), (program, bytes))
FORWARD(nvrtcGetPTX, (void *program, char *text), (program, text))
FORWARD(nvrtcGetProgramLogSize, (void *program, size_t *bytes), (program, bytes))
FORWARD(nvrtcGetProgramLog, (void *program, char *text), (program, text))
FORWARD(nvrtcDestroyProgram, (void **program), (program))

/* A copy of the header's text with the edit; NULL where it has no such place. */
static char *edited(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    if (at == NULL) return NULL;
    const size_t before = (size_t)(at - text), size = strlen(text) + strlen(to) + 1;
    char *copy = malloc(size);
    if (copy != NULL) snprintf(copy, size, "%.*s%s%s", (int)before, text, to, at + strlen(from));
    return copy;
}

int nvrtcCreateProgram(void **program, const char *source, const char *name, int n,
                       const char *const *headers, const char *const *names) {
    int (*real)(void **, const char *, const char *, int, const char *const *, const char *const *) =
        (int (*)(void **, const char *, const char *, int, const char *const *, const char *const *))function(
            "nvrtcCreateProgram");
    const char *edit = getenv("ATTN_MODEL_EDIT"), *ours[256];
    char text[512], *copy = NULL, *to, *from;
    if (real == NULL || n > 256) return FAILED;
    if (edit == NULL || edit[0] == '\0') return real(program, source, name, n, headers, names);
    snprintf(text, sizeof text, "%s", edit);
    from = strchr(text, '|');
    to = from != NULL ? strchr(from + 1, '|') : NULL;
    if (to == NULL) return FAILED;
    *from++ = '\0', *to++ = '\0';
    for (int i = 0; i < n; i++) {
        ours[i] = headers[i];
        if (strcmp(names[i], text) == 0 && (copy = edited(headers[i], from, to)) != NULL) ours[i] = copy;
    }
    const int code = copy != NULL ? real(program, source, name, n, ours, names) : FAILED;
    if (copy == NULL) fprintf(stderr, "model: ATTN_MODEL_EDIT: %s has no such text\n", text);
    free(copy);
    return code;
}

const char *nvrtcGetErrorString(int code) {
    const char *(*real)(int) = (const char *(*)(int))function("nvrtcGetErrorString");
    return real != NULL ? real(code) : "no NVRTC";
}
int nvrtcGetCUBINSize(void *program, size_t *bytes) {
    return nvrtcGetPTXSize(program, bytes);
}
int nvrtcGetCUBIN(void *program, char *code) {
    return nvrtcGetPTX(program, code);
}

int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    int (*real)(void *, int, const char *const *) =
        (int (*)(void *, int, const char *const *))function("nvrtcCompileProgram");
    static const char asked[] = "--gpu-architecture=sm_";
    const char *ours[80];
    char arch[64];
    if (real == NULL || count > 80) return FAILED;
    for (int i = 0; i < count; i++) {
        ours[i] = options[i];
        if (strncmp(options[i], asked, strlen(asked)) != 0) continue;
        snprintf(arch, sizeof arch, "--gpu-architecture=compute_%s", options[i] + strlen(asked));
        ours[i] = arch;
    }
    return real(program, count, ours);
}
