# SPDX-License-Identifier: Apache-2.0
"""generate() of transformers with its own SDPA and with libattn, whole model, in turn: the best of several runs of each.

    python3 hf_speed.py [PROMPT_TOKENS ...]     16/4 heads of 64, 6 layers, hidden 1024, bfloat16, 4 prompts, 32 new tokens
"""

import os
import sys
import time

import torch
import transformers as t

import libattn
import libattn.hf

BATCH, NEW, RUNS = 4, 32, 3


def model_of(implementation, longest):
    torch.manual_seed(7)
    config = t.LlamaConfig(vocab_size=1000, hidden_size=1024, intermediate_size=2048, num_hidden_layers=6,
                           num_attention_heads=16, num_key_value_heads=4, head_dim=64, max_position_embeddings=longest)
    return t.AutoModelForCausalLM.from_config(config, attn_implementation=implementation, dtype=torch.bfloat16).eval()


def timed(model, ids, new):
    paged = model.config._attn_implementation == "libattn"
    cache = {"past_key_values": libattn.hf.PagedCache(model, len(ids), ids.shape[1] + new)} if paged else {}
    start = time.perf_counter()
    model.generate(ids, do_sample=False, max_new_tokens=new, min_new_tokens=new, pad_token_id=0, **cache)
    return time.perf_counter() - start


def main(lengths):
    libattn.hf.register()
    print(f"transformers {t.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores; "
          f"{BATCH} prompts, {NEW} new tokens, best of {RUNS}, in turn")
    print(f"{'prompt':>7} {'':9} {'prefill tok/s':>14} {'decode tok/s':>13}")
    for n in lengths:
        models = {name: model_of(name, n + NEW) for name in ("sdpa", "libattn")}
        ids = torch.randint(5, 1000, (BATCH, n), generator=torch.Generator().manual_seed(3))
        best = {name: [1e9, 1e9] for name in models}
        for run in range(RUNS + 1):  # the first is warm-up
            for name, model in models.items():
                first, whole = timed(model, ids, 1), timed(model, ids, NEW)
                if run:
                    best[name] = [min(best[name][0], first), min(best[name][1], whole - first)]
        rate = {name: (BATCH * n / a, BATCH * (NEW - 1) / b) for name, (a, b) in best.items()}
        for name, (prefill, decode) in rate.items():
            print(f"{n:>7} {name:9} {prefill:>14.0f} {decode:>13.1f}")
        print(f"{n:>7} {'ratio':9} {rate['libattn'][0] / rate['sdpa'][0]:>14.2f} {rate['libattn'][1] / rate['sdpa'][1]:>13.2f}",
              flush=True)


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [128, 2048])
