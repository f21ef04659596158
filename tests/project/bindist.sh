#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bindist.sh: the binary tarball runs where it is unpacked, without this build: the command with its plugins, real
# tensors, and an engine built by pkg-config and by CMake against nothing but the tarball.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
none() { # WHY
    skip "the binary tarball" "$1"
    tap_done
}
[ -z "$ATTN_TEST_SANITIZERS" ] || [ "$ATTN_TEST_SANITIZERS" = no ] || none "a build with sanitizers is not given to others"
[ -e "$ATTN_TEST_BUILDDIR/core/.libs/libattn.so.0" ] || none "libattn was built without a shared library"
for tool in patchelf readelf ldd xz make pkg-config; do
    command -v $tool >/dev/null 2>&1 || none "there is no $tool"
done
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR LD_LIBRARY_PATH ATTN_CONFIG
umask 022
scratch=$(cd "$tap_scratch" && pwd -P)
mkdir "$scratch/made"
XZ_OPT=-0
export XZ_OPT
ok "make bindist" make -C "$ATTN_TEST_BUILDDIR" -s bindist BINDIST_DIR="$scratch/made"
said=$(tail -n 1 "$scratch/out")
echo "# $said"
ok "it says how large it is and for which glibc" expr "$said" : '.*\.tar\.xz: [0-9]* KiB, for glibc 2\.[0-9]* and newer'
set -- "$scratch"/made/*
ok "one file, and nothing else" test $# -eq 1
archive=$1
mkdir -p "$scratch/some/where"
ok "unpacks" tar -C "$scratch/some/where" -xf "$archive"
set -- "$scratch"/some/where/*
ok "one folder, named as the file" test "$1" = "$scratch/some/where/$(basename "$archive" .tar.xz)"
mv "$1" "$scratch/moved"
here=$scratch/moved
cd "$here" || exit 1

alone() { env -i PATH=/usr/bin:/bin HOME=/ LC_ALL=C "$@"; } # nothing of this environment
loaded() { # PLUGIN: attn info names it, from the tarball's folder
    alone bin/attn info >"$scratch/info" 2>&1
    cat "$scratch/info"
    grep -qE "^ +$1 +[0-9.]+ .*$here/lib/attn/$1.so" "$scratch/info"
}
for plugin in lib/attn/*.so; do
    plugin=$(basename "$plugin" .so)
    ok "attn info: $plugin is loaded from here" loaded "$plugin"
done
ok "attn info names no folder of the build" sh -c "! grep -F '$ATTN_TEST_BUILDDIR' '$scratch/info'"
ok "attn run: real tensors" alone bin/attn run share/doc/libattn/examples/data/minilm-encoder.safetensors
ok "the manual" test -s share/man/man1/attn.1
ok "the licences of what travels with it" sh -c "ls share/doc/libattn/LICENSE && ls share/doc/libattn/licenses/* && ls lib/needs/*"

# Whatever the dynamic linker takes that is not glibc's comes from here.
strangers() {
    for file in bin/attn lib/libattn.so.0 lib/attn/*.so; do
        ldd "$file" | awk -v here="$here/" '$2 == "=>" && index($3, here) != 1 &&
            $1 !~ /^(libc|libm|libdl|libpthread|librt|ld-linux.*)\.so/ { print FILENAME, $0; bad = 1 } END { exit bad }' || return 1
    done
}
ok "every library but glibc's is its own" strangers
own_paths() { # no run path but relative ones, no folder of the build in a text
    for file in bin/attn lib/*.so.? lib/attn/*.so lib/needs/*; do
        readelf -d "$file" | grep -E 'R(UN)?PATH' | grep -vE '\[\$ORIGIN[^/:]?(/[a-z./]*)?(:\$ORIGIN[a-z./]*)*\]' && return 1
    done
    ! grep -rlF -e "$ATTN_TEST_BUILDDIR" -e "$scratch/made" lib/pkgconfig lib/cmake INSTALL share/aclocal
}
ok "no path leads out of it" own_paths

PKG_CONFIG_PATH=$here/lib/pkgconfig
export PKG_CONFIG_PATH
mkdir "$scratch/engine"
# shellcheck disable=SC2046 # flags are words
ok "an example builds with pkg-config" $ATTN_TEST_CC share/doc/libattn/examples/engine/engine.c -o "$scratch/engine/engine" \
    $(pkg-config --cflags --libs attn) -lm -Wl,-rpath,"$here/lib"
ok "its headers are those of the tarball" sh -c "pkg-config --cflags attn | grep -F '$here/'"
ok "and runs" alone "$scratch/engine/engine"
# shellcheck disable=SC2046 # flags are words
ok "the example plugin builds with pkg-config" $ATTN_TEST_CC -O1 $(pkg-config --variable=plugin_cflags attn-plugin) \
    $(pkg-config --cflags attn-plugin) share/doc/libattn/examples/plugin/simple_attn.c -o "$scratch/engine/simple.so" \
    $(pkg-config --variable=plugin_ldflags attn-plugin) -lm
ok "the tarball's command checks it" alone bin/attn check "$scratch/engine/simple.so" --group abi,structs
if command -v cmake >/dev/null 2>&1; then
    printf 'cmake_minimum_required(VERSION 3.13)\nproject(e C)\nfind_package(attn REQUIRED)\nadd_executable(e %s)\n%s\n' \
        "$here/share/doc/libattn/examples/engine/engine.c" 'target_link_libraries(e PRIVATE attn::attn m)' >"$scratch/engine/CMakeLists.txt"
    ok "CMake finds it" cmake -S "$scratch/engine" -B "$scratch/cmake" -DCMAKE_PREFIX_PATH="$here"
    ok "CMake builds the example" cmake --build "$scratch/cmake"
    ok "which runs" alone "$scratch/cmake/e"
else
    skip "CMake" "there is no cmake"
fi
cd / || exit 1
tap_done
