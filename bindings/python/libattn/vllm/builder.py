# SPDX-License-Identifier: Apache-2.0
"""From vLLM's batches to libattn's: a builder for each KV-cache group, in it a group for each problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from vllm import envs
from vllm.logger import init_logger
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, CrossAttentionSpec, EncoderOnlyAttentionSpec

import libattn

from .graphs import Graphs, is_recorded
from .impl import Impl
from .problems import cache_dtype_of, device_now, lengths_of, open_group, problem_of, why_not

logger = init_logger(f"vllm.{__name__}")  # below the logger that vLLM sets up


@dataclass
class Metadata:
    """One step's batch for each libattn group of a builder. For cross attention vLLM sets slot_mapping."""

    num_tokens: int
    batches: dict[libattn.Group, libattn.Batch]
    slot_mapping: torch.Tensor
    builder: Builder
    common: CommonAttentionMetadata
    causal: Any = True
    extra: dict[str, Any] = field(default_factory=dict)

    def use(self, group: libattn.Group) -> int:
        """Makes this batch the group's current one; the number of its tokens. It is built at its first use,
        and again if another batch of the group was in between."""
        batch = self.batches.get(group)
        if batch is None:  # the layer was opened anew in this step
            batch = self.batches[group] = self.builder.batch_of(group, self.common)
        if group.batch is not batch:
            group.build_metadata(batch)
        return self.num_tokens


class Builder(AttentionMetadataBuilder[Metadata]):
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        """Decode steps of one token a request, where a backend of libattn can be recorded. Batches that need
        more than tables and lengths are made of lists of the host, which a graph would not see again."""
        anew = (ChunkedLocalAttentionSpec, CrossAttentionSpec, EncoderOnlyAttentionSpec)
        if device_now().is_cpu or isinstance(kv_cache_spec, anew):
            return AttentionCGSupport.NEVER
        if vllm_config.attention_config.use_non_causal or vllm_config.model_config.is_mm_prefix_lm:
            return AttentionCGSupport.NEVER
        mode = kv_cache_spec.kv_quant_mode
        why = why_not(
            dtype=vllm_config.model_config.dtype,
            head_size=kv_cache_spec.head_size,
            block_size=kv_cache_spec.block_size,
            kv_cache_dtype=cache_dtype_of(vllm_config.cache_config.cache_dtype) if mode else None,
            features=("capture",),
        )
        if why is not None:
            logger.info_once("libattn: attention stays out of CUDA graphs: %s", why)
            return AttentionCGSupport.NEVER
        return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = vllm_config.compilation_config.static_forward_context
        # a layer that shares another's cache needs that one first
        names = sorted(layer_names, key=lambda n: layers[n].impl.kv_sharing_target_layer_name is not None)
        self.groups: dict[libattn.Problem, libattn.Group] = {}
        self.graphs = Graphs()
        self.is_recorded = is_recorded(vllm_config) and (
            self.get_cudagraph_support(vllm_config, kv_cache_spec) is not AttentionCGSupport.NEVER
        )
        for name in names:
            self._open(layers[name])
        for problem, group in self.groups.items():
            logger.info_once("libattn: %s serves %s", group.served_by, problem)

    def _open(self, layer: Any) -> libattn.Group:
        assert isinstance(layer.impl, Impl), f"{layer.layer_name} is not a layer of libattn"
        group = self._group(self._problem(layer))
        layer.impl.create(group, layer)
        return group

    def reopen(self, layer: Any) -> None:
        """The layer's calls write something else than it was opened for; only its calls say so."""
        known = set(self.groups)
        group = self._open(layer)
        if group.problem not in known:
            logger.info_once("libattn: %s serves %s", group.served_by, group.problem)
        self.groups = {p: g for p, g in self.groups.items() if g._layers}

    def _problem(self, layer: Any) -> libattn.Problem:
        config, spec = self.vllm_config, self.kv_cache_spec
        scheduler, model = config.scheduler_config, config.model_config
        given = layer.impl.description()
        features = list(given.pop("features"))
        if getattr(layer, "use_mm_prefix", False) and given["attn_type"] == "decoder":
            features.append("mm_prefix")
            if layer.mm_prefix_clamp_sliding_window:
                features.append("mm_prefix_clamp")
        if envs.VLLM_BATCH_INVARIANT:
            features.append("batch_invariant")
        if self.is_recorded:
            features.append("capture")
        if config.speculative_config is not None and self.device.type != "cpu":
            if given["attn_type"] == "decoder":
                features.append("device_lengths")  # the host has bounds of them
        seqs, longest = scheduler.max_num_seqs, model.max_model_len
        if isinstance(spec, ChunkedLocalAttentionSpec):
            seqs = scheduler.max_num_batched_tokens  # vLLM makes a request of each chunk
        if given["attn_type"] == "encoder_decoder":
            longest = max(longest, scheduler.max_num_encoder_input_tokens)
        return problem_of(
            dtype=layer.dtype,
            use_non_causal=config.attention_config.use_non_causal,
            head_size_v=layer.head_size_v,
            block_size=spec.block_size,
            max_num_seqs=seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            max_model_len=longest,
            features=tuple(features),
            **given,
        )

    def _group(self, problem: libattn.Problem) -> libattn.Group:
        group = self.groups.get(problem)
        if group is None:
            group = self.groups[problem] = open_group(problem, self.device)
        return group

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> Metadata:
        """A graph of decode steps of so many requests will read the buffers that this fills."""
        if self.is_recorded:
            self.graphs.begin(common_attn_metadata)
        return self.build(0, common_attn_metadata)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Metadata:
        c = common_attn_metadata
        batches = {group: self.batch_of(group, c) for group in self.groups.values()}
        num_tokens = int(c.query_start_loc_cpu[c.num_reqs])
        return Metadata(num_tokens, batches, c.slot_mapping, self, c, c.causal)

    def batch_of(self, group: libattn.Group, c: CommonAttentionMetadata) -> libattn.Batch:
        in_graph = self.graphs.has(c)
        batch = self._batch(group, c, in_graph)
        if in_graph:  # a replay calls no layer, so that nothing would be built later
            self.graphs.build(group, batch)
        return batch

    def _batch(self, group: libattn.Group, c: CommonAttentionMetadata, in_graph: bool) -> libattn.Batch:
        n, problem = c.num_reqs, group.problem
        given = lengths_of(c, n, self.device)
        if problem.role == "encoder_decoder":
            # vLLM has put the encoders' lengths in the place of the decoders', which nothing needs
            given["encoder_seq_lens"] = given.pop("seq_lens")
            given.pop("seq_lens_device", None)
            starts = given["query_start_loc"]
            given["seq_lens"] = starts[1:] - starts[:-1]
        if problem.role in ("decoder", "encoder_decoder"):
            given["block_table"], given["slot_mapping"] = c.block_table_tensor[:n], c.slot_mapping
        if problem.mask == "per_request":
            given["causal"] = c.causal.tolist() if isinstance(c.causal, torch.Tensor) else [c.causal] * n
        elif problem.role == "decoder" and c.causal is not True:
            raise NotImplementedError(
                "vLLM asks for attention without the causal mask in a decoder that was not opened for it"
            )
        if "mm_prefix" in problem.features:
            ranges = c.mm_req_doc_ranges or {}
            given["mm_prefix_ranges"] = [ranges.get(i, []) for i in range(n)]
        return group.new_batch(capture=in_graph, **given)
