#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FlashMLA as vLLM carries it, with its projections by cuBLAS, on rows of mla_bench: peers_flashmla.py _FLASHMLA_C.SO
[TEXT...], the library being that of vLLM's wheel (vllm/_flashmla_C.abi3.so). A row is a whole layer: queries absorbed,
attention, values; "attention" is that alone. peers_common.py says how rows are measured, and what TEXT does."""
import sys

import torch

import peers_common
from peers_common import bf16, row

torch.ops.load_library(sys.argv[1])
del peers_common.texts[0]
flashmla = torch.ops._flashmla_C
SCALE, LATENT, ROPE, NOPE, VALUE, PAGE = 0.0722, 512, 64, 128, 128, 64


def layer(name, heads, tokens, attend):
    """attend(q, state) -> [tokens, 1, heads, 512]; state keeps the schedule that the first call makes."""
    query, up_keys, up_values = bf16(heads, tokens, NOPE), bf16(heads, NOPE, LATENT), bf16(heads, LATENT, VALUE)
    rows, out = bf16(heads, tokens, LATENT + ROPE), bf16(heads, tokens, VALUE)
    q = rows.transpose(0, 1).unsqueeze(1)
    state = [None, None]

    def call():
        torch.bmm(query, up_keys, out=rows[..., :LATENT])
        latent = attend(q, state)
        torch.bmm(latent.squeeze(1).transpose(0, 1), up_values, out=out)

    row(name, call, nbytes=1)
    row(name + ", attention", lambda: attend(q, state), nbytes=1)


def sparse(heads, holes):
    tokens, context, topk = 40, 16384, 2048
    cache = torch.zeros(tokens * context // PAGE, PAGE, 1, 656, device="cuda", dtype=torch.uint8)
    values = torch.randn(cache.shape[0] * PAGE, LATENT, device="cuda").to(torch.float8_e4m3fn)
    flat = cache.view(-1, 656)
    flat[:, :LATENT] = values.view(torch.uint8)
    flat[:, 512:528] = torch.full((flat.shape[0], 4), 0.5, device="cuda").view(torch.uint8)
    flat[:, 528:] = bf16(flat.shape[0], ROPE).view(torch.uint8)
    chosen = torch.stack([torch.randperm(context, device="cuda")[:topk] + i * context for i in range(tokens)])
    if holes == "half -1":
        chosen = torch.where(torch.rand(tokens, topk, device="cuda") < 0.5, -1, chosen)
    elif holes == "-1 at the end":
        chosen[:, topk // 2:] = -1
    indices = chosen.to(torch.int32).view(tokens, 1, topk)
    fp8 = cache.view(torch.float8_e4m3fn)

    def attend(q, state):
        out, _, state[0], state[1] = flashmla.sparse_decode_fwd(q, fp8, indices, None, None, state[0], state[1], None,
                                                                None, None, LATENT, SCALE, None, False)
        return out

    layer(f"H={heads} 40x16384 q=1 fp8, {holes}", heads, tokens, attend)


def dense(heads, requests, keys):
    pages = requests * keys // PAGE
    cache = bf16(pages, PAGE, 1, LATENT + ROPE)
    table = torch.randperm(pages, device="cuda").to(torch.int32).view(requests, -1)
    lens = torch.full((requests,), keys, device="cuda", dtype=torch.int32)

    def attend(q, state):
        out, _, state[0], state[1] = flashmla.dense_decode_fwd(q, cache, LATENT, lens, table, SCALE, True, state[0],
                                                               state[1], None)
        return out

    layer(f"H={heads} {requests}x{keys} q=1", heads, requests, attend)


for count in (128, 64):
    for kind in ("no -1", "half -1", "-1 at the end"):
        sparse(count, kind)
for shape in ((128, 1, 8192), (128, 1, 65536), (128, 1, 131072), (128, 64, 8192), (16, 64, 8192)):
    dense(*shape)
