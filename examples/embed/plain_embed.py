#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The vectors that embed prints, computed plainly in double: nothing but Python, one sentence at a time, every score.

    python3 plain_embed.py FOLDER SENTENCES        # the vectors; with --ids the tokens

For small models: it is some thousand times slower.
"""
import json
import math
import re
import struct
import sys
import unicodedata
from operator import mul
from pathlib import Path

SPECIAL = ("[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]")
IDEOGRAPHS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
              (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0x2F800, 0x2FA1F))


def words_of(text):
    """The words of a text between special tokens, in the uncased way."""
    out = []
    for c in text:
        if c in "\0\ufffd" or (c not in "\t\r" and unicodedata.category(c) in ("Cc", "Cf", "Co")):
            continue
        out.append(f" {c} " if any(a <= ord(c) <= b for a, b in IDEOGRAPHS) else " " if c.isspace() else c)
    text = "".join(c for c in unicodedata.normalize("NFD", "".join(out)) if unicodedata.category(c) != "Mn").lower()
    for c in set(text):
        if unicodedata.category(c)[0] == "P" or (c < "\x80" and unicodedata.category(c)[0] == "S"):
            text = text.replace(c, f" {c} ")
    return text.split()


def pieces_of(word, vocabulary):
    out, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                out.append(vocabulary[piece])
                break
        else:
            return [vocabulary["[UNK]"]]
        start = end
    return out if len(word) <= 100 else [vocabulary["[UNK]"]]


def tokens_of(text, vocabulary, max_len):
    out = []
    for part in re.split("(%s)" % "|".join(re.escape(s) for s in SPECIAL), text):
        if part in SPECIAL:
            out.append(vocabulary[part])
            continue
        for word in words_of(part):
            out += pieces_of(word, vocabulary)
    return [vocabulary["[CLS]"], *out[:max_len - 2], vocabulary["[SEP]"]]


def read_weights(path):
    """Each weight as a list of rows of doubles."""
    raw = path.read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    weights = {}
    for name, entry in json.loads(raw[8:8 + size]).items():
        begin, end = (8 + size + n for n in entry["data_offsets"])
        data, dtype = raw[begin:end], entry["dtype"]
        if dtype == "BF16":
            data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
        if dtype not in ("F32", "F16", "BF16"):
            continue
        code = "e" if dtype == "F16" else "f"
        values = struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
        cols = entry["shape"][-1]
        weights[name] = [values[i:i + cols] for i in range(0, len(values), cols)]
    return weights


def linear(w, name, rows):
    weight, bias = w[name + ".weight"], w[name + ".bias"][0]
    return [[sum(map(mul, line, row)) + b for line, b in zip(weight, bias)] for row in rows]


def norm(w, name, eps, rows):
    out = []
    for row in rows:
        mean = math.fsum(row) / len(row)
        scale = 1 / math.sqrt(math.fsum((x - mean) ** 2 for x in row) / len(row) + eps)
        out.append([(x - mean) * scale * g + b for x, g, b in zip(row, *w[name + ".weight"], *w[name + ".bias"])])
    return out


def add(a, b):
    return [list(map(sum, zip(x, y))) for x, y in zip(a, b)]


def attend(query, key, value, heads):
    size = len(query[0]) // heads
    out = [[] for _ in query]
    for at in range(0, heads * size, size):
        cut = slice(at, at + size)
        for row, result in zip(query, out):
            scores = [sum(map(mul, row[cut], k[cut])) / math.sqrt(size) for k in key]
            high = max(scores)
            shares = [math.exp(s - high) for s in scores]
            total = math.fsum(shares)
            for i in range(at, at + size):
                result.append(math.fsum(s * v[i] for s, v in zip(shares, value)) / total)
    return out


def embed(w, config, tokens):
    eps, names = config["layer_norm_eps"], "embeddings.%s_embeddings.weight"
    x = [list(map(sum, zip(w[names % "word"][t], w[names % "position"][i], w[names % "token_type"][0])))
         for i, t in enumerate(tokens)]
    x = norm(w, "embeddings.LayerNorm", eps, x)
    for i in range(config["num_hidden_layers"]):
        p = f"encoder.layer.{i}."
        q, k, v = (linear(w, p + "attention.self." + n, x) for n in ("query", "key", "value"))
        y = linear(w, p + "attention.output.dense", attend(q, k, v, config["num_attention_heads"]))
        x = norm(w, p + "attention.output.LayerNorm", eps, add(x, y))
        y = [[a * (1 + math.erf(a / math.sqrt(2))) / 2 for a in row] for row in linear(w, p + "intermediate.dense", x)]
        x = norm(w, p + "output.LayerNorm", eps, add(x, linear(w, p + "output.dense", y)))
    mean = [math.fsum(column) / len(x) for column in zip(*x)]
    length = math.sqrt(math.fsum(m * m for m in mean))
    return [m / length for m in mean]


def main():
    folder, sentences = Path(sys.argv[1]), sys.argv[2]
    config = json.loads((folder / "config.json").read_text())
    max_len = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {token: i for i, token in reversed(list(enumerate(lines[:-1])))}
    weights = read_weights(folder / "model.safetensors")
    for line in Path(sentences).read_bytes().decode().split("\n")[:-1]:
        tokens = tokens_of(line, vocabulary, max_len)
        print(*(tokens if "--ids" in sys.argv else ("%.9g" % v for v in embed(weights, config, tokens))))


if __name__ == "__main__":
    main()
