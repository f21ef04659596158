#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ranks_mpi.sh: context parallelism over Open MPI with 2 and 4 processes, through <attn/attn_comm_mpi.h>.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
skip_all() {
    echo "1..0 # SKIP $1"
    exit 0
}
command -v mpirun >/dev/null 2>&1 || skip_all "no mpirun (Debian: apt-get install openmpi-bin libopenmpi-dev)"
command -v mpicc >/dev/null 2>&1 || skip_all "no mpicc (Debian: apt-get install libopenmpi-dev)"
mpirun --version 2>/dev/null | grep -q 'Open MPI' || skip_all "mpirun is not Open MPI's"
case $ATTN_TEST_SANITIZERS in '' | no) ;; *) skip_all "not under sanitizers: mpirun's processes do not load them" ;; esac
case $ATTN_TEST_SRCDIR in /*) source=$ATTN_TEST_SRCDIR ;; *) source=$PWD/$ATTN_TEST_SRCDIR ;; esac
library=$ATTN_TEST_BUILDDIR/core/.libs
program=$tap_scratch/ranks_mpi_test

# Processes on one machine: more than it has processors, perhaps as root, without ssh and without copies between address
# spaces, which containers forbid.
OMPI_ALLOW_RUN_AS_ROOT=1
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_rmaps_base_oversubscribe=1
OMPI_MCA_plm=isolated
OMPI_MCA_btl_vader_single_copy_mechanism=none
OMPI_MCA_mpi_yield_when_idle=1
LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
TMPDIR=$tap_scratch
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe OMPI_MCA_plm \
    OMPI_MCA_btl_vader_single_copy_mechanism OMPI_MCA_mpi_yield_when_idle LD_LIBRARY_PATH TMPDIR

ok "the adapter compiles" mpicc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -I "$source/include" \
    -I "$source/tests/layer" -o "$program" "$source/tests/layer/ranks_mpi_test.c" -L "$library" -lattn -lm -lpthread
[ -x "$program" ] || { tap_done; exit; }
if ! timeout 60 mpirun -np 2 true >"$tap_scratch/try" 2>&1; then
    skip "processes" "mpirun starts none here: $(head -n 1 "$tap_scratch/try")"
    tap_done
    exit
fi

for processes in 2 4; do
    timeout 200 mpirun -np $processes "$program" >"$tap_scratch/said" 2>"$tap_scratch/err"
    status=$?
    while IFS= read -r line; do
        case $line in
        "pass "*) pass "${line#pass }" ;;
        "fail "*) fail "${line#fail }" "$(cat "$tap_scratch/err")" ;;
        esac
    done <"$tap_scratch/said"
    if [ $status -eq 0 ]; then pass "$processes processes end"; else fail "$processes processes end" "status $status
$(cat "$tap_scratch/said" "$tap_scratch/err")"; fi
done
export ATTN_CONFIG="$ATTN_TEST_INI"
ok "the example compiles with MPI" mpicc -std=c11 -D_GNU_SOURCE -DWITH_MPI -Wall -Wextra -Werror -O1 -I "$source/include" \
    -o "$tap_scratch/engine" "$source/examples/engine-parallel/engine_parallel.c" -L "$library" -lattn -lm -lpthread
timeout 100 mpirun -np 2 "$tap_scratch/engine" >"$tap_scratch/said" 2>"$tap_scratch/err"
ok "and its processes give the checksum of one rank: $(cat "$tap_scratch/said")" awk \
    '/^2 processes, 120 tokens: / { d = $5 - 132.6315; if (d < 1e-3 && d > -1e-3) good = 1 } END { exit !good }' \
    "$tap_scratch/said"
# The command: over mpirun's processes where it was built with MPI, and a refusal where it was not.
attn=$ATTN_TEST_BUILDDIR/tools/attn
problem='role=decoder num_heads=4 num_kv_heads=2 head_size=32 dtype=float32'
timeout 100 mpirun -np 2 "$attn" run --device cpu --ranks 2 --problem "$problem" >"$tap_scratch/said" 2>"$tap_scratch/err"
status=$?
if grep -q "no MPI: configure libattn with --with-mpi" "$tap_scratch/err"; then
    ok "attn without MPI refuses to be several processes" [ $status -eq 4 ]
else
    ok "attn run over processes gives what one rank gives" grep -q "on each of 2 processes" "$tap_scratch/said"
    ok "and ends well" [ $status -eq 0 ]
    timeout 100 mpirun -np 2 "$attn" run --device cpu --ranks 3 --problem "$problem" >"$tap_scratch/said" 2>"$tap_scratch/err"
    ok "another number of processes is refused" grep -q -e "--ranks is 3, and mpirun started 2 processes" "$tap_scratch/err"
    timeout 100 mpirun -np 2 "$attn" bench --device cpu --ranks 2 --time 1 --threads 1 --problem "$problem" --seq 100 \
        >"$tap_scratch/said" 2>"$tap_scratch/err"
    ok "attn bench over processes" grep -q "the slowest of 2" "$tap_scratch/said"
fi
timeout 60 mpirun -np 2 "$program" away >"$tap_scratch/said" 2>"$tap_scratch/err"
ok "a rank that does not come is named" grep -q "^pass over 2 processes: a rank that does not come is named" "$tap_scratch/said"
tap_done
