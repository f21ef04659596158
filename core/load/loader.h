/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens plugin files. Every plugin that was requested stays in the list, the refused ones with the reason
 * and what to do. A loaded plugin is never unloaded.
 */
#ifndef ATTNI_LOADER_H
#define ATTNI_LOADER_H

#include <attn/attn_merge.h>
#include <attn/attn_plugin.h>
#include <attn/draft/attn_device.h>
#include <sys/types.h>

struct attni_config;

/* A backend as the host uses it: structs taken in by size, so that an absent operation is NULL. */
struct attni_backend {
    attn_backend_t shown; /* first: what the engine gets; points to the two copies below */
    attn_capabilities_t capabilities;
    attn_backend_ops_t ops;
    struct attni_plugin *plugin;
};

struct attni_plugin {
    char *name; /* as configured */
    char *path; /* resolved where the file was found, else as requested */
    int is_required;
    int is_default;               /* named by the built-in list only: its absence is not reported */
    int is_absent;                /* there is no file of that path */
    attn_error_t refusal;         /* code ATTN_OK: loaded */
    attn_plugin_t info;           /* valid if loaded */
    const attn_backend_t **shown; /* info.backends: the copies, not the plugin's own tables */
    attn_option_spec_t *options;  /* info.num_options copies of known size */
    struct attni_backend *backends;
    uint32_t backend_count;
    dev_t device; /* identity of the file; valid once it passed the trust rules */
    ino_t inode;
    int has_identity;
    int is_replaced; /* the file is another than the one of that name that this process has mapped */
};

struct attni_plugins {
    struct attni_plugin **items;
    size_t count;
};

/*
 * Loads what the configuration requests: [attn] plugins in order, then every [plugin NAME] that is not
 * among them. A refused plugin fails the whole only if it is required. [any thread]
 */
int attni_plugins_load(struct attni_plugins *plugins, const struct attni_config *config,
                       const char *held_back, attn_error_t *error);
void attni_plugins_free(struct attni_plugins *plugins);

/* The plugin of that name, or NULL. */
struct attni_plugin *attni_plugins_find(const struct attni_plugins *plugins, const char *name);

/* Where the file of a plugin is looked for: an absolute path as given, a relative one below plugin_dir. */
int attni_plugin_path(const char *plugin_dir, const char *name, const char *path, char *out, size_t size,
                      attn_error_t *error);

/* The device kind that a backend brings with its extension ATTN_DEVICE_EXTENSION, as the plugin has it; NULL:
 * none. */
static inline const attn_device_kind_t *attni_backend_device_kind(const struct attni_backend *backend) {
    return backend->ops.get_extension != NULL ? backend->ops.get_extension(NULL, ATTN_DEVICE_EXTENSION)
                                              : NULL;
}

/* The functions of attn_merge.h on its device that a backend brings; NULL: none. */
static inline const attn_merge_table_t *attni_backend_merge_kind(const struct attni_backend *backend) {
    return backend->ops.get_extension != NULL ? backend->ops.get_extension(NULL, ATTN_MERGE_EXTENSION) : NULL;
}

/* Opens one file under all rules. others: the plugins loaded so far, against loading a file or name twice. */
int attni_plugin_open(struct attni_plugin *plugin, const struct attni_plugins *others, attn_error_t *error);

/* Its three steps, for whoever has to know how far it came (tools/cmd/probe.c): the file, before any code of
 * it runs; mapping it, which runs its constructors; and its tables. plugin->name NULL: any name is right. */
int attni_plugin_examine(struct attni_plugin *plugin, const struct attni_plugins *others,
                         attn_error_t *error);
int attni_plugin_map(struct attni_plugin *plugin, const void **exported, size_t *size, attn_error_t *error);
int attni_plugin_intake(struct attni_plugin *plugin, const struct attni_plugins *others, const void *exported,
                        size_t size, attn_error_t *error);

/* Whether a file can be handed to the dynamic linker without harm: whole, ELF, for this machine. */
int attni_elf_check(const char *path, attn_error_t *error);

/* Whether the places that the file names for its libraries are to be trusted. */
int attni_elf_needs_check(const char *path, attn_error_t *error);

/*
 * Takes the exported object in: magic, ABI, names, tables. size: bytes that the symbol really has, 0
 * unknown.
 */
int attni_descriptor_intake(struct attni_plugin *plugin, const void *exported, size_t size,
                            attn_error_t *error);
void attni_descriptor_drop(struct attni_plugin *plugin);

#endif
