#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# results_written.sh: what bench/run_results.sh writes, with stubs in place of the programs.
set -u
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
case $ATTN_TEST_SRCDIR in
/*) script=$ATTN_TEST_SRCDIR/bench/run_results.sh ;;
*) script=$PWD/$ATTN_TEST_SRCDIR/bench/run_results.sh ;;
esac
scratch=$(mktemp -d) && mkdir "$scratch/tools" "$scratch/bench" && cd "$scratch" || bail_out "no scratch folder"
# shellcheck disable=SC2154 # tap_scratch is of tap.sh
trap 'rm -rf "$scratch" "$tap_scratch"' EXIT

for name in tools/attn bench/cpu_kernels_bench bench/bench_core_overhead bench/triton_plan_bench; do
    printf '#!/bin/sh\necho "%s got $*"\n' "$name" >"$name" && chmod +x "$name"
done
printf '#!/bin/sh\nexit 1\n' >bench/python && chmod +x bench/python
PYTHON=bench/python
export PYTHON
printf '# old\n\nold numbers\n\n## Other machines\n\nkept numbers\n' >cpu.md

export OMP_NUM_THREADS=3
ok "the script runs" sh "$script" cpu cpu.md
ok "the first program's output is there" grep -qx 'tools/attn got bench --device cpu --threads 3' cpu.md
ok "so is the last one's" grep -qx 'bench/triton_plan_bench got ' cpu.md
ok "commands are above their output" grep -qx '    bench/cpu_kernels_bench -t 3' cpu.md
ok "date, commit and device are in each section" \
    test "$(grep -cE '^[0-9]{4}-[0-9]{2}-[0-9]{2}, commit [^ ,]+, .*3 threads\.$' cpu.md)" -eq "$(grep -c '^    [tb]' cpu.md)"
ok "a program that was not built is named" grep -qx 'Not run: bench/flash_host_bench is not here.' cpu.md
ok "a Python without numpy is named" grep -qx 'Not run: bench/python has no numpy.' cpu.md
ok "old numbers are gone" test "$(grep -c "old numbers" cpu.md)" -eq 0
ok "what was measured elsewhere is kept" test "$(tail -n 1 cpu.md)" = 'kept numbers'

sed -i 's/cpu_kernels_bench got/and its old line/; s/triton_plan_bench got/untouched/' cpu.md
cp cpu.md before.md
ok "one section alone can be measured" sh "$script" cpu cpu.md Kernels
ok "it is new" grep -qx 'bench/cpu_kernels_bench got -t 3' cpu.md
ok "the others stand as they were, in their order" sh -c 'sed "s/and its old line/cpu_kernels_bench got/" before.md | cmp - cpu.md'
cp cpu.md before.md
ok "a title that is none is refused" sh -c '! sh "$1" cpu cpu.md Kernel 2>said.txt' sh "$script"
ok "and those that are are named" sh -c 'grep -qx Kernels said.txt && grep -qx Peers said.txt && test "$(wc -l <said.txt)" -eq 9'
ok "nothing is changed then" cmp cpu.md before.md
printf '#!/bin/sh\nexit 3\n' >bench/bench_core_overhead
ok "a failing program fails the run" sh -c '! sh "$1" cpu cpu.md' sh "$script"
ok "and leaves the file as it was" cmp cpu.md before.md
ok "and nothing beside it" test "$(ls -d cpu.md?*  2>/dev/null | wc -l)" -eq 0
printf 'no heading\n' >cpu.md
ok "a file without the kept heading is refused" sh -c '! sh "$1" cpu cpu.md' sh "$script"
ok "a machine that is neither is refused" sh -c '! sh "$1" tpu cpu.md' sh "$script"
tap_done
