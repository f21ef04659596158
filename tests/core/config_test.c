/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schema and the sources of a configuration: what is refused and in which words, who wins, where values
 * come from.
 */
#include "config/config.h"
#include "core_testing.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static int load_text(struct attni_config *config, const char *text, attn_error_t *err) {
    struct attni_config_sources sources = {.api_text = text};
    return attni_config_load(config, &sources, err);
}

static void test_refuses(void) {
    static const struct {
        const char *text, *words, *param;
    } cases[] = {
        {"[atn]\n",
         "api:1: unknown section [atn], did you mean 'attn'; known are: attn select plugin option mm_encoder "
         "hook",
         "atn"},
        {"[attn x]\n", "[attn] takes no name", "attn x"},
        {"[attn]\nplugin = a\n", "api:2: unknown key 'plugin' in [attn], did you mean 'plugins'", "plugin"},
        {"[attn]\nxyzzyx = a\n", "known are: plugins fallback load plugin_dir log", "xyzzyx"},
        {"[attn]\nfallback = eror\n",
         "value 'eror' of 'fallback', did you mean 'error'; known are: error warn quiet", "fallback"},
        {"[attn]\nload = maybe\n", "'load' has the invalid value 'maybe'; write yes or no", "load"},
        {"[attn]\nplugin_dir = lib\n", "write a path that starts with /", "plugin_dir"},
        {"[attn]\nplugins =\n", "empty list entry", "plugins"},
        {"[attn]\nplugins = a,,b\n", "empty list entry", "plugins"},
        {"[attn]\nplugins = a, b, a\n", "duplicate name", "plugins"},
        {"[attn]\nplugins = a b\n", "a character that is not allowed in names", "plugins"},
        {"[attn]\nplugins = "
         "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z,A,B,C,D,E,F,G,H,I,J,K,L,M,N,O,P,Q,R,S,T,U,V,W,"
         "X,Y,Z,"
         "0,1,2,3,4,5,6,7,8,9,aa,ab,ac\n",
         "more than 64 names", "plugins"},
        {"[select]\n", "[select] does not name a role", "select"},
        {"[select decodr]\n", "unknown role 'decodr', did you mean 'decoder'", "select decodr"},
        {"[select Decoder]\n", "unknown role 'Decoder', did you mean 'decoder'", "select Decoder"},
        {"[select decoder hopper]\n", "write sm_90 or cpu", "select decoder hopper"},
        {"[select decoder sm_]\n", "write sm_90 or cpu", "select decoder sm_"},
        {"[select decoder sm_9]\n", "write sm_90 or cpu", "select decoder sm_9"},
        {"[select decoder sm_90z]\n", "write sm_90 or cpu", "select decoder sm_90z"},
        {"[select decoder]\nbackend = A, B\n", "write one name", "backend"},
        {"[select decoder]\nprioritys = A\n", "did you mean 'priority'", "prioritys"},
        {"[select decoder]\nprefill_backnd = A\n", "did you mean 'prefill_backend'", "prefill_backnd"},
        {"[select decoder]\ndecode_priority = A, A\n", "duplicate name in the list", "decode_priority"},
        {"[select encoder_only]\nprefill_backend = A\n",
         "'prefill_backend' in [select encoder_only], whose role has no cache and so no phases",
         "prefill_backend"},
        {"[select mla_prefill cpu]\ndecode_priority = A\n", "write backend or priority", "decode_priority"},
        {"[plugin]\n", "exactly one name", "plugin"},
        {"[plugin a b]\n", "exactly one name", "plugin a b"},
        {"[plugin a/b]\n", "exactly one name", "plugin a/b"},
        {"[plugin a]\npath =\n", "write a file name", "path"},
        {"[plugin a]\nrequired = 2\n", "write yes or no", "required"},
        {"[option]\n", "exactly one name", "option"},
        {"[hook]\n", "exactly one name", "hook"},
        {"[hook trce]\n", "unknown hook 'trce', did you mean 'trace'", "hook trce"},
        {"[hook trace]\nlevel = all\n", "unknown key 'level' in [hook trace]", "level"},
        {"[hook trace]\nmax_bytes = -1\n", "a whole number from 0 to 2147483647", "max_bytes"},
        {"[hook trace]\nmax_bytes = 2147483648\n", "a whole number from 0 to 2147483647", "max_bytes"},
        {"[hook record]\nfile = calls\n", "write a path that starts with /", "file"},
        {"[hook record]\ntensors = some\n", "'tensors' has the invalid value 'some'; write yes or no",
         "tensors"},
        {"[hook record]\ntensor = yes\n", "did you mean 'tensors'", "tensor"},
        {"[hook trace]\nmax_bytes = 10k\n", "a whole number from 0 to 2147483647", "max_bytes"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct attni_config config;
        attn_error_t err = ERROR_INIT;
        is_int(load_text(&config, cases[i].text, &err), ATTN_E_PARSE, "refused: %s", cases[i].words);
        has_str(err.text, cases[i].words, "in these words");
        is_str(err.param, cases[i].param, "naming the parameter");
        is_int(config.ini.count, 0, "and the configuration is empty");
    }
}

static void test_accepts(void) {
    struct attni_config config;
    attn_error_t err = ERROR_INIT;
    const char *text =
        "[attn]\nplugins = flash, cpu\nfallback = warn\nlog = debug\n"
        "[select decoder]\npriority = FLASH_ATTN, TRITON_ATTN, CPU_ATTN\n"
        "[select mla sm_90]\nbackend = FLASHMLA\n[select mm_encoder sm_100a]\nbackend = auto\n"
        "[select encoder cpu]\nbackend = REFERENCE\n"
        "[plugin flash]\npath = flash.so\nrequired = no\nenabled = on\n"
        "[option flash]\nnum_splits = auto\nanything-at-all = 1\n"
        "[hook trace]\nfile = /tmp/x\nmax_bytes = 2147483647\n[hook check]\nlevel = all\n"
        "[hook record]\nfile = /tmp/y-%p\ncalls = 3\nfirst = 10\ntensors = yes\nmax_bytes = 65536\n"
        "[hook shadow]\nbackend = REFERENCE\nsample = 10\n";
    is_int(load_text(&config, text, &err), ATTN_OK, "the manual's example is read: %s", err.text);
    is_str(attni_config_get(&config, "attn", "fallback"), "warn", "a value");
    is_str(attni_config_get(&config, "attn", "load"), "yes", "a default");
    ok(!attni_config_get(&config, "select decoder", "backend"), "a key without value and default is NULL");
    ok(!attni_config_get(&config, "nonsense", "backend"), "so is one of no section");
    is_int(attni_config_bool(&config, "plugin flash", "required", 1), 0, "no is 0");
    is_int(attni_config_bool(&config, "plugin flash", "enabled", 0), 1, "on is 1");
    is_int(attni_config_bool(&config, "plugin other", "enabled", 7), 7, "absent is the caller's choice");
    attni_config_free(&config);

    int32_t type = 0, capability = -1;
    ok(attni_device_key("cpu", &type, &capability) == 0 && type == kDLCPU && capability == 0, "cpu");
    ok(attni_device_key("sm_90", &type, &capability) == 0 && type == kDLCUDA && capability == 90, "sm_90");
    ok(attni_device_key("sm_100a", &type, &capability) == 0 && capability == 100, "sm_100a");
    is_int(attni_device_key("sm_99999", &type, &capability), -1, "not sm_99999");
    is_int(attni_device_key("cuda", &type, &capability), -1, "not cuda, which says no capability");
    is_int(attni_bool_value("TRUE"), 1, "TRUE");
    is_int(attni_bool_value("off"), 0, "off");

    char **names, *list;
    size_t count;
    is_int(attni_list_split("a, b ,c", &names, &count, &list), 0, "a list is cut");
    ok(count == 3 && !strcmp(names[0], "a") && !strcmp(names[1], "b") && !strcmp(names[2], "c"),
       "at its commas");
    free(names);
    free(list);
}

struct seen {
    int count;
    char fallback[600], load[600], priority[600];
};

static void see(void *user, const struct attni_config_item *item) {
    struct seen *seen = user;
    seen->count++;
    char *to = !strcmp(item->key, "fallback")   ? seen->fallback
               : !strcmp(item->key, "load")     ? seen->load
               : !strcmp(item->key, "priority") ? seen->priority
                                                : NULL;
    if (to)
        snprintf(to, 600, "[%s] %s %s:%u %s", item->section, item->value, item->source, item->line,
                 item->doc);
}

static void test_sources(void) {
    struct attni_config config;
    attn_error_t err = ERROR_INIT;
    char origin[600], want[600];
    mkdir(in_scratch("sys"), 0755);
    struct attni_config_sources sources = {.system_dir = in_scratch("sys")};
    is_int(attni_config_load(&config, &sources, &err), ATTN_OK, "an empty system folder is fine");
    is_str(attni_config_origin(&config, "attn", "fallback", origin, sizeof origin), "default",
           "then all is default");
    attni_config_free(&config);
    sources.system_dir = in_scratch("not-there");
    is_int(attni_config_load(&config, &sources, &err), ATTN_OK, "so is none");

    sources.system_dir = in_scratch("sys");
    write_text("sys/attn.ini", "[attn]\nfallback = warn\nlog = error\nload = no\n");
    mkdir(in_scratch("sys/conf.d"), 0755);
    write_text("sys/conf.d/20-late.ini", "[attn]\nfallback = quiet\n");
    write_text("sys/conf.d/10-early.ini", "[attn]\nfallback = error\nlog = info\n");
    write_text("sys/conf.d/.hidden.ini", "garbage\n");
    write_text("sys/conf.d/readme.txt", "garbage\n");
    is_int(attni_config_load(&config, &sources, &err), ATTN_OK, "file and drop-ins are read: %s", err.text);
    is_str(attni_config_get(&config, "attn", "fallback"), "quiet", "the last drop-in wins");
    is_str(attni_config_get(&config, "attn", "log"), "info", "an earlier one over the file");
    is_str(attni_config_get(&config, "attn", "load"), "no", "the file over the default");
    snprintf(want, sizeof want, "%s/sys/conf.d/20-late.ini:2", scratch);
    is_str(attni_config_origin(&config, "attn", "fallback", origin, sizeof origin), want, "with its place");
    attni_config_free(&config);

    sources.environment_file =
        write_text("env.ini", "[attn]\nfallback = error\n[select decoder]\npriority = A\n");
    sources.api_file = write_text("api.ini", "[attn]\nload = yes\n");
    sources.api_text = "[attn]\nlog = off\n";
    is_int(attni_config_load(&config, &sources, &err), ATTN_OK, "environment and API are read: %s", err.text);
    snprintf(want, sizeof want, "%s/env.ini:2 ($ATTN_CONFIG)", scratch);
    is_str(attni_config_origin(&config, "attn", "fallback", origin, sizeof origin), want,
           "environment over files");
    snprintf(want, sizeof want, "%s/api.ini:2", scratch);
    is_str(attni_config_origin(&config, "attn", "load", origin, sizeof origin), want,
           "API file over environment");
    is_str(attni_config_origin(&config, "attn", "log", origin, sizeof origin), "api:2", "API text over all");
    is_int(attni_config_set(&config, "attn", "log", "debug", &err), ATTN_OK, "a single value");
    is_str(attni_config_origin(&config, "attn", "log", origin, sizeof origin), "api", "over that");
    is_int(attni_config_set(&config, "attn", "log", "noisy", &err), ATTN_E_PARSE, "is checked too");

    struct seen seen = {0};
    size_t counted = attni_config_each(&config, NULL, NULL);
    is_int(attni_config_each(&config, see, &seen), counted, "counting and visiting agree");
    is_int(seen.count, counted, "on every value");
    snprintf(want, sizeof want, "[attn] error %s/env.ini:2", scratch);
    has_str(seen.fallback, want, "a value with section and place");
    has_str(seen.load, "load no plugin at all", "with its explanation");
    has_str(seen.priority, "[select decoder] A ", "values without default follow");
    attni_config_free(&config);
}

static void test_bad_sources(void) {
    struct attni_config config;
    attn_error_t err = ERROR_INIT;
    struct attni_config_sources sources = {.environment_file = in_scratch("absent.ini")};
    is_int(attni_config_load(&config, &sources, &err), ATTN_E_IO, "an absent $ATTN_CONFIG is an error");
    has_str(err.text, "absent.ini", "that names the file");
    is_str(err.param, "ATTN_CONFIG", "and the variable");
    sources.environment_file = "";
    is_int(attni_config_load(&config, &sources, &err), ATTN_OK, "an empty one is none");
    attni_config_free(&config);
    sources.api_file = in_scratch("absent.ini");
    is_int(attni_config_load(&config, &sources, &err), ATTN_E_IO, "an absent API file is an error");
    sources.api_file = NULL;
    sources.system_dir = in_scratch("bad");
    mkdir(in_scratch("bad"), 0755);
    write_text("bad/attn.ini", "[attn]\nload = yes\nload = yes\n");
    is_int(attni_config_load(&config, &sources, &err), ATTN_E_PARSE, "an error in a system file");
    has_str(err.text, "bad/attn.ini:3:", "has its place");
    write_text("bad/attn.ini", "[attn]\nload = yes\n");
    mkdir(in_scratch("bad/conf.d"), 0755);
    write_text("bad/conf.d/a.ini", "[attn]\nlaod = yes\n");
    write_text("bad/conf.d/b.ini", "nonsense\n");
    is_int(attni_config_load(&config, &sources, &err), ATTN_E_PARSE, "an error in a drop-in");
    has_str(err.text, "conf.d/b.ini:1:", "syntax is checked first");
    unlink(in_scratch("bad/conf.d/b.ini"));
    is_int(attni_config_load(&config, &sources, &err), ATTN_E_PARSE, "an unknown key in a drop-in");
    has_str(err.text, "conf.d/a.ini:2: unknown key 'laod' in [attn], did you mean 'load'", "in full");
    if (geteuid() != 0) {
        chmod(in_scratch("bad/conf.d"), 0);
        is_int(attni_config_load(&config, &sources, &err), ATTN_E_IO, "a folder without rights is an error");
        chmod(in_scratch("bad/conf.d"), 0755);
    } else
        skip(1, "root reads every folder");
    char long_name[4200];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[0] = '/';
    long_name[sizeof long_name - 1] = 0;
    sources.system_dir = long_name;
    is_int(attni_config_load(&config, &sources, &err), ATTN_E_INVALID, "an endless folder name is refused");
}

/* The sample that is installed: as shipped, and with every commented-out example taken in. */
static void test_sample(void) {
    const char *srcdir = getenv("ATTN_TEST_SRCDIR");
    char path[1024], line[400], text[20000] = "";
    snprintf(path, sizeof path, "%s/etc/attn.ini", srcdir ? srcdir : ".");
    struct attni_config config;
    struct attni_config_sources sources = {.api_file = path};
    attn_error_t err = ERROR_INIT;
    is_int(attni_config_load(&config, &sources, &err), ATTN_OK, "the installed sample is read: %s", err.text);
    attni_config_free(&config);
    FILE *file = fopen(path, "r");
    int examples = 0;
    while (file && fgets(line, sizeof line, file)) {
        /* "; key = value" and "; [section]" are examples, other comments are prose. */
        size_t word = strspn(line, "; "), end = word + strspn(line + word, "abcdefghijklmnopqrstuvwxyz_ ");
        const char *start = word == 2 && (line[2] == '[' || (end > 2 && line[end] == '=')) ? line + 2 : line;
        examples += start != line;
        strncat(text, start, sizeof text - strlen(text) - 1);
    }
    if (file) fclose(file);
    sources = (struct attni_config_sources){.api_text = text};
    is_int(attni_config_load(&config, &sources, &err), ATTN_OK, "so are its %d examples: %s", examples,
           err.text);
    attni_config_free(&config);
}

int main(void) {
    make_scratch();
    test_sample();
    test_refuses();
    test_accepts();
    test_sources();
    test_bad_sources();
    return tap_done();
}
