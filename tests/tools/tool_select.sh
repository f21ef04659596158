#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# attn select: every model family, problems, devices that are not here, explicit backends, bad config.json.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tools/tool_lib.sh"

# kinds FILE COUNT "PATH VALUE" ...: that model has COUNT kinds of layers, with these values.
kinds() {
    file=$1
    json "$file: $2 kinds" kinds.# "$2" select --device cpu --model "$configs/$file.json"
    shift 2
    for pair in "$@"; do
        got=$("$ATTN_TEST_BUILDDIR/tests/tools/json_query" "kinds.${pair%% *}" <"$tap_scratch/json")
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
kinds deepseek-v2-lite 1 "0.problem role=mla .*num_heads=16.*head_size=576" "0.problem kv_lora_rank=512"
kinds deepseek-v3 1 "0.problem scale=0.1352" "0.problem v_head_dim=128"
kinds deepseek-v3.2 1 "0.problem role=mla_sparse" "0.problem topk=2048"
kinds kimi-k2 1 "0.problem num_heads=64.*head_size=576" "0.problem scale=0.1308"
kinds glm-4.7-flash 1 "0.problem num_heads=20.*head_size=576" "0.problem scale=0.0625" "0.problem v_head_dim=256"
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
wants "selected tokens have a fast backend on a CPU" 0 "CPU_ATTN *chosen" select --device cpu \
    --model "$ATTN_TEST_SRCDIR/examples/configs/deepseek-v3.2.json"
wants "a backend that is asked for is chosen" 0 "REFERENCE *chosen *explicit" select --device cpu --backend REFERENCE $select_problem
wants "a device that is not here" 1 "sm_90 (not present)" select --device sm_90 --backend REFERENCE $select_problem
wants "why the reference does not run there" 1 "REFERENCE *no .*cpu" select --device sm_90 --backend REFERENCE $select_problem
wants "an unknown backend" 1 "." select --device cpu --backend NO_SUCH_BACKEND $select_problem
wants "an unknown device" 4 "abacus" select --device abacus $select_problem
wants "the reason of a refusal" 1 "nvfp4 rows hold a multiple of 16 values" select --device cpu --backend REFERENCE role=decoder \
    num_heads=8 head_size=72 kv_cache_dtype=nvfp4
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
wants "config: says what is left out" 0 "without softmax attention" select --device cpu --model "$tap_scratch"
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
json "config: a tower of images beside latent attention" kinds.1.problem ".*role=mm_encoder .*num_heads=16 .*head_size=72 .*" \
    select --device cpu --model "$tap_scratch"
printf '{"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2, "sliding_window": 8, "sliding_window_pattern": "LG",
    "layer_types": ["sliding_attention", "full_attention"]}' >"$tap_scratch/config.json"
json "config: a pattern in words beside layer_types" kinds.0.problem ".*sliding_window=8 .*" select --device cpu --model "$tap_scratch"
wants "config: no file" 3 "No such file" select --device cpu --model "$tap_scratch/nothing.json"
wants "config: a folder with config.json in it" 0 "." select --device cpu --model "$configs/../configs/bert-base.json"
printf '{"model_type": "brandnew", "num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2}' >"$tap_scratch/config.json"
wants "config: an unknown type is read with a note" 0 "brandnew.*not in the table" select --device cpu --model "$tap_scratch"

# Fields that concern attention and are not understood are named; those of the examples all are.
for config in "$configs"/*.json; do
    json "${config##*/}: nothing is left over" not_understood.# 0 select --device cpu --model "$config"
done
sizes='"num_attention_heads": 8, "hidden_size": 512, "num_hidden_layers": 4'
# left_over TYPE NAMES FIELDS: of that model and these fields beside the sizes, the names are the ones that are said.
left_over() {
    printf '{"model_type": "%s", %s, %s}' "$1" "$sizes" "$3" >"$tap_scratch/config.json"
    json "$1, $3: '$2' left over" not_understood "\\[$2\\]" select --device cpu --model "$tap_scratch/config.json"
}
# the rest of a real file: projections, positions, experts, training
left_over brandnew '' '"attention_bias": true, "attention_dropout": 0.1, "attn_pdrop": 0.1, "qkv_bias": true, "use_qk_norm": true'
left_over brandnew '' '"rope_scaling": {"type": "yarn", "attention_factor": 2}, "rope_theta": 1e4, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.5'
left_over brandnew '' '"num_experts_per_tok": 8, "moe_layer_freq": 2, "decoder_sparse_step": 1, "final_logit_softcapping": 30.0, "vocab_size": 7'
left_over brandnew '' '"_attn_implementation": "eager", "use_flash_attn": true, "use_cache": true, "attention_probs_dropout_prob": 0.1'
left_over whisper '' '"mask_time_prob": 0.05, "mask_feature_length": 10, "encoder_layers": 2, "encoder_attention_heads": 8, "decoder_attention_heads": 8'
left_over brandnew '' '"sliding_window": null, "attention_chunk_size": 0, "use_sliding_window": false, "cross_attention_layers": []'
# windows, patterns and hybrids whose code is not known
left_over brandnew '"sliding_window"' '"sliding_window": 128'
left_over brandnew '"hybrid_layer_pattern","sliding_window"' '"hybrid_layer_pattern": [0, 1, 1, 1], "sliding_window": 128'
left_over brandnew '"swa_num_key_value_heads","swa_head_dim"' '"swa_num_key_value_heads": 8, "swa_head_dim": 192'
left_over brandnew '"add_swa_attention_sink_bias"' '"add_swa_attention_sink_bias": true'
left_over brandnew '"full_attention_interval","linear_key_head_dim"' '"full_attention_interval": 4, "linear_key_head_dim": 128'
left_over brandnew '"hybrid_override_pattern","mamba_num_heads"' '"hybrid_override_pattern": "M-M*", "mamba_num_heads": 8'
left_over brandnew '"attn_layer_period","attn_layer_offset"' '"attn_layer_period": 8, "attn_layer_offset": 4'
left_over brandnew '"layers_block_type"' '"layers_block_type": ["recurrent", "attention"]'
left_over brandnew '"attention_types"' '"attention_types": [[["global", "local"], 12]]'
left_over brandnew '"attention_window"' '"attention_window": [512, 512]'
left_over brandnew '"kv_channels"' '"kv_channels": 128'
left_over brandnew '"num_kv_shared_layers"' '"num_kv_shared_layers": 20'
left_over brandnew '"query_pre_attn_scalar"' '"query_pre_attn_scalar": 144'
left_over brandnew '"position_embedding_type"' '"position_embedding_type": "alibi"'
left_over brandnew '' '"position_embedding_type": "relative_key_query"'
wants "config: vectors for distances are a reason" 1 "no backend serves it: position_embedding_type is relative_key_query" select --device cpu --model "$tap_scratch"
left_over brandnew '"scale_attn_by_inverse_layer_idx"' '"scale_attn_by_inverse_layer_idx": true'
left_over brandnew '"is_causal"' '"is_causal": true'
left_over brandnew '"sparse_attention_config"' '"sparse_attention_config": {"block": 64}'
left_over brandnew '"audio_config"' '"audio_config": {"num_attention_heads": 20}'
# a known type is not trusted with what it does not have
left_over llama '"attn_type_list"' '"attn_type_list": [1, 0]'
# nor with the fields of another type's windows, unless they are switched off
left_over llama '"sliding_window"' '"sliding_window": 128'
left_over llama '"attention_chunk_size"' '"attention_chunk_size": 256'
left_over llama '"global_attn_every_n_layers"' '"global_attn_every_n_layers": 3'
left_over llama '"sliding_window","max_window_layers","use_sliding_window"' \
    '"sliding_window": 128, "max_window_layers": 2, "use_sliding_window": true'
left_over llama '' '"sliding_window": 128, "max_window_layers": 2, "use_sliding_window": false'
left_over mistral '' '"sliding_window": 128'
left_over mistral '"attention_chunk_size"' '"sliding_window": 128, "attention_chunk_size": 256'
left_over qwen2 '' '"sliding_window": 128, "max_window_layers": 4, "use_sliding_window": true'
left_over llama '"is_causal"' '"is_causal": false'
left_over bert '' '"is_causal": false'
left_over llama '"layer_types: foo_attention"' \
    '"layer_types": ["foo_attention", "full_attention", "foo_attention", "linear_attention"]'
left_over llama '' '"layer_types": ["conv", "full_attention", "mamba", "linear_attention"]'
printf '{"model_type": "brandnew", %s, "text_config": {"model_type": "brandnew", %s, "global_head_dim": 512}}' "$sizes" "$sizes" >"$tap_scratch/config.json"
json "config: the path of a field inside" not_understood '\["text_config.global_head_dim"\]' select --device cpu --model "$tap_scratch/config.json"
wants "config: and for people" 0 "not understood.*text_config.global_head_dim" select --device cpu --model "$tap_scratch/config.json"
printf '{"model_type": "brandnew", "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "hidden_size": 4096,
    "num_hidden_layers": 2}' >"$tap_scratch/config.json"
json "config: values of another size than keys" kinds.0.problem ".*head_size=192 head_size_v=128 .*" select --device cpu --model "$tap_scratch"

# the format that a checkpoint's cache was calibrated for
quantised() {
    printf '{"model_type": "llama", %s, "quantization_config": {"quant_method": "compressed-tensors", %s}}' "$sizes" "$1" >"$tap_scratch/config.json"
}
quantised '"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": false}'
json "config: kv_cache_scheme" kinds.0.problem ".*kv_cache_dtype=fp8_e4m3.*" select --device cpu --model "$tap_scratch"
json "config: kv_cache_scheme gives way" kinds.0.problem ".*kv_cache_dtype=bfloat16.*" select --device cpu --kv-cache-dtype bfloat16 --model "$tap_scratch"
quantised '"kv_cache_quant_algo": "FP8"'
json "config: kv_cache_quant_algo" kinds.0.problem ".*kv_cache_dtype=fp8_e4m3.*" select --device cpu --model "$tap_scratch"
quantised '"kv_cache_scheme": {"num_bits": 4, "type": "int"}'
json "config: a kv_cache_scheme of 4 bits is not understood" not_understood '\["quantization_config.kv_cache_scheme"\]' select --device cpu --model "$tap_scratch"
quantised '"kv_cache_scheme": null'
json "config: no kv_cache_scheme" not_understood.# 0 select --device cpu --model "$tap_scratch"

# T5 adds a learned bias to the scores of self attention
printf '{"model_type": "t5", "d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": 6, "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128}' >"$tap_scratch/config.json"
wants "T5: the engine's part is told" 0 "expands its 32 buckets, which end at distance 128" select --device cpu --model "$tap_scratch"
json "T5: encoder" kinds.0.problem ".*features=rel_bias.*" select --device cpu --model "$tap_scratch"
json "T5: decoder" kinds.1.selection.backend "CPU_ATTN" select --device cpu --model "$tap_scratch"
json "T5: a decoder on a GPU" kinds.1.selection.backend "TRITON_ATTN" select --device sm_90 --model "$tap_scratch"
json "T5: cross attention has none" kinds.2.problem ".*scale=1" select --device cpu --model "$tap_scratch"
left_over brandnew '' '"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128'
json "and for a type that is not known" kinds.0.problem ".*features=rel_bias.*" select --device cpu --model "$tap_scratch"

if [ -e "$ATTN_TEST_PLUGIN_DIR/triton_like.so" ]; then # no NVIDIA GPU from 7.5 on is without a latent backend
    latent="role=mla num_heads=16 qk_rope_head_dim=64 qk_nope_head_dim=128 v_head_dim=128 scale=0.1 mask=causal"
    usual="head_size=576 kv_lora_rank=512"
    for sm in 75 80 86 87 89 90 100 103 110 120 121; do
        for kv in auto fp8_e4m3; do
            # shellcheck disable=SC2086 # words
            wants "latent attention on sm_$sm, $kv" 0 "TRITON_MLA *\(chosen\|eligible\)" select --device sm_$sm $latent \
                $usual dtype=float16 kv_cache_dtype=$kv
        done
    done
    # shellcheck disable=SC2086
    wants "Turing has no bfloat16" 1 "tensor cores of sm_75 have no bfloat16" select --device sm_75 $latent $usual \
        dtype=bfloat16
    # shellcheck disable=SC2086
    wants "what 64 KiB do not hold" 1 "do not fit the 65536 bytes" select --device sm_75 $latent \
        dtype=float16 kv_lora_rank=1024 head_size=1088
fi

ranks="--device sm_90 role=decoder dtype=bfloat16 num_heads=8 head_size=64 dcp_world_size=2"
if [ -e "$ATTN_TEST_PLUGIN_DIR/flash.so" ]; then
    # shellcheck disable=SC2086 # words
    wants "ranks of a GPU" 0 "FLASH_ATTN *chosen" select $ranks
else
    # shellcheck disable=SC2086
    wants "ranks of a GPU" 1 "no loaded plugin joins the results of ranks on cuda" select $ranks
fi
# Context parallelism: the core's for decoders and latent attention on CPUs; no backend has one of its own.
dense="num_heads=8 num_kv_heads=8 head_size=64"
latent="num_heads=8 head_size=576 kv_lora_rank=512 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128"
for words in "role=decoder $dense" "role=encoder $dense" "role=encoder_only $dense" "role=encoder_decoder $dense" \
    "role=mm_encoder $dense" "role=mla $latent" "role=mla_prefill $latent" "role=mla_sparse $latent topk=128"; do
    case $words in
    "role=decoder "* | "role=mla "*)
        wants "${words%% *} over ranks" 0 "REFERENCE" select --device cpu --backend REFERENCE $words dcp_world_size=2 ;;
    *) wants "${words%% *} over ranks" 1 "REFERENCE .*role [a-z_]* is not split over ranks" select --device cpu $words dcp_world_size=2 ;;
    esac
    wants "${words%% *}, features=dcp" 1 "REFERENCE .*does not support .*dcp" select --device cpu $words features=dcp
done
# a warning of the selection is part of the answer, once; the log has it where it is asked for
alone="role=mla dtype=float32 num_heads=2 head_size=72 kv_lora_rank=64 qk_rope_head_dim=8 qk_nope_head_dim=16 v_head_dim=16"
printed_times() { # NAME COUNT ARGUMENTS..: how often the warning is printed
    name=$1 count=$2
    shift 2
    found=$("$attn" "$@" 2>&1 | grep -c 'only REFERENCE, the slow oracle')
    if [ "$found" -eq "$count" ]; then pass "$name"; else fail "$name" "$found times"; fi
}
printf '[attn]\nplugins = reference, cpu\nplugin_dir = %s\n[select mla]\npriority = FLASHMLA, REFERENCE\n' "$ATTN_TEST_PLUGIN_DIR" >"$tap_scratch/alone.ini"
printed_times "a warning of the selection is printed once" 1 select "$alone" --device cpu --config-file "$tap_scratch/alone.ini"
printed_times "and logged with --verbose" 2 select "$alone" --device cpu --verbose --config-file "$tap_scratch/alone.ini"
tap_done
