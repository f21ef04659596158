# SPDX-License-Identifier: Apache-2.0
"""libattn's classes for vLLM, called as vLLM's model runner calls them, beside plain attention in float64:
prompts in chunks, decode steps, mixed steps, graphs with padding, latent attention; over stand-ins of
vLLM's classes.

    python tests/vllm_seam.py [--device cuda]

With vLLM itself: vllm_layers.py. Lines are those of the Test Anything Protocol. Needs torch.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
import types
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
import vllm_standin
from sglang_layers import attend

HEADS, KV_HEADS, BLOCKS, REQUESTS, LATENT, ROPE = 8, 2, 80, 4, 512, 64
# query lengths step by step; a request's earlier tokens are cached
MIXED = [[5, 130, 40, 0], [1, 3, 200, 0], [1, 1, 1, 33], [1, 1, 1, 1]]
DECODE = [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]  # 0 in a graph: padding
DEVICE = torch.device("cpu")
number = 0


def ok(passed: bool, name: str, why: str = "") -> None:
    global number
    number += 1
    print(f"{'ok' if passed else 'not ok'} {number} - {name}", flush=True)
    for line in why.splitlines():
        print(f"#   {line}", flush=True)


class Runner:
    """Requests, their pages in no order, and tensors that keep their addresses from step to step."""

    def __init__(self, block: int) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.block = block
        pages = torch.randperm(BLOCKS - 1, generator=self.generator)[: REQUESTS * 16] + 1
        self.table = pages.reshape(REQUESTS, 16).to(torch.int32)
        self.lens = [0] * REQUESTS
        self.starts_device = torch.zeros(REQUESTS + 1, dtype=torch.int32, device=DEVICE)
        self.lens_device = torch.zeros(REQUESTS, dtype=torch.int32, device=DEVICE)
        self.table_device = self.table.to(DEVICE)
        self.slots_device = torch.full((512,), -1, dtype=torch.int64, device=DEVICE)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def step(self, query: list[int], padded: int = 0, slack: int = 0) -> Any:
        """The common metadata of a step; slack: how far the host's bounds of the lengths are above them."""
        self.lens = [n + q for n, q in zip(self.lens, query)]
        lens = [n if q else 0 for n, q in zip(self.lens, query)]
        starts = torch.tensor([0, *query]).cumsum(0).to(torch.int32)
        slots = [
            int(self.table[r, at // self.block]) * self.block + at % self.block
            for r, q in enumerate(query)
            for at in range(self.lens[r] - q, self.lens[r])
        ]
        tokens = max(padded, len(slots))
        self.slots_device.fill_(-1)
        self.slots_device[: len(slots)].copy_(torch.tensor(slots))
        self.starts_device.copy_(starts)
        self.lens_device.copy_(torch.tensor(lens))
        bound = torch.tensor([n + slack if n else 0 for n in lens], dtype=torch.int32)
        return vllm_standin.CommonAttentionMetadata(
            query_start_loc=self.starts_device,
            query_start_loc_cpu=starts,
            seq_lens=self.lens_device,
            seq_lens_cpu_upper_bound=bound,
            num_reqs=REQUESTS,
            num_actual_tokens=tokens,
            max_query_len=max(query),
            max_seq_len=max(lens),
            block_table_tensor=self.table_device,
            slot_mapping=self.slots_device[:tokens],
        )


def config_of(dtype: torch.dtype, cache: str, graph: str = "NONE", speculates: bool = False) -> Any:
    n = types.SimpleNamespace
    return n(
        attention_config=n(use_non_causal=False),
        model_config=n(dtype=dtype, max_model_len=600, is_mm_prefix_lm=False),
        cache_config=n(cache_dtype=cache),
        scheduler_config=n(max_num_seqs=REQUESTS, max_num_batched_tokens=512, max_num_encoder_input_tokens=0),
        compilation_config=n(static_forward_context={}, cudagraph_mode=vllm_standin.CUDAGraphMode[graph]),
        speculative_config=n(num_speculative_tokens=3) if speculates else None,
    )


class Dense:
    """One layer of keys and values, with what the oracle needs."""

    def __init__(self, dtype: torch.dtype, cache: str, config: Any, size: int, **how: Any) -> None:
        from libattn.vllm.backend import Custom

        self.dtype, self.size, self.how = dtype, size, how
        self.runner = Runner(16)
        spec = vllm_standin.FullAttentionSpec(
            block_size=16,
            num_kv_heads=KV_HEADS,
            head_size=size,
            dtype=dtype,
            kv_quant_mode=vllm_standin.KVQuantMode(int(cache != "auto")),
        )
        self.spec = Custom.customize_spec(spec)
        torch.set_default_dtype(dtype)
        try:
            with vllm_standin.set_current_vllm_config(config):
                impl = Custom.get_impl_cls()(HEADS, size, size**-0.5, KV_HEADS, kv_cache_dtype=cache, **how)
        finally:
            torch.set_default_dtype(torch.float32)
        self.layer = types.SimpleNamespace(
            impl=impl, layer_name="model.layers.0.attn", dtype=dtype, head_size_v=size
        )
        self.layer._k_scale = self.layer._v_scale = torch.ones((), device=DEVICE)
        self.layer._k_scale_float = self.layer._v_scale_float = 1.0
        config.compilation_config.static_forward_context[self.layer.layer_name] = self.layer
        builder = Custom.get_builder_cls()
        self.support = builder.get_cudagraph_support(config, self.spec)
        self.builder = builder(self.spec, [self.layer.layer_name], config, DEVICE)
        stored = torch.float8_e4m3fn if cache == "fp8" else dtype
        heads_first = Custom.supported_kv_cache_layouts()[0].name == "LBHNC"
        shape = (BLOCKS, KV_HEADS, 16, 2 * size) if heads_first else (BLOCKS, 16, KV_HEADS, 2 * size)
        self.cache = torch.zeros(shape, dtype=stored, device=DEVICE)
        if not heads_first:
            self.cache = self.cache.transpose(1, 2)
        self.stored = stored
        self.past: list[list[torch.Tensor]] = [[torch.empty(0, KV_HEADS, size)] * 2 for _ in range(REQUESTS)]
        self.rows = [
            torch.zeros(512, h, size, dtype=dtype, device=DEVICE) for h in (HEADS, KV_HEADS, KV_HEADS)
        ]
        self.output = torch.zeros(512, HEADS, size, dtype=dtype, device=DEVICE)

    def forward(self, metadata: Any, slots: torch.Tensor, n: int) -> None:
        impl, (q, k, v) = self.layer.impl, (x[:n] for x in self.rows)
        impl.do_kv_cache_update(self.layer, k, v, self.cache, slots)
        impl.forward(self.layer, q, k, v, self.cache, metadata, self.output[:n])

    def fill(self, query: list[int]) -> list[torch.Tensor]:
        """New queries, keys and values in the tensors that the graph reads; what the outputs should be."""
        n, r = sum(query), self.runner
        self.output.fill_(float("nan"))
        values = [r.random(n, x.shape[1], self.size).to(self.dtype) for x in self.rows]
        for to, x in zip(self.rows, values):
            to[:n].copy_(x)
        given, at = [], 0
        for request, count in enumerate(query):
            q, *new = (x[at : at + count] for x in values)
            new = [x.to(self.stored).float() for x in new]
            at += count
            past = self.past[request] = [torch.cat(pair) for pair in zip(self.past[request], new)]
            if count:
                given.append(self.exact(q, *past))
        return given

    def exact(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        window = self.how.get("sliding_window")
        return attend(
            q.float(),
            k,
            v,
            self.size**-0.5,
            k.shape[0] - q.shape[0],
            window=-1 if window is None else window - 1,
            cap=self.how.get("logits_soft_cap") or 0.0,
            sinks=self.how.get("sinks"),
        )


class Quantised(Dense):
    """Calls that bring the scales of vLLM's fusion of attention and quantisation: "fp8", of one static scale,
    or "nvfp4", whose block scales come in tiles of padded rows. The values have a mean, and channel 3 is 30
    times the others. profiled: the first call is vLLM's profiling run, before the builder is made."""

    def __init__(self, dtype: torch.dtype, kind: str, config: Any, size: int, profiled: bool) -> None:
        self.kind = kind
        super().__init__(dtype, "auto", config, size)
        key = {"fp8": vllm_standin.kFp8StaticTensorSym, "nvfp4": vllm_standin.kNvfp4Dynamic}[kind]
        torch.set_default_dtype(dtype)
        self.is_supported = self.layer.impl.fused_output_quant_supported(key)
        other = self.layer.impl.fused_output_quant_supported(vllm_standin.kFp8DynamicTokenSym)
        torch.set_default_dtype(torch.float32)
        assert not other, "a quantisation that libattn has not is said to be supported"
        rows, groups = 512, HEADS * size // 16
        self.scale = torch.tensor(0.11 if kind == "fp8" else 448 * 6 / 60, device=DEVICE)
        self.written = torch.zeros(rows, HEADS, size, dtype=torch.float8_e4m3fn, device=DEVICE)
        self.blocks: Any = None
        if kind == "nvfp4":
            self.written = torch.zeros(rows, HEADS, size // 2, dtype=torch.uint8, device=DEVICE)
            self.blocks = torch.zeros(rows, groups, dtype=torch.uint8, device=DEVICE)
            self.blocks = self.blocks.view(torch.float8_e4m3fn)
        if profiled:
            impl = self.layer.impl
            impl.layer.close()
            impl.layer = None
            self.call(None, 8)
            names = [self.layer.layer_name]
            self.builder = type(self.builder)(self.spec, names, config, DEVICE)

    def call(self, metadata: Any, n: int) -> None:
        q, k, v = (x[:n] for x in self.rows)
        given = (self.written[:n], self.scale, self.blocks)
        self.layer.impl.forward(self.layer, q, k, v, self.cache, metadata, *given)

    def fill(self, query: list[int]) -> list[torch.Tensor]:
        was = self.runner.random

        def random(*shape: int) -> torch.Tensor:
            x = was(*shape)
            if shape[1] == KV_HEADS:
                x = x * 0.5 + 0.75
                x[..., 3] *= 30
            return x

        self.runner.random = random  # type: ignore[method-assign]
        try:
            return super().fill(query)
        finally:
            self.runner.random = was  # type: ignore[method-assign]

    def forward(self, metadata: Any, slots: torch.Tensor, n: int) -> None:
        impl, (_, k, v) = self.layer.impl, (x[:n] for x in self.rows)
        impl.do_kv_cache_update(self.layer, k, v, self.cache, slots)
        self.call(metadata, n)

    def read(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What was written, dequantised, and the size of each group's scale: one step of a code."""
        if self.kind == "fp8":
            x = self.written[:n].float().cpu() * self.scale.item()
            return x, torch.full_like(x, self.scale.item())
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
        codes = self.written[:n].cpu()
        x = table[torch.stack([codes & 15, codes >> 4], dim=-1).long()].reshape(n, -1, 16)
        flat = self.blocks.view(torch.uint8).cpu().reshape(-1)  # as a block-scaled product finds it
        t, g = torch.meshgrid(torch.arange(n), torch.arange(x.shape[1]), indexing="ij")
        tile = t // 128 * (x.shape[1] // 4) + g // 4
        at = tile * 512 + t % 32 * 16 + t % 128 // 32 * 4 + g % 4
        scales = flat[at].view(torch.float8_e4m3fn).float() / self.scale.item()
        return (x * scales[..., None]).reshape(n, HEADS, -1), scales[..., None].expand_as(x).reshape(
            n, HEADS, -1
        )


class Latent(Dense):
    """One layer of absorbed queries over the latent cache."""

    def __init__(self, dtype: torch.dtype, config: Any, platform: str = "") -> None:
        from libattn.vllm import latent

        backend = latent.CpuLatent if (platform or DEVICE.type) == "cpu" else latent.CudaLatent
        self.dtype, self.size, self.runner = dtype, LATENT + ROPE, Runner(64)
        self.scale = 192**-0.5
        spec = vllm_standin.FullAttentionSpec(
            block_size=64, num_kv_heads=1, head_size=self.size, dtype=dtype, head_size_v=0
        )
        torch.set_default_dtype(dtype)
        try:
            impl = backend.get_impl_cls()(
                HEADS,
                self.size,
                self.scale,
                1,
                None,
                None,
                "auto",
                None,
                "decoder",
                None,
                kv_lora_rank=LATENT,
                qk_rope_head_dim=ROPE,
            )
        finally:
            torch.set_default_dtype(torch.float32)
        self.layer = types.SimpleNamespace(impl=impl)
        config.compilation_config.static_forward_context["latent"] = self.layer
        self.builder = backend.get_builder_cls()(spec, ["latent"], config, DEVICE)
        self.cache = torch.zeros(BLOCKS, 64, self.size, dtype=dtype, device=DEVICE)
        self.past = [[torch.empty(0, 1, self.size)] for _ in range(REQUESTS)]
        self.rows = [torch.zeros(512, h, self.size, dtype=dtype, device=DEVICE) for h in (HEADS, 1)]
        self.output = torch.zeros(512, HEADS, LATENT, dtype=dtype, device=DEVICE)
        self.stored = dtype

    def write(self, slots: torch.Tensor, n: int) -> None:
        rows = self.rows[1][:n, 0]
        one = torch.ones((), device=DEVICE)
        self.layer.impl.do_kv_cache_update(  # False: skip_scale, which vLLM hands over since 0.33
            rows[:, :LATENT], rows[:, None, LATENT:], self.cache, slots, "auto", one, False
        )

    def forward(self, metadata: Any, slots: torch.Tensor, n: int) -> None:
        self.write(slots, n)
        q = self.rows[0][:n]
        found, _ = self.layer.impl.forward_mqa(
            (q[..., :LATENT], q[..., LATENT:]), self.cache, metadata, self.layer
        )
        self.output[: found.shape[0]].copy_(found)

    def exact(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return attend(q.float(), k, k[..., :LATENT], self.scale, k.shape[0] - q.shape[0])


def worst_of(layer: Dense, expected: list[torch.Tensor], n: int) -> float:
    found = layer.output[:n].double().cpu()
    return (found - torch.cat(expected)).abs().max().nan_to_num(nan=9e9).item()


def steps(name: str, limit: float, layer: Dense, slack: int = 0) -> None:
    worst = 0.0
    for query in MIXED:
        expected, common = layer.fill(query), layer.runner.step(query, slack=slack)
        metadata = layer.builder.build(0, common)
        if isinstance(layer, Latent):  # vLLM itself attends to prompts
            n = sum(query)
            if metadata.num_decodes < REQUESTS:
                layer.write(common.slot_mapping, n)
                continue
        layer.forward(metadata, common.slot_mapping, sum(query))
        worst = max(worst, worst_of(layer, expected, sum(query)))
    ok(worst <= limit, f"{name}: within {worst:.1e}")


def quantised(name: str, limit: float, layer: Quantised) -> None:
    """Every value within the rounding of its format, beside limit of the model's own: fp8 half of an eighth
    of itself and half of the smallest step, nvfp4 half of the largest step of its codes. A group's scale
    follows its largest value."""
    worst, tight = 0.0, True
    for query in MIXED:
        expected, common, n = layer.fill(query), layer.runner.step(query), sum(query)
        layer.forward(layer.builder.build(0, common), common.slot_mapping, n)
        want = torch.cat(expected).float()
        found, steps_of = layer.read(n)
        if layer.kind == "fp8":
            allowed = want.abs() / 16 + steps_of * 2**-10
        else:
            largest = want.reshape(n, -1, 16).abs().amax(-1, keepdim=True)
            scale = steps_of.reshape(n, -1, 16)[..., :1]
            tight &= bool((scale * 6 / largest).sub(1).abs().max() < 1 / 16 + limit)
            allowed = (1.0 + 1 / 16) * steps_of
        over = (found - want).abs() - limit * want.abs().clamp(min=1)
        worst = max(worst, (over / allowed).max().nan_to_num(nan=9e9).item())
    name = f"{name}: {worst:.2f} of what the format rounds away"
    ok(worst <= 1 and tight and layer.is_supported, name)


def graphs(name: str, limit: float, layer: Dense) -> None:
    """Prompts, then decode steps: on a GPU one graph for four requests, replayed with padding and without."""
    for query in ([5, 130, 40, 0], [17, 0, 0, 9]):
        layer.fill(query)
        common = layer.runner.step(query)
        metadata = layer.builder.build(0, common)
        if isinstance(layer, Latent):
            layer.write(common.slot_mapping, sum(query))
        else:
            layer.forward(metadata, common.slot_mapping, sum(query))
    at = layer.runner.lens[:]
    common = layer.runner.step([1] * REQUESTS)
    layer.runner.lens = at  # nobody's tokens: the slots are none
    layer.runner.slots_device.fill_(-1)
    metadata = layer.builder.build_for_cudagraph_capture(common)
    slots, graph = layer.runner.slots_device[:REQUESTS], None
    layer.forward(metadata, slots, REQUESTS)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            layer.forward(metadata, slots, REQUESTS)
    worst = 0.0
    for query in DECODE:
        expected = layer.fill(query)
        metadata = layer.builder.build(0, layer.runner.step(query, padded=REQUESTS))
        if graph is None:
            layer.forward(metadata, slots, REQUESTS)
        else:
            graph.replay()
        worst = max(worst, worst_of(layer, expected, sum(query)))
    how = "a graph, replayed" if graph is not None else "the steps of a graph"
    ok(worst <= limit, f"{name}, {how} with padding and without: within {worst:.1e}")


def attempt(run: Any, name: str, limit: float, make: Any, **how: Any) -> None:
    try:
        run(name, limit, make(), **how)
    except Exception:
        ok(False, name, traceback.format_exc())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    global DEVICE
    DEVICE = torch.device(parser.parse_args().device)
    if DEVICE.type == "cuda":
        DEVICE = torch.device("cuda", torch.cuda.current_device())
    if DEVICE.type == "cuda":
        logging.basicConfig(level=logging.INFO, format="# %(message)s", stream=sys.stdout)
    vllm_standin.install(DEVICE.type)
    from libattn.vllm.backend import Custom

    def dense(dtype: torch.dtype, cache: str = "auto", size: int = 64, **how: Any) -> Any:
        names = ("graph", "speculates")
        config = {name: how.pop(name) for name in names if name in how}
        return lambda: Dense(dtype, cache, config_of(dtype, cache, **config), size, **how)

    def sinks() -> torch.Tensor:
        return torch.linspace(-2, 2, HEADS, device=DEVICE)

    exact, rounded = 1e-5, {torch.bfloat16: 2e-2, torch.float16: 3e-3}
    attempt(steps, "float32", exact, dense(torch.float32))
    attempt(steps, "window", exact, dense(torch.float32, sliding_window=33))
    attempt(steps, "soft cap", exact, dense(torch.float32, logits_soft_cap=5.0))
    attempt(steps, "sinks and a window", exact, dense(torch.float32, sinks=sinks(), sliding_window=33))
    for dtype, limit in rounded.items():
        attempt(steps, f"{dtype}", limit, dense(dtype))
        attempt(steps, f"{dtype}, heads of 128, sinks", limit, dense(dtype, size=128, sinks=sinks()))
    attempt(steps, "bfloat16, fp8 cache", 6e-2, dense(torch.bfloat16, "fp8"))
    for kind in ("fp8", "nvfp4"):
        for profiled in (True, False):
            when = "as profiled" if profiled else "after calls that write the model's dtype"
            attempt(
                quantised,
                f"output of {kind}, {when}",
                2e-2,
                lambda: Quantised(
                    torch.bfloat16, kind, config_of(torch.bfloat16, "auto"), 64, profiled  # noqa: B023
                ),
            )
    for dtype in (torch.float32, torch.bfloat16):
        limit = rounded.get(dtype, exact)
        attempt(graphs, f"{dtype}", limit, dense(dtype, graph="FULL_DECODE_ONLY"))
    attempt(
        graphs,
        "bfloat16, window and sinks",
        2e-2,
        dense(torch.bfloat16, size=128, sinks=sinks(), sliding_window=33, graph="FULL_DECODE_ONLY"),
    )
    attempt(graphs, "bfloat16, fp8 cache", 6e-2, dense(torch.bfloat16, "fp8", graph="FULL_DECODE_ONLY"))
    is_gpu = DEVICE.type == "cuda"
    latent = torch.bfloat16 if is_gpu else torch.float32
    attempt(
        steps,
        f"latent, {latent}",
        2e-2 if is_gpu else exact,
        lambda: Latent(latent, config_of(latent, "auto")),
    )
    attempt(
        graphs,
        f"latent, {latent}",
        2e-2 if is_gpu else exact,
        lambda: Latent(latent, config_of(latent, "auto", "FULL_DECODE_ONLY")),
    )
    if not is_gpu:  # the classes of GPUs, here on this platform's tensors
        made = lambda: Latent(latent, config_of(latent, "auto"), "cuda")  # noqa: E731
        attempt(steps, f"latent, {latent}, as on a GPU", exact, made)
    if is_gpu:
        made = dense(torch.bfloat16, speculates=True)
        attempt(steps, "lengths of which the host has bounds", 2e-2, made, slack=5)
    never = dense(torch.float32, graph="FULL_DECODE_ONLY")().support.name
    expected = "UNIFORM_SINGLE_TOKEN_DECODE" if is_gpu else "NEVER"
    ok(never == expected, f"what may be recorded: {never} ({expected})")
    ok(
        Custom.supports_head_size(64) and not Custom.supports_head_size(100000),
        "head sizes are those that libattn serves",
    )
    print(f"1..{number}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
