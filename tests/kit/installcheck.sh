#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# installcheck.sh: libattn as strangers meet it. Installs into a scratch prefix, builds the installed examples/plugin with
# nothing but the installed SDK, drops in its INI, selects it by name and runs the conformance kit on it. Run by make installcheck.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
source=$ATTN_TEST_SRCDIR
root=$tap_scratch/root
log=$tap_scratch/log
unset ATTN_CONFIG DESTDIR MAKEFLAGS MFLAGS MAKELEVEL CPPFLAGS LDFLAGS
for tool in autoreconf libtoolize pkg-config make; do
    command -v $tool >/dev/null 2>&1 || {
        echo "1..0 # SKIP $tool is missing"
        exit 0
    }
done
chmod 700 "$tap_scratch"
mkdir -p "$tap_scratch/build" "$root"

# A step whose output is shown if it fails; the rest makes no sense then.
step() {
    name=$1
    shift
    if "$@" >"$log" 2>&1; then
        pass "$name"
    else
        fail "$name" "\$ $*
$(tail -n 30 "$log")"
        tap_done
    fi
}
has() { # NAME TEXT COMMAND...
    name=$1 text=$2
    shift 2
    "$@" >"$log" 2>&1
    status=$?
    if [ $status -eq 0 ] && grep -q "$text" "$log"; then pass "$name"; else
        fail "$name" "\$ $* (status $status; '$text' was wanted)
$(head -n 30 "$log")"
    fi
}

# 1. the library, without CUDA and with the plugins that need nothing
cd "$tap_scratch/build" || exit 1
step "libattn configures" "$source/configure" -q --prefix="$root/usr" --sysconfdir="$root/etc" --without-cuda \
    --disable-plugin-cpu --disable-plugin-flash CFLAGS="-O1 -g0" ${ATTN_TEST_CC:+CC="$ATTN_TEST_CC"}
step "libattn installs into a scratch prefix" make -s -j2 install

# 2. the example, from a copy of its installed folder alone
examples=$root/usr/share/doc/libattn/examples
for document in ABI engine-author operator plugin-author semantics; do
    ok "doc/$document.md is installed" test -f "$root/usr/share/doc/libattn/doc/$document.md"
done
PKG_CONFIG_PATH=$root/usr/lib/pkgconfig
ACLOCAL_PATH=$root/usr/share/aclocal
PATH=$root/usr/bin:$PATH
export PKG_CONFIG_PATH ACLOCAL_PATH PATH
cp -R "$examples/plugin" "$tap_scratch/plugin" && chmod -R u+w "$tap_scratch/plugin"
cd "$tap_scratch/plugin" || exit 1
step "the example's ten-line configure.ac makes a configure" autoreconf -i
ok "and autoreconf reports no error" sh -c "! grep 'error:' '$log'"
step "the example configures against the installed headers" ./configure -q
step "the example builds" make -s
step "the example passes its own tests and the kit" make -s check
step "the example makes a tarball that builds" make -s distcheck
step "the example installs with its drop-in" make -s install
ok "the plugin lies where libattn looks" test -f "$root/usr/lib/attn/simple.so"
ok "the drop-in lies in conf.d" test -f "$root/etc/attn/conf.d/simple.ini"

# 3. libattn finds it by its drop-in, an operator picks it by name
cd "$tap_scratch" || exit 1
has "attn info lists it" SIMPLE_ATTN attn info
problem="role=decoder mask=causal dtype=float32 num_heads=8 num_kv_heads=2 head_size=64 scale=0.125"
has "the problem is served by default" REFERENCE attn select "$problem" --device cpu
mkdir -p "$root/etc/attn/conf.d"
printf '[select decoder]\nbackend = SIMPLE_ATTN\n' >"$root/etc/attn/conf.d/zz-choice.ini"
has "one line of INI selects it" SIMPLE_ATTN attn select "$problem" --device cpu
has "it runs and agrees with the reference" SIMPLE_ATTN \
    attn run --problem "$problem" --query-lens 1,5 --seq-lens 77,5 --backend SIMPLE_ATTN
step "the kit is green on the installed file" attn check "$root/usr/lib/attn/simple.so" --group abi,structs,errors

# 4. other build systems: an engine with pkg-config, a plugin with CMake
cat >engine.c <<'END'
#include <attn/attn.h>
#include <stdio.h>
int main(void) { return puts(attn_version()) < 0; }
END
# shellcheck disable=SC2046 # flags are words
step "an engine builds with pkg-config" ${ATTN_TEST_CC:-cc} engine.c -o engine $(pkg-config --cflags --libs attn) \
    -Wl,-rpath,"$root/usr/lib"
step "the engine runs" ./engine
cxx=${ATTN_TEST_CXX:-c++}
if command -v "${cxx%% *}" >/dev/null 2>&1; then
    # shellcheck disable=SC2046,SC2086 # flags are words
    step "a plugin in C++ builds with pkg-config" $cxx -std=c++17 -O1 $(pkg-config --variable=plugin_cxxflags attn-plugin) \
        $(pkg-config --cflags attn-plugin) "$source/tests/kit/cxx_plugin.cpp" -o cxx.so \
        $(pkg-config --variable=plugin_ldflags attn-plugin)
    step "and exports nothing of the C++ library" attn check ./cxx.so --group abi
else
    skip "a plugin in C++" "there is no C++ compiler"
fi
if command -v cmake >/dev/null 2>&1 && command -v "${cxx%% *}" >/dev/null 2>&1; then
    mkdir -p with-cmake
    cat >with-cmake/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.13)
project(simple C CXX)
set(CMAKE_CXX_STANDARD 17)
find_package(attn 0.1 REQUIRED)
attn_add_plugin(simple ../plugin/simple_attn.c)
attn_add_plugin(cxx ${CXX_PLUGIN})
target_link_libraries(simple PRIVATE m)
add_executable(engine ../engine.c)
target_link_libraries(engine PRIVATE attn::attn)
END
    step "CMake finds libattn" cmake -S with-cmake -B with-cmake/build -DCMAKE_PREFIX_PATH="$root/usr" \
        -DCXX_PLUGIN="$source/tests/kit/cxx_plugin.cpp"
    step "CMake builds the plugins and an engine" cmake --build with-cmake/build
    step "the plugin of CMake passes the kit's first groups" attn check with-cmake/build/simple.so --group abi,structs
    step "and so does one in C++" attn check with-cmake/build/cxx.so --group abi
    step "the engine of CMake runs" with-cmake/build/engine
else
    skip "CMake" "there is no cmake"
fi

# 5. the CUDA twin, where there is a compiler for it; without a GPU its operations are skipped by the kit
if [ -n "${ATTN_TEST_NVCC-}" ]; then
    cp -R "$examples/plugin-cuda" "$tap_scratch/plugin-cuda" && chmod -R u+w "$tap_scratch/plugin-cuda"
    cd "$tap_scratch/plugin-cuda" || exit 1
    step "the CUDA example builds" make -s NVCC="$ATTN_TEST_NVCC" ARCH=sm_80
    step "the CUDA example passes the kit, as far as there is a device" make -s check
else
    skip "the CUDA example" "there is no nvcc"
fi

# 6. the example in Rust, where its tools are
if command -v bindgen >/dev/null 2>&1 && rustc --version >/dev/null 2>&1; then
    cp -R "$examples/plugin-rust" "$tap_scratch/plugin-rust" && chmod -R u+w "$tap_scratch/plugin-rust"
    cd "$tap_scratch/plugin-rust" || exit 1
    step "the example in Rust builds against the installed header and passes the kit" make -s check
else
    skip "the example in Rust" "there is no bindgen or no rustc"
fi

# 7. nothing stays behind
rm -f "$root/etc/attn/conf.d/zz-choice.ini"
cd "$tap_scratch/plugin" && step "the example uninstalls" make -s uninstall
ok "its plugin is gone" test ! -e "$root/usr/lib/attn/simple.so"
cd "$tap_scratch/build" && step "libattn uninstalls" make -s uninstall
cd "$tap_scratch" || exit 1
left=$(find "$root" -type f | head -n 5)
if [ -z "$left" ]; then pass "no file is left in the prefix"; else fail "no file is left in the prefix" "$left"; fi
tap_done
