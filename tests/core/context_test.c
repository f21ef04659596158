/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: arguments, log, options of plugins, environment, setuid, fork, threads. */
#include "load/context.h"
#include "core_testing.h"

#include <pthread.h>
#include <sys/auxv.h>
#include <sys/wait.h>

static void test_arguments(void) {
    attn_error_t err = ERROR_INIT;
    attn_context_t *context = NULL;
    attn_context_options_t options = {.struct_size = sizeof options, .flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG};
    is_int(attn_context_create(&options, NULL, &err), ATTN_E_INVALID, "no place for the context");
    options.struct_size = 0;
    is_int(attn_context_create(&options, &context, &err), ATTN_E_INVALID, "no struct_size");
    options.struct_size = sizeof options;
    options.flags = 0x80;
    is_int(attn_context_create(&options, &context, &err), ATTN_E_TOO_NEW, "an unknown flag");
    is_str(err.param, "flags", "by name");
    attn_context_options_t reserved = {.struct_size = sizeof reserved,
                                       .flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG};
    reserved.reserved[3] = 1;
    is_int(attn_context_create(&reserved, &context, &err), ATTN_E_TOO_NEW, "a reserved member");
    options.flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    options.log_level = 9;
    is_int(attn_context_create(&options, &context, &err), ATTN_E_INVALID, "an unknown log level");
    options.log_level = 0;
    options.plugin_dir = "lib";
    is_int(attn_context_create(&options, &context, &err), ATTN_E_INVALID, "a relative plugin folder");
    is_str(err.param, "plugin_dir", "by name");
    options.plugin_dir = NULL;
    options.config_text = "[attn]\nnonsense = 1\n";
    is_int(attn_context_create(&options, &context, &err), ATTN_E_PARSE, "a bad text");
    ok(!context, "nothing was written on failure");
    struct {
        attn_context_options_t known;
        uint64_t later;
    } newer = {
        {.struct_size = sizeof newer, .flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG | ATTN_CONTEXT_NO_PLUGINS}, 1};
    is_int(attn_context_create(&newer.known, &context, &err), ATTN_E_TOO_NEW,
           "a newer struct that uses its tail");
    newer.later = 0;
    is_int(attn_context_create(&newer.known, &context, &err), ATTN_OK, "one that does not");
    attn_plugin_info_t info = {.struct_size = sizeof info};
    is_int(attn_context_plugin(context, 0, &info), ATTN_OK, "plugins are listed");
    is_int(info.status, ATTN_E_STATE, "but not loaded with ATTN_CONTEXT_NO_PLUGINS");
    has_str(info.reason, "ATTN_CONTEXT_NO_PLUGINS", "as the reason says");
    ok(!attn_context_backend(context, 0), "so there is no backend");
    ok(!attn_context_find_backend(context, "FLASH_ATTN", &err), "nor one by name");
    is_int(err.code, ATTN_E_NOT_FOUND, "with an error");
    attn_context_destroy(context);
    options = (attn_context_options_t){.struct_size = sizeof options,
                                       .flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG | ATTN_CONTEXT_NO_PLUGINS,
                                       .config_text = "[plugin absent]\nrequired = yes\n"};
    is_int(attn_context_create(&options, &context, &err), ATTN_OK,
           "then not even a required plugin is missed");
    attn_context_destroy(context);
    attn_context_destroy(NULL);
    is_int(attni_context_check(NULL, &err), ATTN_E_INVALID, "NULL is no context");
}

static void test_values(void) {
    attn_error_t err = ERROR_INIT;
    attn_context_t *context;
    is_int(context_of("[attn]\nload = no\n[select decoder]\npriority = A, B\n", &context, &err), ATTN_OK,
           "a context");
    attn_config_value_t value = {.struct_size = sizeof value};
    int load = 0, plugin_dir = 0, priority = 0, fallback = 0, count = 0;
    for (uint32_t i = 0; attn_context_config(context, i, &value) == ATTN_OK; i++, count++) {
        load |= !strcmp(value.key, "load") && !strcmp(value.source, "api") && value.line == 2;
        plugin_dir |= !strcmp(value.key, "plugin_dir") && !strcmp(value.value, scratch) && value.line == 0 &&
                      !strcmp(value.source, "api");
        priority |=
            !strcmp(value.section, "select decoder") && !strcmp(value.value, "A, B") && value.line == 4;
        fallback |= !strcmp(value.key, "fallback") && !strcmp(value.source, "default") && value.line == 0;
    }
    ok(load && plugin_dir && priority && fallback, "%d values with their sources", count);
    is_int(attn_context_config(context, (uint32_t)count, &value), ATTN_E_NOT_FOUND, "the list ends");
    is_int(attn_context_config(context, 0, NULL), ATTN_E_INVALID, "no place for the value");
    value.struct_size = 0;
    is_int(attn_context_config(context, 0, &value), ATTN_E_INVALID, "no size of the place");
    is_int(attn_context_plugin(context, 0, NULL), ATTN_E_INVALID, "no place for the plugin");

    /* An engine with an older, shorter struct. */
    struct {
        uint32_t struct_size;
        int32_t line;
        const char *section, *canary;
    } older = {.struct_size = 16, .canary = "alive"};
    is_int(attn_context_config(context, 0, (attn_config_value_t *)(void *)&older), ATTN_OK,
           "a shorter struct is filled");
    is_str(older.canary, "alive", "and not beyond its end");
    ok(older.section && older.struct_size == 16, "its size is left as it was");
    attn_context_destroy(context);
}

static void test_backends(void) {
    attn_error_t err = ERROR_INIT;
    attn_context_t *context;
    copy_plugin("good.so", "good.so");
    copy_plugin("second.so", "second.so");
    is_int(context_of("[attn]\nplugins = good, second\nlog = off\n", &context, &err), ATTN_OK, "two plugins");
    has_str(logged, "3 plugin good 1.2 loaded from ", "are told");
    const attn_backend_t *backend = attn_context_find_backend(context, "second_attn", &err);
    ok(backend && backend == attn_context_backend(context, 1), "a backend by its name in any case");
    ok(!attn_context_find_backend(context, "SECOND_ATN", &err), "a near miss is none");
    has_str(err.text, "no loaded plugin has a backend 'SECOND_ATN', did you mean 'SECOND_ATTN'",
            "but a hint");
    ok(!attn_context_find_backend(context, NULL, &err) && err.code == ATTN_E_INVALID, "NULL is no name");
    ok(!attn_context_find_backend(NULL, "X", &err) && err.code == ATTN_E_INVALID, "nor a context");
    ok(attni_backend_of(backend)->plugin == context->plugins.items[1], "the inner view knows the plugin");
    logged[0] = 0;
    context->host.log(context->host.ctx, ATTN_LOG_ERROR, "from a plugin");
    is_str(logged, "1 from a plugin\n", "plugins log through the host");
    ok(!context->host.get_extension(context->host.ctx, "attn.ext.unheard-of/1"),
       "an unknown extension is NULL");
    attn_context_destroy(context);
}

static void test_options(void) {
    static const struct {
        const char *text, *words, *param;
    } cases[] = {
        {"split = 2", "api:4: plugin 'good' has no option 'split', did you mean 'splits'; it has: splits ",
         "split"},
        {"splits = two",
         "api:4: option splits has the invalid value 'two'; write a whole number from 1 to 64", "splits"},
        {"splits = 65", "from 1 to 64", "splits"},
        {"splits = 0", "from 1 to 64", "splits"},
        {"splits = 99999999999999999999", "from 1 to 64", "splits"},
        {"offset = x", "write a whole number", "offset"},
        {"fast = perhaps", "write yes or no", "fast"},
        {"ratio = 2", "a number from 0.25 to 1", "ratio"},
        {"ratio = nan", "a number from 0.25 to 1", "ratio"},
        {"bias = 1x", "write a number", "bias"},
        {"mode = aut", "one of: auto short long", "mode"},
    };
    attn_error_t err = ERROR_INIT;
    attn_context_t *context;
    char ini[300];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(ini, sizeof ini, "[attn]\nplugins = good\n[option good]\n%s\n", cases[i].text);
        is_int(context_of(ini, &context, &err), ATTN_E_PARSE, "refused: %s", cases[i].text);
        has_str(err.text, cases[i].words, "in these words");
        is_str(err.param, cases[i].param, "by name");
    }
    is_int(context_of(
               "[attn]\nplugins = good\n[option good]\nsplits = 64\nmode = long\nnote = a b\nratio = 0.25\n"
               "[option absent]\nanything = 1\n",
               &context, &err),
           ATTN_OK, "good options; those of a plugin that is not loaded are left alone");
    has_str(logged, "2 api:9: [option absent] anything: [attn] plugins does not list that plugin\n",
            "but not without a word");
    attn_option_value_t *values = NULL;
    is_int(attni_options_read(context->plugins.items[0], &context->config, &values, &err), ATTN_OK,
           "are read");
    ok(values[0].i == 64 && values[1].i == 1 && values[2].d == 0.25 && values[3].i == 2 &&
           values[5].i == -3 && values[6].d == 0,
       "under their types, defaults included");
    ok(!strcmp(values[4].s, "a b") && !strcmp(values[4].name, "note") && values[4].type == ATTN_OPTION_STRING,
       "a string with its name");
    free(values);
    attn_context_destroy(context);
    is_int(context_of("[attn]\nplugins = good\n[option god]\nsplits = 1\n", &context, &err), ATTN_OK,
           "a slip");
    has_str(logged, "does not list that plugin, did you mean 'good'", "is found");
    attn_context_destroy(context);
    is_int(context_of("[attn]\nplugins = good, missing\n[option missing]\nsplits = 1\n", &context, &err),
           ATTN_OK, "options of a plugin that is not installed here");
    ok(!strstr(logged, "[option"), "are no slip");
    attn_context_destroy(context);
    struct attni_plugin none = {.name = (char *)"none"};
    struct attni_config config = {0};
    is_int(attni_options_read(&none, &config, &values, &err), ATTN_OK, "a plugin without options");
    ok(!values, "has no values");
}

static void test_environment(void) {
    attn_error_t err = ERROR_INIT;
    attn_context_t *context = NULL;
    attn_context_options_t options = {.struct_size = sizeof options, .flags = ATTN_CONTEXT_NO_PLUGINS};
    attn_config_value_t value = {.struct_size = sizeof value};
    setenv("ATTN_CONFIG", write_text("env.ini", "[attn]\nlog = debug\n"), 1);
    is_int(attn_context_create(&options, &context, &err), ATTN_OK, "$ATTN_CONFIG is read: %s", err.text);
    int found = 0;
    for (uint32_t i = 0; attn_context_config(context, i, &value) == ATTN_OK; i++)
        found |=
            !strcmp(value.key, "log") && !strcmp(value.value, "debug") && strstr(value.source, "env.ini");
    ok(found, "and named as the source");
    attn_context_destroy(context);
    setenv("ATTN_CONFIG", "/nonexistent/attn.ini", 1);
    is_int(attn_context_create(&options, &context, &err), ATTN_E_IO, "a missing file is an error");
    is_str(err.param, "ATTN_CONFIG", "of that variable");
    options.config_file = in_scratch("env.ini");
    is_int(attn_context_create(&options, &context, &err), ATTN_OK, "a file from the API stands in its place");
    attn_context_destroy(context);
    options.config_file = NULL;
    options.flags |= ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    is_int(attn_context_create(&options, &context, &err), ATTN_OK, "it can be left out");
    attn_context_destroy(context);
    is_int(attn_context_create(NULL, &context, &err), ATTN_E_IO,
           "no options are all defaults, the variable included");
    unsetenv("ATTN_CONFIG");
}

/* In a copy of this program that runs with another user's rights. 0: the variable was ignored. */
static int secure_child(void) {
    attn_error_t err = ERROR_INIT;
    attn_context_t *context;
    attn_context_options_t options = {.struct_size = sizeof options, .flags = ATTN_CONTEXT_NO_PLUGINS};
    if (!getauxval(AT_SECURE)) return 3;
    return attn_context_create(&options, &context, &err) == ATTN_OK ? 0 : 4;
}

static void test_setuid(const char *program) {
    char command[1200];
    if (geteuid() != 0) {
        skip(1, "only root can make a setuid program of another user");
        return;
    }
    snprintf(command, sizeof command,
             "cp '%s' '%s/secure' && chown 65534 '%s/secure' && chmod 4755 '%s/secure' && "
             "ATTN_CONFIG=/nonexistent '%s/secure' secure-child",
             program, scratch, scratch, scratch, scratch);
    int status = system(command);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 3)
        skip(1, "the file system has no setuid programs");
    else
        is_int(status, 0, "a setuid program does not look at $ATTN_CONFIG");
}

static void test_fork(void) {
    attn_error_t err = ERROR_INIT;
    attn_context_t *context;
    is_int(context_of("[attn]\nload = no\n", &context, &err), ATTN_OK, "a context");
    is_int(attni_context_check(context, &err), ATTN_OK, "is good in its process");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        attn_problem_t problem = plain_problem();
        attn_device_t device = device_cpu();
        attn_selection_t *selection = NULL;
        attn_context_t *own = NULL;
        int code = attn_select(context, &problem, &device, NULL, &selection, &err);
        if (code != ATTN_E_FORKED || !strstr(err.text, "parent process") || selection) _exit(1);
        if (context_of("[attn]\nload = no\n", &own, &err) != ATTN_OK || attni_context_check(own, &err))
            _exit(2);
        attn_context_destroy(own);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    is_int(status, 0, "in a child it is ATTN_E_FORKED, and a new one is good");
    is_int(attni_context_check(context, &err), ATTN_OK, "the parent goes on");
    attn_context_destroy(context);
}

/* Contexts are made, asked and destroyed from many threads; one of them is shared. */
static attn_context_t *shared;
static const char *thread_ini;

static void *use_contexts(void *user) {
    attn_error_t err = ERROR_INIT;
    int *failures = user;
    attn_problem_t problem = plain_problem();
    attn_device_t device = device_cpu();
    for (int round = 0; round < 20; round++) {
        attn_context_options_t options = {.struct_size = sizeof options,
                                          .flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG,
                                          .config_text = thread_ini,
                                          .plugin_dir = scratch};
        attn_context_t *own = NULL;
        attn_selection_t *selection = NULL;
        *failures += attn_context_create(&options, &own, &err) != ATTN_OK;
        *failures += attn_select(own, &problem, &device, "GOOD_ATTN", &selection, &err) != ATTN_OK;
        attn_selection_free(selection);
        selection = NULL;
        *failures += attn_select(shared, &problem, &device, NULL, &selection, &err) != ATTN_OK;
        attn_selection_free(selection);
        *failures += !attn_context_find_backend(shared, "GOOD_ATTN", &err);
        attn_context_destroy(own);
    }
    return NULL;
}

static void test_threads(void) {
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    int failures[THREADS] = {0}, total = 0;
    attn_error_t err = ERROR_INIT;
    thread_ini = "[attn]\nplugins = good\n[select decoder]\npriority = GOOD_ATTN\n";
    is_int(context_of(thread_ini, &shared, &err), ATTN_OK, "a context for all");
    shared->log.write = NULL; /* the test's log keeps one buffer for one thread */
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, use_contexts, &failures[i])) bail_out("no threads");
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        total += failures[i];
    }
    is_int(total, 0, "8 threads make, use and destroy contexts and share one");
    attn_context_destroy(shared);
}

int main(int argc, char **argv) {
    /* _exit: the leak checker cannot look into a setuid process, and would fail. */
    if (argc > 1 && !strcmp(argv[1], "secure-child")) _exit(secure_child());
    needs_loading();
    make_scratch();
    unsetenv("ATTN_CONFIG");
    test_arguments();
    test_values();
    test_backends();
    test_options();
    test_environment();
    test_setuid(argv[0]);
    test_fork();
    test_threads();
    return tap_done();
}
