/* SPDX-License-Identifier: Apache-2.0 */
/* Where the trace may go: a new file, or one of the caller's own. */
#include "layer_testing.h"

#include <fcntl.h>

static attn_error_t error = ERROR_INIT;

/* Opens a group under [hook trace] file = path. */
static int try_trace(const char *path) {
    char ini[600];
    snprintf(ini, sizeof ini, "[hook trace]\nfile = %s\n", path);
    attn_context_t *context = fake_context(ini);
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_device_t d = cpu();
    attn_group_t *g = NULL;
    error.text[0] = '\0';
    int code = attn_group_open(context, &p, &d, "FAKE_PLAIN", &g, NULL, &error);
    attn_group_close(g);
    attn_context_destroy(context);
    return code;
}

int main(void) {
    char dir[] = "/tmp/attn-trace-XXXXXX", file[64], other[64];
    if (mkdtemp(dir) == NULL) bail_out("no scratch folder");
    snprintf(file, sizeof file, "%s/trace", dir);
    snprintf(other, sizeof other, "%s/other", dir);
    alarm(20); /* an open that waits for a reader ends here */
    is_int(try_trace(file), ATTN_OK, "a new file: %s", error.text);
    is_int(try_trace(file), ATTN_OK, "and again: %s", error.text);
    if (link(file, other)) bail_out("no second name");
    is_int(try_trace(file), ATTN_E_IO, "a file with a second name");
    unlink(other);
    if (geteuid() == 0 && chown(file, 12345, 12345) == 0) {
        is_int(try_trace(file), ATTN_E_IO, "a stranger's file");
        has_str(error.text, "name a new file, or one of your own", "is refused");
    } else {
        skip(2, "only root gives files away");
    }
    unlink(file);
    if (symlink("other", file)) bail_out("no link");
    is_int(try_trace(file), ATTN_E_IO, "a link");
    unlink(file);
    if (mkfifo(file, 0600)) bail_out("no pipe");
    is_int(try_trace(file), ATTN_E_IO, "a pipe without a reader");
    has_str(error.text, "it is not a regular file", "is refused at once");
    int reader = open(file, O_RDONLY | O_NONBLOCK);
    is_int(try_trace(file), ATTN_E_IO, "a pipe with one");
    close(reader);
    unlink(file);
    rmdir(dir);
    remove_fake();
    return tap_done();
}
