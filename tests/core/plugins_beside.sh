#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The folder attn/ beside libattn.so is the default of plugin_dir: an installation may be moved as a whole. Also one
# that its group may write, as a virtual environment under umask 002 is.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"

library=$ATTN_TEST_BUILDDIR/core/.libs/libattn.so.0
attn=$ATTN_TEST_BUILDDIR/tools/.libs/attn
if [ ! -e "$library" ] || [ ! -x "$attn" ]; then
    skip "plugins beside the library" "libattn was built without a shared library"
    tap_done
fi
scratch=$(cd "$tap_scratch" && pwd -P)

info() { # LIB: what attn says with the libattn of this folder
    LD_LIBRARY_PATH=$1 "$attn" info >"$scratch/info" 2>&1
    cat "$scratch/info"
}
loaded_from() { # LIB: reference is loaded from the folder beside
    info "$1"
    grep -qE "^ +reference +[0-9.]+ .*$1/attn/reference.so" "$scratch/info" && grep -q '^ *REFERENCE' "$scratch/info"
}
default_elsewhere() { # LIB: not this folder
    info "$1"
    grep -q reference "$scratch/info" && ! grep -qF "$1/attn" "$scratch/info"
}
make_tree() { # LIB
    mkdir -p "$1/attn" && cp "$library" "$1/libattn.so.0" && cp "$ATTN_TEST_PLUGIN_DIR/reference.so" "$1/attn/"
}

umask 022
make_tree "$scratch/a/lib"
ok "the default is the folder beside the library" loaded_from "$scratch/a/lib"
mv "$scratch/a" "$scratch/b"
ok "also after a move" loaded_from "$scratch/b/lib"
rm -r "$scratch/b/lib/attn"
ok "without that folder it is the configured one" default_elsewhere "$scratch/b/lib"
umask 002
make_tree "$scratch/c/lib"
ok "made under umask 002" loaded_from "$scratch/c/lib"
mkdir "$scratch/other"
printf '[attn]\nplugin_dir = %s/other\n' "$scratch" >"$scratch/other.ini"
chmod 644 "$scratch/other.ini"
configured() {
    LD_LIBRARY_PATH=$scratch/c/lib ATTN_CONFIG=$scratch/other.ini "$attn" info >"$scratch/info" 2>&1
    cat "$scratch/info"
    grep -qF "$scratch/other" "$scratch/info"
}
ok "a configuration file is stronger" configured
tap_done
