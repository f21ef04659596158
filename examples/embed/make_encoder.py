#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a small random BERT: config.json, vocab.txt and model.safetensors, the same bytes everywhere.

    python3 make_encoder.py FOLDER

Needs nothing but Python. Weights come from splitmix64; those of the inner projections are bfloat16 and those of
positions float16, so that every dtype of a checkpoint is read.
"""
import array
import json
import os
import struct
import sys

CONFIG = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "position_embedding_type": "absolute", "torch_dtype": "float32",
}
WORDS = ["the", "re", "un", "able", "##able", "##ing", "play", "##er", "token", "##s", "new", "\u6771", "\u4eac",
         "\u1112", "##\u1161", "##\u11ab", "caf", "##e", "o\u0308", "stra", "##\u00df", "\u00df", "##\u0438",
         "\u043c", "\u2014", "\u201c", "\u03b1", "##\u03b1", "\u00e9", "##\u00e9"]
MASK = (1 << 64) - 1


def vocabulary():
    yield from ("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    yield from "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~0123456789"
    for letter in "abcdefghijklmnopqrstuvwxy":  # no z: a word with one is [UNK]
        yield from (letter, "##" + letter)
    yield from WORDS


def values(state, count, width, center, dtype):
    """count values, uniform in center - width .. center + width."""
    floats = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        floats.append(center + width * ((z >> 40) / (1 << 23) - 1))
    if dtype == "F16":
        return struct.pack(f"<{count}e", *floats)
    raw = struct.pack(f"<{count}f", *floats)
    if dtype == "F32":
        return raw
    upper = array.array("B")
    for i in range(count):
        upper.extend(raw[4 * i + 2:4 * i + 4])
    return upper.tobytes()


def weights(num_tokens):
    """Names, shapes, widths, centers and dtypes."""
    h, f = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    linear = {"attention.self.query": (h, h), "attention.self.key": (h, h), "attention.self.value": (h, h),
              "attention.output.dense": (h, h), "intermediate.dense": (f, h), "output.dense": (h, f)}
    norms = ["embeddings.LayerNorm"]
    yield "embeddings.word_embeddings.weight", (num_tokens, h), 1.0, 0.0, "F32"
    yield "embeddings.position_embeddings.weight", (CONFIG["max_position_embeddings"], h), 0.5, 0.0, "F16"
    yield "embeddings.token_type_embeddings.weight", (CONFIG["type_vocab_size"], h), 0.5, 0.0, "F32"
    for i in range(CONFIG["num_hidden_layers"]):
        prefix = f"encoder.layer.{i}."
        for name, shape in linear.items():
            dtype = "BF16" if name == "intermediate.dense" else "F32"
            yield prefix + name + ".weight", shape, 0.375, 0.0, dtype
            yield prefix + name + ".bias", shape[:1], 0.25, 0.0, dtype
        norms += [prefix + "attention.output.LayerNorm", prefix + "output.LayerNorm"]
    for name in norms:
        yield name + ".weight", (h,), 0.5, 1.0, "F32"
        yield name + ".bias", (h,), 0.5, 0.0, "F32"
    yield "pooler.dense.weight", (h, h), 0.5, 0.0, "F32"  # of a head that a sentence's vector does not use


def write_json(folder, name, content):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(content, f, indent=1)


def main():
    folder = sys.argv[1]
    os.makedirs(os.path.join(folder, "1_Pooling"), exist_ok=True)
    tokens = list(vocabulary())
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as f:
        f.writelines(token + "\n" for token in tokens)
    write_json(folder, "config.json", {**CONFIG, "vocab_size": len(tokens)})
    write_json(folder, "sentence_bert_config.json", {"max_seq_length": 40})
    write_json(folder, "tokenizer_config.json", {"do_lower_case": True, "strip_accents": None})
    write_json(folder, "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
    positions = struct.pack("<64q", *range(64))
    header = {"embeddings.position_ids": {"dtype": "I64", "shape": [1, 64], "data_offsets": [0, len(positions)]}}
    data = positions
    for number, (name, shape, width, center, dtype) in enumerate(weights(len(tokens))):
        raw = values(number << 32, shape[0] * (shape[1] if len(shape) > 1 else 1), width, center, dtype)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    main()
