#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# attn bench: the smallest suite, its JSON and its picture. Speed is not judged here.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tools/tool_lib.sh"

own="role=decoder num_heads=4 num_kv_heads=2 head_size=32 dtype=float32"
json "own workload" rows.0.name yours bench --device cpu --threads 1 --time 1 --problem "$own" --requests 2 --seq 64
query() { "$ATTN_TEST_BUILDDIR/tests/tools/json_query" "$1" <"$tap_scratch/json"; }
# keys and values: 2 requests x 64 tokens x 2 heads x 64 values x 4 bytes; 4 x 32 x 4 heads x 128 pairs
ok "its bytes" test "$(query rows.0.bytes)" = 65536.0
ok "its work" test "$(query rows.0.flops)" = 65536.0
ok "its error is small" sh -c "echo '$(query rows.0.max_abs_error)' | awk '{ exit !(\$1 >= 0 && \$1 < 1e-4) }'"
ok "it took time" sh -c "echo '$(query rows.0.median_seconds)' | awk '{ exit !(\$1 > 0) }'"
ok "it has a ceiling" sh -c "echo '$(query rows.0.ceilings.0.rate)' | awk '{ exit !(\$1 > 0) }'"
json "prefill counts half" rows.0.flops "1064960.0" bench --device cpu --threads 1 --time 1 --problem "$own" --query 64 --seq 64
json "a window counts what it shows" rows.0.flops "32768.0" bench --device cpu --threads 1 --time 1 \
    --problem "$own sliding_window=64" --seq 512
# 3 requests: 40 x 2 heads x 64 values x 4 bytes each key; 4 x 32 x 4 heads x (1 + 9 + 30) pairs
json "requests of several lengths" rows.0.bytes 20480.0 bench --device cpu --threads 1 --time 1 --problem "$own" --lens 1,9,30
ok "their work" test "$(query rows.0.flops)" = 20480.0
ok "their error is small" sh -c "echo '$(query rows.0.max_abs_error)' | awk '{ exit !(\$1 >= 0 && \$1 < 1e-4) }'"
json "as many queries as keys" rows.0.flops 261632.0 bench --device cpu --threads 1 --time 1 --query 0 --lens 1,9,30 \
    --problem "$own"
ok "with a small error" sh -c "echo '$(query rows.0.max_abs_error)' | awk '{ exit !(\$1 >= 0 && \$1 < 1e-4) }'"
e4m3="${own% dtype=*} query_dtype=fp8_e4m3 kv_cache_dtype=fp8_e4m3"
json "queries of bytes are made, and checked" rows.0.max_abs_error "0[.]0[0-9]*" bench --device cpu --threads 1 --time 1 \
    --backend REFERENCE --problem "$e4m3" --seq 64
wants "a length that is none" 2 "5,100,33" bench --device cpu --problem "$own" --lens 4,x
wants "no length at all" 2 "5,100,33" bench --device cpu --problem "$own" --lens ""
wants "a length below the query" 2 "part of the keys" bench --device cpu --problem "$own" --query 5 --lens 9,4
wants "the cache writer" 0 "C1 write 8192 .*GB/s" bench --device cpu --threads 1 --time 1 --suite h200 --rows C1 \
    --svg "$tap_scratch/writer.svg"
ok "is in the picture" sh -c "grep -q 'C1 write 8192' '$tap_scratch/writer.svg'"
wants "sinks, slopes and caps are checked too" 0 "e-0" bench --device cpu --threads 1 --time 1 --query 5 --seq 40 \
    --problem "$own features=sink,alibi logits_soft_cap=30"
wants "the table and the picture" 0 "workload " bench --device cpu --threads 1 --time 1 --suite quick --rows vision,prefill \
    --svg "$tap_scratch/bench.svg"
ok "with a roof of each kind" sh -c "grep -q '>f32 FMA ' '$tap_scratch/bench.svg'"
ok "the picture is SVG and complete" sh -c "grep -q '^<svg ' '$tap_scratch/bench.svg' && tail -n 1 '$tap_scratch/bench.svg' | grep -q '^</svg>'"
wants "a picture that cannot be written" 4 "No such file" bench --device cpu --threads 1 --time 1 --problem "$own" --svg /no/such/a.svg
wants "a row that is none, beside one that is" 2 "--rows has 'prefil1'" bench --device cpu --suite quick --rows vision,prefil1
wants "a row without a name, beside one with" 2 "--rows has ''" bench --device cpu --suite quick --rows vision,,prefill
wants "an unknown suite" 2 "suites are" bench --device cpu --suite marathon
wants "a query longer than the keys" 2 "part of the keys" bench --device cpu --problem "$own" --query 9 --seq 4
wants "cross attention" 0 "yours .*e-0" bench --device cpu --time 1 --requests 2 --query 40 --seq 30 \
    --problem 'role=encoder_decoder num_heads=4 head_size=32 dtype=float32'
latent="num_heads=4 kv_lora_rank=512 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128"
wants "latent attention" 0 "yours .*e-0" bench --device cpu --time 1 --seq 100 --problem "role=mla head_size=576 $latent"
wants "over selected tokens" 0 "yours .*e-0" bench --device cpu --time 1 --query 2 --seq 200 \
    --problem "role=mla_sparse topk=128 head_size=576 $latent"
wants "the MHA part of latent attention" 0 "yours .*e-0" bench --device cpu --time 1 --query 20 --seq 20 \
    --problem "role=mla_prefill head_size=192 $latent"
for kind in static group group,out_scale_ue8m0 nvfp4; do
    type=out_dtype=fp8_e4m3 name=out_fp8_$kind most=0.2
    [ $kind = nvfp4 ] && type=out_dtype=uint8 name=out_nvfp4 most=0.5
    json "quantised outputs, $kind" rows.0.name yours bench --device cpu --backend CPU_ATTN --threads 1 --time 1 --requests 2 --seq 64 \
        --problem "role=decoder num_heads=4 num_kv_heads=2 head_size=32 dtype=float32 $type features=$name"
    # half a step at the largest value: more than float32 is off by, less than a wrong scale
    ok "are checked against double, $kind" sh -c "echo '$(query rows.0.max_abs_error)' | awk '{ exit !(\$1 > 1e-4 && \$1 < $most) }'"
done
wants "what no backend serves is a failed row" 1 "failed" bench --device cpu --time 1 --problem "$own kv_cache_dtype=nvfp4 features=separate_kv" --seq 64
# A file of workloads.
works() { echo "$1" >"$tap_scratch/works.json"; }
works "[{\"name\": \"one\", \"problem\": \"$own\", \"requests\": 2, \"seq_len\": 64},
        {\"name\": \"two\", \"problem\": \"$own\", \"seq_lens\": [1, 9, 30], \"query_len\": 0, \"backend\": \"REFERENCE\"},
        {\"name\": \"write\", \"problem\": \"$own\", \"seq_len\": 64, \"is_write\": true}]"
json "workloads of a file" rows.0.bytes 65536.0 bench --device cpu --threads 1 --time 1 --workloads "$tap_scratch/works.json"
ok "lengths of its second" test "$(query rows.1.flops)" = 261632.0
ok "and backend" test "$(query rows.1.backend)" = REFERENCE
ok "the first has the selected one" test "$(query rows.0.backend)" = CPU_ATTN
ok "the third writes" test "$(query rows.2.flops)" = 0.0
json "some of them" rows.0.name two bench --device cpu --threads 1 --time 1 --workloads "$tap_scratch/works.json" --rows tw
wants "a name that none has" 2 "no row of .*works.json" bench --device cpu --workloads "$tap_scratch/works.json" --rows three
wants "a file and a suite" 2 "give one of them" bench --device cpu --workloads "$tap_scratch/works.json" --suite cpu
wants "no such file" 3 "/no/such.json" bench --device cpu --workloads /no/such.json
refuses() { # NAME REGEX TEXT
    works "$3"
    wants "$1" 3 "$2" bench --device cpu --workloads "$tap_scratch/works.json"
}
refuses "a file that is no list" "not a list of workloads" '{}'
refuses "an empty list" "not a list of workloads" '[]'
refuses "text that is no JSON" "works.json:1:" '[{"name": }]'
one="\"name\": \"a\", \"problem\": \"$own\""
refuses "an unknown key" "workload 1 has the key seqlen" "[{$one, \"seq_len\": 8, \"seqlen\": 8}]"
refuses "no length" "workload 1 has a key missing" "[{$one}]"
refuses "two kinds of lengths" "workload 1 has a key missing" "[{$one, \"seq_len\": 8, \"seq_lens\": [8]}]"
refuses "a workload that is no object" "workload 2 has a key missing" "[{$one, \"seq_len\": 8}, 7]"
refuses "a text for a number" "'seq_len' is not an integer from 1" "[{$one, \"seq_len\": \"8\"}]"
refuses "a number below the least" "'requests' is not an integer from 1" "[{$one, \"seq_len\": 8, \"requests\": 0}]"
refuses "a length that is none" "'seq_lens'.1. is no length" "[{$one, \"seq_lens\": [8, 0]}]"
refuses "a length below the query" "less than 'query_len', 9" "[{$one, \"seq_lens\": [9, 8], \"query_len\": 9}]"
refuses "no lengths" "not a list of lengths" "[{$one, \"seq_lens\": []}]"
refuses "a problem that is none" "a: column 24" '[{"name": "a", "problem": "role=decoder head_size=x", "seq_len": 8}]'
refuses "more keys than one can address" "all of it must be addressable" "[{$one, \"seq_len\": 200000000, \"query_len\": 200000000, \"requests\": 99}]"
wants "every workload of shapes.json is one" 2 "no row of .*shapes.json" bench --device cpu --rows none \
    --workloads "$ATTN_TEST_SRCDIR/bench/shapes.json"
# Over ranks, beside one alone.
json "each rank's communication is timed" rows.0.ranks.1.exchanges 2 bench --device cpu --time 1 --threads 1 --ranks 2 --problem "$own" --seq 200 --requests 3
json "three exchanges scatter sums" rows.0.ranks.1.exchanges 3 bench --device cpu --time 1 --threads 1 --ranks 2 --join reduce_scatter --problem "$own" --seq 200
json "one rank beside them" rows.0.ranks.0.tokens 100 bench --device cpu --time 1 --threads 1 --ranks 2 --problem "$own" --seq 200
wants "as a table" 0 "one rank alone, with all heads: .*the slowest of 3" bench --device cpu --time 1 --threads 1 --ranks 3 --problem "$own" --seq 200
wants "what is not split over ranks" 1 "failed: .*role mm_encoder is not split" bench --device cpu --time 1 --threads 1 --ranks 2 --suite quick --rows vision
wants "a picture of ranks" 2 "leave it away with --ranks" bench --device cpu --ranks 2 --problem "$own" --seq 9 --svg "$tap_scratch/ranks.svg"
# Latent attention watched: inspected, with a second backend beside it (each absorbs the projections for itself), and as
# a timeline.
{
    cat "$ATTN_TEST_INI"
    printf '[hook check]\nlevel = all\n[hook shadow]\nbackend = REFERENCE\nsample = 1\n[hook trace]\nfile = %s\nformat = chrome\n' "$tap_scratch/trace.json"
} >"$tap_scratch/watched.ini"
latent="role=mla mask=causal dtype=bfloat16 num_heads=4 head_size=192 kv_lora_rank=128 qk_rope_head_dim=64 scale=0.1"
for form in "qk_nope_head_dim=32 v_head_dim=32" "features=latent"; do
    wants "a shadow of latent attention, $form" 0 "REFERENCE beside CPU_ATTN: [1-9][0-9]* of [0-9]* calls compared, .*at most 0.*in layer bench.layers.0.attn" \
        bench --verbose --config-file "$tap_scratch/watched.ini" --device cpu --backend CPU_ATTN --threads 1 --time 1 \
        --problem "$latent $form" --requests 2 --seq 40 --query 3
done
wants "no shadow of outputs with block scales, which the call writes in the engine's tensor" 0 "outputs with block scales are written in two" \
    bench --verbose --config-file "$tap_scratch/watched.ini" --device cpu --backend CPU_ATTN --threads 1 --time 1 --seq 40 \
    --problem "role=decoder num_heads=4 head_size=128 dtype=float32 out_dtype=fp8_e4m3 features=out_fp8_group"
{ sed '$ s/,$//' "$tap_scratch/trace.json" && echo ']'; } >"$tap_scratch/whole.json"
ok "the timeline is JSON once it is closed" "$ATTN_TEST_BUILDDIR/tests/tools/json_query" 0.ph <"$tap_scratch/whole.json"
tap_done
