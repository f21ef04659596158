#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# attn plan: bytes that can be worked out by hand.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tools/tool_lib.sh"

llama="--device cpu --model $configs/llama-3.1-8b.json --memory 80GiB"
# 8 KV heads x 256 values x 2 bytes x 16 tokens = 64 KiB a page; 32 layers x 8192 pages = 16 GiB for 131072 tokens.
json "page bytes" plans.0.layers.0.page_bytes 65536 plan $llama --backend REFERENCE
json "shape" plans.0.layers.0.shape "\[1,8,16,256\]" plan $llama --backend REFERENCE
json "bytes of one sequence" plans.0.bytes_per_sequence 17179869184 plan $llama --backend REFERENCE
json "sequences" plans.0.sequences 5 plan $llama --backend REFERENCE
json "tokens of a single sequence" plans.0.tokens_in_one_sequence 655360 plan $llama --backend REFERENCE
json "fp8 takes half" plans.1.bytes_per_sequence 8589934592 plan $llama --backend REFERENCE
json "8 bits with inline scales" plans.2.layers.0.page_bytes 33792 plan $llama --backend REFERENCE
json "one of 2 ranks that share the tokens: half the pages of a sequence" plans.0.layers.0.max_blocks_per_sequence 4096 plan $llama --backend REFERENCE --dcp 2
json "and twice as many sequences, 8 GiB each, fit" plans.0.sequences 10 plan $llama --backend REFERENCE --dcp 2 --max-len 131072
json "one rank of 8" plans.0.layers.0.page_bytes 8192 plan $llama --backend REFERENCE --tp 8
json "shorter sequences" plans.0.sequences 160 plan $llama --backend REFERENCE --max-len 4096
# Gemma 3: 29 layers keep their window of 1024 and the step's 8192 tokens (577 pages), 5 keep all 8192 pages; 64 KiB each.
json "windows cost their window" plans.0.bytes_per_sequence 3780968448 plan --device cpu --memory 80GiB \
    --model "$configs/gemma-3-4b.json" --backend REFERENCE --kv-cache-dtype auto
# DeepSeek V3: 576 values x 2 bytes x 163840 tokens x 61 layers.
json "latent attention" plans.0.bytes_per_sequence 11513364480 plan --device cpu --memory 80GiB \
    --model "$configs/deepseek-v3.json" --kv-cache-dtype auto
# V3.2 as fp8: 656 bytes of its latent and 132 of the indexer's key (semantics 9.4), 163840 tokens, 61 layers.
json "the keys of an indexer" plans.0.bytes_per_sequence 7875461120 plan --device cpu --memory 80GiB \
    --model "$configs/deepseek-v3.2.json" --kv-cache-dtype fp8
wants "are shown" 0 "keys of its indexer *61 .*132" plan --device cpu --memory 80GiB --model "$configs/deepseek-v3.2.json"
json "a format that latents do not have" plans.0.possible false plan --device cpu --memory 80GiB \
    --model "$configs/deepseek-v3.json" --kv-cache-dtype nvfp4
wants "is said" 0 "nvfp4 .*latent rows have no such form" plan --device cpu --memory 80GiB --model "$configs/deepseek-v3.json" \
    --kv-cache-dtype auto,nvfp4
json "one that another device serves is counted" plans.0.possible true plan --device sm_90 --memory 80GiB \
    --model "$configs/llama-3.1-8b.json" --kv-cache-dtype fp8
# 8 KV heads x (2 x 64 bytes of codes + 2 scales) x 16 tokens.
json "int4 page bytes" plans.0.layers.0.page_bytes 17408 plan $llama --kv-cache-dtype int4_per_token_head
json "int4 is served" plans.0.served true plan $llama --kv-cache-dtype int4_per_token_head
json "int4: sequences" plans.0.sequences 18 plan $llama --kv-cache-dtype int4_per_token_head
# 8 KV heads x (2 x 64 bytes of codes + 2 x 8 scales) x 16 tokens.
json "nvfp4 page bytes" plans.0.layers.0.page_bytes 18432 plan $llama --kv-cache-dtype nvfp4
json "nvfp4: sequences" plans.0.sequences 17 plan $llama --kv-cache-dtype nvfp4
# A plugin that keeps float32 alone.
printf '[attn]\nplugins = layer_fake\n[plugin layer_fake]\npath = %s\n' "$ATTN_TEST_BUILDDIR/tests/layer/.libs/layer_fake.so" \
    >"$tap_scratch/fake.ini"
fake="$llama --config-file $tap_scratch/fake.ini --kv-cache-dtype nvfp4"
json "what nobody serves fits nowhere" plans.0.sequences null plan $fake
json "though its pages are known" plans.0.layers.0.page_bytes 18432 plan $fake
wants "nobody is named" 0 "nvfp4 .*no loaded backend serves it" plan $fake
wants "and no count stands there" 0 "nvfp4 .*not served  *-" plan $fake
json "cross attention is counted" plans.0.layers.1.spec cross_attention plan --device cpu --memory 1GiB \
    --model "$configs/whisper-small.json" --kv-cache-dtype auto
wants "a table" 0 "sequences that fit" plan $llama
wants "too little memory" 0 "  0 " plan --device cpu --model "$configs/llama-3.1-8b.json" --memory 1MiB --kv-cache-dtype auto
wants "encoders keep nothing" 1 "no KV cache" plan --device cpu --model "$configs/bert-base.json" --memory 1GiB
wants "no memory given" 2 "--memory is missing" plan --model "$configs/bert-base.json"
wants "an unknown cache dtype" 2 "fp9" plan $llama --kv-cache-dtype auto,fp9
wants "no file" 3 "No such file" plan --model /no/such.json --memory 1GiB
wants "a window and a problem of words" 0 "longest single sequence" plan --device cpu --memory 1GiB role=decoder num_heads=8 \
    head_size=64 sliding_window=128
tap_done
