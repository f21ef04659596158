#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What transformers generates for the requests that llm serves: the same lines, to compare with diff.

    pip install torch transformers
    python transformers_tokens.py FOLDER REQUESTS > expected.txt

Greedy, float32, one request at a time. On stderr: the smallest distance of the best logit from the second;
where it is not far above 1e-5 another order of additions may give another token.
"""
import sys

import torch
from transformers import AutoModelForCausalLM


def main():
    folder, requests = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    smallest = float("inf")
    for line in open(requests, encoding="ascii"):
        count, *prompt = map(int, line.split())
        ids = torch.tensor([prompt])
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count,
                                 do_sample=False, pad_token_id=0, return_dict_in_generate=True,
                                 output_logits=True)
        for logits in out.logits:
            best = logits[0].topk(2).values
            smallest = min(smallest, float(best[0] - best[1]))
        print(*out.sequences[0, len(prompt):].tolist())
    print(f"smallest distance of two logits: {smallest:.2g}", file=sys.stderr)


if __name__ == "__main__":
    main()
