/* SPDX-License-Identifier: Apache-2.0 */
/* device.c: devices by text: "cpu", "cuda", "cuda:1", and "sm_90" for one that need not be here. */
#include "device.h"

#include <attn/attn_plugin_util.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* The model as the kernel names it, or "CPU". */
static void cpu_name(char *name, size_t size) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(name, size, "CPU");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || value == NULL) continue;
        value += 1 + strspn(value + 1, " \t");
        const int length = (int)strcspn(value, "\n");
        if (length > 0) snprintf(name, size, "%.*s", length, value);
        break;
    }
    if (file != NULL) fclose(file);
}

static void cpu_device(attn_device_t *device) {
    long threads = sysconf(_SC_NPROCESSORS_ONLN), pages = sysconf(_SC_PHYS_PAGES),
         page = sysconf(_SC_PAGESIZE);
    ATTN_INIT(attn_device_t, d);
    d.type = kDLCPU;
    d.num_sms = threads > 0 ? (int32_t)threads : 0;
    d.memory_bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    cpu_name(d.name, sizeof d.name);
    *device = d;
}

/* Digits only, at most `most`; -1: anything else. */
static long number(const char *text, long most) {
    if (!isdigit((unsigned char)text[0])) return -1;
    char *end;
    long value = strtol(text, &end, 10);
    return *end != '\0' || value > most ? -1 : value;
}

static int unknown(const char *text, attn_error_t *error) {
    return attn_fail(error, ATTN_E_INVALID, "device",
                     "device '%.40s' is not known; write cpu, cuda:0, or sm_90 for a device that is not here",
                     text);
}

/* sm_90, and sm_90a or sm_100f as compilers write it. The smallest and largest number are guards against typing errors. */
static int hypothetical_device(const char *text, attn_device_t *device, attn_error_t *error) {
    char digits[8];
    size_t length = strlen(text + 3);
    if (length > 0 && (text[2 + length] == 'a' || text[2 + length] == 'f')) length--;
    if (length == 0 || length >= sizeof digits) return unknown(text, error);
    memcpy(digits, text + 3, length);
    digits[length] = '\0';
    long capability = number(digits, 999);
    if (capability < 10) return unknown(text, error);
    ATTN_INIT(attn_device_t, d);
    d.type = kDLCUDA;
    d.id = -1;
    d.compute_capability = (int32_t)capability;
    snprintf(d.name, sizeof d.name, "sm_%ld (not present)", capability);
    *device = d;
    return ATTN_OK;
}

int attn_device_parse(const char *text, attn_device_t *device, attn_error_t *error) {
    int32_t count;
    if (device == NULL)
        return attn_fail(error, ATTN_E_INVALID, "device",
                         "device is NULL; pass the address of an attn_device_t");
    if (text == NULL) {
        if (attni_cuda_device(0, device, &count, NULL) != ATTN_OK) cpu_device(device);
        return ATTN_OK;
    }
    if (strcasecmp(text, "cpu") == 0) {
        cpu_device(device);
        return ATTN_OK;
    }
    if (strncasecmp(text, "sm_", 3) == 0) return hypothetical_device(text, device, error);
    if (strcasecmp(text, "cuda") == 0) return attni_cuda_device(0, device, &count, error);
    if (strncasecmp(text, "cuda:", 5) != 0) return unknown(text, error);
    long ordinal = number(text + 5, 1023);
    return ordinal < 0 ? unknown(text, error) : attni_cuda_device((int32_t)ordinal, device, &count, error);
}
