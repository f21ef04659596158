# SPDX-License-Identifier: Apache-2.0
"""Single layers on torch's tensors against float64: caches, relative bias, torch.compile; on a GPU also streams and graphs
of torch.cuda.graph.

    python3 torch_layers.py [cpu|cuda]      with libattn and torch importable; ends with 1 if one differs
"""

import sys

import torch

import libattn
import libattn.ops

HEADS, KV_HEADS, SIZE, PAGE = 8, 2, 128, 16
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda" if torch.cuda.is_available() else "cpu"
failed = 0


def say(is_right, text):
    global failed
    failed += not is_right
    print(("ok      " if is_right else "NOT OK  ") + text, flush=True)


def exact(q, k, v, scale, seq_len, causal=True, table=None):
    """Attention of one request in float64: q [T, H, D], k and v [S, Hkv, D]; table: relative bias [H, 2 m + 1]."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k[:seq_len], v[:seq_len]))
    k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
    scores = scale * q @ k.transpose(1, 2)
    at = torch.arange(seq_len - q.shape[1], seq_len, device=q.device)[:, None]
    rel = torch.arange(seq_len, device=q.device)[None] - at
    if table is not None:
        most = table.shape[1] // 2
        scores = scores + table.double()[:, rel.clamp(-most, most) + most]
    if causal:
        scores = scores.masked_fill(rel[None] > 0, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1)


class Decoder:
    """A decoder layer with its keys and values kept aside for the oracle."""

    def __init__(self, ctx, backend, dtype=torch.bfloat16, requests=3, longest=512, **more):
        self.scale, self.requests = SIZE**-0.5, requests
        self.dtype = dtype
        self.group = ctx.open_group(
            role="decoder", mask="causal", dtype=dtype, num_heads=HEADS, num_kv_heads=KV_HEADS, head_size=SIZE,
            scale=self.scale, block_size=PAGE, max_num_seqs=requests, max_model_len=longest,
            max_num_batched_tokens=requests * longest, device=DEVICE, backend=backend, **more)
        pages = longest // PAGE
        self.table = torch.randperm(requests * pages).to(torch.int32).view(requests, pages)
        self.layer = self.group.create_layer(f"cuda.{id(self)}.attn").bind(self.group.new_cache(requests * pages))
        self.k, self.v = ([torch.empty(0, KV_HEADS, SIZE, device=DEVICE, dtype=dtype) for _ in range(requests)]
                          for _ in range(2))

    def slots(self, query_lens, seq_lens):
        found = []
        for r, (n, total) in enumerate(zip(query_lens, seq_lens)):
            at = torch.arange(total - n, total)
            found.append(self.table[r, at // PAGE].long() * PAGE + at % PAGE)
        return torch.cat(found).to(DEVICE)

    def rows(self, query_lens):
        """Random rows; K and V are remembered."""
        total = sum(query_lens)
        q = torch.randn(total, HEADS, SIZE, device=DEVICE, dtype=self.dtype)
        k, v = (torch.randn(total, KV_HEADS, SIZE, device=DEVICE, dtype=self.dtype) for _ in range(2))
        for r, part in enumerate(torch.arange(total).split(query_lens)):
            self.k[r] = torch.cat([self.k[r], k[part]])
            self.v[r] = torch.cat([self.v[r], v[part]])
        return q, k, v

    def error(self, q, output, query_lens, table=None):
        worst, parts = 0.0, torch.arange(len(q)).split(query_lens)
        for r, part in enumerate(parts):
            want = exact(q[part], self.k[r], self.v[r], self.scale, len(self.k[r]), table=table)
            worst = max(worst, float((output[part].double() - want).abs().max()))
        return worst

    def batch(self, query_lens, **more):
        return self.group.new_batch(query_lens=query_lens, seq_lens=[len(k) for k in self.k], block_table=self.table, **more)


LIMIT = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}


def steps(ctx, backend, dtype):
    d = Decoder(ctx, backend, dtype)
    worst = 0.0
    for query_lens in ([37, 130, 5], [1, 1, 1], [1, 64, 2]):
        q, k, v = d.rows(query_lens)
        d.group.build_metadata(d.batch(query_lens))
        d.layer.update_kv_cache(k, v)
        worst = max(worst, d.error(q, d.layer.forward(q, k, v), query_lens))
    say(worst < LIMIT[dtype], f"{backend}, {dtype}: a prompt, decode steps and a mixed step within {worst:.1e}")


def other_stream(ctx, backend):
    d, side = Decoder(ctx, backend), torch.cuda.Stream()
    with torch.cuda.stream(side):
        q, k, v = d.rows([200, 3, 64])
        d.group.build_metadata(d.batch([200, 3, 64]))
        d.layer.update_kv_cache(k, v)
        output = d.layer.forward(q, k, v)
    side.synchronize()
    error = d.error(q, output, [200, 3, 64])
    say(error < LIMIT[torch.bfloat16], f"{backend}: on torch's current stream, within {error:.1e}")


def graphs(ctx, backend):
    """One decode step captured, then replayed for later tokens: metadata is built anew in the same place."""
    d = Decoder(ctx, backend, features=["capture"])
    ones = [1] * d.requests
    q, k, v = d.rows([100, 17, 250])
    d.group.build_metadata(d.batch([100, 17, 250]))
    d.layer.update_kv_cache(k, v)
    d.layer.forward(q, k, v)
    q, k, v = d.rows(ones)
    still = [x.clone() for x in (q, k, v)]
    slots = d.slots(ones, [len(x) for x in d.k])
    output = torch.empty(d.requests, HEADS, SIZE, device=DEVICE, dtype=d.dtype)

    def step():
        d.layer.update_kv_cache(still[1], still[2], slot_mapping=slots)
        d.layer.forward(*still, output=output)

    space = d.group.build_metadata(d.batch(ones, capture=True))
    step()  # outside of a graph first
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    worst = 0.0
    for n in range(5):
        if n > 0:
            q, k, v = d.rows(ones)
            for to, x in zip(still, (q, k, v)):
                to.copy_(x)
            slots.copy_(d.slots(ones, [len(x) for x in d.k]))
            d.group.build_metadata(d.batch(ones, capture=True), space=space)
        graph.replay()
        torch.cuda.synchronize()
        worst = max(worst, d.error(q, output, ones))
    say(worst < LIMIT[torch.bfloat16], f"{backend}: a graph of torch.cuda.graph, replayed for 5 tokens, within {worst:.1e}")


def compiled(ctx, backend, mode):
    d = Decoder(ctx, backend)
    weight = torch.randn(HEADS * SIZE, HEADS * SIZE, device=DEVICE, dtype=d.dtype) / 32

    def block(q, k, v):
        return torch.nn.functional.silu(libattn.ops.attention(d.layer, q * 1.0, k, v).flatten(1) @ weight)

    fast = torch.compile(block, fullgraph=True, **mode)
    worst = 0.0
    for query_lens in ([40, 100, 7], [1, 1, 1], [1, 1, 1]):
        q, k, v = d.rows(query_lens)
        d.group.build_metadata(d.batch(query_lens))
        with torch.no_grad():
            got, want = fast(q, k, v), block(q, k, v)
        worst = max(worst, float((got - want).abs().max()))
    say(worst < 5e-2, f"{backend}: libattn.ops under torch.compile({mode}), beside the same uncompiled, within {worst:.1e}")


def rel_bias(ctx, backend):
    d = Decoder(ctx, backend, features=["rel_bias"])
    table = 3 * torch.randn(HEADS, 2 * 40 + 1, device=DEVICE)
    worst = 0.0
    for query_lens in ([200, 30, 1], [1, 1, 100]):
        q, k, v = d.rows(query_lens)
        d.group.build_metadata(d.batch(query_lens))
        d.layer.update_kv_cache(k, v)
        worst = max(worst, d.error(q, d.layer.forward(q, k, v, rel_bias=table), query_lens, table))
    say(worst < LIMIT[torch.bfloat16], f"{backend}: relative bias within {worst:.1e}")


def refusals(ctx, backend):
    d = Decoder(ctx, backend)
    q, k, v = d.rows([4, 4, 4])
    d.group.build_metadata(d.batch([4, 4, 4]))
    wrong = [("query", (q.float(), k, v)), ("key", (q, k[:, :1], v))] + [("query", (q.cpu(), k, v))] * (DEVICE == "cuda")
    for name, arguments in wrong:
        try:
            d.layer.forward(*arguments)
            say(False, f"{name}: nothing was refused")
        except libattn.Error as error:
            say(error.param == name, f"refused: {error.text[:90]}")


def main():
    torch.manual_seed(5)
    ctx = libattn.Context()
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "a CPU"
    print(f"libattn {libattn.version()}, torch {torch.__version__}, {name}")
    on_gpu = [(steps, "FLASH_ATTN", torch.bfloat16), (steps, "FLASH_ATTN", torch.float16), (steps, "TRITON_ATTN", torch.float32),
              (steps, "TRITON_ATTN", torch.bfloat16), (other_stream, "FLASH_ATTN"), (graphs, "FLASH_ATTN"),
              (graphs, "TRITON_ATTN"), (compiled, "FLASH_ATTN", {"backend": "aot_eager"}),
              (rel_bias, "TRITON_ATTN"), (refusals, "FLASH_ATTN"), (compiled, "FLASH_ATTN", {})]
    on_cpu = [(steps, "CPU_ATTN", dtype) for dtype in LIMIT] + [
        (compiled, "CPU_ATTN", {"backend": "aot_eager"}), (rel_bias, "CPU_ATTN"), (refusals, "CPU_ATTN")]
    for trial, *arguments in on_gpu if DEVICE == "cuda" else on_cpu:
        try:
            trial(ctx, *arguments)
        except Exception as failure:  # noqa: BLE001: one failure is a line, not the end
            say(False, f"{trial.__name__} {arguments}: {type(failure).__name__}: {str(failure)[:400]}")
    print(f"{failed} differ" if failed else "all agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
