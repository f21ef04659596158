/* SPDX-License-Identifier: Apache-2.0 */
/* tool_files_test.c: the safetensors reader against hostile headers, the writer read back, 16-bit number
 * formats over all their values, sizes on the command line. */
#include "../tap.h"

#include <attn/attn_plugin_util.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/args.h"
#include "tensor/safetensors.h"
#include "tensor/tensor.h"

/* Parses header text plus n bytes of data; the code, and the error in text. */
static int parse(const char *header, size_t n, attn_error_t *error) {
    size_t length = strlen(header);
    unsigned char *bytes = calloc(1, 8 + length + n);
    if (!bytes) bail_out("no memory");
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(length >> (8 * i));
    memcpy(bytes + 8, header, length);
    st_file_t *file = NULL;
    int code = st_parse(bytes, 8 + length + n, "file", &file, error);
    st_close(file);
    free(bytes);
    return code;
}

static void refuse(const char *name, const char *header, size_t n, const char *part) {
    attn_error_t error = {.struct_size = sizeof error};
    int code = parse(header, n, &error);
    ok(code == ATTN_E_PARSE && strstr(error.text, part) != NULL, "refused: %s", name);
    if (code != ATTN_E_PARSE || !strstr(error.text, part))
        diag("code %d, text '%s', wanted '%s'", code, error.text, part);
}

static long countdown = -1;

static void *failing_malloc(size_t size) {
    return countdown >= 0 && countdown-- == 0 ? NULL : malloc(size);
}

/* Whichever allocation of the JSON fails: an error, or a file with all that was given. */
static void no_memory(void) {
    static const float data[4] = {1, 2, 3, 4};
    const st_tensor_t tensors[2] = {{.name = "a",
                                     .dtype = ATTN_DTYPE_FLOAT32,
                                     .ndim = 1,
                                     .shape = {2},
                                     .data = (const void *)data,
                                     .bytes = 8},
                                    {.name = "b",
                                     .dtype = ATTN_DTYPE_FLOAT32,
                                     .ndim = 1,
                                     .shape = {2},
                                     .data = (const void *)(data + 2),
                                     .bytes = 8}};
    const st_pair_t metadata[1] = {{"format", "x"}};
    char path[] = "/tmp/attn-files-XXXXXX";
    attn_error_t error = {.struct_size = sizeof error};
    int fd = mkstemp(path), bad = 0, failures = 0;
    if (fd < 0) bail_out("no scratch file");
    close(fd);
    json_set_alloc_funcs(failing_malloc, free);
    for (long n = 0; n < 120; n++) {
        st_file_t *file = NULL;
        countdown = n;
        int code = st_write(path, tensors, 2, metadata, 1, &error);
        countdown = -1;
        failures += code != ATTN_OK;
        if (code == ATTN_OK && st_open(path, &file, &error) == ATTN_OK)
            bad += st_count(file) != 2 || st_metadata(file, "format") == NULL;
        else
            bad += code == ATTN_OK;
        st_close(file);
    }
    json_set_alloc_funcs(malloc, free);
    unlink(path);
    is_int(bad, 0, "what is called written is all there");
    ok(failures > 10, "%d allocations failed", failures);
}

/* Control characters of a file end on no terminal. */
static void control_characters(void) {
    static const char header[] = "{\"__metadata__\":{\"backend\":\"A\\u001b[31mB\\u009bC\\n\"}}";
    unsigned char bytes[8 + sizeof header];
    attn_error_t error = {.struct_size = sizeof error};
    st_file_t *file = NULL;
    memset(bytes, 0, 8);
    bytes[0] = sizeof header - 1;
    memcpy(bytes + 8, header, sizeof header - 1);
    is_int(st_parse(bytes, 8 + sizeof header - 1, "file", &file, &error), ATTN_OK,
           "metadata with escape sequences");
    is_str(st_metadata(file, "backend"), "A?[31mB??C\n", "comes without them");
    st_close(file);
    refuse("a name with an escape sequence",
           "{\"\\u001b]0;x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
           "has control characters");
}

static void hostile_headers(void) {
    attn_error_t error = {.struct_size = sizeof error};
    is_int(parse("{}", 0, &error), ATTN_OK, "no tensors");
    is_int(parse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}   ", 8, &error), ATTN_OK,
           "one tensor, padded");
    is_int(parse("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, &error), ATTN_OK,
           "a scalar");
    is_int(parse("{\"a\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[0,0]}}", 0, &error), ATTN_OK,
           "an empty tensor");
    refuse("a list", "[1]", 0, "'{'");
    refuse("cut JSON", "{\"a\":", 0, "column");
    refuse("deep JSON", "{\"a\":[[[[[[[[[[", 0, "column");
    refuse("a name twice", "{\"a\":{},\"a\":{}}", 0, "duplicate");
    refuse("an entry that is no object", "{\"a\":3}", 0, "lacks one");
    refuse("no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "lacks one");
    refuse("unknown dtype", "{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "F31");
    refuse("negative size", "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
           "dimension 0");
    refuse("a size of text", "{\"a\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}", 4,
           "dimension 0");
    refuse("sizes that overflow",
           "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4,
           "dimension 1");
    refuse("nine dimensions",
           "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
           "9 dimensions");
    refuse("offsets in reverse", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4,
           "outside");
    refuse("offsets past the end", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4,
           "cut off");
    refuse("huge offsets",
           "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[9223372036854775803,"
           "9223372036854775807]}}",
           4, "outside");
    refuse("shape and bytes differ", "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8,
           "need 12");
    refuse("odd 4-bit count", "{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "need 1");
    refuse("overlap",
           "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\","
           "\"shape\":[2],\"data_offsets\":[4,12]}}",
           12, "overlaps");
    refuse("a hole",
           "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\","
           "\"shape\":[1],\"data_offsets\":[8,12]}}",
           12, "no tensor");
    refuse("bytes at the end", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8,
           "at the end");
    refuse("metadata that is no object", "{\"__metadata__\":1}", 0, "__metadata__");

    unsigned char bytes[16] = {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'};
    st_file_t *file = NULL;
    is_int(st_parse(bytes, sizeof bytes, "file", &file, &error), ATTN_E_PARSE, "a header length of 2^64 - 1");
    is_int(st_parse(bytes, 7, "file", &file, &error), ATTN_E_PARSE, "seven bytes");
    memset(bytes, 0, 8);
    is_int(st_parse(bytes, sizeof bytes, "file", &file, &error), ATTN_E_PARSE, "a header of no bytes");
    ok(file == NULL, "nothing is written on failure");
}

static void round_trip(void) {
    attn_error_t error = {.struct_size = sizeof error};
    float a[6] = {1, 2, 3, 4, 5, 6};
    uint16_t b[2] = {0x3c00, 0xbc00};
    char path[256];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/attn_files_test_%ld.safetensors", folder ? folder : "/tmp",
             (long)tap_seed());
    st_tensor_t tensors[2] = {{.name = "a",
                               .dtype = ATTN_DTYPE_FLOAT32,
                               .ndim = 2,
                               .shape = {2, 3},
                               .data = (void *)a,
                               .bytes = sizeof a},
                              {.name = "layer \"b\"",
                               .dtype = ATTN_DTYPE_FLOAT16,
                               .ndim = 1,
                               .shape = {2},
                               .data = (void *)b,
                               .bytes = sizeof b}};
    st_pair_t metadata[1] = {{"key", "a \"value\"\n"}};
    is_int(st_write(path, tensors, 2, metadata, 1, &error), ATTN_OK, "written");
    st_file_t *file = NULL;
    is_int(st_open(path, &file, &error), ATTN_OK, "read back");
    if (!file) bail_out("%s", error.text);
    is_int(st_count(file), 2, "both tensors");
    const st_tensor_t *t = st_find(file, "layer \"b\"");
    ok(t && t->dtype == ATTN_DTYPE_FLOAT16 && t->shape[0] == 2 && memcmp(t->data, b, sizeof b) == 0,
       "names are escaped, data is the same");
    t = st_find(file, "a");
    ok(t && t->ndim == 2 && t->shape[1] == 3 && memcmp(t->data, a, sizeof a) == 0, "shape and data");
    is_str(st_metadata(file, "key"), "a \"value\"\n", "metadata");
    ok(st_metadata(file, "none") == NULL && st_find(file, "none") == NULL && st_at(file, 2) == NULL,
       "what is not there");
    st_close(file);
    remove(path);
    is_int(st_open(path, &file, &error), ATTN_E_IO, "a file that is gone");
    is_int(st_open("/dev/null", &file, &error), ATTN_E_PARSE, "a device");
    is_int(st_write("/no/such/folder/x", tensors, 2, metadata, 1, &error), ATTN_E_IO,
           "a folder that is not there");
    struct stat there;
    is_int(mkfifo(path, 0600), 0, "a pipe of that name");
    is_int(st_write(path, tensors, 2, metadata, 1, &error), ATTN_E_IO, "is not written");
    ok(stat(path, &there) == 0 && S_ISFIFO(there.st_mode), "nor replaced: %s", error.text);
    remove(path);
}

/* Every pattern of a 16-bit format is a float that is stored as that pattern; values between two go to the
 * nearer one. */
static void number_format(uint32_t dtype, const char *name) {
    int bad = 0, unordered = 0;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t bits = (uint16_t)i, back;
        float value = tensor_load(&bits, dtype, 0);
        tensor_store(&back, dtype, 0, value);
        if (isnan(value)) {
            float again = tensor_load(&back, dtype, 0);
            bad += !isnan(again);
        } else {
            bad += back != bits;
        }
        uint16_t next_bits = (uint16_t)(i + 1);
        float next = tensor_load(&next_bits, dtype, 0);
        if (i == 65535 || isnan(value) || isnan(next) || isinf(next) || isinf(value) || i == 0x7fff) continue;
        float middle = 0.5f * value + 0.5f * next, low = 0.75f * value + 0.25f * next;
        if (low == value || low == middle) continue; /* float itself has nothing in between */
        tensor_store(&back, dtype, 0, low);
        unordered += back != bits;
        tensor_store(&back, dtype, 0, middle);
        unordered += back != ((i & 1) ? next_bits : bits); /* ties to even */
    }
    is_int(bad, 0, "%s: every value comes back", name);
    is_int(unordered, 0, "%s: the nearest value, ties to even", name);
    float big = 1e38f;
    uint16_t stored;
    tensor_store(&stored, dtype, 0, big);
    float back = tensor_load(&stored, dtype, 0);
    ok(dtype == ATTN_DTYPE_FLOAT16 ? isinf(back) : fabsf(back / big - 1) < 0.01f, "%s: a large value", name);
}

static void sizes(void) {
    static const struct {
        const char *text;
        int64_t value; /* -1: refused */
    } cases[] = {{"80GiB", INT64_C(80) << 30},
                 {"80G", INT64_C(80) << 30},
                 {"1.5k", 1536},
                 {"17", 17},
                 {"2MB", 2 << 20},
                 {"", -1},
                 {"k", -1},
                 {"12x", -1},
                 {"1e30", -1},
                 {"0.3", -1},
                 {"nan", -1},
                 {"inf", -1},
                 {"1GiBB", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t value = -1;
        int code = tool_parse_size(cases[i].text, &value);
        ok(cases[i].value < 0 ? code != 0 : code == 0 && value == cases[i].value, "size '%s'", cases[i].text);
    }
    int64_t list[3];
    is_int(tool_parse_list("1,22,3", 100, list, 3), 3, "a list");
    is_int(list[1], 22, "its middle");
    is_int(tool_parse_list("1,,3", 100, list, 3), -1, "a list with a hole");
    is_int(tool_parse_list("1,2,3,4", 100, list, 3), -1, "a list that is too long");
    is_int(tool_parse_list("1,101", 100, list, 3), -1, "a list with a large number");
}

int main(void) {
    hostile_headers();
    no_memory();
    control_characters();
    round_trip();
    number_format(ATTN_DTYPE_FLOAT16, "float16");
    number_format(ATTN_DTYPE_BFLOAT16, "bfloat16");
    sizes();
    return tap_done();
}
