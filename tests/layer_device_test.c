/* SPDX-License-Identifier: Apache-2.0 */
/* Devices by text. The CUDA driver is one of ours (layer_fake_driver.c) or a broken file, put where the linker looks by
 * running the program again. */
#include "tap.h"

#include <attn/attn.h>
#include <sys/stat.h>
#include <unistd.h>

static attn_error_t error = {.struct_size = sizeof error};
static attn_device_t d;

static int parse(const char *text) {
    error.param[0] = error.text[0] = '\0';
    return attn_device_parse(text, &d, &error);
}

static void test_words(void) {
    is_int(parse("cpu"), ATTN_OK, "cpu");
    ok(d.type == kDLCPU && d.id == 0 && d.compute_capability == 0 && d.num_sms > 0 && d.memory_bytes > 0,
       "is this machine");
    is_int(d.struct_size, sizeof d, "struct_size");
    is_int(parse("CPU"), ATTN_OK, "in any case");
    is_int(parse("sm_90"), ATTN_OK, "sm_90");
    ok(d.type == kDLCUDA && d.id == -1 && d.compute_capability == 90, "is hypothetical");
    is_str(d.name, "sm_90 (not present)", "and says so");
    is_int(parse("sm_100a"), ATTN_OK, "sm_100a");
    is_int(d.compute_capability, 100, "is 100");
    is_int(parse("sm_120f") || d.compute_capability != 120, 0, "sm_120f");
    static const char *const bad[] = {"",      "gpu",    "sm_",     "sm_a",
                                      "sm_9",  "sm_90b", "sm_1000", "sm_99999999999",
                                      "cuda:", "cuda:x", "cuda:-1", "cuda:9999999999",
                                      "cuda0", "cpu0",   "sm_9 0"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        is_int(parse(bad[i]), ATTN_E_INVALID, "'%s' is refused", bad[i]);
        ok(strcmp(error.param, "device") == 0 && strstr(error.text, "write cpu"), "with what to write");
    }
    is_int(attn_device_parse("cpu", NULL, &error), ATTN_E_INVALID, "no output");
}

/* In the second process: LD_LIBRARY_PATH has a libcuda.so.1 of the kind that the argument names. */
static int test_driver(const char *kind) {
    if (strcmp(kind, "good") == 0) {
        is_int(parse("cuda:1"), ATTN_OK, "cuda:1 of two");
        ok(d.type == kDLCUDA && d.id == 1 && d.compute_capability == 90 && d.num_sms == 132,
           "with what the driver says");
        ok(d.memory_bytes == (UINT64_C(141) << 30), "memory");
        is_str(d.name, "Fake GPU 1", "name");
        is_int(parse("cuda") || d.id != 0, 0, "cuda is cuda:0");
        is_int(parse(NULL) || d.type != kDLCUDA, 0, "and the default");
        is_int(parse("cuda:2"), ATTN_E_DEVICE, "cuda:2 of two");
        has_str(error.text, "has 2 CUDA devices", "says how many there are");
        return tap_done();
    }
    is_int(parse("cuda:0"), ATTN_E_DEVICE, "%s driver", kind);
    has_str(error.text,
            strcmp(kind, "broken") == 0    ? "no CUDA driver"
            : strcmp(kind, "stopped") == 0 ? "error 100"
                                           : "error 201",
            "says why");
    is_int(parse(NULL) || d.type != kDLCPU, 0, "the default is then the CPU");
    return tap_done();
}

/* Runs this program in another environment, its lines as remarks of ours; 0: all of it passed. */
static int run_again(const char *self, const char *folder, const char *kind) {
    char command[2048];
    const char *old = getenv("LD_LIBRARY_PATH");
    snprintf(command, sizeof command,
             "{ LD_LIBRARY_PATH='%s:%s' ATTN_FAKE_DRIVER=%s '%s' %s; echo status $?; } | sed 's/^/# /'",
             folder, old != NULL ? old : "", kind, self, kind);
    char line[512];
    int status = -1;
    FILE *f = popen(command, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        sscanf(line, "# status %d", &status);
        printf("%s", line);
    }
    if (f != NULL) pclose(f);
    return status;
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/attn-driver-XXXXXX", from[512], link_path[600], self[512];
    if (argc > 1) return test_driver(argv[1]);
    test_words();
    const char *build = getenv("ATTN_TEST_BUILDDIR");
    snprintf(from, sizeof from, "%s/tests/.libs/layer_fake_driver.so", build != NULL ? build : ".");
    if (access(from, R_OK) != 0)
        snprintf(from, sizeof from, "%s/layer_fake_driver.so", build != NULL ? build : ".");
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0 || mkdtemp(folder) == NULL || access(from, R_OK) != 0) bail_out("no %s", from);
    self[n] = '\0';
    if (from[0] != '/') bail_out("ATTN_TEST_BUILDDIR must be absolute");
    snprintf(link_path, sizeof link_path, "%s/libcuda.so.1", folder);
    if (symlink(from, link_path) != 0) bail_out("no link");
    is_int(run_again(self, folder, "good"), 0, "a driver with two devices");
    is_int(run_again(self, folder, "stopped"), 0, "a driver that does not start");
    is_int(run_again(self, folder, "failing"), 0, "a driver that knows nothing about its device");
    unlink(link_path);
    FILE *f = fopen(link_path, "w");
    if (f != NULL) {
        fprintf(f, "this is no library\n");
        fclose(f);
    }
    is_int(run_again(self, folder, "broken"), 0, "a driver that is no library");
    unlink(link_path);
    rmdir(folder);
    return tap_done();
}
