#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# attn select: every model family, problems, devices that are not here, explicit backends, bad config.json.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tool_lib.sh"

# kinds FILE COUNT "PATH VALUE" ...: that model has COUNT kinds of layers, with these values.
kinds() {
    file=$1
    json "$file: $2 kinds" kinds.# "$2" select --device cpu --model "$configs/$file.json"
    shift 2
    for pair in "$@"; do
        got=$("$ATTN_TEST_BUILDDIR/tests/json_query" "kinds.${pair%% *}" <"$tap_scratch/json")
        if printf '%s\n' "$got" | grep -q -e "${pair#* }"; then pass "$file: ${pair%% *}"; else
            fail "$file: ${pair%% *}" "is '$got', wanted '${pair#* }'"
        fi
    done
}
kinds llama-3.1-8b 1 "0.num_layers ^32$" "0.problem num_heads=32 num_kv_heads=8 head_size=128 scale=0.0883883" \
    "0.problem max_model_len=131072" "0.problem mask=causal dtype=bfloat16"
kinds qwen3-8b 1 "0.problem head_size=128 scale"
kinds qwen2-7b-window 2 "0.layers ^0-20$" "1.layers ^21-27$" "1.problem sliding_window=32768"
kinds mistral-7b-v0.1 1 "0.problem sliding_window=4096"
kinds gemma-2-9b 2 "0.layers ^0,2,..,40$" "0.layer_numbers.20 ^40$" "1.layer_numbers.0 ^1$" "0.problem sliding_window=4096" "0.problem scale=0.0625 logits_soft_cap=50" \
    "1.problem head_size=256 scale"
kinds gemma-3-4b 3 "0.layers ^0-4,6-10,12-16,18-22,24-28,30-33$" "0.problem sliding_window=1024" "1.layers ^5,11,..,29$" \
    "1.problem features=mm_prefix" "2.kind ^vision encoder$" "2.problem role=mm_encoder mask=full .*num_heads=16.*head_size=72"
kinds gpt-oss-20b 2 "0.problem sliding_window=128.*features=sink" "1.problem head_size=64 scale=0.125 features=sink"
kinds llama-4-scout 2 "0.layer_numbers.35 ^46$" "0.problem chunk_size=8192" "1.layers ^3,7,..,47$"
kinds deepseek-v2-lite 2 "0.problem role=mla .*num_heads=16.*head_size=576" "0.problem kv_lora_rank=512" \
    "1.problem role=mla_prefill" "1.problem head_size=192"
kinds deepseek-v3 2 "0.problem scale=0.1352" "0.problem v_head_dim=128"
kinds deepseek-v3.2 2 "0.problem role=mla_sparse" "0.problem topk=2048"
kinds kimi-k2 2 "0.problem num_heads=64.*head_size=576" "0.problem scale=0.1308"
kinds glm-4.7-flash 2 "0.problem num_heads=20.*head_size=576" "0.problem scale=0.0625" "0.problem v_head_dim=256" \
    "1.problem head_size=256"
kinds whisper-small 3 "0.problem role=encoder mask=full" "1.problem role=decoder mask=causal" \
    "2.problem role=encoder_decoder mask=full" "0.problem max_model_len=1500"
kinds bert-base 1 "0.problem role=encoder_only mask=full dtype=float32" "0.selection.backend [A-Z]"
kinds modernbert-base 2 "0.layers ^0,3,..,21$" "1.problem sliding_window=65"
kinds qwen2.5-vl-7b 2 "0.problem num_heads=28 num_kv_heads=4" "1.problem role=mm_encoder.*num_heads=16.*head_size=80"
kinds llava-1.5-7b 2 "0.problem num_heads=32 num_kv_heads=32 head_size=128" "0.num_layers ^32$" "1.problem role=mm_encoder.*head_size=64"
kinds mpt-7b 1 "0.problem features=alibi"
kinds bloom-7b1 1 "0.problem dtype=float16.*features=alibi"

select_problem="role=decoder num_heads=8 num_kv_heads=2 head_size=64"
wants "a problem of words" 0 "REFERENCE" select --device cpu $select_problem
wants "a backend that is asked for is chosen" 0 "REFERENCE *chosen *explicit" select --device cpu --backend REFERENCE $select_problem
wants "a device that is not here" 1 "sm_90 (not present)" select --device sm_90 --backend REFERENCE $select_problem
wants "why the reference does not run there" 1 "REFERENCE *no .*cpu" select --device sm_90 --backend REFERENCE $select_problem
wants "an unknown backend" 1 "." select --device cpu --backend NO_SUCH_BACKEND $select_problem
wants "an unknown device" 4 "abacus" select --device abacus $select_problem
wants "the reason of a refusal" 1 "nvfp4" select --device cpu --backend REFERENCE role=decoder num_heads=8 \
    head_size=64 kv_cache_dtype=nvfp4
json "changes: cache dtype" kinds.0.problem ".*kv_cache_dtype=fp8_e4m3.*" select --device cpu --kv-cache-dtype fp8 $select_problem
json "changes: block size" kinds.0.problem ".*block_size=32.*" select --device cpu --block-size 32 $select_problem
json "changes: dtype" kinds.0.problem ".*dtype=float16.*" select --device cpu --dtype float16 $select_problem
json "changes: ranks" kinds.0.problem ".*num_heads=4 num_kv_heads=1.*" select --device cpu --tp 8 --model "$configs/llama-3.1-8b.json"
wants "heads that do not divide" 2 "--tp" select --device cpu --tp 3 $select_problem
wants "an unknown cache dtype is guessed" 2 "fp8_e4m3" select --device cpu --kv-cache-dtype fp8_e4m4 $select_problem
wants "an unknown dtype" 2 "bfloat16" select --device cpu --dtype int7 $select_problem
wants "nothing to look at" 2 "give --model FILE" select --device cpu
wants "model and problem" 2 "exclude each other" select --model "$configs/bert-base.json" $select_problem
wants "an unknown word" 2 "num_heads" select --device cpu role=decoder num_head=8 head_size=64
wants "heads that do not fit" 2 "num_kv_heads" select --device cpu role=decoder num_heads=8 num_kv_heads=3 head_size=64
wants "no role" 2 "role" select --device cpu num_heads=8 head_size=64

# config.json that are wrong: each an error that names file and field.
bad() { # NAME TEXT CONTENT
    printf '%s' "$3" >"$tap_scratch/config.json"
    wants "config: $1" 3 "config.json.*$2" select --device cpu --model "$tap_scratch/config.json"
}
bad "empty" "1:0" ""
bad "cut off" "1:34" '{"model_type": "llama", "hidden_si'
bad "a list" "not a JSON object" '[1, 2]'
bad "a field twice" "duplicate" '{"model_type": "llama", "model_type": "bert"}'
bad "no heads" "num_attention_heads" '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}'
bad "negative heads" "num_attention_heads" '{"num_attention_heads": -4, "hidden_size": 64, "num_hidden_layers": 2}'
bad "heads as text" "num_attention_heads" '{"num_attention_heads": "4", "hidden_size": 64, "num_hidden_layers": 2}'
bad "half a head" "num_attention_heads" '{"num_attention_heads": 4.5, "hidden_size": 64, "num_hidden_layers": 2}'
bad "too many heads" "too big" '{"num_attention_heads": 99999999999999999999, "hidden_size": 64, "num_hidden_layers": 2}'
bad "indivisible hidden size" "hidden_size" '{"num_attention_heads": 5, "hidden_size": 64, "num_hidden_layers": 2}'
bad "indivisible KV heads" "num_key_value_heads" '{"num_attention_heads": 4, "num_key_value_heads": 3, "hidden_size": 64, "num_hidden_layers": 2}'
bad "no layers" "num_hidden_layers" '{"num_attention_heads": 4, "hidden_size": 64}'
bad "a million layers" "num_hidden_layers" '{"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 1000000}'
bad "short layer_types" "layer_types" '{"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2, "layer_types": ["full_attention"]}'
bad "numbers in layer_types" "layer_types" '{"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 1, "layer_types": [1]}'
bad "unknown dtype" "torch_dtype" '{"torch_dtype": "int3", "num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2}'
bad "text_config that is a number" "text_config" '{"text_config": 3}'
bad "MLA without its sizes" "qk_nope_head_dim" '{"num_attention_heads": 4, "kv_lora_rank": 64, "num_hidden_layers": 2}'
bad "no attention at all" "no attention layer" '{"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 1, "layer_types": ["linear_attention"]}'
# transformers leaves out what is the class's default: the text_config of LLaVA 1.5
printf '{"model_type": "llava", "torch_dtype": "float16", "text_config": {"max_position_embeddings": 4096, "model_type": "llama"},
    "vision_config": {"hidden_size": 1024, "model_type": "clip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 24}}' \
    >"$tap_scratch/config.json"
json "config: sizes of the class" kinds.0.problem ".*num_heads=32 num_kv_heads=32 head_size=128 .*" select --device cpu \
    --model "$tap_scratch"
# Kimi: a hybrid whose list of attention layers counts from 1, and a tower of images with names of its own
mla='"num_attention_heads": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_hidden_layers": 8'
hybrid() { printf '{"model_type": "kimi_linear", %s, "linear_attn_config": {"full_attn_layers": %s}}' "$mla" "$1" >"$tap_scratch/config.json"; }
hybrid "[4, 8]"
json "config: latent layers of a hybrid" kinds.0.layer_numbers "\[3,7\]" select --device cpu --model "$tap_scratch"
wants "config: says what is left out" 0 "not softmax attention" select --device cpu --model "$tap_scratch"
hybrid "[0, 4]"
wants "config: there is no layer 0" 3 "full_attn_layers .*from 1 to 8" select --device cpu --model "$tap_scratch"
hybrid '"all"'
wants "config: no list of layers" 3 "full_attn_layers" select --device cpu --model "$tap_scratch"
printf '{"model_type": "kimi_k25", "text_config": {"model_type": "kimi_k2", %s}, "vision_config": {"vt_hidden_size": 1152,
    "vt_num_attention_heads": 16, "vt_num_hidden_layers": 27}}' "$mla" >"$tap_scratch/config.json"
printf '{"model_type": "llava", "text_config": {"model_type": "llama", "torch_dtype": "float16"}, "vision_config": {"hidden_size": 1024,
    "num_attention_heads": 16, "num_hidden_layers": 24}}' >"$tap_scratch/silent.json"
json "config: a tower that says no dtype has the text's" kinds.1.problem ".*role=mm_encoder .*dtype=float16 .*" \
    select --device cpu --model "$tap_scratch/silent.json"
json "config: a tower of images beside latent attention" kinds.2.problem ".*role=mm_encoder .*num_heads=16 .*head_size=72 .*" \
    select --device cpu --model "$tap_scratch"
printf '{"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2, "sliding_window": 8, "sliding_window_pattern": "LG",
    "layer_types": ["sliding_attention", "full_attention"]}' >"$tap_scratch/config.json"
json "config: a pattern in words beside layer_types" kinds.0.problem ".*sliding_window=8 .*" select --device cpu --model "$tap_scratch"
wants "config: no file" 3 "No such file" select --device cpu --model "$tap_scratch/nothing.json"
wants "config: a folder with config.json in it" 0 "." select --device cpu --model "$configs/../configs/bert-base.json"
printf '{"model_type": "brandnew", "num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2}' >"$tap_scratch/config.json"
wants "config: an unknown type is read with a note" 0 "brandnew.*not in the table" select --device cpu --model "$tap_scratch"
tap_done
