/* SPDX-License-Identifier: Apache-2.0 */
/* Who may own and write what is loaded as code. Checks that need another owner run as root only. */
#include "core_testing.h"
#include "base/trust.h"

#include <errno.h>

static int check(const char *path, attn_error_t *err) {
    struct attni_trusted_file file = {0};
    err->text[0] = 0;
    int code = attni_trust_check(path, &file, err);
    free(file.path);
    return code;
}

static void test_good(void) {
    attn_error_t err = ERROR_INIT;
    struct attni_trusted_file file = {0};
    struct stat status;
    mkdir(in_scratch("dir"), 0755);
    const char *path = write_text("dir/a.so", "12345");
    stat(path, &status);
    is_int(attni_trust_check(path, &file, &err), ATTN_OK, "an own file in own folders below a sticky one: %s",
           err.text);
    ok(file.inode == status.st_ino && file.device == status.st_dev && file.size == 5, "its identity is told");
    free(file.path);
    if (symlink("dir/a.so", in_scratch("link.so"))) bail_out("no symbolic link");
    is_int(attni_trust_check(in_scratch("link.so"), &file, &err), ATTN_OK, "a link to it");
    is_int(file.inode, status.st_ino, "is the file itself");
    has_str(file.path, "/dir/a.so", "under its real name");
    free(file.path);
    chmod(path, 0444);
    is_int(check(path, &err), ATTN_OK, "a read-only file");
    chmod(path, 0755);
}

static void test_modes(void) {
    attn_error_t err = ERROR_INIT;
    char want[600];
    const char *path = in_scratch("dir/a.so");
    chmod(path, 0777);
    is_int(check(path, &err), ATTN_E_TRUST, "a file that everybody writes");
    has_str(err.text, "is writable by everybody (mode 0777", "with its mode");
    has_str(err.text, "chmod go-w", "and what to do");
    chmod(path, 0775);
    is_int(check(path, &err), ATTN_E_TRUST, "a file that the group writes");
    has_str(err.text, "is writable by its group (mode 0775", "with its mode");
    chmod(path, 0755);
    chmod(in_scratch("dir"), 0777);
    is_int(check(path, &err), ATTN_E_TRUST, "a folder that everybody writes");
    snprintf(want, sizeof want, "%s/dir is writable by everybody (mode 0777", scratch);
    has_str(err.text, want, "is named, not the file");
    chmod(in_scratch("dir"), 0775);
    is_int(check(path, &err), ATTN_E_TRUST, "a folder that the group writes");
    chmod(in_scratch("dir"), 01777);
    is_int(check(path, &err), ATTN_OK, "unless it is sticky: the entry itself is checked");
    chmod(in_scratch("dir"), 0755);
    chmod(scratch, 0777);
    is_int(check(path, &err), ATTN_E_TRUST, "a folder further up");
    snprintf(want, sizeof want, "%s is writable by everybody", scratch);
    has_str(err.text, want, "is named");
    is_int(check(in_scratch("link.so"), &err), ATTN_E_TRUST, "a link does not help");
    chmod(scratch, 0755);
    chmod(path, 01777);
    is_int(check(path, &err), ATTN_E_TRUST, "the sticky bit of a file means nothing");
    chmod(path, 0755);
}

static void test_kinds(void) {
    attn_error_t err = ERROR_INIT;
    is_int(check("a.so", &err), ATTN_E_INVALID, "a relative path");
    has_str(err.text, "'a.so' is not absolute", "is called so");
    is_int(check(in_scratch("none.so"), &err), ATTN_E_NOT_FOUND, "an absent file");
    has_str(err.text, "none.so", "is named");
    is_int(check(in_scratch("dir/a.so/b.so"), &err), ATTN_E_NOT_FOUND, "a file as a folder");
    is_int(check(in_scratch("dir"), &err), ATTN_E_TRUST, "a folder");
    has_str(err.text, "is a directory, expected a regular file", "is no file");
    if (mkfifo(in_scratch("pipe"), 0600)) bail_out("no pipe: %s", strerror(errno));
    is_int(check(in_scratch("pipe"), &err), ATTN_E_TRUST, "a pipe");
    has_str(err.text, "is a pipe", "is no file");
    is_int(check("/dev/null", &err), ATTN_E_TRUST, "a device");
    is_int(check("/", &err), ATTN_E_TRUST, "the root folder");
    if (symlink("loop", in_scratch("loop"))) bail_out("no symbolic link");
    is_int(check(in_scratch("loop"), &err), ATTN_E_IO, "a link to itself");
}

static void test_owners(void) {
    attn_error_t err = ERROR_INIT;
    const char *path = in_scratch("dir/a.so");
    if (geteuid() != 0 || chown(path, 12345, 12345)) {
        skip(9, "only root gives files away");
        return;
    }
    is_int(check(path, &err), ATTN_E_TRUST, "a stranger's file");
    has_str(err.text, "is owned by user 12345 (mode 0755), expected root or user 0", "with both owners");
    if (seteuid(12345)) bail_out("cannot become another user");
    is_int(check(path, &err), ATTN_OK, "is good for that user: the folders are root's");
    if (seteuid(54321)) diag("as expected, one user cannot become another");
    if (seteuid(0) || chown(path, 0, 0)) bail_out("cannot go back");
    if (chown(in_scratch("dir"), 12345, 12345)) bail_out("cannot give a folder away");
    is_int(check(path, &err), ATTN_E_TRUST, "an own file in a stranger's folder");
    has_str(err.text, "/dir is owned by user 12345", "names the folder");
    if (chown(in_scratch("dir"), 0, 0)) bail_out("cannot take it back");
    if (seteuid(12345)) bail_out("cannot become another user");
    is_int(check(path, &err), ATTN_OK, "root's file is good for everybody");
    if (seteuid(0)) bail_out("cannot go back");
    chmod(in_scratch("dir"), 01777);
    chown(path, 12345, 12345) ? bail_out("cannot give away") : (void)0;
    is_int(check(path, &err), ATTN_E_TRUST, "a stranger's file in a sticky folder is a stranger's");
    chmod(in_scratch("dir"), 0700);
    if (chown(path, 0, 0) || seteuid(12345)) bail_out("cannot become another user");
    is_int(check(path, &err), ATTN_E_IO, "a folder without rights is an error");
    has_str(err.text, "Permission denied", "with the reason");
    if (seteuid(0)) bail_out("cannot go back");
}

int main(void) {
    make_scratch();
    test_good();
    test_modes();
    test_kinds();
    test_owners();
    return tap_done();
}
