#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run_results.sh h200|cpu FILE [TITLE..]: runs a machine's measuring programs and writes what they print to FILE, each
# below its command, date and commit. The last section of FILE, measured elsewhere, is kept; with titles of sections, all
# sections but those are. Run in the build folder by make bench-h200 or make bench-cpu; if a program fails, FILE is
# unchanged.
set -eu

if [ $# -lt 2 ]; then
    echo "usage: run_results.sh h200|cpu FILE [TITLE OF A SECTION..]" >&2
    exit 2
fi
machine=$1
file=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
sections=$(sed -n "/^$machine)/,/;;/"'s/^    run[a-z_]*\( [a-z]*\)\{0,1\} "\([^"]*\)" .*/\2/p' "$here/run_results.sh")
for title; do
    printf '%s\n' "$sections" | grep -qxF "$title" && continue
    printf 'run_results.sh: no section is called "%s"; %s has these:\n%s\n' "$title" "$machine" "$sections" >&2
    exit 2
done
titles=$(printf '%s\n' "$@")

# is_wanted TITLE: whether the section is to be measured; one that is not is copied as it stands
is_wanted() {
    if [ -z "$titles" ]; then return 0; fi
    if printf '%s\n' "$titles" | grep -qxF "$1"; then return 0; fi
    if [ -e "$file" ]; then
        awk -v title="## $1" '/^## / { inside = $0 == title; if (inside) print "" } inside' "$file" | sed '$ { /^$/d }' >>"$new"
    fi
    return 1
}

# run TITLE PROGRAM [ARGUMENT..]: one section of the file
run() {
    title=$1
    shift
    is_wanted "$title" || return 0
    printf '\n## %s\n\n    %s\n\n%s, commit %s, %s.\n\n' "$title" "$*" "$(date -u +%Y-%m-%d)" "$commit" "$device" |
        sed "s|$here/|bench/|" >>"$new"
    if ! command -v "$1" >/dev/null 2>&1; then
        echo "Not run: $1 is not here." >>"$new"
        echo "run_results.sh: $1 is not here" >&2
        return
    fi
    echo "run_results.sh: $*" >&2
    printf '```\n' >>"$new"
    if ! "$@" >>"$new"; then
        tail -n 5 "$new" >&2
        echo "run_results.sh: $* failed; $file is unchanged" >&2
        exit 1
    fi
    printf '```\n' >>"$new"
}

# run_python MODULE TITLE SCRIPT [ARGUMENT..]: the same with a Python that has the module
run_python() {
    module=$1
    title=$2
    shift 2
    if "${PYTHON:-python3}" -c "import $module" >/dev/null 2>&1; then
        run "$title" "${PYTHON:-python3}" "$@"
    elif is_wanted "$title"; then
        printf '\n## %s\n\nNot run: %s has no %s.\n' "$title" "${PYTHON:-python3}" "$module" >>"$new"
        echo "run_results.sh: ${PYTHON:-python3} has no $module; set PYTHON" >&2
    fi
}

case $machine in
h200)
    kept='## Peers on other machines'
    about='
132 SMs, 4.8 TB/s nominal. Sustained is the median after 150 to 200 ms of the same load, burst the median of 12 ms after
120 ms of rest; calls are replays of captured graphs. "of" is the share of that run'\''s ceiling: read and copy in GB/s,
matmul (bf16, 8192 cubed) in TFLOP/s. Random normal inputs, pages in random order. FLOPs count visible pairs only. Rows of
one section compare; machines of the kind and runs differ by 1 to 2 %, at the power limit by up to 6 %. A replay finds in
the L2 what is left of the one before: of caches of up to a few times 50 MB a part, unless layers or copies take turns (D4).
'
    device=$(nvidia-smi --query-gpu=name,driver_version,power.limit --format=csv,noheader | head -n 1)
    ;;
cpu)
    kept='## Other machines'
    about=
    device=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
    threads=${OMP_NUM_THREADS:-$(nproc)}
    device="$device, $threads threads"
    ;;
*)
    echo "run_results.sh: $machine is neither h200 nor cpu" >&2
    exit 2
    ;;
esac
if [ -e "$file" ] && ! grep -qx "$kept" "$file"; then
    echo "run_results.sh: $file lacks the line \"$kept\", from which on it is kept; add the line" >&2
    exit 2
fi
commit=${COMMIT:-$(git -C "$here" describe --always --dirty 2>/dev/null || echo unknown)} # COMMIT: of sources without git
new=$(mktemp "$file.XXXXXX")
trap 'rm -f "$new"' EXIT
trap 'exit 1' HUP INT TERM
printf '# %s\n\nMeasured by "make bench-%s".\n%s' "$device" "$machine" "$about" >"$new"
ATTN_CONFIG=$PWD/build.ini
export ATTN_CONFIG

case $machine in
h200)
    run "Whole calls" tools/attn bench --device cuda:0 --suite h200
    run "Shapes between the suites" tools/attn bench --device cuda:0 --workloads "$here/shapes.json"
    run_python torch "Peers that torch carries" "$here/peers_torch.py"
    run "Dense kernels" bench/flash_bench
    run "Encoders" bench/mm_encoder_bench plugins-built/mm_encoder.so
    run "Latent decode, kernels" bench/mla_decode_bench
    run "Latent layers through the ABI" bench/mla_bench plugins-built/mla.so
    run "Latent layers that take turns" env MLA_LAYERS=8 bench/mla_bench plugins-built/mla.so
    run "Selected tokens through the ABI" bench/mla_bench plugins-built/mla_sparse.so
    run "Latent prefill" bench/mla_prefill_bench plugins-built/mla.so plugins-built/flash.so
    run "Selected tokens, kernels" bench/mla_sparse_bench
    run "Indexer" bench/indexer_bench plugins-built/mla_sparse.so
    run "Run-time compiled kernels" bench/triton_bench plugins-built/triton_like.so
    run "Host of the machine: FLASH_ATTN" bench/flash_host_bench
    run "Host of the machine: FLASHMLA" bench/mla_host_bench
    ;;
cpu)
    run "Whole calls" tools/attn bench --device cpu --threads "$threads"
    run "Kernels" bench/cpu_kernels_bench -t "$threads"
    run_python numpy "Peers" "$here/peers_cpu.py" "$threads"
    run "Selected keys and the indexer, processor time" bench/cpu_sparse_bench plugins-built/cpu.so plugins-built/reference.so
    run "What the core costs a call" bench/bench_core_overhead
    run "What builders cost: FLASH_ATTN" bench/flash_host_bench
    run "What builders cost: FLASHMLA" bench/mla_host_bench
    run "The planner of TRITON_ATTN" bench/triton_plan_bench
    ;;
esac

if [ -e "$file" ]; then
    echo >>"$new"
    sed -n "/^$kept\$/,\$p" "$file" >>"$new"
fi
chmod 644 "$new"
mv "$new" "$file"
trap - EXIT
echo "run_results.sh: wrote $file" >&2
