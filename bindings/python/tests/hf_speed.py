# SPDX-License-Identifier: Apache-2.0
"""generate() of transformers with its own SDPA and with libattn, whole model, in turn: the best of several runs of each.

    python3 hf_speed.py [--cpu-time] [--runs N] [PROMPT_TOKENS ...]

16/4 heads of 64, 6 layers, hidden 1024, bfloat16, 4 prompts, 32 new tokens. --cpu-time: processor time of the process, for a
machine that others use too (with OMP_NUM_THREADS=1, since waiting threads count).
"""

import argparse
import os
import time

import torch
import transformers as t

import libattn
import libattn.hf

BATCH, NEW = 4, 32


def model_of(implementation, longest):
    torch.manual_seed(7)
    config = t.LlamaConfig(vocab_size=1000, hidden_size=1024, intermediate_size=2048, num_hidden_layers=6,
                           num_attention_heads=16, num_key_value_heads=4, head_dim=64, max_position_embeddings=longest)
    return t.AutoModelForCausalLM.from_config(config, attn_implementation=implementation, dtype=torch.bfloat16).eval()


def timed(model, ids, new, clock):
    paged = model.config._attn_implementation == "libattn"
    cache = {"past_key_values": libattn.hf.PagedCache(model, len(ids), ids.shape[1] + new)} if paged else {}
    start = clock()
    model.generate(ids, do_sample=False, max_new_tokens=new, min_new_tokens=new, pad_token_id=0, **cache)
    return clock() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("lengths", nargs="*", type=int, default=[128, 2048])
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    clock = time.process_time if args.cpu_time else time.perf_counter
    libattn.hf.register()
    print(f"transformers {t.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores; "
          f"{BATCH} prompts, {NEW} new tokens, best of {args.runs}, in turn{', by processor time' * args.cpu_time}")
    print(f"{'prompt':>7} {'':9} {'prefill tok/s':>14} {'decode tok/s':>13}")
    for n in args.lengths:
        models = {name: model_of(name, n + NEW) for name in ("sdpa", "libattn")}
        ids = torch.randint(5, 1000, (BATCH, n), generator=torch.Generator().manual_seed(3))
        best = {name: [1e9, 1e9] for name in models}
        for model in models.values():
            timed(model, ids[:, :64], 2, clock)  # warm-up
        for _ in range(args.runs):
            for name, model in models.items():
                first, whole = timed(model, ids, 1, clock), timed(model, ids, NEW, clock)
                best[name] = [min(best[name][0], first), min(best[name][1], whole - first)]
        rate = {name: (BATCH * n / a, BATCH * (NEW - 1) / b) for name, (a, b) in best.items()}
        for name, (prefill, decode) in rate.items():
            print(f"{n:>7} {name:9} {prefill:>14.0f} {decode:>13.1f}")
        print(f"{n:>7} {'ratio':9} {rate['libattn'][0] / rate['sdpa'][0]:>14.2f} {rate['libattn'][1] / rate['sdpa'][1]:>13.2f}",
              flush=True)


if __name__ == "__main__":
    main()
