#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# attn run: the real activations, every way to cut them into steps, random cases, and files that are wrong.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tools/tool_lib.sh"
encoder=$data/minilm-encoder.safetensors
decoder=$data/minilm-as-decoder.safetensors

wants "encoder" 0 "ok .* ok .* ms" run "$encoder" --device cpu
wants "decoder" 0 "pages of 16 tokens in random order" run "$decoder" --device cpu
json "decoder: near the reference" layers.0.error_to_reference.ok true run "$decoder" --device cpu
json "decoder: near the model" layers.0.error_to_model.ok true run "$decoder" --device cpu
json "the reference equals itself" layers.0.error_to_reference.max_abs 0.0 run "$decoder" --device cpu --backend REFERENCE
json "one layer only" layers.# 1 run "$encoder" --device cpu --layer 5
json "steps: 35 tokens in chunks of 16, 8 tokens one by one" layers.0.steps 10 run "$decoder" --device cpu
json "steps: all at once" layers.0.steps 1 run "$decoder" --device cpu --chunk 1000 --decode 0
json "steps: token by token" layers.0.steps 35 run "$decoder" --device cpu --chunk 1
for chunk in 1 7 16 33; do
    for block in 16 48; do
        wants "chunks of $chunk, pages of $block" 0 "ok .* ok" run "$decoder" --device cpu --chunk $chunk --block-size $block \
            --decode 3 --seed $chunk
    done
done
for kv in float16 bfloat16 fp8 fp8_e5m2 int8_per_token_head fp8_per_token_head turboquant_4bit_nc turboquant_3bit_nc; do
    wants "cache $kv" 0 "^  3 .* itself .* ok " run "$decoder" --device cpu --backend REFERENCE --kv-cache-dtype $kv
done
quality="run $decoder --device cpu --quality --option cpu.num_threads=1"
wants "quality: what int8 costs, by the oracle" 0 "^  int8_per_token_head  REFERENCE  *72  6.1e-03  6.7e-03  9.2e-06  *7.8e-05 " \
    $quality --backend REFERENCE
wants "quality: CPU_ATTN stores the same" 0 "^  turboquant_3bit_nc  *CPU_ATTN  *30  2.0e-01  1.9e-01  1.1e-02  *1.5e-01 " $quality \
    --svg "$tap_scratch/quality.svg"
ok "quality: the picture has every format that was measured" test "$(grep -c '<circle' "$tap_scratch/quality.svg")" = 15
wants "quality: encoders too, over a cache" 0 "^  int4_per_token_head  CPU_ATTN  *40  .*e-02 " run "$encoder" --device cpu \
    --layer 5 --quality --option cpu.num_threads=1
wants "quality: two codes a byte and a scale for 16" 0 "^  nvfp4  *CPU_ATTN  *36  1.1e-01  1.0e-01  3.5e-03  *3.2e-02 " $quality
printf '[attn]\nplugins = layer_fake\n[plugin layer_fake]\npath = %s\n' "$ATTN_TEST_BUILDDIR/tests/layer/.libs/layer_fake.so" \
    >"$tap_scratch/fake.ini"
wants "quality: int8 with scales of channels" 0 "^  int8_static_v  *CPU_ATTN  *68  1.5e-02  9.3e-03  9.2e-06  *7.8e-05 " $quality
wants "quality: what is not served" 1 "nvfp4: not served" run "$decoder" --device cpu --quality --config-file "$tap_scratch/fake.ini"
wants "quality: not of one format" 2 "leave out --kv-cache-dtype" $quality --kv-cache-dtype fp8
wants "quality: not of random numbers" 2 "leave out --problem" run --problem "role=decoder num_heads=4 head_size=64" --quality
wants "quality: no such folder" 4 "No such file" $quality --svg /no/such/folder/a.svg
wants "a picture of nothing" 2 "belongs to --quality" run "$decoder" --svg "$tap_scratch/no.svg"
for dtype in float16 bfloat16; do
    wants "rounded to $dtype" 0 " ok .* ok " run "$decoder" --device cpu --dtype $dtype
    json "rounded to $dtype: the problem" layers.0.problem ".*dtype=$dtype .*" run "$decoder" --device cpu --dtype $dtype
done
wants "an unknown dtype" 2 "expected float32, float16 or bfloat16" run "$decoder" --device cpu --dtype int3
wants "the output as a file" 0 "ok" run "$encoder" --device cpu --output "$tap_scratch/out.safetensors"
ok "the file is there, complete" sh -c "head -c 200 '$tap_scratch/out.safetensors' | grep -q attn-outputs && test ! -e '$tap_scratch/out.safetensors.part'"
wants "an output folder that is not there" 4 "No such file" run "$encoder" --device cpu --output /no/such/folder/out
wants "an unknown backend" 1 "." run "$encoder" --device cpu --backend NOTHING
wants "a device that is not here" 4 "nothing can run on sm_90 (not present)" run "$encoder" --device sm_90
wants "no file given" 2 "no file" run
wants "a file that is not there" 3 "No such file" run "$tap_scratch/none.safetensors"
wants "a layer that is not there" 3 "has no layer 77" run "$encoder" --device cpu --layer 77
wants "a folder" 3 "regular file" run "$tap_scratch"

# Other people's attention: windows, soft caps, sinks, grouped heads, encoder, decoder and cross attention.
for model in llama-gqa gemma2 gpt-oss bart; do
    file=$ATTN_TEST_SRCDIR/tests/tools/data/hf-$model.safetensors
    json "$model: near its own model" layers.0.error_to_model.ok true run "$file" --device cpu --chunk 7
    wants "$model: all layers" 0 " ok .* ok " run "$file" --device cpu --chunk 11 --decode 3
    wants "$model: the reference too" 0 " itself .* ok " run "$file" --device cpu --backend REFERENCE
done
wants "cross attention is among them" 0 "encoder_attn" run "$ATTN_TEST_SRCDIR/tests/tools/data/hf-bart.safetensors" --device cpu

# Wrong numbers are noticed: the model's output of another file in place of the right one.
cat "$decoder" >"$tap_scratch/wrong.safetensors"
size=$(wc -c <"$decoder")
printf '\000\000\000\101\000\000\000\101' | dd of="$tap_scratch/wrong.safetensors" bs=1 seek=$((size - 8)) conv=notrunc 2>/dev/null
wants "a wrong output is noticed" 1 "WRONG" run "$tap_scratch/wrong.safetensors" --device cpu

# What a backend does not write is NaN, whatever the step before left there.
# shellcheck disable=SC2086 # a compiler may have words before it
${ATTN_TEST_CC:-cc} -std=c11 -O1 -fPIC -shared -fvisibility=hidden -I"$ATTN_TEST_SRCDIR/include" \
    "$ATTN_TEST_SRCDIR/tests/kit/faults/writes_once.c" -lm -o "$tap_scratch/once.so"
printf '[attn]\nplugins = bad, reference\nplugin_dir = %s\n[plugin bad]\npath = %s\n' "$ATTN_TEST_PLUGIN_DIR" \
    "$tap_scratch/once.so" >"$tap_scratch/once.ini"
json "rows that a step does not write are no numbers" layers.0.error_to_reference.max_abs "1.0*1*e300" run "$decoder" --device cpu \
    --backend BAD_ATTN --config-file "$tap_scratch/once.ini"

# Truncated at many places: never a crash, always status 3.
cut_ok=1
for n in 0 1 7 8 9 100 500 1000 2000 $((size / 2)) $((size - 1)); do
    head -c "$n" "$decoder" >"$tap_scratch/cut.safetensors"
    "$attn" run "$tap_scratch/cut.safetensors" --device cpu >"$tap_scratch/out" 2>&1
    [ $? -eq 3 ] || { cut_ok=0 && echo "# cut at $n: status is not 3"; }
done
ok "cut files are refused" test $cut_ok -eq 1

wants "the oracle alone shows nothing, and says so" 0 "REFERENCE: ran; it is the oracle, so nothing was compared" run --device cpu --backend REFERENCE --seed 3 --problem 'role=decoder num_heads=4 num_kv_heads=2 head_size=32 dtype=float32'
wants "a random case with lengths" 0 "query_lens=1,5 seq_lens=40,5 .*seed=9" run --device cpu --problem 'role=decoder num_heads=4 head_size=32' \
    --query-lens 1,5 --seq-lens 40,5 --seed 9
line=$("$attn" run --device cpu --problem 'role=encoder_only num_heads=4 head_size=32 dtype=float32' --query-lens 3,17 --seed 4 | head -n 1)
wants "the printed line replays" 0 "query_lens=3,17 .*seed=4" run --device cpu --problem "$line"
line='role=decoder mask=per_request dtype=float32 num_heads=4 num_kv_heads=2 head_size=32 block_size=16 scale=0.25 features=mm_prefix,lse | query_lens=1,9 seq_lens=40,20 causal=0,1 spans=3-9,0-0;2-15,16-18 amplitude=2 padded_tokens=1 flags=1 seed=5'
json "every part of a line is read" case "$(printf '%s' "$line" | sed 's/[|]/[|]/')" run --device cpu --backend REFERENCE --problem "$line"
json "a random case as JSON" ok true run --device cpu --backend REFERENCE --problem "$line"
json "and so in JSON" compared false run --device cpu --backend REFERENCE --problem "$line"
latent='role=mla num_heads=4 head_size=576 kv_lora_rank=512 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128'
wants "latent attention on a CPU runs on CPU_ATTN, against the oracle" 0 "CPU_ATTN: ok" run --device cpu --problem "$latent" --query-lens 1 --seq-lens 9
case $(uname -m) in aarch64) other=avx2 ;; *) other=neon ;; esac
wants "a plugin's options count in a random case" 1 "WRONG: .*level" run --device cpu --backend CPU_ATTN --option cpu.level=$other \
    --problem 'role=decoder num_heads=4 head_size=32' --query-lens 1 --seq-lens 9
json "another backend is compared" compared true run --device cpu --backend CPU_ATTN --problem 'role=decoder num_heads=4 head_size=32'
wants "a layer of the oracle is held against the model alone" 0 "itself .* ok " run "$decoder" --device cpu --backend REFERENCE
json "which JSON says" layers.0.compared_with_reference false run "$decoder" --device cpu --backend REFERENCE
encoder='role=mm_encoder num_heads=4 head_size=32 dtype=float32'
wants "lengths of a role without a cache are its queries'" 2 "4 query tokens and a length of 9; role mm_encoder has no cache" \
    run --device cpu --problem "$encoder" --query-lens 4,4 --seq-lens 9,9
wants "but with lengths of their own" 0 "CPU_ATTN: ok" run --device cpu --problem "$encoder mask=full features=key_lengths" --query-lens 4,4 --seq-lens 9,2
wants "either says both" 0 "query_lens=9,9 seq_lens=9,9" run --device cpu --problem "$encoder" --seq-lens 9,9
wants "ranks are not in the problem" 2 "dcp_world_size is context parallelism" run --device cpu \
    --problem 'role=decoder num_heads=4 head_size=32 dcp_world_size=2'
# Over ranks: each one's outputs are one rank's, in both forms, with empty shares and windows, dense and latent.
shared='role=decoder num_heads=4 num_kv_heads=2 head_size=32 dtype=float32'
for world in 2 3 4; do
    json "$world ranks give what one gives" ranks.$((world - 1)).difference_from_one_rank.ok true \
        run --device cpu --ranks $world --problem "$shared" --query-lens 1,5,33,2 --seq-lens 77,300,110,2
done
json "ranks keep their part of the tokens" ranks.1.tokens 149 run --device cpu --ranks 2 --problem "$shared" --query-lens 1 --seq-lens 299
json "one rank is held against the oracle too" ranks.0.error_to_reference.ok true run --device cpu --ranks 2 --problem "$shared"
json "windows over ranks, sums scattered" ranks.2.difference_from_one_rank.ok true run --device cpu --ranks 3 --join reduce_scatter \
    --problem "$shared cp_interleave=16 block_size=16 sliding_window=96 features=sink" --query-lens 1,40 --seq-lens 400,90
json "latent attention over ranks" ranks.1.error_to_reference.ok true run --device cpu --ranks 2 --query-lens 1,3 --seq-lens 70,9 \
    --problem 'role=mla num_heads=2 head_size=80 kv_lora_rank=64 qk_nope_head_dim=32 qk_rope_head_dim=16 v_head_dim=32 dtype=float32'
json "ranks with the oracle as their backend" ranks.1.backend REFERENCE run --device cpu --ranks 2 --backend REFERENCE --problem "$shared"
wants "ranks as a table" 0 "^  1  *CPU_ATTN .*ok .*ok" run --device cpu --ranks 2 --problem "$shared"
wants "what is not split over ranks" 1 "excludes ALiBi" run --device cpu --ranks 2 --problem "$shared features=alibi"
wants "another number of ranks in the problem" 2 "dcp_world_size=3; they must be equal" run --device cpu --ranks 2 --problem "$shared dcp_world_size=3"
wants "one rank in the problem" 2 "runs every rank" run --device cpu --ranks 2 --problem "$shared dcp_world_size=2 dcp_rank=1"
wants "a join that is none" 2 "expected all_to_all or reduce_scatter" run --device cpu --ranks 2 --join ring --problem "$shared"
wants "a join without ranks" 2 "belongs to --ranks" run --device cpu --join all_to_all --problem "$shared"
wants "ranks of a file" 2 "belongs to --problem" run --device cpu --ranks 2 "$decoder"
wants "ranks of a line of attn check" 2 "of one backend alone" run --device cpu --ranks 2 --problem "$shared | query_lens=1 seq_lens=5"
wants "ranks and select agree" 1 "excludes ALiBi" select --device cpu $shared features=alibi dcp_world_size=2
wants "lengths that do not match" 2 "one of each" run --device cpu --problem 'role=decoder num_heads=4 head_size=32' --query-lens 1,2 --seq-lens 4
wants "a query longer than its sequence" 2 "includes them" run --device cpu --problem 'role=decoder num_heads=4 head_size=32' --query-lens 9 --seq-lens 4
wants "lengths that are none" 2 "expected 1 to .* lengths" run --device cpu --problem 'role=decoder num_heads=4 head_size=32' --query-lens a,b
wants "a problem that a backend alone does not have" 2 "static_sink_len is not run here" run --device cpu \
    --problem 'role=decoder num_heads=4 head_size=32 static_sink_len=16 block_size=16'
wants "a problem that is none" 2 "num_heads" run --device cpu --problem 'role=decoder head_size=32'
wants "a device that is not here, for a random case" 4 "nothing can run on sm_90 (not present)" run --device sm_90 \
    --problem 'role=decoder num_heads=4 head_size=32'

# A case on a GPU: a driver that is none, and the example plugin under a table that says CUDA (kit_bad_on_gpu.sh).
mkdir -p "$tap_scratch/gpu" && chmod 700 "$tap_scratch" "$tap_scratch/gpu"
ln -s "$ATTN_TEST_BUILDDIR/tests/layer/.libs/layer_fake_driver.so" "$tap_scratch/gpu/libcuda.so.1"
if ${ATTN_TEST_CC:-cc} -std=c11 -fPIC -shared -fvisibility=hidden -DBAD_ON_GPU -I"$ATTN_TEST_SRCDIR/include" \
    "$ATTN_TEST_SRCDIR/tests/kit/faults/good.c" -lm -o "$tap_scratch/gpu/bad.so" 2>"$tap_scratch/err"; then
    printf '[attn]\nplugins = bad, reference\n[plugin bad]\npath = %s\n[plugin reference]\npath = %s\n' \
        "$tap_scratch/gpu/bad.so" "$ATTN_TEST_PLUGIN_DIR/reference.so" >"$tap_scratch/gpu/attn.ini"
    LD_LIBRARY_PATH=$tap_scratch/gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
    wants "a random case on a GPU" 0 "BAD_ATTN: ok" run --device cuda:0 --backend BAD_ATTN \
        --config-file "$tap_scratch/gpu/attn.ini" \
        --problem 'role=decoder num_heads=4 num_kv_heads=2 head_size=32 dtype=float32' --query-lens 1,9 --seq-lens 40,20
else
    fail "a random case on a GPU" "$(cat "$tap_scratch/err")"
fi

# The words of a case: all are read, or none.
d="role=decoder num_heads=2 head_size=16"
wants "a whole case" 0 "REFERENCE: ran" run --device cpu --backend REFERENCE --problem \
    "$d | query_lens=1,2 seq_lens=5,2 amplitude=2 padded_tokens=3 flags=0 seed=9"
wants "spans and a mask for each request" 0 "REFERENCE: ran" run --device cpu --backend REFERENCE --problem \
    "$d mask=per_request features=mm_prefix | query_lens=3,3 seq_lens=5,3 causal=1,0 spans=0-1,3-4;0-0,1-2 seed=9"
for inputs in normal constant large_mean uniform needle geometric alternating channel equal_keys ends large \
    small; do
    json "inputs=$inputs" case ".* inputs=$inputs .*" run --device cpu --backend REFERENCE --problem \
        "$d | query_lens=1,2 seq_lens=5,2 inputs=$inputs seed=9"
done
wants "inputs of latent rows no longer than a value" 0 "REFERENCE: ran" run --device cpu --backend REFERENCE \
    --problem \
    "role=mla num_heads=4 head_size=160 kv_lora_rank=128 qk_nope_head_dim=128 qk_rope_head_dim=32 \
v_head_dim=128 | query_lens=1 seq_lens=9 inputs=needle"
wants "inputs that are none" 2 "inputs is 'needles'; expected a family of inputs" run --problem \
    "$d | query_lens=1 seq_lens=5 inputs=needles"
wants "an amplitude beside inputs" 2 "amplitude is '2'; expected none beside inputs" run --problem \
    "$d | query_lens=1 seq_lens=5 inputs=needle amplitude=2"
wants "a word too many" 2 "'extra' after the bar is not a known key" run --problem "$d | query_lens=1 seq_lens=5 extra"
wants "a near miss" 2 "did you mean seq_lens" run --problem "$d | query_lens=1 seq_len=5"
wants "a word twice" 2 "is given twice" run --problem "$d | seed=1 seed=2"
wants "a second bar" 2 "'|' after the bar is not a known key" run --problem "$d | query_lens=1 | seq_lens=5"
wants "another separator" 2 "--problem" run --problem "$d ; query_lens=1"
wants "another separator of lengths" 2 "expected 1 to .* lengths" run --problem "$d | query_lens=1;2 seq_lens=5,5"
wants "no value" 2 "has no value" run --problem "$d | query_lens= seq_lens=5"
wants "a number with a tail" 2 "seed is '3x'" run --problem "$d | query_lens=1 seq_lens=5 seed=3x"
wants "too few numbers" 2 "for each of the 2 requests" run --problem "$d mask=per_request | query_lens=1,1 seq_lens=5,5 causal=1"
wants "spans with another separator" 2 "begin-end" run --problem \
    "$d features=mm_prefix | query_lens=3 seq_lens=3 spans=0:1"
tap_done
