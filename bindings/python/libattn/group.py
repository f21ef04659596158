# SPDX-License-Identifier: Apache-2.0
"""Groups: one problem opened on one backend; its caches, buffers and batches."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from . import _abi, memory
from ._load import call, library, module_if_loaded
from .batch import Batch
from .calls import GroupCalls
from .errors import invalid, make
from .plan import KVSpec
from .problem import Device, Problem
from .selection import Selection
from .tensors import DLPACK_TYPES, NAMES, TensorView

if TYPE_CHECKING:
    from .context import Backend, Context
    from .layer import Layer

__all__ = ["Group", "Space", "Cache", "CacheShape"]


@dataclass(frozen=True)
class CacheShape:
    """The KV cache of one layer: its logical shape and how to lay it out (attn_kv_cache_shape_t)."""

    shape: tuple[int, ...]
    byte_strides: tuple[int, ...]  # of the recommended layout
    strides: tuple[int, ...]  # the same, in elements
    axes: tuple[str, ...]  # "BLOCK", "HEAD", "TOKEN", "CONTENT", "LAYER", "KV"
    stride_order: tuple[int, ...]  # physical dimension j is logical dimension stride_order[j]
    stride_order_layers: tuple[int, ...]  # the same, with a dimension of layers in front
    dtype: str  # element type of the tensor to allocate
    kv_layout: Optional[str]
    alignment: int
    block_size: int
    page_bytes: int
    total_bytes: int
    k_offset: int  # bytes inside a content row
    v_offset: int
    k_scale_offset: int  # -1: no inline scales
    v_scale_offset: int
    layout_id: int
    fingerprint: int  # equal ids and fingerprints may share pages

    @classmethod
    def of(cls, s: _abi.attn_kv_cache_shape_t) -> CacheShape:
        n = s.ndim
        name = NAMES.get((s.dtype.code, s.dtype.bits), "uint8")
        return cls(
            tuple(s.shape[:n]),
            tuple(s.byte_strides[:n]),
            tuple(b * 8 // s.dtype.bits for b in s.byte_strides[:n]),
            tuple(_abi.Axis(a).name for a in s.axes[:n]),
            tuple(s.stride_order[:n]),
            tuple(s.stride_order_layers[: n + 1]),
            name,
            _abi.Layout(s.kv_layout).name if s.kv_layout else None,
            s.alignment,
            s.block_size,
            s.page_bytes,
            s.total_bytes,
            s.k_offset,
            s.v_offset,
            s.k_scale_offset,
            s.v_scale_offset,
            s.layout_id,
            s.fingerprint,
        )


class Cache:
    """The KV cache of one layer: .tensor has its logical shape (torch or numpy; None for formats without such
    a type and for bytes), .memory its bytes, .shape the CacheShape. Made by Group.new_cache."""

    def __init__(self, group: Group, num_blocks: int, framework: Optional[str]) -> None:
        s = self.shape = group.kv_cache_shape(num_blocks)
        if not s.shape:
            raise invalid("num_blocks", f"a layer of role {group.problem.role} has no cache")
        self.num_blocks = num_blocks
        self.memory = memory.allocate(
            s.total_bytes, s.alignment, group.device, framework=framework, zero=True
        )
        self.tensor: Any = self._tensor(self.memory.owner)
        self.view = TensorView(name="kv_cache")
        device = (group.device.type, max(group.device.index, 0))
        self.view.point(self.memory.address, device, DLPACK_TYPES[s.dtype], s.shape, s.strides, self.memory)

    def _tensor(self, raw: Any) -> Any:
        s = self.shape
        torch, numpy = module_if_loaded("torch"), module_if_loaded("numpy")
        if torch is not None and isinstance(raw, torch.Tensor):
            flat = raw.view(memory.torch_dtype(s.dtype))
            return flat.as_strided(s.shape, s.strides, flat.storage_offset())
        if numpy is not None and isinstance(raw, numpy.ndarray):
            try:
                return numpy.lib.stride_tricks.as_strided(raw.view(s.dtype), s.shape, s.byte_strides)
            except TypeError:
                return None
        return None


class Space:
    """One set of buffers of a group: metadata, workspace, and host memory; made by Group.new_space."""

    def __init__(self, group: Group, workspace: Optional[memory.Memory], framework: Optional[str]) -> None:
        n, device = group.space_needed, group.device
        self.metadata = memory.allocate(n.metadata_bytes, n.alignment, device, framework=framework)
        self.workspace = workspace or memory.allocate(
            n.workspace_bytes, n.alignment, device, framework=framework
        )
        self.host = memory.allocate(n.host_bytes, n.alignment, device, framework=framework, pinned=True)
        self.event: Any = None  # CUDA: when the last build has left .host
        self._struct = _abi.attn_space_t(
            metadata=self.metadata.address,
            metadata_bytes=self.metadata.nbytes,
            workspace=self.workspace.address,
            workspace_bytes=self.workspace.nbytes,
            host=self.host.address,
            host_bytes=self.host.nbytes,
        )
        self.address = ctypes.addressof(self._struct)


def _output_columns(p: Problem) -> int:
    """Elements that a head has in the output, as attn_output_columns says."""
    latent = p.role in ("mla", "mla_sparse") and "latent" in p.features
    size = int(p.kv_lora_rank if latent else p.v_head_dim or p.head_size_v or p.head_size)
    return size // 2 if "out_nvfp4" in p.features else size


class Group:
    """One problem opened on one backend and device; layers that share these share a group. Made by
    Context.open_group.

    One thread at a time may use a group and its layers: a second one gets StateError.
    """

    def __init__(self, context: Context, handle: int, device: Device, selection: Selection) -> None:
        from .context import Backend

        self.context, self.device, self.selection = context, device, selection
        self._handle: Optional[int] = handle
        self._layers: dict[int, Any] = {}
        context._groups[handle] = self._layers
        self._finalizer = weakref.finalize(self, _close, handle, self._layers, context._groups)
        self._finalizer.atexit = False  # the context's does it
        self.backend: Backend = Backend(library.attn_group_backend(handle), context)
        # of batches that hold prefill: another one where the configuration names two over one cache
        self.prefill_backend: Backend = Backend(
            library.attn_group_phase_backend(handle, _abi.ATTN_PHASE_PREFILL), context
        )
        self.problem = Problem.from_struct(library.attn_group_problem(handle))
        self.block_size: int = self.problem.block_size or 0
        self.space_needed = _abi.attn_space_needed_t()
        call("attn_group_space_needed", handle, ctypes.addressof(self.space_needed))
        p = self.problem
        self.output_row = (p.num_heads, _output_columns(p))  # of one token
        self.output_dtype: str = p.out_dtype or p.dtype
        self.space: Optional[Space] = None  # of the last build, which layers use
        self.batch: Optional[Batch] = None
        self._spaces: list[Space] = []
        self._calls = GroupCalls(handle, device.type, device.index)
        self._is_cuda = device.type == 2

    @property
    def handle(self) -> int:
        """The attn_group_t; a closed group has none."""
        if self._handle is None or self._handle not in self.context._groups:
            raise make(_abi.ATTN_E_STATE, "group", "the group is closed")
        return self._handle

    def close(self) -> None:
        """Closes the group and its layers. Again: nothing."""
        self._handle = None
        self._finalizer()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Group {self.served_by}: {self.problem}>"

    @property
    def served_by(self) -> str:
        """The name of the backend; of two, "decode TRITON_ATTN, prefill FLASH_ATTN"."""
        decode, prefill = self.backend.name, self.prefill_backend.name
        return decode if decode == prefill else f"decode {decode}, prefill {prefill}"

    def backend_of(self, batch: Batch) -> Backend:
        """The backend that computes a batch: `backend` for decode and what is built for capture, else
        `prefill_backend`."""
        phase = library.attn_group_phase(self.handle, batch.address)
        return self.prefill_backend if phase == _abi.ATTN_PHASE_PREFILL else self.backend

    def kv_cache_shape(self, num_blocks: int = 0) -> CacheShape:
        """The cache of one layer with num_blocks pages (0: as the problem says); .shape is () for roles
        without one."""
        s = _abi.attn_kv_cache_shape_t()
        call("attn_group_kv_cache_shape", self.handle, num_blocks, ctypes.addressof(s))
        return CacheShape.of(s)

    def kv_spec(self) -> KVSpec:
        """The group's cache as a spec: page bytes, admission limits."""
        s = _abi.attn_kv_spec_t()
        call("attn_group_kv_spec", self.handle, ctypes.addressof(s))
        return KVSpec(s)

    def new_cache(self, num_blocks: int, *, framework: Optional[str] = None) -> Cache:
        """Zeroed memory for one layer's cache. framework: "torch", "numpy" or "bytes"; None: torch if the
        program has imported it, else numpy if installed, else bytes. A device other than the CPU needs
        torch."""
        return Cache(self, num_blocks, framework)

    def new_space(
        self, *, workspace: Optional[memory.Memory] = None, framework: Optional[str] = None
    ) -> Space:
        """Buffers of this group. workspace: another space's, shared by what runs on one stream."""
        return Space(self, workspace, framework)

    def new_batch(self, **arguments: Any) -> Batch:
        """A batch of this group.

        query_lens or query_start_loc ([B + 1], from 0): query tokens of each request; seq_lens [B]: total
        length after this step (default: the query lengths, as encoders want it); block_table: int32 [B,
        blocks], or a list of rows; slot_mapping: int64 [T], made from a block table that the host has unless
        given. query_start_loc_device, seq_lens_device: the same numbers on the group's device if the engine
        has them there; else they are copied. encoder_seq_lens [B] (role encoder_decoder), causal [B] (mask
        per_request), mm_prefix_ranges [B, ranges, 2], rswa_prefix_lens [B], key_start_loc [B + 1] (feature
        key_lengths), common_prefix_len, max_query_len, max_seq_len, capture (for graph capture): as in
        attn_batch_t. With the feature device_lengths the two lists on the device count, and the host's bound
        them.
        """
        return Batch(self, **arguments)

    def stream(self) -> Optional[int]:
        """torch's current stream of the group's device; None without torch and on a CPU."""
        torch = module_if_loaded("torch") if self._is_cuda else None
        return None if torch is None else torch.cuda.current_stream(self.device.index).cuda_stream

    def build_metadata(
        self, batch: Batch, *, space: Optional[Space] = None, stream: Optional[int] = None
    ) -> Space:
        """Plans a batch into a space, once per step. The space (None: the group's own; on CUDA two in turn,
        for graph capture always the first) and the batch become those that layers use."""
        return self._build(batch, space or self._next_space(batch), stream, False)

    def update_block_table(
        self, batch: Batch, *, space: Optional[Space] = None, stream: Optional[int] = None
    ) -> Space:
        """New block table and slot mapping in built metadata; the batch is otherwise the one that was
        built."""
        target = space or self.space
        if target is None:
            raise make(_abi.ATTN_E_STATE, "space", "no metadata was built; call build_metadata first")
        return self._build(batch, target, stream, True)

    def _build(self, batch: Batch, space: Space, stream: Optional[int], is_table: bool) -> Space:
        if self._handle is None:
            raise make(_abi.ATTN_E_STATE, "group", "the group is closed")
        if self._is_cuda and stream is None:
            stream = self.stream()
        self._calls.build(batch.address, space.address, stream, is_table)
        if self._is_cuda and (torch := module_if_loaded("torch")) is not None:
            space.event = torch.cuda.Event()
            space.event.record(torch.cuda.ExternalStream(stream or 0, self.device.index))
        self.batch, self.space = batch, space
        return space

    def _next_space(self, batch: Batch) -> Space:
        if not self._spaces:
            first = Space(self, None, None)
            self._spaces = [first, Space(self, first.workspace, None)] if self._is_cuda else [first]
        if not self._is_cuda:
            return self._spaces[0]
        if batch._struct.flags & _abi.ATTN_BATCH_CAPTURE:
            return self._spaces[0]
        space = self._spaces[1] if self.space is self._spaces[0] else self._spaces[0]
        if space.event is not None and not module_if_loaded("torch").cuda.is_current_stream_capturing():
            space.event.synchronize()
        return space

    def create_layer(self, name: str, **options: Any) -> Layer:
        """A layer, named as in the checkpoint ("model.layers.0.self_attn.attn"), unique in the context.
        Options: see Layer."""
        from .layer import Layer

        return Layer(self, name, **options)

    def extension(self, name: str) -> Optional[int]:
        """The address of the backend's extension ("attn.ext.NAME/N"), or None."""
        address: Optional[int] = library.attn_group_get_extension(self.handle, name.encode())
        return address


def _close(handle: int, layers: dict[int, Any], groups: dict[int, dict[int, Any]]) -> None:
    if groups.pop(handle, None) is None:
        return  # the context closed it
    while layers:
        layer, struct = layers.popitem()
        struct.handle = None
        library.attn_layer_destroy(layer)
    library.attn_group_close(handle)
