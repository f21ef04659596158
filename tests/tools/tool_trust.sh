#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Files that the command is given and must not trust: pipes, links, others' folders, escape sequences; and an installation under
# umask 002, as a virtual environment has it, which it must.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tools/tool_lib.sh"
plugin=$ATTN_TEST_PLUGIN_DIR/reference.so
chmod 755 "$tap_scratch"

# Nobody opens the other end: what waits is ended, with another status.
mkfifo "$tap_scratch/pipe.so"
for words in "info --probe" check; do
    # shellcheck disable=SC2086 # a list
    timeout 20 "$attn" $words "$tap_scratch/pipe.so" >"$tap_scratch/said" 2>&1
    status=$?
    ok "attn $words refuses a pipe at once" test $status -ne 124 -a $status -ne 0
    ok "and says so" grep -q "is a pipe, expected a regular file" "$tap_scratch/said"
done
wants "a device" 1 "is a device" info --probe /dev/zero
wants "a relative name" 0 "usable" info --probe "$(realpath --relative-to=. "$plugin")"

# The probe's verdict is the loader's.
cp "$plugin" "$tap_scratch/reference.so"
printf '[attn]\nplugins = reference\nlog = off\n[plugin reference]\npath = %s\n' "$tap_scratch/reference.so" >"$tap_scratch/one.ini"
agree() {
    probed=$("$attn" info --probe "$2" --json | "$ATTN_TEST_BUILDDIR/tests/tools/json_query" reason)
    loaded=$("$attn" info --config-file "$tap_scratch/one.ini" --json 2>/dev/null | "$ATTN_TEST_BUILDDIR/tests/tools/json_query" plugins.0.reason)
    if [ "$probed" = "$loaded" ]; then pass "$1: one verdict"; else fail "$1: one verdict" "probe: $probed
loader: $loaded"; fi
}
agree "a good plugin" "$tap_scratch/reference.so"
chmod 666 "$tap_scratch/reference.so"
agree "a plugin that everybody writes" "$tap_scratch/reference.so"
chmod 644 "$tap_scratch/reference.so"
head -c 5000 "$plugin" >"$tap_scratch/reference.so"
agree "half a plugin" "$tap_scratch/reference.so"
for variant in wrong_magic default_out_of_bounds control_vendor no_forward backend_newer twice_backend null_list; do
    cp "$ATTN_TEST_BUILDDIR/tests/core/badplugins/$variant.so" "$tap_scratch/$variant.so"
    printf '[attn]\nplugins = %s\nlog = off\n[plugin %s]\npath = %s\n' $variant $variant "$tap_scratch/$variant.so" >"$tap_scratch/one.ini"
    agree "$variant" "$tap_scratch/$variant.so"
done

# Everything that the group may write, as umask 002 leaves it: libattn, its plugins, all folders.
built=$ATTN_TEST_BUILDDIR
if [ -f "$built/core/.libs/libattn.so.0" ] && [ -x "$built/tools/.libs/attn" ]; then
    mkdir -p "$tap_scratch/venv/lib/attn" "$tap_scratch/venv/bin"
    cp "$built/core/.libs/libattn.so.0" "$tap_scratch/venv/lib/"
    cp "$built/tools/.libs/attn" "$tap_scratch/venv/bin/"
    cp "$plugin" "$tap_scratch/venv/lib/attn/"
    chmod -R g+w "$tap_scratch/venv"
    in_venv() {
        ATTN_CONFIG='' LD_LIBRARY_PATH=$tap_scratch/venv/lib "$tap_scratch/venv/bin/attn" info \
            --plugin-dir "$tap_scratch/venv/lib/attn" >"$tap_scratch/said" 2>&1
    }
    in_venv
    ok "an installation that its group may write loads its plugins" grep -q '^ *REFERENCE' "$tap_scratch/said"
    chmod o+w "$tap_scratch/venv/lib/attn"
    in_venv
    ok "one that everybody may write does not" sh -c "! grep -q '^ *REFERENCE' '$tap_scratch/said'"
    chmod o-w "$tap_scratch/venv/lib/attn"
else
    skip "an installation that its group may write" "no shared libattn in this build"
    skip "one that everybody may write" "no shared libattn in this build"
fi
tap_done
