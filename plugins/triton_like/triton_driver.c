/* SPDX-License-Identifier: Apache-2.0 */
/* The driver: loading, one device's primary context, errors as text. */
#include "triton_driver.h"

#include "kernels/library.h"

enum { ATTRIBUTE_NUM_SMS = 16, ATTRIBUTE_CC_MAJOR = 75, ATTRIBUTE_CC_MINOR = 76, ERROR_OUT_OF_MEMORY = 2 };

int triton_driver_fail(const triton_driver_t *d, int code, const char *what, attn_error_t *error) {
    const char *text = NULL;
    if (d->error_text == NULL || d->error_text(code, &text) != 0 || text == NULL) text = "unknown error";
    return attn_fail(error, code == ERROR_OUT_OF_MEMORY ? ATTN_E_NO_MEMORY : ATTN_E_DEVICE, "device",
                     "%s failed: %s (CUDA driver error %d)", what, text, code);
}

static int load_functions(triton_driver_t *d, attn_error_t *error) {
    const library_function wanted[] = {{"cuInit", &d->init},
                                       {"cuDeviceGetCount", &d->device_count},
                                       {"cuDeviceGet", &d->device_get},
                                       {"cuDeviceGetAttribute", &d->device_attribute},
                                       {"cuDevicePrimaryCtxRetain", &d->context_retain},
                                       {"cuDevicePrimaryCtxRelease_v2", &d->context_release},
                                       {"cuCtxPushCurrent_v2", &d->context_push},
                                       {"cuCtxPopCurrent_v2", &d->context_pop},
                                       {"cuModuleLoadData", &d->module_load},
                                       {"cuModuleUnload", &d->module_unload},
                                       {"cuModuleGetFunction", &d->module_function},
                                       {"cuFuncSetAttribute", &d->function_set},
                                       {"cuFuncGetAttribute", &d->function_get},
                                       {"cuLaunchKernel", &d->launch},
                                       {"cuMemcpyHtoDAsync_v2", &d->copy_to_device},
                                       {"cuMemsetD2D8Async", &d->fill_2d},
                                       {"cuGetErrorString", &d->error_text}};
    static const char *const names[] = {"libcuda.so.1", NULL};
    d->library = library_open(names);
    if (d->library == NULL)
        return attn_fail(error, ATTN_E_DEVICE, "device",
                         "no CUDA driver (libcuda.so.1 does not load); install the NVIDIA "
                         "driver or select another backend");
    const char *missing = library_symbols(d->library, wanted, sizeof wanted / sizeof wanted[0]);
    if (!library_symbol(d->library, "cuLaunchKernelEx", &d->launch_config)) d->launch_config = NULL;
    if (missing != NULL)
        return attn_fail(error, ATTN_E_DEVICE, "device",
                         "the CUDA driver has no %s; a driver for CUDA 12 or later is needed", missing);
    return ATTN_OK;
}

static int choose_device(triton_driver_t *d, const attn_device_t *device, int least, attn_error_t *error) {
    int count = 0, major = 0, minor = 0, e = d->init(0);
    if (e == 0) e = d->device_count(&count);
    if (e != 0) return triton_driver_fail(d, e, "starting the CUDA driver", error);
    if (device->id < 0 || device->id >= count)
        return attn_fail(error, ATTN_E_DEVICE, "device", "CUDA device %d is not present; there are %d",
                         (int)device->id, count);
    if ((e = d->device_get(&d->device, device->id)) == 0 &&
        (e = d->device_attribute(&major, ATTRIBUTE_CC_MAJOR, d->device)) == 0 &&
        (e = d->device_attribute(&minor, ATTRIBUTE_CC_MINOR, d->device)) == 0)
        e = d->device_attribute(&d->num_sms, ATTRIBUTE_NUM_SMS, d->device);
    if (e != 0) return triton_driver_fail(d, e, "querying a device attribute", error);
    d->cc = major * 10 + minor;
    if (d->cc < least)
        return attn_fail(error, ATTN_E_DEVICE, "device", "compute capability %d.%d is below %d.%d", major,
                         minor, least / 10, least % 10);
    e = d->context_retain(&d->context, d->device);
    return e == 0 ? ATTN_OK : triton_driver_fail(d, e, "taking the device's context", error);
}

int triton_driver_open(triton_driver_t *d, const attn_device_t *device, int least, attn_error_t *error) {
    memset(d, 0, sizeof *d);
    int status = load_functions(d, error);
    if (status == ATTN_OK) status = choose_device(d, device, least, error);
    if (status != ATTN_OK) triton_driver_close(d);
    return status;
}

void triton_driver_close(triton_driver_t *d) {
    if (d->context != NULL) d->context_release(d->device);
    if (d->library != NULL) dlclose(d->library);
    d->context = d->library = NULL;
}

/* CUlaunchConfig and CUlaunchAttribute of the driver API. */
typedef struct launch_attribute {
    int id;
    char pad[4];
    union {
        int number;
        char room[64];
    } value;
} launch_attribute_t;
typedef struct launch_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    launch_attribute_t *attributes;
    unsigned num_attributes;
} launch_config_t;
enum { PROGRAMMATIC_STREAM_SERIALIZATION = 6 };

int triton_driver_launch_after(const triton_driver_t *d, void *kernel, unsigned x, unsigned y,
                               unsigned threads, unsigned smem, void *stream, void **args) {
    if (d->cc < 90 || d->launch_config == NULL)
        return d->launch(kernel, x, y, 1, threads, 1, 1, smem, stream, args, NULL);
    launch_attribute_t serial = {.id = PROGRAMMATIC_STREAM_SERIALIZATION, .value = {.number = 1}};
    const launch_config_t c = {.grid = {x, y, 1},
                               .block = {threads, 1, 1},
                               .shared_bytes = smem,
                               .stream = stream,
                               .attributes = &serial,
                               .num_attributes = 1};
    return d->launch_config(&c, kernel, args, NULL);
}

int triton_driver_enter(const triton_driver_t *d, attn_error_t *error) {
    int e = d->context_push(d->context);
    return e == 0 ? ATTN_OK : triton_driver_fail(d, e, "selecting the device", error);
}

void triton_driver_leave(const triton_driver_t *d) {
    void *ours;
    d->context_pop(&ours);
}
