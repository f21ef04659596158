/* SPDX-License-Identifier: Apache-2.0 */
/* check_abi.c: group abi. The file, its one symbol and its tables, before any operation is called. */
#include "../run/check_engine.h"

#include <ctype.h>

static void exports(check_t *c) {
    char names[400];
    int num_unique, needs_libattn;
    int count = elf_exports(c->options->path, ATTN_PLUGIN_SYMBOL_NAME, names, sizeof names, &num_unique,
                            &needs_libattn);
    if (count < 0)
        check_fail(c, "%s is not a 64-bit ELF file with a symbol table", c->options->path);
    else if (count > 0)
        check_fail(
            c, "it exports %d symbols besides %s: %s; build with -fvisibility=hidden and limit the symbols",
            count, ATTN_PLUGIN_SYMBOL_NAME, names);
    else if (num_unique > 0)
        check_fail(c, "%d GNU unique symbols; build with -fno-gnu-unique", num_unique);
    else if (needs_libattn)
        check_fail(c, "it links to libattn; a plugin needs only the headers");
}

static int is_name(const char *name, int is_backend) {
    if (name == NULL || *name == '\0' || strlen(name) > 63) return 0;
    for (const char *p = name; *p != '\0'; p++)
        if (!(isalnum((unsigned char)*p) || *p == '_') || (is_backend && islower((unsigned char)*p)))
            return 0;
    return 1;
}

static int is_zero(const void *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (((const unsigned char *)p)[i] != 0) return 0;
    return 1;
}

static void descriptor(check_t *c) {
    const attn_plugin_t *p = c->plugin;
    if (p->struct_size < offsetof(attn_plugin_t, options) || p->struct_size > 4096)
        check_fail(c, "struct_size is %u, of this header %zu", p->struct_size, sizeof *p);
    if (!is_name(p->name, 0)) check_fail(c, "the name of the plugin must be letters, digits and '_'");
    if (p->version == NULL || p->vendor == NULL || p->license == NULL || p->build_id == NULL)
        check_fail(c, "version, vendor, license and build_id must be strings, \"\" if empty");
    if (p->flags != 0 || (p->struct_size >= sizeof *p && !is_zero(p->reserved, sizeof p->reserved)))
        check_fail(c, "flags and reserved members must be 0");
    for (uint32_t i = 0; i < p->num_backends; i++)
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(p->backends[i]->name, p->backends[j]->name) == 0)
                check_fail(c, "duplicate backend name %s", p->backends[i]->name);
    for (uint32_t i = 0; i < p->num_options; i++) {
        const attn_option_spec_t *s =
            (const void *)((const char *)p->options + (size_t)i * p->options->struct_size);
        if (!is_name(s->name, 0) || s->doc == NULL || s->default_value == NULL)
            check_fail(c, "option %u needs a name of letters, digits and '_', a doc and a default", i);
        else if (s->type < ATTN_OPTION_INT || s->type > ATTN_OPTION_ENUM)
            check_fail(c, "option %s has the unknown type %u", s->name, s->type);
        else if ((s->type == ATTN_OPTION_ENUM) != (s->choices != NULL))
            check_fail(c, "option %s: choices belong to the type ENUM and to no other", s->name);
    }
}

static void backend_descriptor(check_t *c) {
    const attn_backend_t *b = c->raw;
    if (!is_name(b->name, 1)) check_fail(c, "the name '%.60s' must be capitals, digits and '_'", b->name);
    if (b->doc == NULL || *b->doc == '\0') check_fail(c, "doc must be one sentence");
    if (b->flags != 0) check_fail(c, "flags must be 0");
    if (b->struct_size >= sizeof *b && !is_zero(b->reserved, sizeof b->reserved))
        check_fail(c, "reserved members must be 0");
    const attn_backend_ops_t *o = b->ops;
    if (!ATTN_HAS_OP(o, open) || !ATTN_HAS_OP(o, close) || !ATTN_HAS_OP(o, kv_cache_shape) ||
        !ATTN_HAS_OP(o, space_needed) || !ATTN_HAS_OP(o, build_metadata) || !ATTN_HAS_OP(o, forward))
        check_fail(c, "open, close, kv_cache_shape, space_needed, build_metadata and forward are required");
    uint64_t cached = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER_DECODER) |
                      ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    if ((c->can.roles & cached) && !ATTN_HAS_OP(o, update_kv_cache) && c->can.forward_writes_cache == 0)
        check_fail(c, "roles with a cache need update_kv_cache, or forward_writes_cache");
}

static void check_ranges(check_t *c, const char *name, const attn_range_t *list, uint32_t count) {
    if (count > 0 && list == NULL) check_fail(c, "%s: %u entries but no list", name, count);
    for (uint32_t i = 0; list != NULL && i < count; i++)
        if (list[i].min == 0 || list[i].min > list[i].max)
            check_fail(c, "%s[%u] is not a range from min to max", name, i);
}

static void table(check_t *c) {
    const attn_capabilities_t *t = &c->can;
    uint64_t unknown = t->features & ~ATTN_F_KNOWN_;
    if (unknown != 0)
        check_fail(c, "features has bits 0x%llx that no header defines", (unsigned long long)unknown);
    if (t->roles == 0 || (t->roles & ~(ATTN_BIT(ATTN_ROLE_COUNT_) - 2)) != 0)
        check_fail(c, "roles 0x%llx is empty or has unknown bits", (unsigned long long)t->roles);
    if (t->dtypes == 0 || (t->dtypes & ~(ATTN_BIT(ATTN_DTYPE_FLOAT64 + 1) - 2)) != 0)
        check_fail(c, "dtypes 0x%llx is empty or has unknown bits", (unsigned long long)t->dtypes);
    if ((t->kv_cache_dtypes & ~(ATTN_BIT(ATTN_KV_COUNT_) - 2)) != 0)
        check_fail(c, "kv_cache_dtypes 0x%llx has unknown bits", (unsigned long long)t->kv_cache_dtypes);
    if (t->device_types == 0) check_fail(c, "device_types is empty: it could run nowhere");
    if (t->graph_support > ATTN_GRAPH_ALWAYS || t->query_len_support > ATTN_QUERY_LEN_VARLEN ||
        t->required_layout > ATTN_LAYOUT_HND)
        check_fail(c, "graph_support, query_len_support or required_layout has an unknown value");
    check_ranges(c, "head_sizes", t->head_sizes, t->num_head_sizes);
    check_ranges(c, "head_sizes_v", t->head_sizes_v, t->num_head_sizes_v);
    check_ranges(c, "compute_capabilities", t->compute_capabilities, t->num_compute_capabilities);
    for (uint32_t i = 0; i < t->num_block_sizes; i++)
        if (t->block_sizes == NULL || t->block_sizes[i].size == 0) check_fail(c, "block_sizes[%u] is 0", i);
    if ((t->features & ATTN_F_CAPTURE) != 0 && t->graph_support <= ATTN_GRAPH_NEVER)
        check_fail(c, "the feature capture and graph_support contradict each other");
    if (t->device_types == ATTN_BIT(kDLCPU) && t->graph_support > ATTN_GRAPH_NEVER)
        check_fail(c, "graph_support claims graphs of a CPU, where nothing is captured");
    if (t->device_types == ATTN_BIT(kDLCPU) && t->num_compute_capabilities > 0)
        check_fail(c, "compute_capabilities are of CUDA devices; the table lists CPUs alone");
    if (!is_zero(t->reserved, sizeof t->reserved) || t->reserved0 != 0)
        check_fail(c, "reserved members must be 0");
}

/* The library's own verdict, with every limit of its loader. Who owns the file and its folder is not the
 * file's fault. */
static void library(check_t *c) {
    attn_error_t error = {.struct_size = sizeof error};
    if (c->options->load == NULL) {
        check_skip(c, "no library to compare with");
        return;
    }
    int status = c->options->load(c->options->path, c->plugin->name, &error);
    if (status == ATTN_E_TRUST)
        check_skip(c, "not loaded, because of where the file is: %.300s", error.text);
    else if (status != ATTN_OK)
        check_fail(c, "%d, %s", status, error.text);
}

void check_abi_list(check_list_t *list, const check_t *c) {
    if (c->raw == c->plugin->backends[0]) {
        check_add(list, "abi", 0, exports, 0, "it exports %s and nothing else", ATTN_PLUGIN_SYMBOL_NAME);
        check_add(list, "abi", 0, descriptor, 0, "the descriptor of the plugin");
        check_add(list, "abi", 0, library, 0, "libattn loads it");
    }
    check_add(list, "abi", 0, backend_descriptor, 0, "the descriptor of %s", c->raw->name);
    check_add(list, "abi", 0, table, 0, "the capability table has known values only");
}
