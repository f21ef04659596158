#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# attn run: the real activations, every way to cut them into steps, random cases, and files that are wrong.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tool_lib.sh"
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
for kv in float16 bfloat16 fp8 fp8_e5m2 int8_per_token_head fp8_per_token_head; do
    wants "cache $kv" 0 "^  3 .* ok .* ok " run "$decoder" --device cpu --backend REFERENCE --kv-cache-dtype $kv
done
for dtype in float16 bfloat16; do
    wants "rounded to $dtype" 0 " ok .* ok " run "$decoder" --device cpu --dtype $dtype
    json "rounded to $dtype: the problem" layers.0.problem ".*dtype=$dtype .*" run "$decoder" --device cpu --dtype $dtype
done
wants "an unknown dtype" 2 "bfloat16 was wanted" run "$decoder" --device cpu --dtype int3
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
    file=$ATTN_TEST_SRCDIR/tests/data/hf-$model.safetensors
    json "$model: near its own model" layers.0.error_to_model.ok true run "$file" --device cpu --chunk 7
    wants "$model: all layers" 0 " ok .* ok " run "$file" --device cpu --chunk 11 --decode 3
    wants "$model: the reference too" 0 " ok .* ok " run "$file" --device cpu --backend REFERENCE
done
wants "cross attention is among them" 0 "encoder_attn" run "$ATTN_TEST_SRCDIR/tests/data/hf-bart.safetensors" --device cpu

# Wrong numbers are noticed: the model's output of another file in place of the right one.
cat "$decoder" >"$tap_scratch/wrong.safetensors"
size=$(wc -c <"$decoder")
printf '\000\000\000\101\000\000\000\101' | dd of="$tap_scratch/wrong.safetensors" bs=1 seek=$((size - 8)) conv=notrunc 2>/dev/null
wants "a wrong output is noticed" 1 "WRONG" run "$tap_scratch/wrong.safetensors" --device cpu

# Truncated at many places: never a crash, always status 3.
cut_ok=1
for n in 0 1 7 8 9 100 500 1000 2000 $((size / 2)) $((size - 1)); do
    head -c "$n" "$decoder" >"$tap_scratch/cut.safetensors"
    "$attn" run "$tap_scratch/cut.safetensors" --device cpu >"$tap_scratch/out" 2>&1
    [ $? -eq 3 ] || { cut_ok=0 && echo "# cut at $n: status is not 3"; }
done
ok "cut files are refused" test $cut_ok -eq 1

wants "a random case" 0 "REFERENCE: ok" run --device cpu --backend REFERENCE --seed 3 --problem 'role=decoder num_heads=4 num_kv_heads=2 head_size=32 dtype=float32'
wants "a random case with lengths" 0 "query_lens=1,5 seq_lens=40,5 .*seed=9" run --device cpu --problem 'role=decoder num_heads=4 head_size=32' \
    --query-lens 1,5 --seq-lens 40,5 --seed 9
line=$("$attn" run --device cpu --problem 'role=encoder_only num_heads=4 head_size=32 dtype=float32' --query-lens 3,17 --seed 4 | head -n 1)
wants "the printed line replays" 0 "query_lens=3,17 .*seed=4" run --device cpu --problem "$line"
line='role=decoder mask=per_request dtype=float32 num_heads=4 num_kv_heads=2 head_size=32 block_size=16 scale=0.25 features=mm_prefix,lse | query_lens=1,9 seq_lens=40,20 causal=0,1 spans=3-9,0-0;2-15,16-18 amplitude=2 padded_tokens=1 flags=1 seed=5'
json "every part of a line is read" case "$(printf '%s' "$line" | sed 's/[|]/[|]/')" run --device cpu --backend REFERENCE --problem "$line"
json "a random case as JSON" ok true run --device cpu --backend REFERENCE --problem "$line"
wants "lengths that do not match" 2 "one of each" run --device cpu --problem 'role=decoder num_heads=4 head_size=32' --query-lens 1,2 --seq-lens 4
wants "a query longer than its sequence" 2 "includes them" run --device cpu --problem 'role=decoder num_heads=4 head_size=32' --query-lens 9 --seq-lens 4
wants "lengths that are none" 2 "lengths were wanted" run --device cpu --problem 'role=decoder num_heads=4 head_size=32' --query-lens a,b
wants "a problem that a backend alone does not have" 2 "static_sink_len is not run here" run --device cpu \
    --problem 'role=decoder num_heads=4 head_size=32 static_sink_len=16 block_size=16'
wants "a problem that is none" 2 "num_heads" run --device cpu --problem 'role=decoder head_size=32'
wants "a device that is not here, for a random case" 4 "nothing can run on sm_90 (not present)" run --device sm_90 \
    --problem 'role=decoder num_heads=4 head_size=32'

# A case on a GPU: a driver that is none, and the example plugin under a table that says CUDA (kit_bad_on_gpu.sh).
mkdir -p "$tap_scratch/gpu" && chmod 700 "$tap_scratch" "$tap_scratch/gpu"
ln -s "$ATTN_TEST_BUILDDIR/tests/.libs/layer_fake_driver.so" "$tap_scratch/gpu/libcuda.so.1"
if ${ATTN_TEST_CC:-cc} -std=c11 -fPIC -shared -fvisibility=hidden -DBAD_ON_GPU -I"$ATTN_TEST_SRCDIR/include" \
    "$ATTN_TEST_SRCDIR/tests/badplugins-kit/good.c" -lm -o "$tap_scratch/gpu/bad.so" 2>"$tap_scratch/err"; then
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
tap_done
