# SPDX-License-Identifier: Apache-2.0
"""Attention layers of SGLang on libattn beside plain attention in float64: prompts, prompts behind a cached
prefix, decode steps, in what SGLang's own pools hold.

    python tests/sglang_layers.py             # the seam alone: stand-ins of the same signatures
    python tests/sglang_layers.py --sglang    # the installed SGLang's registry, base class, layers, pools

Lines are those of the Test Anything Protocol. Needs torch.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import traceback
import types
from pathlib import Path
from typing import Any, Optional

import torch

sys.path.insert(0, str(Path(__file__).parent))
HEADS, KV_HEADS, SIZE, PAGE, SLOTS, REQS, MAX_LEN = 8, 2, 64, 16, 1024, 8, 256
LATENT, ROPE = 512, 64
# (cached tokens, new tokens) of each request, step by step: a prompt, an extension with prefixes, decode
STEPS: list[list[tuple[int, int]]] = [
    [(0, 5), (0, 130), (0, 40)],
    [(5, 20), (130, 33), (40, 1)],
    [(25, 1), (163, 1), (41, 1)],
    [(26, 1), (164, 1), (42, 1)],
]
DEVICE = "cpu"
number = 0


def ok(passed: bool, name: str, why: str = "") -> None:
    global number
    number += 1
    print(f"{'ok' if passed else 'not ok'} {number} - {name}")
    if not passed and why:
        print("\n".join(f"#   {line}" for line in why.splitlines()))


class World:
    """A runner with its pools, requests whose pages are not in order, and the batch of a step."""

    def __init__(self, pool: Any, dtype: torch.dtype, uses_mla: bool = False) -> None:
        from sglang.srt.layers.attention import attention_registry

        generator = torch.Generator().manual_seed(7)
        self.pages = (torch.randperm(SLOTS // PAGE - 1, generator=generator) + 1).tolist()
        self.generator, self.pool = generator, pool
        req_to_token = torch.zeros(REQS, MAX_LEN, dtype=torch.int32, device=DEVICE)
        runner = types.SimpleNamespace(
            device=DEVICE,
            dtype=dtype,
            use_mla_backend=uses_mla,
            req_to_token_pool=types.SimpleNamespace(req_to_token=req_to_token),
            token_to_kv_pool=pool,
        )
        self.req_to_token = req_to_token
        self.backend = attention_registry.ATTENTION_BACKENDS["libattn"](runner)
        self.rows = [5, 2, 6]  # of the requests

    def batch(self, step: list[tuple[int, int]], is_decode: bool) -> Any:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        slots = []
        for row, (cached, new) in zip(self.rows, step, strict=False):
            for at in range(cached, cached + new):
                if at % PAGE == 0:
                    self.req_to_token[row, at : at + PAGE] = self.pages.pop() * PAGE + torch.arange(
                        PAGE, device=DEVICE
                    )
                slots.append(int(self.req_to_token[row, at]))
        lens = torch.tensor([c + n for c, n in step])
        return types.SimpleNamespace(
            forward_mode=ForwardMode.DECODE if is_decode else ForwardMode.EXTEND,
            batch_size=len(step),
            req_pool_indices=torch.tensor(self.rows[: len(step)], device=DEVICE),
            seq_lens=lens.to(DEVICE),
            seq_lens_cpu=lens,
            out_cache_loc=torch.tensor(slots, device=DEVICE),
            out_cache_loc_is_physical=True,
            extend_seq_lens_cpu=None if is_decode else [n for _, n in step],
            extend_prefix_lens_cpu=None if is_decode else [c for c, _ in step],
            spec_info=None,
        )

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator).to(DEVICE)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    first: int,
    causal: bool = True,
    window: int = -1,
    cap: float = 0.0,
    sinks: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """One request in float64: q [n, H, D] are the tokens from number `first` on; window as SGLang's."""
    q, k, v = (x.double().cpu() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    at = torch.arange(first, first + q.shape[0]).unsqueeze(1)
    keys = torch.arange(k.shape[0]).unsqueeze(0)
    if causal:
        hidden = keys > at
        if window >= 0:
            hidden |= keys < at - window
        scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        extra = sinks.double().cpu().view(-1, 1, 1).expand(-1, q.shape[0], 1)
        weights = torch.softmax(torch.cat([scores, extra], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def run_dense(
    name: str, tolerance: float, make_pool: Any, layer: Any, dtype: torch.dtype = torch.float32, **how: Any
) -> None:
    """All steps through one layer; the oracle keeps keys and values of its own."""
    world = World(make_pool(), dtype)
    sinks = how.pop("sinks", None)
    rounds = how.pop("rounds", None)
    past: list[list[torch.Tensor]] = [[], [], []]
    padding = 3  # rows of q behind the batch's tokens
    for number_of_step, step in enumerate(STEPS):
        is_decode = number_of_step >= 2
        batch = world.batch(step, is_decode)
        n = sum(new for _, new in step)
        q = world.random(n + padding, HEADS, SIZE).to(dtype)
        k, v = (
            world.random(n, KV_HEADS, SIZE).to(dtype),
            world.random(n, KV_HEADS, layer.v_head_dim).to(dtype),
        )
        rounded = (rounds(k), rounds(v)) if rounds else (k, v)
        world.backend.init_forward_metadata(batch)
        extra = {} if sinks is None else {"sinks": sinks}
        got = world.backend.forward(q.flatten(1), k.clone(), v.clone(), layer, batch, True, **extra)
        worst, start = 0.0, 0
        for r, (cached, new) in enumerate(step):
            rows = slice(start, start + new)
            past[r].append(torch.stack([x[rows].double() for x in rounded]) if k.shape == v.shape else None)
            keys, values = (torch.cat([p[i] for p in past[r]]) for i in (0, 1))
            want = attend(
                q[rows], keys, values, layer.scaling, cached, cap=layer.logit_cap, sinks=sinks, **how
            )
            worst = max(worst, float((got[rows].view(new, HEADS, -1).double().cpu() - want).abs().max()))
            start += new
        what = ["prompt", "extension", "decode", "decode"][number_of_step]
        ok(worst < tolerance, f"{name}, {what}: differs by {worst:.2g}")
        ok(bool((got[n:] == 0).all()) and got.shape == (n + padding, HEADS * SIZE), "and its padding is zero")


def run_window_pool(pool: Any, full: Any, windowed: Any) -> None:
    """A model whose layers with a window have a pool of their own, with other pages for the same tokens."""
    world = World(pool, torch.float32)
    order = torch.randperm(SLOTS // PAGE - 1, generator=world.generator) + 1
    moved = torch.cat([torch.zeros(1, dtype=torch.int64), order])
    pool.full_to_swa_index_mapping = (moved.view(-1, 1) * PAGE + torch.arange(PAGE)).flatten().to(DEVICE)
    past: dict[Any, list[list[torch.Tensor]]] = {full: [[], [], []], windowed: [[], [], []]}
    for number_of_step, step in enumerate(STEPS):
        batch = world.batch(step, number_of_step >= 2)
        n = sum(new for _, new in step)
        world.backend.init_forward_metadata(batch)
        if number_of_step == 2:  # what the window of the long request has left behind is somebody else's
            gone = world.req_to_token[world.rows[1], : 80 // PAGE * PAGE].long()
            pool.full_to_swa_index_mapping[gone] = -1
            world.backend.init_forward_metadata(batch)
        for layer in (full, windowed):
            q, k, v = (world.random(n, h, SIZE) for h in (HEADS, KV_HEADS, KV_HEADS))
            got = world.backend.forward(q.flatten(1), k, v, layer, batch, True)
            worst, start = 0.0, 0
            for r, (cached, new) in enumerate(step):
                rows = slice(start, start + new)
                past[layer][r].append(torch.stack([k[rows], v[rows]]))
                keys, values = (torch.cat([p[i] for p in past[layer][r]]) for i in (0, 1))
                window = layer.sliding_window_size
                want = attend(q[rows], keys, values, layer.scaling, cached, window=window)
                worst = max(worst, float((got[rows].view(new, HEADS, -1).double().cpu() - want).abs().max()))
                start += new
            kind = "windowed" if layer is windowed else "full"
            ok(
                worst < 1e-5,
                f"pool of the window, step {number_of_step}, {kind} layer: differs by {worst:.2g}",
            )


def run_latent(pool: Any, absorbed: Any, expanded: Any, dtype: torch.dtype, tolerance: float) -> None:
    """MLA as SGLang runs it: absorbed queries over the latent cache, and prompts over expanded keys."""
    world = World(pool, dtype, uses_mla=True)
    past: list[list[torch.Tensor]] = [[], [], []]
    for number_of_step, step in enumerate(STEPS):
        batch = world.batch(step, number_of_step >= 2)
        n = sum(new for _, new in step)
        world.backend.init_forward_metadata(batch)
        latent, rope = (world.random(n, 1, LATENT) * 0.5).to(dtype), world.random(n, 1, ROPE).to(dtype)
        q = world.random(n, HEADS, LATENT + ROPE).to(dtype)
        if number_of_step % 2 == 0:
            got = world.backend.forward(q, torch.cat([latent, rope], -1), latent, absorbed, batch, True)
        else:  # the parts apart
            got = world.backend.forward(
                q[..., :LATENT].contiguous(),
                latent,
                latent,
                absorbed,
                batch,
                True,
                q_rope=q[..., LATENT:].contiguous(),
                k_rope=rope,
            )
        worst, start = 0.0, 0
        for r, (cached, new) in enumerate(step):
            rows = slice(start, start + new)
            past[r].append(torch.cat([latent, rope], -1)[rows])
            keys = torch.cat(past[r])
            want = attend(q[rows], keys, keys[..., :LATENT], absorbed.scaling, cached)
            worst = max(worst, float((got[rows].view(new, HEADS, -1).double().cpu() - want).abs().max()))
            start += new
        ok(worst < tolerance, f"latent, step {number_of_step}: differs by {worst:.2g}")
    step = [(0, new) for _, new in STEPS[0]]
    world.rows = [0, 1, 3]
    batch = world.batch(step, False)
    n = sum(new for _, new in step)
    q, k, v = (world.random(n, HEADS, size).to(dtype) for size in (192, 192, 128))
    world.backend.init_forward_metadata(batch)
    got = world.backend.forward(q.flatten(1), k, v, expanded, batch, False)
    worst, start = 0.0, 0
    for _, new in step:
        rows = slice(start, start + new)
        want = attend(q[rows], k[rows], v[rows], expanded.scaling, 0)
        worst = max(worst, float((got[rows].view(new, HEADS, -1).double().cpu() - want).abs().max()))
        start += new
    ok(worst < tolerance, f"expanded keys of a prompt: differ by {worst:.2g}")


class Graphed:
    """The decode steps of one batch size, as SGLang runs them: inputs in tensors that stay, the metadata
    planned before each step, the layers captured with the first one and replayed. There are no graphs on a
    CPU, where the layers are computed again and have to see what was planned before."""

    def __init__(self, world: World, layers: list[Any]) -> None:
        self.world, self.layers = world, layers
        self.graph: Any = None
        self.kept: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []

    def forward(self, batch: Any) -> list[torch.Tensor]:
        inputs = [self.kept[3 * i : 3 * i + 3] for i in range(len(self.layers))]
        return [
            self.world.backend.forward(q.flatten(1), k, v, layer, batch)
            for layer, (q, k, v) in zip(self.layers, inputs, strict=True)
        ]

    def step(self, batch: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        backend, is_first = self.world.backend, not self.kept
        given = [*inputs, batch.out_cache_loc]
        if is_first:
            self.kept = given
        for mine, new in zip(self.kept, given, strict=True):
            mine.copy_(new)
        batch.out_cache_loc = self.kept[-1]
        backend.init_forward_metadata_out_graph(batch, in_capture=is_first)
        backend.init_forward_metadata_in_graph(batch)
        if DEVICE == "cpu":
            return self.forward(batch)
        if is_first:
            self.forward(batch)  # warm, as SGLang does it
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.outputs = self.forward(batch)
        self.graph.replay()
        torch.cuda.synchronize()
        return [output.clone() for output in self.outputs]


def run_graphs(make_pool: Any, layers: list[Any]) -> None:
    """Steps with a graph beside the same ones without."""
    world, plain = World(make_pool(), torch.float32), World(make_pool(), torch.float32)
    backend = world.backend
    backend.init_cuda_graph_state(4, 4)
    if DEVICE == "cpu":  # whose backends cannot be captured
        backend.limits = type(backend.limits)(**{**vars(backend.limits), "is_captured": False})
    for step in STEPS[:2]:
        for w in (world, plain):
            w.generator.manual_seed(len(step))
            batch = w.batch(step, False)
            n = sum(new for _, new in step)
            w.backend.init_forward_metadata(batch)
            for layer in layers:
                q, k, v = (w.random(n, h, SIZE) for h in (HEADS, KV_HEADS, KV_HEADS))
                w.backend.forward(q.flatten(1), k, v, layer, batch)
    graphed = Graphed(world, layers)
    results: dict[Any, list[torch.Tensor]] = {world: [], plain: []}
    spaces: dict[Any, int] = {}
    steps = [*STEPS[2:], [(27, 1), (165, 1), (43, 1)]]
    for step in steps:
        for w in (world, plain):
            w.generator.manual_seed(100 + step[0][0])
            batch = w.batch(step, True)
            inputs = [w.random(3, h, SIZE) for _ in layers for h in (HEADS, KV_HEADS, KV_HEADS)]
            if w is world:
                results[w] += graphed.step(batch, inputs)
                continue
            w.backend.init_forward_metadata(batch)
            for i, layer in enumerate(layers):
                q, k, v = inputs[3 * i : 3 * i + 3]
                results[w].append(w.backend.forward(q.flatten(1), k, v, layer, batch))
        if not spaces:
            spaces = {g: s.metadata.address for (g, _), s in backend.graphs[3].spaces.items()}
    pairs = list(zip(results[world], results[plain], strict=True))
    worst = max(float((a - b).abs().max()) for a, b in pairs)
    ok(
        worst < 1e-5,
        f"{len(pairs)} results of steps with a graph differ from those without one by {worst:.2g}",
    )
    same = {g: s.metadata.address for (g, _), s in backend.graphs[3].spaces.items()} == spaces
    ok(same and len(spaces) == 2, "the metadata of a graph keep their addresses, one set for each group")
    batch = world.batch([(28, 1), (166, 1), (44, 1)], True)  # the last one fills up a batch of two
    batch.out_cache_loc = given = batch.out_cache_loc[:2].clone()
    at = backend.step.slots.data_ptr()
    backend.init_forward_metadata_out_graph(batch)
    ok(
        backend.step.slots.tolist() == [*given.tolist(), 0] and backend.step.slots.data_ptr() == at,
        "a batch that was filled up has slots for each request, where the graph reads them",
    )
    refused(
        lambda: backend.init_forward_metadata_out_graph(plain.batch([(0, 1)], True)),
        "no graph was captured for 1",
        "a size that was not captured",
    )
    refused(
        lambda: backend.init_forward_metadata_out_graph(plain.batch([(0, 1)], False)),
        "captures decode steps only",
        "a captured prompt",
    )


def attempt(function: Any, *arguments: Any, **how: Any) -> None:
    """One part of the test; what it raises fails it and no other."""
    try:
        function(*arguments, **how)
    except Exception:
        ok(False, f"{function.__name__} runs to its end", traceback.format_exc())


def refused(call: Any, part: str, name: str) -> None:
    try:
        call()
        ok(False, f"{name} is refused", "it was not")
    except NotImplementedError as error:
        ok(part in str(error), f"{name} is refused by name", str(error))


def one_rank() -> Any:
    """SGLang's pools of MLA ask for its ranks, which a server has set up."""
    from sglang.srt.runtime_context import get_parallel

    return get_parallel().override(dcp_enabled=False, attn_dcp_size=1, attn_dcp_rank=0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sglang", action="store_true", help="the installed SGLang in place of stand-ins")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    args = parser.parse_args()
    global DEVICE, PAGE
    DEVICE, PAGE = args.device, 16 if args.device == "cpu" else 64  # which FLASHMLA's pages have
    if not args.sglang:
        import sglang_standin

        sglang_standin.install()
    import libattn.sglang
    from libattn.sglang.radix_problems import context

    said: list[str] = []
    keeper = logging.Handler()
    keeper.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("libattn.sglang").addHandler(keeper)
    logging.getLogger("libattn.sglang").setLevel(logging.DEBUG)
    libattn.sglang.register()
    libattn.sglang.register()
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
    from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    ok(ATTENTION_BACKEND_CHOICES.count("libattn") == 1, "--attention-backend libattn is a choice, once")

    def pool_of(dtype: torch.dtype) -> Any:
        return lambda: MHATokenToKVPool(SLOTS - PAGE, PAGE, dtype, KV_HEADS, SIZE, 2, DEVICE, False)

    def layer(layer_id: int = 0, **how: Any) -> Any:
        return RadixAttention(HEADS, SIZE, SIZE**-0.5, KV_HEADS, layer_id, **how)

    plain = pool_of(torch.float32)
    attempt(run_dense, "dense", 1e-5, plain, layer())
    attempt(run_dense, "window", 1e-5, plain, layer(sliding_window_size=33), window=33)
    attempt(run_dense, "soft cap", 1e-5, plain, layer(logit_cap=5.0))
    attempt(run_dense, "sinks", 1e-5, plain, layer(), sinks=torch.linspace(-2, 2, HEADS, device=DEVICE))
    attempt(
        run_dense,
        "bidirectional",
        1e-5,
        plain,
        layer(attn_type=AttentionType.DECODER_BIDIRECTIONAL),
        causal=False,
    )
    attempt(run_dense, "bfloat16", 2e-2, pool_of(torch.bfloat16), layer(), dtype=torch.bfloat16)
    fp8, loose = layer(), 1e-4 if DEVICE == "cpu" else 1e-2
    attempt(
        run_dense,
        "fp8 cache",
        loose,
        pool_of(torch.float8_e4m3fn),
        fp8,
        rounds=lambda x: x.to(torch.float8_e4m3fn).float(),
    )
    fp8.k_scale = fp8.v_scale = torch.tensor(0.25, device=DEVICE)
    fp8.k_scale_float = fp8.v_scale_float = 0.25
    attempt(
        run_dense,
        "fp8 cache with scales",
        loose,
        pool_of(torch.float8_e4m3fn),
        fp8,
        rounds=lambda x: (x / 0.25).to(torch.float8_e4m3fn).float() * 0.25,
    )
    attempt(
        run_window_pool,
        SWAKVPool(SLOTS - PAGE, SLOTS - PAGE, PAGE, torch.float32, KV_HEADS, SIZE, [1], [0], DEVICE),
        layer(0),
        layer(1, sliding_window_size=40),
    )
    latent_dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    with one_rank() if args.sglang else contextlib.nullcontext():
        attempt(
            run_latent,
            MLATokenToKVPool(SLOTS - PAGE, PAGE, latent_dtype, LATENT, ROPE, 1, DEVICE, False),
            RadixAttention(HEADS, LATENT + ROPE, 0.05, 1, 0, v_head_dim=LATENT),
            RadixAttention(HEADS, 192, 192**-0.5, HEADS, 0, v_head_dim=128),
            latent_dtype,
            1e-5 if DEVICE == "cpu" else 2e-2,
        )
    attempt(run_graphs, plain, [layer(0), layer(1, sliding_window_size=20)])

    world = World(plain(), torch.float32)
    batch = world.batch([(0, 2)], False)
    world.backend.init_forward_metadata(batch)
    rows = (world.random(2, HEADS * SIZE), world.random(2, KV_HEADS, SIZE), world.random(2, KV_HEADS, SIZE))
    refused(
        lambda: world.backend.forward(*rows, layer(is_cross_attention=True), batch),
        "cross attention",
        "cross attention",
    )
    refused(
        lambda: world.backend.forward(*rows, layer(), batch, True, return_lse=True),
        "return_lse",
        "an argument that is not known",
    )
    batch.spec_info = object()
    refused(lambda: world.backend.init_forward_metadata(batch), "speculative", "speculative decoding")
    for who in sorted({line.split(" serves ")[0] for line in said if " serves " in line}):
        print(f"# served by {who}")
    level = next(v.value for v in context().config() if (v.section, v.key) == ("attn", "log"))
    ok(
        any("selection:" in line for line in said) == (level in ("info", "debug")),
        f"libattn's messages are those of [attn] log = {level}",
    )
    print(f"1..{number}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
