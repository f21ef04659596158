# SPDX-License-Identifier: Apache-2.0
"""Layers: the cache write and the attention."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import weakref
from typing import TYPE_CHECKING, Any, Iterator, Optional, Union

from . import _abi, memory
from ._load import fast, library, text_of
from .calls import LayerStruct
from .errors import in_use, invalid, make
from .tensors import TensorView, optional_view

if TYPE_CHECKING:
    from .group import Cache, Group, Space

__all__ = ["Layer"]

_SCALES = {"q_scale": "q", "k_scale": "k", "v_scale": "v"}
_TENSORS = (
    *_SCALES,
    "output_scale",
    "output_block_scale",
    "sinks",
    "alibi_slopes",
    "rel_bias",
    "qq_bias",
    "topk_indices",
    "slot_mapping",
)


by_key: weakref.WeakValueDictionary[str, Layer] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class Layer:
    """One attention layer of a model; made by Group.create_layer.

    Options, as in attn_layer_options_t: sinks, alibi_slopes (float32 [Hq]); rel_bias (float32 [Hq, 2 m + 1],
    distances -m to m); sink_key, sink_value (static sink
    tokens); q_scale, k_scale, v_scale: numbers as loaded, or float32 tensors on the device;
    calculate_kv_scales; kv_sharing_target: the name of an earlier layer whose cache this one reads. Tensors
    are kept by reference.
    """

    def __init__(
        self,
        group: Group,
        name: str,
        *,
        sinks: Any = None,
        alibi_slopes: Any = None,
        rel_bias: Any = None,
        sink_key: Any = None,
        sink_value: Any = None,
        q_scale: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        calculate_kv_scales: bool = False,
        kv_sharing_target: Optional[str] = None,
    ) -> None:
        self.group, self.name = group, name
        self.key = f"{name}#{next(_numbers)}"  # unique in the process; libattn.ops finds the layer by it
        self._keep: list[Any] = []
        options = _abi.attn_layer_options_t(calculate_kv_scales=int(calculate_kv_scales))
        options.kv_sharing_target = None if kv_sharing_target is None else kv_sharing_target.encode()
        for member, tensor in (
            ("sinks", sinks),
            ("alibi_slopes", alibi_slopes),
            ("rel_bias", rel_bias),
            ("sink_key", sink_key),
            ("sink_value", sink_value),
        ):
            setattr(options, member, self._kept(tensor, member))
        for member, scale in (
            ("q_scale", q_scale),
            ("k_scale", k_scale),
            ("v_scale", v_scale),
        ):
            if isinstance(scale, (int, float)):
                setattr(options, member, scale)
            else:
                setattr(options.scales, _SCALES[member], self._kept(scale, member))
        handle = ctypes.c_void_p()
        group._calls.error.check(
            library.attn_layer_create(
                group.handle,
                name.encode(),
                ctypes.addressof(options),
                ctypes.addressof(handle),
                group._calls.error.at,
            )
        )
        assert handle.value is not None
        self._handle = handle.value
        self.kind = _abi.LayerKind(library.attn_layer_kind(self._handle))
        self._update, self._forward = _abi.attn_kv_update_t(), _abi.attn_forward_t()
        self._query, self._key, self._value = (TensorView(name=n) for n in ("query", "key", "value"))
        self._slots = TensorView(name="slot_mapping")
        self._output, self._lse, self._kv, self._v_kv = (
            TensorView(name=n, is_writable=True) for n in ("output", "lse", "kv_cache", "v_cache")
        )
        self._given_kv = TensorView(name="kv_cache", is_writable=True)  # of one call
        self._struct = LayerStruct(
            group=group._calls.address,
            handle=self._handle,
            update_args=ctypes.addressof(self._update),
            forward_args=ctypes.addressof(self._forward),
            query=self._query.address,
            key=self._key.address,
            value=self._value.address,
            output=self._output.address,
            lse=self._lse.address,
            slots=self._slots.address,
            kv_cache=self._given_kv.address,
        )
        self._at = ctypes.addressof(self._struct)
        group._layers[self._handle] = self._struct
        self._finalizer = weakref.finalize(self, _destroy, self._handle, group._layers)
        self._finalizer.atexit = False  # the context's does it
        self._extra: dict[str, Any] = {}  # views that the forward struct points to beside the usual ones
        self._has_scales: Any = None
        self._weights: Optional[memory.Memory] = None
        by_key[self.key] = self

    def _kept(self, tensor: Any, name: str) -> Optional[int]:
        view, address = optional_view(tensor, name)
        self._keep.append(view)
        return address

    @property
    def handle(self) -> int:
        """The attn_layer_t; a destroyed layer has none."""
        if not self._struct.handle:
            raise make(_abi.ATTN_E_STATE, "layer", f"layer '{self.name}' is destroyed")
        return self._handle

    def close(self) -> None:
        """Destroys the layer; its name is free again. Again: nothing."""
        self._finalizer()

    def __repr__(self) -> str:
        return f"<Layer {self.name} ({self.group.backend.name})>"

    @property
    def has_cache(self) -> bool:
        """Whether a cache is bound that the layer writes itself."""
        return bool(self._forward.kv_cache) and self.kv_sharing_target is None

    @property
    def kv_sharing_target(self) -> Optional[str]:
        """The layer whose cache this one reads; None: its own."""
        return text_of(library.attn_layer_kv_sharing_target(self.handle)) or None

    @property
    def scales(self) -> tuple[float, float, float]:
        """(q, k, v) in use; 1.0 by default."""
        numbers = (ctypes.c_float * 3)()
        at = ctypes.addressof(numbers)
        library.attn_layer_scales(self.handle, at, at + 4, at + 8)
        return numbers[0], numbers[1], numbers[2]

    def bind(self, kv_cache: Union[Cache, Any], v_cache: Any = None) -> Layer:
        """The cache that calls use unless they are given one: a Cache, or a tensor with the logical shape and
        any strides. v_cache: with the feature separate_kv. Returns the layer."""
        self._cache(kv_cache, v_cache)
        return self

    def _cache(self, kv_cache: Any, v_cache: Any) -> None:
        own = getattr(kv_cache, "view", None)
        view = own if isinstance(own, TensorView) else self._kv
        if view is self._kv:
            view.set(kv_cache)
        self._bound = view  # what the structs point to
        self._update.kv_cache = self._forward.kv_cache = view.address
        at = None if v_cache is None else self._v_kv.set(v_cache)
        self._update.v_cache = self._forward.v_cache = at

    @contextlib.contextmanager
    def _call(self, struct: Any, kv_cache: Any, v_cache: Any) -> Iterator[None]:
        """Within it the group is this thread's, and the struct has the caches of one call."""
        with self.group._calls:
            bound = struct.kv_cache, struct.v_cache
            try:
                if kv_cache is not None:
                    own = getattr(kv_cache, "view", None)
                    view = own if isinstance(own, TensorView) else self._given_kv
                    struct.kv_cache = view.address if view is own else view.set(kv_cache)
                if v_cache is not None:
                    given = TensorView(v_cache, "v_cache", is_writable=True)
                    struct.v_cache = given.address
                yield
            finally:
                struct.kv_cache, struct.v_cache = bound

    def _set_extra(self, extra: dict[str, Any]) -> None:
        """Points the optional tensors of the next forward; what the last one had is taken out."""
        for name in extra:
            if name not in _TENSORS:
                known = ", ".join(_TENSORS)
                raise TypeError(f"forward() has no argument '{name}'; beside its own it knows {known}")
        for name in self._extra:
            self._put(name, None)
        self._extra = {}
        for name, tensor in extra.items():
            if tensor is not None:
                view, address = optional_view(tensor, name)
                self._extra[name] = view
                self._put(name, address)

    def _put(self, name: str, address: Optional[int]) -> None:
        if name in _SCALES:
            setattr(self._forward.scales, _SCALES[name], address)
        else:
            setattr(self._forward, name, address)

    def update_kv_cache(
        self,
        key: Any,
        value: Any,
        *,
        slot_mapping: Any = None,
        kv_cache: Any = None,
        v_cache: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        stream: Optional[int] = None,
    ) -> None:
        """Writes new rows: key [n, Hkv, D], value [n, Hkv, Dv] (MLA: kv_c [n, L], k_pe [n, R]) into the
        cache, at slot_mapping (int64 [n]; None: those of the batch that was built last). Tensors may have any
        strides."""
        batch = self.group.batch
        slots = None if batch is None else batch.slots_address
        is_plain = v_cache is None and k_scale is None and v_scale is None and self._has_scales is None
        code = None
        if fast is not None and is_plain and (slots is not None or slot_mapping is not None):
            try:
                code = fast.update(self._at, key, value, slot_mapping, slots, kv_cache, stream)
            except BlockingIOError:
                raise in_use() from None
        if code is None:
            code = self._update_slowly(
                key, value, slot_mapping, kv_cache, v_cache, (k_scale, v_scale), stream
            )
        if code != 0:
            raise self.group._calls.error.exception(code)

    def _update_slowly(
        self,
        key: Any,
        value: Any,
        slots: Any,
        kv_cache: Any,
        v_cache: Any,
        scales: Any,
        stream: Optional[int],
    ) -> int:
        u, batch, handle = self._update, self.group.batch, self.handle
        with self._call(u, kv_cache, v_cache):
            u.key, u.value = self._key.set(key), self._value.set(value)
            if slots is not None:
                u.slot_mapping = slots.address if isinstance(slots, TensorView) else self._slots.set(slots)
            elif batch is not None and batch.slots_address is not None:
                u.slot_mapping = batch.slots_address
            else:
                text = "the group's batch has no slot_mapping; give it here or to new_batch"
                raise invalid("slot_mapping", text)
            self._scales_of_update(*scales)
            stream = self.group.stream() if stream is None else stream
            error = self.group._calls.error.at
            return int(library.attn_layer_update_kv_cache(handle, self._struct.update_args, stream, error))

    def _scales_of_update(self, k_scale: Any, v_scale: Any) -> None:
        scales = self._update.scales
        k, scales.k = optional_view(k_scale, "k_scale")
        v, scales.v = optional_view(v_scale, "v_scale")
        self._has_scales = (k, v) if k or v else None

    def prepare_weights(
        self, kv_b_proj: Any = None, *, kv_b_proj_scale: Any = None, stream: Optional[int] = None
    ) -> None:
        """MLA, once after loading: kv_b_proj [N * (P + V), L] as in checkpoints, of fp8_e4m3 with
        kv_b_proj_scale, one float32 or one for each 128 x 128 block (weight_scale_inv). Encoders with fp8
        attention: no arguments."""
        group = self.group
        needed = group.space_needed
        self._weights = memory.allocate(needed.weight_bytes, needed.alignment, group.device)
        w = _abi.attn_weights_t(weight_space=self._weights.address, weight_space_bytes=self._weights.nbytes)
        matrix, w.kv_b_proj = optional_view(kv_b_proj, "kv_b_proj")
        scale, w.kv_b_proj_scale = optional_view(kv_b_proj_scale, "kv_b_proj_scale")
        group._calls.error.check(
            library.attn_layer_prepare_weights(
                self.handle,
                ctypes.addressof(w),
                group.stream() if stream is None else stream,
                group._calls.error.at,
            )
        )
        self._keep_weights = (matrix, scale)
        self._forward.weight_space, self._forward.weight_space_bytes = w.weight_space, w.weight_space_bytes

    def forward(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        *,
        output: Any = None,
        lse: Any = None,
        kv_cache: Any = None,
        v_cache: Any = None,
        space: Optional[Space] = None,
        stream: Optional[int] = None,
        profile: bool = False,
        **tensors: Any,
    ) -> Any:
        """Attention: query [T, Hq, D] -> output [T, Hq, Dv] (MLA: [T, N, P + R] -> [T, N, V]), of any
        strides.

        key, value: this step's rows; required without a cache. output: written and returned; None: a new
        tensor of the query's framework. lse: a float32 tensor [Hq, T] that is written, or True: (output, lse)
        is returned. space: None: the one that was built last. profile: no metadata, output becomes zero.
        tensors: q_scale, k_scale, v_scale, output_scale, output_block_scale, sinks, alibi_slopes, rel_bias,
        qq_bias, topk_indices; slot_mapping with the feature write_in_forward: key and value are written first, and
        no update_kv_cache is needed.
        """
        group, result = self.group, output
        if output is None:
            output = self._new(query, group.output_row, group.output_dtype, "output")
            result = output
        if lse is True:
            lse = self._new(query, (), "float32", "lse")
            result = (output, lse)
        elif lse is False:
            lse = None
        used = None if profile else space or group.space
        if used is None and not profile:
            text = "no metadata was built; call group.build_metadata first, or say profile=True"
            raise make(_abi.ATTN_E_STATE, "space", text)
        at = None if used is None else used.address
        code = None
        if fast is not None and not tensors and not self._extra and v_cache is None:
            try:
                code = fast.forward(self._at, query, key, value, output, lse, kv_cache, at, stream)
            except BlockingIOError:
                raise in_use() from None
        if code is None:
            usual = (query, key, value, output, lse)
            code = self._forward_slowly(usual, kv_cache, v_cache, at, stream, tensors)
        if code != 0:
            raise group._calls.error.exception(code)
        return result

    def _new(self, query: Any, row: tuple[int, ...], dtype: str, name: str) -> Any:
        """An output like the query: [T, *row], or [Hq, T] without a row."""
        sizes = getattr(query, "shape", None) or TensorView(query, "query").shape
        n = sizes[0] if len(sizes) else 0
        return memory.empty((n, *row) if row else (self.group.output_row[0], n), dtype, query, name)

    def _forward_slowly(
        self,
        usual: Any,
        kv_cache: Any,
        v_cache: Any,
        space: Optional[int],
        stream: Optional[int],
        tensors: Any,
    ) -> int:
        f, handle = self._forward, self.handle
        with self._call(f, kv_cache, v_cache):
            views = (self._query, self._key, self._value, self._output, self._lse)
            for view, tensor in zip(views, usual, strict=True):
                setattr(f, view.name, None if tensor is None else view.set(tensor))
            self._set_extra(tensors)
            stream = self.group.stream() if stream is None else stream
            error = self.group._calls.error.at
            return int(library.attn_layer_forward(handle, self._struct.forward_args, space, stream, error))


def _destroy(handle: int, layers: dict[int, Any]) -> None:
    struct = layers.pop(handle, None)
    if struct is not None:
        struct.handle = None
        library.attn_layer_destroy(handle)
