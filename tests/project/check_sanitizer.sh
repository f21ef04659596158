#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_sanitizer.sh: build-aux/check-sanitizer over a stand-in for compute-sanitizer: the commands that it makes,
# what it counts as a report, and its list of allowed ones.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
script=$ATTN_TEST_SRCDIR/build-aux/check-sanitizer
cd "$tap_scratch" || exit 1
mkdir bin
unset ATTN_TEST_TIMEOUT ATTN_TEST_DEVICE ATTN_TEST_WRAPPER SANITIZER_TOOLS
cat >bin/compute-sanitizer <<'END'
#!/bin/sh
echo "$*" >>commands
echo "========= COMPUTE-SANITIZER"
while [ "${1#--}" != "$1" ]; do
    [ "$1" = --tool ] && tool=$2
    shift 2
done
"$@" || exit
if [ "$tool" = "${BAD_TOOL-}" ]; then
    echo "========= Error: Race reported between Write access at odd_kernel(int)+0x10"
    echo "=========     and Read access at odd_kernel(int)+0x20"
    echo "========="
    for thread in 1 2 3; do
        printf '========= %s\n' "Invalid __global__ read of size 4 bytes" "    at same_kernel(int)+0x3$thread" \
            "    by thread ($thread,0,0) in block (0,0,0)" "    Access at 0x7f0$thread is out of bounds" ""
    done
fi
echo "========= ERROR SUMMARY: 0 errors"
END
printf '#!/bin/sh\necho "ok 1 - it runs on $ATTN_TEST_DEVICE"\necho 1..1\n' >good
printf '#!/bin/sh\necho "1..0 # SKIP no device"\n' >none
printf '#!/bin/sh\necho "not ok 1 - wrong"\necho 1..1\nexit 1\n' >wrong
printf '#!/bin/sh\necho "ok 1 - within $ATTN_TEST_SECONDS s of part $ATTN_TEST_PART"\necho "# left out for time: 7 cases"\necho 1..1\n' >long
chmod 755 bin/compute-sanitizer good none wrong long
printf '# nothing\n' >empty
printf '%s -- the later write wins either way\n' 'racecheck good odd_kernel' 'racecheck good same_kernel' >list
run() { # STATUS TEST...: its output in summary
    wanted=$1
    shift
    rm -f commands
    PATH=$tap_scratch/bin:$PATH SANITIZER_ALLOW=${list:-empty} sh "$script" "$@" >summary 2>&1
    [ $? -eq "$wanted" ] || { cat summary; return 1; }
}
ok "a clean test passes" run 0 good
ok "under each of the four tools" test "$(sed 's/^--tool \([a-z]*\) .*/\1/' commands | tr '\n' ' ')" = \
    "memcheck racecheck synccheck initcheck "
ok "with the programs that it starts" grep -q -- '--tool memcheck --target-processes all .* ./good$' commands
ok "on the first device" grep -q 'cuda:0' good.memcheck.log
BAD_TOOL=racecheck
export BAD_TOOL
ok "a report fails it" run 1 good
ok "and is shown" grep -q 'odd_kernel' summary
ok "those of one place once, with their number" test "$(grep -c 'same_kernel' summary)$(grep -c '^# 3 times' summary)" = 11
ok "the other tools pass" grep -q 'check-sanitizer: 3 passed, 1 failed' summary
list=list
ok "a listed report does not" run 0 good
ok "and its reason is shown" grep -q 'allowed 1 times: the later write wins either way' summary
BAD_TOOL=memcheck
ok "the list is for one tool" run 1 good
unset BAD_TOOL
ok "a long test has a minute for one case in twenty" run 0 long
ok "and knows it" grep -q 'within 60 s of part 1/20' long.memcheck.log
ok "what it left out stands beside its verdict" grep -q 'PASS: memcheck long (1 checks, .* s, left out for time: 7 cases)' summary
ok "a part of one's own has no limit" env SANITIZER_PART=1/1 sh -c 'PATH=$PWD/bin:$PATH sh "$0" long >/dev/null; grep -q "within  s of part 1/1" long.memcheck.log' "$script"
ok "a test that fails by itself fails" run 1 wrong
ok "one without a device is skipped" run 0 none
ok "and says why" grep -q 'SKIP: memcheck none: no device' summary
SANITIZER_JOBS=4
export SANITIZER_JOBS
ok "four runs at once are the same runs" run 1 good wrong none
ok "each with its verdict" grep -q 'check-sanitizer: 4 passed, 4 failed, 4 skipped' summary
unset SANITIZER_JOBS
printf 'racecheck good odd_kernel\n' >list
ok "a line of the list without a reason is an error" run 1 good
# shellcheck disable=SC2016 # of the inner shell
ok "without compute-sanitizer it is skipped" sh -c 'mkdir -p few && for t in sh awk grep sed dirname cat; do
    ln -sf "$(command -v $t)" few/$t; done; PATH=$PWD/few sh "$1" good | grep -q "SKIP: there is no compute-sanitizer"' \
    sh "$script"
tap_done
