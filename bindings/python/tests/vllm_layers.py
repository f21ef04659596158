# SPDX-License-Identifier: Apache-2.0
"""Single attention layers of vLLM, made by vLLM's own classes, on libattn beside vLLM's CPU backend: also
what no small decoder model reaches, as cross attention, encoders, chunks and batches without a causal mask.

    python tests/vllm_layers.py

Needs vllm on a CPU; without it the test says so and passes.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import vllm_models
import vllm_tokens

HEADS, KV_HEADS, SIZE, BLOCKS, BLOCK = 8, 2, 64, 24, 128
# beside an unquantised cache of vLLM, which has few formats on CPUs
TOLERANCE = {"auto": 2e-5, "fp8": 0.26, "int8_per_token_head": 0.03, "int4_per_token_head": 0.8}


class Case:
    """One layer and its batches. steps: (query lengths, total lengths); cross: lengths of the encoders."""

    def __init__(self, name: str, steps: list[Any], cache: str = "auto", **layer: Any) -> None:
        self.name, self.steps, self.cache, self.layer = name, steps, cache, layer
        self.encoder_lens: list[int] | None = None
        self.causal: Any = True
        self.output_scale: float | None = None  # of fp8, from a layer that vLLM may hand the quantisation to


MIXED = [([5, 130, 40], [5, 130, 40]), ([1, 1, 200], [6, 131, 240]), ([1, 3, 1], [7, 134, 241])]


def cases() -> list[Case]:
    import torch

    slopes = [2.0 ** -(i + 1) for i in range(HEADS)]
    every = [
        Case("decoder", MIXED),
        Case("window", MIXED, per_layer_sliding_window=33),
        Case("soft cap", MIXED, logits_soft_cap=5.0),
        Case("sinks", MIXED, sinks=torch.linspace(-2, 2, HEADS)),
        Case("sinks and a window", MIXED, sinks=torch.linspace(-2, 2, HEADS), per_layer_sliding_window=33),
        Case("ALiBi", MIXED, alibi_slopes=slopes),
        *(Case(f"{cache} cache", MIXED, cache) for cache in TOLERANCE if cache != "auto"),
        Case("encoder only", MIXED[:1], kind="EncoderOnlyAttention"),
        Case("encoder only, window", MIXED[:1], kind="EncoderOnlyAttention", per_layer_sliding_window=17),
        Case("chunks", MIXED, kind="ChunkedLocalAttention", attention_chunk_size=128),
        Case("cross", [([4, 1, 7], [4, 1, 7]), ([1, 1, 1], [5, 2, 8])], kind="CrossAttention"),
        Case("without a causal mask", MIXED),
        Case("some requests without", MIXED),
        Case("output of fp8", MIXED),
    ]
    every[-4].encoder_lens = [150, 3, 129]
    every[-3].causal = False
    every[-2].causal = torch.tensor([1, 0, 1], dtype=torch.int32)
    every[-1].output_scale = 0.015
    return every


def common_metadata(case: Case, step: int, block_table: Any) -> Any:
    """The batch as vLLM's model runner describes it."""
    import numpy
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata

    query, total = case.steps[step]
    starts = torch.tensor([0, *query]).cumsum(0).to(torch.int32)
    lens = torch.tensor(total, dtype=torch.int32)
    positions = torch.cat([torch.arange(t - q, t) for q, t in zip(query, total)])
    requests = torch.repeat_interleave(torch.arange(len(query)), torch.tensor(query))
    slots = block_table[requests, positions // BLOCK].long() * BLOCK + positions % BLOCK
    more: dict[str, Any] = {}
    if case.encoder_lens is not None:
        more["encoder_seq_lens"] = torch.tensor(case.encoder_lens, dtype=torch.int32)
        more["encoder_seq_lens_cpu"] = numpy.array(case.encoder_lens, dtype=numpy.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lens,
        seq_lens_cpu_upper_bound=lens.clone(),
        num_reqs=len(query),
        num_actual_tokens=sum(query),
        max_query_len=max(query),
        max_seq_len=max(total),
        block_table_tensor=block_table,
        slot_mapping=slots,
        positions=positions,
        causal=case.causal,
        **more,
    )


def outputs(case: Case, config: Any, cache_dtype: str) -> list[Any]:
    """What a layer of this configuration gives, step by step."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.attention.attention import Attention
    from vllm.model_executor.layers.attention.chunked_local_attention import ChunkedLocalAttention
    from vllm.model_executor.layers.attention.cross_attention import CrossAttention
    from vllm.model_executor.layers.attention.encoder_only_attention import EncoderOnlyAttention
    from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8StaticTensorSym
    from vllm.v1.kv_cache_interface import EncoderOnlyAttentionSpec

    classes: dict[str, Callable[..., Any]] = {
        c.__name__: c for c in (Attention, ChunkedLocalAttention, CrossAttention, EncoderOnlyAttention)
    }
    options = dict(case.layer)
    make = classes[options.pop("kind", "Attention")]
    generator = torch.Generator().manual_seed(1)
    config.cache_config.cache_dtype = cache_dtype
    config.compilation_config.static_forward_context.clear()
    config.attention_config.use_non_causal = case.causal is not True
    with set_current_vllm_config(config):
        layer = make(
            HEADS,
            SIZE,
            SIZE**-0.5,
            num_kv_heads=KV_HEADS,
            cache_config=config.cache_config,
            prefix="model.layers.0.attn",
            **options,
        )
        spec = layer.get_kv_cache_spec(config) or EncoderOnlyAttentionSpec(
            block_size=BLOCK, num_kv_heads=KV_HEADS, head_size=SIZE, dtype=torch.float32
        )
        spec = layer.attn_backend.customize_spec(spec)  # as the model runner does
        builder = layer.attn_backend.get_builder_cls()(
            spec, ["model.layers.0.attn"], config, torch.device("cpu")
        )
        row = getattr(spec, "state_content_size_bytes", 8 * SIZE) // spec.dtype.itemsize
        cache = torch.zeros(BLOCKS, KV_HEADS, BLOCK, row, dtype=spec.dtype)
        table = torch.randperm(BLOCKS, generator=generator)[: 3 * 4].reshape(3, 4).to(torch.int32)
        given = []
        for step, (query, _) in enumerate(case.steps):
            common = common_metadata(case, step, table)
            metadata = builder.build(0, common)
            q = torch.randn(sum(query), HEADS, SIZE, generator=generator)
            rows = sum(query) if case.encoder_lens is None else sum(case.encoder_lens)
            k, v = torch.randn(2, rows, KV_HEADS, SIZE, generator=generator).unbind(0)
            if case.encoder_lens is not None and step:
                k = v = None  # the encoder has run
            out, scales = torch.full_like(q, float("nan")), []
            if case.output_scale and layer.impl.fused_output_quant_supported(kFp8StaticTensorSym):
                out, scales = out.to(torch.float8_e4m3fn), [torch.tensor(case.output_scale)]
            if not layer.attn_backend.forward_includes_kv_cache_update:
                layer.impl.do_kv_cache_update(layer, k, v, cache, common.slot_mapping)
            layer.impl.forward(layer, q, k, v, cache, metadata, out, *scales)
            given.append(out.float() * case.output_scale if scales else out)
    if case.output_scale and bool(scales) != ("libattn" in type(layer.impl).__module__):
        raise AssertionError("a CPU backend of vLLM's serves such outputs, or libattn's none")
    return given


def standins() -> list[str]:
    """Where the stand-ins of vllm_seam.py are not as vLLM's classes are."""
    import vllm_standin
    from vllm.config import CUDAGraphMode
    from vllm.model_executor.layers.attention.mla_attention import MLACommonMetadataBuilder
    from vllm.v1 import kv_cache_interface
    from vllm.v1.attention import backend
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl

    def parameters(function: Any) -> list[tuple[str, Any]]:
        return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]

    wrong = []
    functions = ("__init__", "build", "build_for_cudagraph_capture", "get_cudagraph_support")
    classes = [
        (backend.AttentionMetadataBuilder, functions),
        (MLACommonMetadataBuilder, ("build",)),
        (CPUMLAImpl, ("__init__", "forward_mqa", "do_kv_cache_update")),
    ]
    for theirs, names in classes:
        for name in names:
            ours = parameters(getattr(getattr(vllm_standin, theirs.__name__), name))
            given = parameters(getattr(theirs, name))  # later versions may have more, with defaults
            more = given[len(ours) :]
            if ours != given[: len(ours)] or any(default is inspect.Parameter.empty for _, default in more):
                wrong.append(f"{theirs.__name__}.{name}")
    spec = kv_cache_interface.AttentionSpec
    for theirs in (backend.CommonAttentionMetadata, spec):
        fields = {f.name for f in dataclasses.fields(theirs)}
        ours = {f.name for f in dataclasses.fields(getattr(vllm_standin, theirs.__name__))}
        wrong += [f"{theirs.__name__}.{name}" for name in sorted(ours - fields)]
    for theirs in (backend.AttentionCGSupport, kv_cache_interface.KVCacheLayout, backend.AttentionType):
        for member in getattr(vllm_standin, theirs.__name__):
            if member.name not in theirs.__members__ or theirs[member.name].value != member.value:
                wrong.append(f"{theirs.__name__}.{member.name}")
    if not CUDAGraphMode["FULL_DECODE_ONLY"].has_full_cudagraphs():
        wrong.append("CUDAGraphMode.has_full_cudagraphs")
    return wrong


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    if vllm_tokens.is_missing():
        return 0
    vllm_tokens.environment()
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    if current_platform.device_type != "cpu":
        print(f"1..0 # SKIP vllm is one for {current_platform.device_type}, which has no CPU_ATTN")
        return 0
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        model = vllm_models.make("llama", Path(scratch))
        configs = [
            EngineArgs(
                model=str(model),
                skip_tokenizer_init=True,
                dtype="float32",
                max_model_len=512,
                attention_backend=b,
            ).create_engine_config()
            for b in (None, "CUSTOM")
        ]
        torch.set_default_dtype(torch.float32)
        print(f"1..{len(cases()) + 1}", flush=True)
        for number, case in enumerate(cases(), 1):
            own, ours = outputs(case, configs[0], "auto"), outputs(case, configs[1], case.cache)
            worst = max((a - b).abs().max().item() for a, b in zip(own, ours))
            good = worst <= TOLERANCE["fp8" if case.output_scale else case.cache]  # NaN is not
            failed += not good
            print(f"{'ok' if good else 'not ok'} {number} - {case.name}: within {worst:.2g}", flush=True)
        wrong = standins()
        failed += bool(wrong)
        said = f"{'not ok' if wrong else 'ok'} {len(cases()) + 1} - the stand-ins of vllm_seam.py are as vLLM's classes"
        print(": ".join([said, *wrong]), flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
