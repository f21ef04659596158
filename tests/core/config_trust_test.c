/* SPDX-License-Identifier: Apache-2.0 */
/* Whose configuration is obeyed. Checks that need another owner run as root only. */
#include "core_testing.h"
#include "config/config.h"

#include <errno.h>

static int load(const char *folder, const char *environment, attn_error_t *err) {
    struct attni_config config;
    const struct attni_config_sources sources = {.system_dir = folder, .environment_file = environment};
    err->text[0] = '\0';
    int code = attni_config_load(&config, &sources, err);
    if (code == ATTN_OK) attni_config_free(&config);
    return code;
}

int main(void) {
    attn_error_t err = ERROR_INIT;
    const char *folder = make_scratch();
    mkdir(in_scratch("conf.d"), 0755);
    write_text("attn.ini", "[attn]\nlog = off\n");
    char drop_in[512], own[512], pipe[512];
    snprintf(drop_in, sizeof drop_in, "%s",
             write_text("conf.d/record.ini", "[hook record]\nfile = /tmp/x\n"));
    snprintf(own, sizeof own, "%s", write_text("own.ini", "[attn]\nlog = off\n"));
    snprintf(pipe, sizeof pipe, "%s", in_scratch("pipe.ini"));
    is_int(load(folder, own, &err), ATTN_OK, "own files: %s", err.text);

    chmod(drop_in, 0666);
    is_int(load(folder, NULL, &err), ATTN_E_TRUST, "a drop-in that everybody writes");
    has_str(err.text, "conf.d/record.ini is writable by everybody (mode 0666", "is named");
    chmod(drop_in, 0664);
    is_int(load(folder, NULL, &err), ATTN_E_TRUST, "one that the group writes");
    chmod(drop_in, 0644);
    chmod(in_scratch("conf.d"), 0777);
    is_int(load(folder, NULL, &err), ATTN_E_TRUST, "a folder that everybody writes");
    chmod(in_scratch("conf.d"), 0755);
    chmod(own, 0666);
    is_int(load(NULL, own, &err), ATTN_E_TRUST, "$ATTN_CONFIG of a file that everybody writes");
    chmod(own, 0644);
    if (geteuid() == 0 && chown(drop_in, 12345, 12345) == 0) {
        is_int(load(folder, NULL, &err), ATTN_E_TRUST, "a stranger's drop-in");
        has_str(err.text, "is owned by user 12345", "is named with its owner");
        if (chown(drop_in, 0, 0)) bail_out("cannot take it back");
    } else {
        skip(2, "only root gives files away");
    }

    alarm(20); /* an open that waits for a writer ends here */
    if (mkfifo(pipe, 0600)) bail_out("no pipe: %s", strerror(errno));
    is_int(load(NULL, pipe, &err), ATTN_E_TRUST, "$ATTN_CONFIG as a pipe");
    has_str(err.text, "is a pipe, expected a regular file", "is refused at once");
    struct attni_ini ini = {0};
    is_int(attni_ini_add_file(&ini, pipe, &err), ATTN_E_IO, "nor does the reader wait");
    attni_ini_free(&ini);
    unlink(pipe);
    snprintf(pipe, sizeof pipe, "%s", in_scratch("conf.d/pipe.ini"));
    if (mkfifo(pipe, 0600)) bail_out("no pipe: %s", strerror(errno));
    is_int(load(folder, NULL, &err), ATTN_E_TRUST, "a pipe among the drop-ins");
    unlink(pipe);
    if (chdir(folder)) bail_out("no folder");
    is_int(load(NULL, "own.ini", &err), ATTN_OK, "a relative name counts from here: %s", err.text);
    is_int(load(NULL, "none.ini", &err), ATTN_E_IO, "a file that is not there is said as before");
    return tap_done();
}
