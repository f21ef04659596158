#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# attn tune: what it measures, remembers and writes. Speed is not judged: the conclusions are tested over times that stand
# in a state file.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tools/tool_lib.sh"
OMP_NUM_THREADS=1
export OMP_NUM_THREADS
state=$tap_scratch/state.json
own="role=decoder num_heads=4 num_kv_heads=2 head_size=32 dtype=float32"
query() { "$ATTN_TEST_BUILDDIR/tests/tools/json_query" "$1" <"$tap_scratch/json"; }
# Both backends over the small problem: 2 contexts x (1 prefill + 2 decode).
both="tune --device cpu --time 1 --requests 1,3 --context 16,48 --backends CPU_ATTN,REFERENCE --no-options"

json "measures every point with every backend" measured 12 $both --state "$state" $own
ok "rows say what was measured" test "$(query rows.#)" -eq 12
ok "a time" sh -c "echo '$(query rows.0.seconds)' | awk '{ exit !(\$1 > 0) }'"
ok "an error" sh -c "echo '$(query rows.0.max_abs_error)' | awk '{ exit !(\$1 >= 0 && \$1 < 1e-4) }'"
ok "the role" test "$(query select.0.role)" = decoder
ok "the device" test "$(query select.0.device)" = cpu
json "goes on where it was" measured 0 $both --state "$state" $own
ok "with the same rows" test "$(query rows.11.remembered)" = true
json "another problem is measured" measured 12 $both --state "$state" $own sliding_window=8
json "and added" measured 0 $both --state "$state" $own
ok "no temporary file is left" test "$(find "$tap_scratch" -name 'state*' | wc -l)" -eq 1

# tell CPU_DECODE CPU_PREFILL REF_DECODE REF_PREFILL: a state in which every call took that many microseconds.
tell() {
    sed -E 's/"seconds": .*/"seconds": X/' "$state" |
        awk -v cd="$1" -v cp="$2" -v rd="$3" -v rp="$4" '
            /"seconds": X/ { us = is_ref ? (is_decode ? rd : rp) : (is_decode ? cd : cp); sub(/X/, us "e-6") }
            /; [0-9]+ x [0-9]+ of / { is_ref = /REFERENCE/; is_decode = / x 1 of / }
            { print }' >"$tap_scratch/told.json"
}
told="$both --state $tap_scratch/told.json"
tell 10 100 20 200
json "the faster one goes first" select.0.priority.0 CPU_ATTN $told $own
ok "and the other behind it" test "$(query select.0.priority.1)" = REFERENCE
ok "twice as slow" test "$(query select.0.times_the_best.1)" = 2.0
tell 80 100 20 100
json "the list follows the times" select.0.priority.0 REFERENCE $told $own
tell 30 100 10 200
json "decode and prefill weigh the same" select.0.priority.0 REFERENCE $told $own
json "unless told otherwise" select.0.priority.0 CPU_ATTN $told --decode-share 10 $own
ok "the phases' own winners: decode" test "$(query phases.0.decode)" = REFERENCE
ok "prefill" test "$(query phases.0.prefill)" = CPU_ATTN
ok "of both a pair: decode" test "$(query select.0.pair.decode)" = REFERENCE
ok "prefill" test "$(query select.0.pair.prefill)" = CPU_ATTN
ok "beside the best of both phases" test "$(query select.0.pair.alone)" = CPU_ATTN
ok "over one cache" test "$(query select.0.pair.one_cache)" = true
ok "as prefill is nine tenths, little is gained" sh -c "echo '$(query select.0.pair.time_ratio)' |
    awk '{ exit !(\$1 > 0.85 && \$1 < 0.95) }'"
tell 10 100 20 200
json "one that is best at both" select.0.pair.written false $told $own
ok "is no pair" test "$(query select.0.pair.decode)" = "$(query select.0.pair.prefill)"
tell 11 100 10 102
json "two that hardly differ" select.0.pair.written false $told $own
tell 30 100 10 200
json "two that do" select.0.pair.written true $told $own
ok "decode apart" test "$(query select.0.decode_times_the_best.1)" = 3.0
ok "prefill apart" test "$(query select.0.prefill_times_the_best.0)" = 2.0
wants "the table has both" 0 "REFERENCE  *1.00  *2.00  *1.41" $told $own
pair=$tap_scratch/pair.ini
wants "the pair is written" 0 "decode by REFERENCE and prefill by CPU_ATTN take 0.71 of the time of REFERENCE alone, over one" \
    $told --output "$pair" $own
ok "as the list of the phase that another is better at" grep -qx "prefill_priority = CPU_ATTN" "$pair"
ok "and that alone" sh -c "! grep -q ^decode_ '$pair'"
(umask 022 && cat "$ATTN_TEST_INI" "$pair" >"$tap_scratch/with_pair.ini")
wants "the library obeys" 0 "a group here has decode REFERENCE, prefill CPU_ATTN" select --device cpu \
    --config-file "$tap_scratch/with_pair.ini" $own
wants "attn plan says it" 0 "decode REFERENCE, prefill CPU_ATTN" plan --memory 1MiB --device cpu \
    --config-file "$tap_scratch/with_pair.ini" $own
json "attn bench who computed: decode" rows.0.backend REFERENCE bench --problem "$own" --requests 1 --seq 48 --time 1 \
    --device cpu --config-file "$tap_scratch/with_pair.ini"
json "prefill" rows.0.backend CPU_ATTN bench --problem "$own" --requests 1 --seq 48 --query 48 --time 1 \
    --device cpu --config-file "$tap_scratch/with_pair.ini"
tell 10 200 30 100
wants "the other way round, the list stays" 0 "^prefill_priority = REFERENCE" $told $own
sed -E 's/"error": .*,/"error": 0.1,/' "$tap_scratch/told.json" | awk '/REFERENCE/ { keep = 1 } /CPU_ATTN/ { keep = 0 }
    keep { sub(/"error": 0.1/, "\"error\": 0") } { print }' >"$tap_scratch/wrong.json"
json "what is wrong is not chosen" select.0.priority.0 REFERENCE $both --state "$tap_scratch/wrong.json" --decode-share 10 $own
ok "nor named" sh -c "! echo '$(query select.0.priority)' | grep -q CPU_ATTN"

tell 80 100 20 100
ini=$tap_scratch/tuned.ini
wants "writes the file" 0 "is written" $told --output "$ini" $own
ok "with the numbers" grep -q "decode 3 x 1 of 48: REFERENCE 20.0 us" "$ini"
(umask 022 && cat "$ATTN_TEST_INI" "$ini" >"$tap_scratch/attn.ini")
wants "which the library reads and obeys" 0 "REFERENCE .*chosen .*attn.ini:[0-9]" select --device cpu \
    --config-file "$tap_scratch/attn.ini" $own
wants "prints it otherwise" 0 "^priority = REFERENCE, CPU_ATTN" $told $own
wants "draws them" 0 "" $told --svg "$tap_scratch/tune.svg" $own
ok "a bar of the best, with its time" grep -q ">20.0 us, 1.00<" "$tap_scratch/tune.svg"
ok "one of the other, with how much longer it takes" grep -q ">80.0 us, 4.00<" "$tap_scratch/tune.svg"
ok "for each batch" test "$(grep -c '>REFERENCE<' "$tap_scratch/tune.svg")" -eq 6
ok "SVG, and complete" sh -c "grep -q '^<svg ' '$tap_scratch/tune.svg' && tail -n 1 '$tap_scratch/tune.svg' | grep -q '^</svg>'"
wants "what is wrong has no bar" 0 "" $both --state "$tap_scratch/wrong.json" --svg "$tap_scratch/wrong.svg" $own
ok "but its error" grep -q ">wrong by 1.0e-01<" "$tap_scratch/wrong.svg"
wants "a picture that cannot be written" 4 "No such file" $told --svg /no/such/a.svg $own
json "a setting beside the default" rows.1.setting "cpu.num_threads=1" tune --device cpu --time 1 --requests 1 --context 16 \
    --backends CPU_ATTN --no-options --vary cpu.num_threads=1 $own
json "names are tried by themselves" rows.1.setting "cpu.level=generic" tune --device cpu --time 1 --requests 1 --context 16 \
    --backends CPU_ATTN $own
wants "other processors' names are no rows" 0 "not of this machine or build: cpu.level=[a-z0-9]*" tune --device cpu --time 1 \
    --requests 1 --context 16 --backends CPU_ATTN $own
ok "nor failures" sh -c "! grep -q 'is not in this build; use' '$tap_scratch/out'"
json "encoders have no decode" measured 2 tune --device cpu --time 1 --requests 1,2 --context 8,16 --backends CPU_ATTN \
    --no-options role=encoder_only num_heads=2 head_size=32 dtype=float32

wants "not ascending" 2 "ascending" tune --requests 3,1 $own
wants "one of several ranks" 2 "leave --dcp away" tune --dcp 2 $own
wants "no number" 2 "ascending" tune --context x $own
wants "too many batches" 2 "more than 64 batches" tune --requests 1,2,3,4,5,6,7,8 --context 1,2,3,4,5,6,7,8 $own
wants "an unknown backend" 4 "did you mean .CPU_ATTN" tune --backends CPU_ATN $own
wants "a value that the option does not take" 4 "level" tune --device cpu --vary cpu.level=fast --no-options $own
wants "what nobody serves" 1 "attn select says why" tune --device cpu $own kv_cache_dtype=nvfp4 features=separate_kv
echo '{"rows": 3}' >"$tap_scratch/other.json"
wants "another file as state" 3 "is not a state file of attn tune" tune --device cpu --state "$tap_scratch/other.json" $own
wants "a device that is not here" 4 "nothing can run" tune --device sm_90 $own
tap_done
