# SPDX-License-Identifier: Apache-2.0
# kit_bad_run.sh: the conformance kit catches what it claims to. Each plugin of badplugins-kit/ is wrong in one way, and
# its head names the group of `attn check` that has to fail, and mostly the check in it; the good one, built the same way,
# passes everything. Sourced by the tests kit_bad_*.sh, which set wanted_groups, and build_flags and driver (a libcuda) if need be.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
attn=$ATTN_TEST_BUILDDIR/tools/attn
folder=$ATTN_TEST_SRCDIR/tests/kit/faults
limit=${ATTN_TEST_CHECK_SECONDS:-5} # of one check; the plugin that hangs takes all of it
case $ATTN_TEST_SANITIZERS in
'' | no) ;;
*)
    echo "1..0 # SKIP broken plugins on purpose are no work for a sanitizer"
    exit 0
    ;;
esac

if [ -n "$driver" ]; then
    ln -s "$driver" "$tap_scratch/libcuda.so.1"
    LD_LIBRARY_PATH=$tap_scratch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    ATTN_FAKE_DRIVER=keeping
    export LD_LIBRARY_PATH ATTN_FAKE_DRIVER
fi

# The headers of libdlpack may lie where configure was told.
# shellcheck disable=SC2086 # build_flags is a list
build() { # SOURCE OUTPUT
    case $1 in
    *.cc) ${ATTN_TEST_CXX:-c++} -std=c++11 -O1 -fPIC -shared -fvisibility=hidden $build_flags -I"$ATTN_TEST_SRCDIR/include" "$1" -o "$2" ;;
    *) ${ATTN_TEST_CC:-cc} -std=c11 -O1 -fPIC -shared -fvisibility=hidden $build_flags -I"$ATTN_TEST_SRCDIR/include" "$1" -lm -o "$2" ;;
    esac
}

for source in "$folder"/*.c "$folder"/*.cc; do
    name=$(basename "$source" | sed 's/\..*//')
    caught=$(tr '\n' ' ' <"$source" | sed 's/  */ /g; s/ \* Caught by/ Caught by/; s/.* Caught by: \([^*]*\) \*\/.*/\1/')
    group=${caught%%, *} # and the check in it, where only one can
    check=
    [ "$group" = "$caught" ] || check=${caught#*, }
    [ -n "$ATTN_TEST_ONLY" ] && [ "$ATTN_TEST_ONLY" != "$name" ] && continue
    case " $wanted_groups " in *" $group "*) ;; *) continue ;; esac
    so=$tap_scratch/$name.so
    if ! build "$source" "$so" >"$tap_scratch/out" 2>&1; then
        fail "$name builds" "$(cat "$tap_scratch/out")"
        continue
    fi
    if [ "$group" = nothing ]; then
        ok "$name passes ${good_groups:-every group}" "$attn" check "$so" ${good_groups:+--group "$good_groups"}
        continue
    fi
    "$attn" check "$so" --group "$group" ${check:+--only "$check"} --max-failures 1 --timeout "$limit" >"$tap_scratch/out" 2>&1
    status=$?
    # 3: the file could not even be examined, which is not being caught by a group
    if [ $status -eq 1 ] && grep -q "^not ok .* - $group: " "$tap_scratch/out"; then
        pass "$name is caught by $group: $(sed -n "s/^not ok [0-9]* - $group: //p" "$tap_scratch/out" | head -n 1)"
    else
        fail "$name is caught by $group" "status $status
$(tail -n 5 "$tap_scratch/out")"
    fi
    rm -f "$so"
done
tap_done
