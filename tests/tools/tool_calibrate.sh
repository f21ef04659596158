#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# attn calibrate: files of scales from real tensors, taken up again, and what is refused without touching them.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tools/tool_lib.sh"
encoder=$data/minilm-encoder.safetensors
decoder=$data/minilm-as-decoder.safetensors
out=$tap_scratch/v.json

wants "two layers of a file" 0 "2 layers written" calibrate "$encoder" --output "$out"
wants "tokens are counted" 0 "encoder.layer.5.attention.self *12 *32 *184 " calibrate "$encoder" --output "$out" --resume
wants "another file adds a layer" 0 "3 layers written" calibrate "$decoder" --output "$out" --resume
json "as JSON" layers.2.tokens 120 calibrate "$decoder" --output "$out" --resume
cp "$out" "$tap_scratch/kept.json"
wants "a file that exists" 2 "resume adds to it" calibrate "$decoder" --output "$out"
wants "no output" 2 "output is missing" calibrate "$decoder"
wants "no input" 2 "no file" calibrate --output "$out"
wants "an input that is not there" 3 "No such file" calibrate "$tap_scratch/none.safetensors" --output "$out" --resume
wants "an input of another kind" 3 "." calibrate "$out" --output "$out" --resume
ok "the file is as it was" cmp "$out" "$tap_scratch/kept.json"
head -c 1000 "$out" >"$tap_scratch/cut.json"
wants "a file that is cut short" 3 "cut short" calibrate "$decoder" --output "$tap_scratch/cut.json" --resume
ok "and stays" test "$(wc -c <"$tap_scratch/cut.json")" -eq 1000
wants "going on with nothing" 3 "No such file" calibrate "$decoder" --output "$tap_scratch/new.json" --resume
wants "a folder that is not there" 4 "No such file" calibrate "$decoder" --output /no/such/folder/v.json
wants "the scales in use" 0 "^  3 .* ok .* ok " run "$decoder" --device cpu --kv-cache-dtype int8_static_v --calibration "$out"
wants "by the reference" 0 "^  3 .* itself .* ok " run "$decoder" --device cpu --kv-cache-dtype int8_static_v --backend REFERENCE
"$attn" calibrate "$encoder" --output "$tap_scratch/others.json" >/dev/null
wants "without the layer" 4 "no layer 'encoder.layer.3.*did you mean" run "$decoder" --device cpu --kv-cache-dtype int8_static_v \
    --calibration "$tap_scratch/others.json"
wants "with a file of another kind" 3 "is no calibration\|cut short" run "$decoder" --device cpu --kv-cache-dtype int8_static_v \
    --calibration "$decoder"
tap_done
