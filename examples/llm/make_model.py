#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a small random Llama checkpoint: config.json and model.safetensors, the same bytes everywhere.

    python3 make_model.py FOLDER

Needs nothing but Python. Weights come from splitmix64 as multiples of 2^-24, so that no rounding is involved.
"""
import array
import json
import os
import struct
import sys

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 199, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 64},
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "torch_dtype": "float32",
    "bos_token_id": None, "eos_token_id": [7, 57],
}
MASK = (1 << 64) - 1


def values(state, count, width, center):
    """count floats, uniform in center - width .. center + width, width a power of two."""
    out = array.array("f")
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        out.append(center + width * ((z >> 40) / (1 << 23) - 1))
    if sys.byteorder != "little":
        out.byteswap()
    return out.tobytes()


def weights():
    """Names, shapes, widths and centers."""
    h, f, q, kv = CONFIG["hidden_size"], CONFIG["intermediate_size"], 64, 32
    yield "model.embed_tokens.weight", (CONFIG["vocab_size"], h), 1.0, 0.0
    for i in range(CONFIG["num_hidden_layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (h,), 0.25, 1.0
        yield p + "self_attn.q_proj.weight", (q, h), 0.5, 0.0
        yield p + "self_attn.k_proj.weight", (kv, h), 0.5, 0.0
        yield p + "self_attn.v_proj.weight", (kv, h), 0.5, 0.0
        yield p + "self_attn.o_proj.weight", (h, q), 0.5, 0.0
        yield p + "post_attention_layernorm.weight", (h,), 0.25, 1.0
        yield p + "mlp.gate_proj.weight", (f, h), 0.25, 0.0
        yield p + "mlp.up_proj.weight", (f, h), 0.25, 0.0
        yield p + "mlp.down_proj.weight", (h, f), 0.25, 0.0
    yield "model.norm.weight", (h,), 0.25, 1.0
    yield "lm_head.weight", (CONFIG["vocab_size"], h), 0.5, 0.0


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(CONFIG, f, indent=1)
    header, data = {}, b""
    for number, (name, shape, width, center) in enumerate(weights()):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        raw = values(number << 32, count, width, center)
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    main()
