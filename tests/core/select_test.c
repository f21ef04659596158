/* SPDX-License-Identifier: Apache-2.0 */
/* Selection: explicit choice, priority lists, devices that are not there, the record with every reason. */
#include "load/context.h"
#include "core_testing.h"
#include "select/select_rules.h"

static attn_context_t *context;
static attn_selection_t *selection;
static attn_error_t err = ERROR_INIT;

static void begin(const char *ini) {
    char text[1500];
    snprintf(text, sizeof text, "[attn]\nplugins = good, second, cpu\n%s", ini);
    if (context_of(text, &context, &err)) bail_out("no context: %s", err.text);
    logged[0] = 0;
    selection = NULL;
}

static void end(void) {
    attn_selection_free(selection);
    attn_context_destroy(context);
    selection = NULL;
}

static int choose(const attn_problem_t *problem, const attn_device_t *device, const char *backend) {
    attn_selection_free(selection);
    selection = NULL;
    err.text[0] = 0;
    return attn_select(context, problem, device, backend, &selection, &err);
}

static const char *chosen(void) {
    return selection && selection->backend ? selection->backend->name : "none";
}

static void test_priority(void) {
    attn_problem_t p = plain_problem();
    attn_device_t cpu = device_cpu();
    begin("");
    is_int(choose(&p, &cpu, NULL), ATTN_OK, "the built-in list: %s", err.text);
    is_str(chosen(), "CPU_ATTN", "has CPU_ATTN for CPUs");
    is_str(selection->plugin, "cpu", "from its plugin");
    is_str(selection->rule, "priority", "by priority");
    is_str(selection->source, "default", "of the library");
    is_int(selection->num_candidates, 5, "the record holds the whole list");
    const attn_candidate_t *c = selection->candidates;
    ok(c[0].rank == 0 && !c[0].is_valid && !c[0].is_chosen && c[0].num_reasons == 1 && !c[0].plugin[0],
       "the first is not");
    is_int(c[0].reasons[0].code, ATTN_REASON_UNKNOWN, "known: no loaded plugin has it");
    has_str(c[0].reasons[0].text, "no loaded plugin has 'FLASH_ATTN' of the built-in list",
            "which is no slip of anybody");
    ok(c[3].rank == 3 && c[3].is_valid && c[3].is_chosen && !c[3].num_reasons, "the fourth is chosen");
    is_str(c[4].backend, "REFERENCE", "what comes after is listed too");
    is_int(selection->block_size, 32, "the preferred block size is told");
    is_str(selection->warning, "", "no warning");
    has_str(logged, "3 selection: CPU_ATTN for role decoder (priority, default)", "the choice is told");
    has_str(logged, "3 selection: CPU_ATTN needs cache layout NHD", "and the layout it needs");
    has_str(logged, "4 selection: FLASH_ATTN rejected (UNKNOWN)",
            "and the rejections, to those who want details");
    is_int(choose(&p, &cpu, "Auto"), ATTN_OK, "auto");
    is_str(selection->rule, "priority", "is no choice");
    p.role = ATTN_ROLE_ENCODER_ONLY;
    p.mask = ATTN_MASK_FULL;
    is_int(choose(&p, &cpu, NULL), ATTN_OK, "a role without a cache");
    is_int(selection->block_size, 0, "has no block size");
    end();

    begin("[select decoder]\npriority = SECOND_ATTN, GOOD_ATTN\n[select decoder sm_90]\npriority = "
          "GOOD_ATTN\n");
    p = plain_problem();
    is_int(choose(&p, &cpu, NULL), ATTN_OK, "a list of the configuration");
    is_str(chosen(), "SECOND_ATTN", "decides");
    is_str(selection->source, "api:4", "and is named");
    is_int(selection->num_candidates, 2, "alone");
    attn_device_t sm90 = device_sm(90), sm100 = device_sm(100);
    is_int(choose(&p, &sm90, NULL), ATTN_E_UNSUPPORTED, "a device that is not there");
    is_str(selection->source, "api:6", "has a list of its own");
    is_str(selection->candidates[0].backend, "GOOD_ATTN", "with its backends");
    is_int(selection->candidates[0].reasons[0].code, ATTN_REASON_DEVICE, "and their reasons");
    has_str(err.text, "no backend serves role decoder on sm_90: GOOD_ATTN runs on cpu, not on sm_90",
            "said in one line");
    is_str(err.param, "backend", "about the backend");
    is_int(choose(&p, &sm100, NULL), ATTN_E_UNSUPPORTED, "another device");
    is_str(selection->source, "api:4", "has the list for all");
    end();
    begin("[select decoder]\npriority = ABSENT_ATTN, SECOND_ATTN, GOOD_ATTN\n");
    attn_problem_t odd = p;
    odd.head_size = 20;
    is_int(choose(&odd, &cpu, NULL), ATTN_E_UNSUPPORTED, "nobody serves it");
    const char *absent = strstr(err.text, "ABSENT_ATTN"), *far = strstr(err.text, "head size 20");
    ok(far != NULL && absent != NULL && far < absent, "the line names who nobody has last: %s", err.text);
    end();

    begin("[select decoder cpu]\npriority = GOOD_ATTN\n[select decoder]\npriority = SECOND_ATTN\n");
    choose(&p, &cpu, NULL);
    is_str(chosen(), "GOOD_ATTN", "the more precise section counts, whatever the order");
    p.head_size = 20;
    is_int(choose(&p, &cpu, NULL), ATTN_E_UNSUPPORTED, "nobody serves head size 20");
    ok(selection && !selection->backend && selection->num_candidates == 1, "the record is made all the same");
    is_int(selection->candidates[0].reasons[0].code, ATTN_REASON_HEAD_SIZE, "with the reason");
    end();
}

/* The oracle is chosen last, and never without a word. */
static void test_oracle(void) {
    attn_problem_t p = plain_problem();
    attn_device_t cpu = device_cpu();
    begin("[plugin reference]\npath = oracle.so\n");
    choose(&p, &cpu, NULL);
    is_str(selection->warning, "", "no warning where CPU_ATTN serves");
    p.head_size = 20;
    choose(&p, &cpu, "REFERENCE");
    is_str(selection->warning, "", "nor where it is asked for");
    logged[0] = 0;
    p.mask = ATTN_MASK_FULL;
    is_int(choose(&p, &cpu, NULL), ATTN_OK, "what only the oracle serves: %s", err.text);
    is_str(chosen(), "REFERENCE", "goes to it");
    has_str(selection->warning, "only REFERENCE, the slow oracle, is left for role decoder: CPU_ATTN",
            "with a warning");
    ok(!strstr(selection->warning, "FLASH_ATTN"), "that names who could have served");
    has_str(logged, "2 selection: only REFERENCE, the slow oracle", "in the log, too");
    end();
}

/* A text that does not fit says where the rest is. */
static void test_many_reasons(void) {
    attn_problem_t p = plain_problem();
    attn_device_t sm90 = device_sm(90);
    begin("");
    p.head_size = 20;
    p.features = ATTN_F_SINK | ATTN_F_ALIBI | ATTN_F_MM_PREFIX | ATTN_F_BATCH_INVARIANT | ATTN_F_CAPTURE |
                 ATTN_F_CASCADE | ATTN_F_KV_CONNECTOR;
    is_int(choose(&p, &sm90, "GOOD_ATTN"), ATTN_E_UNSUPPORTED, "a backend with many reasons against it");
    has_str(err.text, ".. (all reasons: the selection record, or attn select)",
            "of which the text holds some");
    end();
}

static void test_explicit(void) {
    attn_problem_t p = plain_problem();
    attn_device_t cpu = device_cpu(), sm90 = device_sm(90);
    begin("[select decoder]\nbackend = good_attn\n");
    is_int(choose(&p, &cpu, NULL), ATTN_OK, "a backend by configuration, in any case");
    is_str(chosen(), "GOOD_ATTN", "is used");
    is_str(selection->rule, "explicit", "explicitly");
    is_str(selection->source, "api:4", "where it is said");
    is_int(selection->num_candidates, 1, "nobody else is asked");
    is_int(choose(&p, &cpu, "SECOND_ATTN"), ATTN_OK, "the call's own choice");
    is_str(chosen(), "SECOND_ATTN", "stands above");
    is_str(selection->source, "api", "as api");
    is_int(choose(&p, &sm90, NULL), ATTN_E_UNSUPPORTED, "a choice that cannot be met is an error");
    has_str(err.text, "backend good_attn was requested (api:4) and cannot be used: GOOD_ATTN runs on cpu",
            "with reasons");
    ok(selection && !selection->backend && selection->num_candidates == 1, "and a record");
    p.head_size = 20;
    p.block_size = 24;
    is_int(choose(&p, &cpu, "SECOND_ATTN"), ATTN_E_UNSUPPORTED, "several reasons");
    has_str(err.text, "head size 20", "the first");
    has_str(err.text, "; SECOND_ATTN does not support block size 24", "and the second");
    is_int(choose(&p, &cpu, "SECOND_ATN"), ATTN_E_NOT_FOUND, "an unknown name");
    has_str(err.text, "did you mean 'SECOND_ATTN'", "with the nearest");
    is_int(selection->candidates[0].reasons[0].code, ATTN_REASON_UNKNOWN, "in the record too");
    is_int(choose(&p, &cpu, "CUSTOM"), ATTN_E_NOT_FOUND, "a name nobody has");
    end();

    begin("[select decoder]\nbackend = SECOND_ATTN\n[select decoder cpu]\nbackend = auto\npriority = "
          "GOOD_ATTN\n"
          "[select encoder_only cpu]\npriority = SECOND_ATTN\n[select encoder_only]\nbackend = GOOD_ATTN\n");
    p = plain_problem();
    choose(&p, &cpu, NULL);
    is_str(chosen(), "GOOD_ATTN", "auto takes a choice back");
    p.role = ATTN_ROLE_ENCODER_ONLY;
    p.mask = ATTN_MASK_FULL;
    choose(&p, &cpu, NULL);
    is_str(chosen(), "SECOND_ATTN", "a list for the device stands above an explicit choice for all devices");
    end();
}

static void test_fallback(void) {
    attn_problem_t p = plain_problem();
    attn_device_t cpu = device_cpu();
    p.head_size = 72; /* only refused by supports_combination */
    begin("fallback = warn\n[select decoder]\nbackend = GOOD_ATTN\npriority = GOOD_ATTN, SECOND_ATTN\n");
    is_int(choose(&p, &cpu, NULL), ATTN_E_UNSUPPORTED, "all refuse");
    is_int(selection->num_candidates, 2, "the choice is not tried twice");
    is_int(selection->candidates[0].reasons[0].code, ATTN_REASON_COMBINATION, "by their own word");
    end();

    begin("fallback = warn\n[select decoder]\nbackend = ABSENT\npriority = SECOND_ATTN\n");
    p = plain_problem();
    is_int(choose(&p, &cpu, NULL), ATTN_OK, "warn: the list takes over");
    is_str(chosen(), "SECOND_ATTN", "with its first");
    is_int(selection->num_candidates, 2, "the record holds both");
    is_int(selection->candidates[0].is_chosen, 0, "the choice");
    is_str(selection->source, "api:6", "and who decided");
    has_str(selection->warning, "backend ABSENT (api:5) cannot be used, so the priority list (api:6) decides",
            "in words");
    has_str(logged, "2 backend ABSENT (api:5) cannot be used", "and in the log");
    is_int(choose(&p, &cpu, "ABSENT"), ATTN_E_NOT_FOUND, "the call's own choice is never replaced");
    end();
    begin("fallback = quiet\n[select decoder]\nbackend = ABSENT\npriority = SECOND_ATTN\n");
    is_int(choose(&p, &cpu, NULL), ATTN_OK, "quiet: the same");
    ok(!strstr(logged, "2 backend"), "without a warning");
    has_str(logged, "3 backend ABSENT", "but not without a word");
    end();
}

/* The first in the list has fixed blocks; the second, made by hand, takes any. */
static void test_block_size(void) {
    attn_problem_t p = plain_problem();
    attn_device_t cpu = device_cpu();
    begin("[select decoder]\npriority = GOOD_ATTN, SECOND_ATTN\n");
    attni_registry_find(&context->registry, "SECOND_ATTN")->capabilities.num_block_sizes = 0;
    choose(&p, &cpu, NULL);
    is_str(chosen(), "GOOD_ATTN", "without a block size the first serves");
    p.block_size = 24;
    is_int(choose(&p, &cpu, NULL), ATTN_OK, "with blocks of 24");
    is_str(chosen(), "SECOND_ATTN", "the second");
    is_int(selection->block_size, 24, "in that size");
    has_str(
        selection->warning,
        "block_size 24 alone rules out GOOD_ATTN, which has priority over SECOND_ATTN; leave block_size 0",
        "and the caller hears what it costs");
    has_str(logged, "2 selection: block_size 24 alone", "as a warning");
    p.features = ATTN_F_LSE | ATTN_F_SINK;
    attni_registry_find(&context->registry, "SECOND_ATTN")->capabilities.features |= ATTN_F_SINK;
    is_int(choose(&p, &cpu, NULL), ATTN_OK, "if there are other reasons too");
    is_str(selection->warning, "", "there is no such warning");
    end();
}

static void test_refused_plugin(void) {
    attn_problem_t p = plain_problem();
    attn_device_t cpu = device_cpu();
    write_text("flash.so", "this is no plugin");
    attn_context_t *own;
    is_int(context_of("[attn]\nplugins = flash\n[select decoder]\nbackend = FLASH_ATTN\n", &own, &err),
           ATTN_OK, "a plugin that does not load");
    attn_selection_t *record = NULL;
    is_int(attn_select(own, &p, &cpu, NULL, &record, &err), ATTN_E_NOT_FOUND, "cannot be chosen");
    is_int(record->candidates[0].reasons[0].code, ATTN_REASON_IMPORT_ERROR, "because of the plugin");
    has_str(err.text, "plugin flash did not load: ", "which is said");
    has_str(err.text, "is not an ELF file", "with its reason");
    attn_selection_free(record);
    attn_context_destroy(own);

    context_of("[attn]\nplugins = flash, good\n[select decoder]\n"
               "priority = FLASH_ATTN, FLASH_ATTN_DIFFKV, GOOD_ATTN\n",
               &own, &err);
    p.features = ATTN_F_SINK;
    record = NULL;
    is_int(attn_select(own, &p, &cpu, NULL, &record, &err), ATTN_E_UNSUPPORTED, "nobody serves");
    const char *absent = strstr(err.text, "plugin flash did not load"),
               *refused = strstr(err.text, "GOOD_ATTN");
    ok(absent != NULL && refused != NULL && refused < absent,
       "why those that are there do not comes before those that are not: %s", err.text);
    ok(absent != NULL && strstr(absent + 1, "plugin flash did not load") == NULL, "and each reason once");
    attn_selection_free(record);
    attn_context_destroy(own);
}

/* A slip in a list must not pass in silence. */
static void test_slips(void) {
    attn_context_t *own;
    const char *ini = "[attn]\nplugins = good\n[select decoder]\npriority = FLASH_ATN, GOOD_ATTN, FLASHMLA\n"
                      "[select encoder]\nbackend = Auto\n";
    is_int(context_of(ini, &own, &err), ATTN_OK, "a list with a slip");
    has_str(logged,
            "2 api:4: no loaded plugin has the backend 'FLASH_ATN' of [select decoder] priority, did you "
            "mean 'FLASH_ATTN'",
            "is told at once");
    ok(!strstr(logged, "'GOOD_ATTN'") && !strstr(logged, "'FLASHMLA'") && !strstr(logged, "'Auto'"),
       "and only that");
    attn_context_destroy(own);
    context_of("[attn]\nload = no\n[select decoder]\npriority = FLASH_ATN\n", &own, &err);
    is_str(logged[0] == '2' ? logged : "", "", "nothing is said where nothing is loaded");
    attn_context_destroy(own);
}

static void test_default_lists(void) {
    attn_device_t cpu = device_cpu(), sm90 = device_sm(90), sm120 = device_sm(120);
    for (uint32_t role = 1; role < ATTN_ROLE_COUNT_; role++) {
        size_t count, count_cpu;
        const char *const *names = attni_default_priority(role, &sm90, &count);
        ok(count > 0, "role %u has a list for sm_90", role);
        for (size_t i = 0; i < count; i++)
            ok(attni_plugin_of_backend(names[i]) != NULL, "%s belongs to a plugin", names[i]);
        names = attni_default_priority(role, &cpu, &count_cpu);
        is_str(names[count_cpu - 2], "CPU_ATTN", "on a CPU it ends with CPU_ATTN");
        is_str(names[count_cpu - 1], "REFERENCE", "and REFERENCE");
    }
    size_t count;
    is_str(attni_default_priority(ATTN_ROLE_MLA, &sm120, &count)[0], "FLASHMLA",
           "one list of MLA for every GPU");
    const char *const *dense = attni_default_priority(ATTN_ROLE_DECODER, &sm90, &count);
    is_str(dense[1], "FLASH_ATTN_DIFFKV",
           "values of another size than keys have their backend behind FLASH_ATTN");
    ok(!attni_plugin_of_backend("GOOD_ATTN"), "a stranger's backend belongs to no plugin of ours");
}

static void test_arguments(void) {
    attn_problem_t p = plain_problem();
    attn_device_t cpu = device_cpu(), unsized = {0};
    begin("");
    is_int(attn_select(NULL, &p, &cpu, NULL, &selection, &err), ATTN_E_INVALID, "no context");
    is_int(attn_select(context, NULL, &cpu, NULL, &selection, &err), ATTN_E_INVALID, "no problem");
    is_int(attn_select(context, &p, &unsized, NULL, &selection, &err), ATTN_E_INVALID,
           "a device without size");
    is_int(attn_select(context, &p, &cpu, NULL, NULL, &err), ATTN_E_INVALID, "no place for the record");
    p.num_heads = 0;
    is_int(attn_select(context, &p, &cpu, NULL, &selection, &err), ATTN_E_INVALID,
           "a problem that makes no sense");
    is_str(err.param, "num_heads", "by name");
    ok(!selection, "and no record");
    p = plain_problem();
    int code = attn_select(context, &p, NULL, NULL, &selection, &err);
    ok(code == ATTN_OK || code == ATTN_E_UNSUPPORTED, "no device: the one that is there");
    attn_selection_free(NULL);
    end();
}

/* Which backend the sections name for a phase on a CPU; "none": no key. */
static const char *named(uint32_t phase) {
    attn_problem_t p = plain_problem();
    attn_device_t cpu = device_cpu();
    attn_selection_free(selection);
    selection = NULL;
    if (attn_select_phase(context, &p, &cpu, phase, &selection, &err)) bail_out("phase: %s", err.text);
    return chosen();
}

static void test_phases(void) {
    begin("[select decoder]\nbackend = GOOD_ATTN\nprefill_priority = SECOND_ATTN\n"
          "[select decoder cpu]\nprefill_backend = CPU_ATTN\n[select decoder sm_90]\n"
          "decode_backend = SECOND_ATTN\n[select mla]\ndecode_backend = SECOND_ATTN\n");
    is_str(named(ATTN_PHASE_PREFILL), "CPU_ATTN", "the section of the device comes first");
    is_str(selection->rule, "explicit", "as one name");
    has_str(selection->source, ":7", "of that line");
    is_str(named(ATTN_PHASE_DECODE), "none", "other devices' and other roles' keys do not count");
    ok(selection == NULL, "no record without a key");
    end();
    begin("[select decoder]\nprefill_backend = SECOND_ATTN\n[select decoder cpu]\nprefill_backend = auto\n");
    is_str(named(ATTN_PHASE_PREFILL), "none", "auto withdraws a request");
    end();
    begin("[select decoder]\nprefill_priority = ABSENT_ATTN, SECOND_ATTN, GOOD_ATTN\n");
    is_str(named(ATTN_PHASE_PREFILL), "SECOND_ATTN", "the first of a list that serves");
    is_int(selection->num_candidates, 3, "the record has the whole list");
    has_str(logged, "selection: SECOND_ATTN for prefill of role decoder (priority, ", "the log says of what");
    end();
}

int main(void) {
    needs_loading();
    make_scratch();
    copy_plugin("good.so", "good.so");
    copy_plugin("second.so", "second.so");
    copy_plugin("oracle.so", "oracle.so");
    copy_plugin("cpu.so", "cpu.so");
    test_priority();
    test_oracle();
    test_many_reasons();
    test_explicit();
    test_fallback();
    test_block_size();
    test_refused_plugin();
    test_slips();
    test_default_lists();
    test_arguments();
    test_phases();
    return tap_done();
}
