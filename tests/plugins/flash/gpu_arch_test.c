/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices a build serves: the list of --with-cuda-arch as build-aux/nvcc-libtool compiles it, and the
 * reason that supports_combination gives for the others. */
#include "gpu_arch.h"
#include "../../tap.h"

int main(void) {
    static const struct {
        const char *archs;
        int cc, runs, has_sm90a;
    } cases[] = {
        {"80_90a", 80, 1, 1},     {"80_90a", 90, 1, 1},    {"80_90a", 75, 0, 1},  {"80_90a", 120, 1, 1},
        {"90a", 90, 1, 1},        {"90a", 80, 0, 1},       {"90a", 100, 0, 1},    {"90", 90, 1, 0},
        {"90", 100, 1, 0},        {"90", 89, 0, 0},        {"80", 90, 1, 0},      {"90a_100", 90, 1, 1},
        {"90a_100", 100, 1, 1},   {"90a_100", 120, 1, 1},  {"90a_100", 89, 0, 1}, {"90a_100f", 103, 1, 1},
        {"90a_100f", 99, 0, 1},   {"90a_100f", 110, 0, 1}, {"100a_90", 90, 1, 0}, {"100a_103a", 100, 1, 0},
        {"100a_103a", 101, 0, 0}, {"", 80, 0, 0},          {"_80", 80, 0, 0},     {"190a", 90, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *a = cases[i].archs;
        ok(gpu_arch_runs(a, cases[i].cc) == cases[i].runs, "code for \"%s\" %s on sm_%d", a,
           cases[i].runs ? "runs" : "does not run", cases[i].cc);
        ok(gpu_arch_names(a, "90a") == cases[i].has_sm90a, "\"%s\" %s the Hopper kernels", a,
           cases[i].has_sm90a ? "has" : "has not");
    }

    attn_reason_t first;
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &first};
    attn_device_t device = {.struct_size = sizeof device, .type = kDLCUDA, .id = -1};
    is_str(gpu_archs(), "86_90a", "the list of this program");
    gpu_check_arch(NULL, &reasons);
    gpu_check_arch(&device, &reasons);
    device.compute_capability = 89;
    gpu_check_arch(&device, &reasons);
    device.type = kDLCPU, device.compute_capability = 80;
    gpu_check_arch(&device, &reasons);
    is_int(reasons.count, 0, "nothing against devices that are served or not known");
    device.type = kDLCUDA;
    gpu_check_arch(&device, &reasons);
    ok(reasons.count == 1 && first.code == ATTN_REASON_COMPUTE_CAPABILITY &&
           strcmp(first.have, "sm_80") == 0 && strcmp(first.want, "86 90a") == 0,
       "%s", reasons.count ? first.text : "nothing against sm_80");
    snprintf(first.text, sizeof first.text, "the table has no sm_75");
    device.compute_capability = 75;
    gpu_check_arch(&device, &reasons);
    ok(reasons.count == 1 && strcmp(first.text, "the table has no sm_75") == 0,
       "no --with-cuda-arch is named where the backend's table refuses the device");
    return tap_done();
}
