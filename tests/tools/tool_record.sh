#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# attn record and attn run --replay: a program's calls recorded and executed again on every CPU backend; wrong outputs and
# damaged files are told apart from good ones.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tools/tool_lib.sh"
decoder=$data/minilm-as-decoder.safetensors
file=$tap_scratch/calls.safetensors
TMPDIR=$tap_scratch/tmp
export TMPDIR
mkdir "$TMPDIR"

# recorded NAME WORD...: records two calls of `attn run WORD...` with tensors and replays them.
recorded() {
    recorded_name=$1
    shift
    rm -f "$file"
    wants "$recorded_name: recorded" 0 "replay it with: attn run --replay" record --tensors --first 1 --calls 2 --output "$file" -- \
        "$attn" run "$@" --device cpu
    wants "$recorded_name: replayed" 0 "call 1: .*" run --replay "$file"
    wants "$recorded_name: replayed by the reference" 0 "the recorded output to REFERENCE .* ok" run --replay "$file" --backend REFERENCE
}
recorded "decoder with a paged cache" "$decoder"
recorded "encoder" "$data/minilm-encoder.safetensors"
recorded "fp8 cache" "$decoder" --kv-cache-dtype fp8
recorded "cache with scales in its rows" "$decoder" --kv-cache-dtype int8_per_token_head --backend REFERENCE
recorded "sinks and windows" "$ATTN_TEST_SRCDIR/tests/tools/data/hf-gpt-oss.safetensors" --chunk 7
recorded "cross attention" "$ATTN_TEST_SRCDIR/tests/tools/data/hf-bart.safetensors"
if [ -f "$ATTN_TEST_PLUGIN_DIR/cpu.so" ]; then
    recorded "recorded with the reference" "$decoder" --backend REFERENCE
    json "another backend near the recorded output" calls.1.to_recorded.ok true run --replay "$file" --backend CPU_ATTN
else
    skip "another backend near the recorded output" "the cpu plugin is not built"
fi

# Two backends over one cache: each call says whose it is, and is replayed by that one.
if [ -f "$ATTN_TEST_PLUGIN_DIR/cpu.so" ]; then
    (umask 022 && { cat "$ATTN_TEST_INI" && printf '[select decoder]\nprefill_priority = REFERENCE\n'; } >"$tap_scratch/two.ini")
    ok "two backends: recorded" sh -c "ATTN_CONFIG='$tap_scratch/two.ini' '$attn' record --tensors --calls 20 --output '$file' -- \
        '$attn' run '$decoder' --device cpu --decode 4 >/dev/null 2>&1"
    json "a chunk of the prompt is prefill's" calls.0.recorded_backend REFERENCE run --replay "$file"
    json "a step of decode the other's" calls.5.recorded_backend CPU_ATTN run --replay "$file"
    json "and is replayed by it" calls.5.to_recorded.max_abs 0.0 run --replay "$file"
    rm -f "$file"
else
    skip "two backends: recorded" "the cpu plugin is not built"
fi

# One call of the reference, for the JSON and for damage.
"$attn" record --tensors --output "$file" -- "$attn" run "$decoder" --device cpu --backend REFERENCE >/dev/null 2>&1
json "the reference equals its recording" calls.0.to_recorded.max_abs 0.0 run --replay "$file"
json "as JSON" calls.0.verdict "all agree" run --replay "$file"
ok "the recording is its owner's alone" sh -c "ls -l '$file' | grep -q '^-rw-------'"
ok "nothing else is left behind" sh -c "test \$(ls '$tap_scratch' | grep -c calls) -eq 1"

# damaged NAME STATUS TEXT SED: the file with its header changed by a sed script that keeps the length.
damaged() {
    LC_ALL=C sed "$4" "$file" >"$tap_scratch/damaged"
    wants "$1" "$2" "$3" run --replay "$tap_scratch/damaged"
}
damaged "another kind of file" 3 "no format = attn-record; attn record makes such files" 's/"attn-record"/"attn-recorx"/'
damaged "a newer version" 3 "use the attn that recorded it" 's/"version":"1"/"version":"2"/'
damaged "no calls" 3 "nothing was recorded" 's/"calls":"1"/"calls":"0"/'
damaged "more calls than there are" 3 "call 1: problem is missing; record the call again" 's/"calls":"1"/"calls":"2"/'
damaged "a problem that is none" 3 "problem of call 0" 's/role=decoder/role=decodes/'
damaged "another head size" 3 "query does not have the shape" 's/ head_size=32/ head_size=64/'
damaged "another count of requests" 3 "query_start_loc does not have the shape" 's/num_reqs=3/num_reqs=2/'
damaged "no query" 3 "query is missing" 's/"calls.0.query":/"calls.0.queri":/'
damaged "no block table" 3 "block_table is missing" 's/"calls.0.block_table":/"calls.0.block_tabel":/'
damaged "another layout" 1 "lays out a cache row differently" 's/ v_offset=[0-9]/ v_offset=7/'
damaged "a call that did not return" 0 "the process ended within this call" 's/"calls.0.status":/"calls.0.statuz":/'
for crafted in crafted_axis crafted_axis_token; do
    wants "extents that are not the cache's: $crafted" 3 "kv_cache does not have the shape that its layout says" run --replay \
        "$ATTN_TEST_SRCDIR/tests/fuzz/corpus/fuzz_replay_call/$crafted"
done
wants "an activations file" 3 "attn run FILE without --replay" run --replay "$decoder"
wants "a file that is not there" 3 "No such file" run --replay "$tap_scratch/none"
wants "a file and a replay" 2 "one of a file" run "$decoder" --replay "$file"
wants "an unknown backend" 1 "." run --replay "$file" --backend NOTHING

# Wrong numbers: the last bytes of the file are the output's.
cat "$file" >"$tap_scratch/wrong"
printf '\000\000\000\101' | dd of="$tap_scratch/wrong" bs=1 seek=$(($(wc -c <"$file") - 4)) conv=notrunc 2>/dev/null
wants "a wrong recorded output is told" 1 "the recorded output differs; the replay agrees with the reference" run --replay \
    "$tap_scratch/wrong"
cut_ok=1 size=$(wc -c <"$file")
for n in 0 7 8 100 1000 2000 $((size / 2)) $((size - 1)); do
    head -c "$n" "$file" >"$tap_scratch/cut"
    "$attn" run --replay "$tap_scratch/cut" >"$tap_scratch/out" 2>&1
    [ $? -eq 3 ] || { cut_ok=0 && echo "# cut at $n: status is not 3"; }
done
ok "cut files are refused" test $cut_ok -eq 1

# Shapes alone become random cases.
wants "shapes alone" 0 "replay it with" record --calls 2 --output "$file" -- "$attn" run "$decoder" --device cpu
wants "are replayed with random numbers" 0 "call 1: recorded with .* without tensors" run --replay "$file"
json "as JSON, too" calls.1.ok true run --replay "$file" --backend REFERENCE
wants "by the reference" 0 "REFERENCE: ran" run --replay "$file" --backend REFERENCE

# The command around it.
wants "the status is the command's" 7 "nothing was recorded: sh made no attention call" record --output "$file" -- sh -c 'exit 7'
wants "success without a call is none" 1 "nothing was recorded" record --output "$file" -- true
wants "a signal is told as a shell does" 143 "nothing was recorded" record --output "$file" -- sh -c 'kill -TERM $$'
wants "a command that is not there" 127 "No such file" record --output "$file" -- /no/such/command
ok "which is all that is said" sh -c "! '$attn' record --output '$file' -- /no/such/command 2>&1 | grep -q recorded"
wants "no command" 2 "give it after --" record
wants "a folder that is not there" 4 "name a file in a folder that can be written" record --output /no/such/folder/x -- \
    "$attn" run "$decoder" --device cpu
wants "a name that INI files cannot hold" 2 "without ; #" record --output 'a;b' -- true
wants "a file for each process" 0 "in place of %p" record --output "$tap_scratch/p-%p" -- "$attn" run "$decoder" --device cpu
ok "has its number" sh -c "ls '$tap_scratch' | grep -q '^p-[0-9]*\$'"
printf '[hook record]\ncalls = 5\nfirst = 1\n[select decoder]\nbackend = REFERENCE\n' >"$tap_scratch/own.ini"
cat "$ATTN_CONFIG" >>"$tap_scratch/own.ini"
ATTN_CONFIG=$tap_scratch/own.ini
wants "the caller's own configuration stays in force" 0 "replay it with" record --output "$file" -- "$attn" run \
    "$decoder" --device cpu
wants "but for the recording" 0 "call 0: recorded with REFERENCE" run --replay "$file"
ok "one call, not five" sh -c "! '$attn' run --replay '$file' | grep -q 'call 1:'"
ATTN_CONFIG=/no/such.ini
wants "a configuration that cannot be read" 4 "correct or unset it" record -- true
ok "no configuration is left behind" sh -c "! ls '$TMPDIR' | grep -q '^attn-record-'"
tap_done
