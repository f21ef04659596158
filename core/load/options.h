/* SPDX-License-Identifier: Apache-2.0 */
/* [option PLUGIN]: the values of the configuration under the types of the plugin's own table. */
#ifndef ATTNI_OPTIONS_H
#define ATTNI_OPTIONS_H

#include "config/config.h"
#include "load/loader.h"
#include "load/option_value.h"
#include "base/log.h"

/*
 * The values of all options of a plugin in the order of its table, the defaults where nothing is
 * configured; NULL for a plugin without options. free(*values); the strings live as long as config and
 * plugin.
 */
int attni_options_read(const struct attni_plugin *plugin, const struct attni_config *config,
                       attn_option_value_t **values, attn_error_t *error);

/*
 * Checks every [option NAME] section against its loaded plugin; sections of plugins that are not loaded
 * pass.
 */
int attni_options_check(const struct attni_plugins *plugins, const struct attni_config *config,
                        attn_error_t *error);

/* Warns of options of plugins that the configuration does not know: a typo in the name would go unnoticed. */
void attni_options_stray(const struct attni_plugins *plugins, const struct attni_config *config,
                         const struct attni_log *log);

#endif
