# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# kit_in_tree_run.sh: the plugins of this tree under the conformance kit; sourced. in_tree GROUPS PLUGIN...: one line for
# each plugin; the failures of the kit follow. The kit_in_tree*.sh share the groups, because a busy machine takes minutes for
# all; each has abi, since a run in which every check was skipped, for want of a device, fails.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
in_tree() {
    groups=$1
    shift
    for plugin; do
        name=$(basename "$plugin" .so)
        "$ATTN_TEST_BUILDDIR/tools/attn" check "$plugin" --group "$groups" >"$tap_scratch/out" 2>&1
        status=$?
        summary=$(tail -n 1 "$tap_scratch/out" | sed 's/^# //')
        if [ $status -eq 0 ]; then pass "$name: $summary"; else
            fail "$name: $summary" "$(grep -A 3 '^not ok' "$tap_scratch/out" | sed 's/^# */  /')"
        fi
    done
}
# A sanitizer slows everything down and owns allocator and address space; it looks at memory itself.
without_sanitizer() {
    case $ATTN_TEST_SANITIZERS in
    '' | no) ;;
    *)
        echo "1..0 # SKIP kit_in_tree.sh has the groups that a sanitizer goes with"
        exit 0
        ;;
    esac
}
