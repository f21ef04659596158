# SPDX-License-Identifier: Apache-2.0
"""Tensors of any framework as DLTensor, without a copy: torch, numpy, buffers, and anything with
__dlpack__."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Callable, Optional

from . import _abi
from ._load import fast, module_if_loaded
from .errors import Error, invalid
from .problem import dtype_name

__all__ = ["TensorView", "DLPACK_TYPES"]

KDL_CPU, KDL_CUDA, KDL_CUDA_HOST, KDL_CUDA_MANAGED = 1, 2, 3, 13
# name -> (DLPack type code, bits)
DLPACK_TYPES: dict[str, tuple[int, int]] = {
    "float32": (2, 32),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "float64": (2, 64),
    "int8": (0, 8),
    "uint8": (1, 8),
    "int32": (0, 32),
    "int64": (0, 64),
    "fp8_e4m3": (_abi.ATTN_DL_FLOAT8_E4M3FN, 8),
    "fp8_e5m2": (_abi.ATTN_DL_FLOAT8_E5M2, 8),
    "bool": (1, 8),
}
NAMES = {pair: name for name, pair in DLPACK_TYPES.items() if name != "bool"}
_BUFFER_TYPES = {
    "f": "float32",
    "d": "float64",
    "e": "float16",
    "b": "int8",
    "B": "uint8",
    "c": "uint8",
    "i": "int32",
    "q": "int64",
    "?": "bool",
}
_BUFFER_TYPES["l" if ctypes.sizeof(ctypes.c_long) == 8 else "L"] = "int64"
MAX_DIMS = 8
# A DLTensor, then 8 sizes and 8 strides
_PACK = struct.Struct("@PiiiBBHPPQ16q")
_SHAPE_AT = ctypes.sizeof(_abi.DLTensor)
_STRIDES_AT = _SHAPE_AT + 8 * MAX_DIMS
_PAD = tuple((0,) * (MAX_DIMS - n) for n in range(MAX_DIMS + 1))
assert _PACK.size == _STRIDES_AT + 8 * MAX_DIMS

# What a tensor is: address, device type, device number, (code, bits), sizes, strides in elements, what keeps
# it alive
Description = tuple[int, int, int, tuple[int, int], tuple[int, ...], tuple[int, ...], Any]


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, n = [], 1
    for size in reversed(shape):
        strides.append(n)
        n *= size
    return tuple(reversed(strides))


def _dlpack_type(name: str, param: str) -> tuple[int, int]:
    pair = DLPACK_TYPES.get(name)
    if pair is None:
        raise invalid(param, f"{param} has elements of type {name}; expected one of {', '.join(DLPACK_TYPES)}")
    return pair


_torch_types: dict[Any, tuple[int, int]] = {}
_torch_devices: dict[Any, tuple[int, int]] = {}


def _describe_torch(tensor: Any, param: str) -> Description:
    pair = _torch_types.get(tensor.dtype)
    if pair is None:
        pair = _torch_types[tensor.dtype] = _dlpack_type(dtype_name(tensor.dtype), param)
    device = _torch_devices.get(tensor.device)
    if device is None:
        kind = {"cpu": KDL_CPU, "cuda": KDL_CUDA}.get(tensor.device.type)
        if kind is None:
            raise invalid(param, f"{param} is a torch tensor on {tensor.device}; expected one on cpu or cuda")
        device = _torch_devices[tensor.device] = (kind, tensor.device.index or 0)
    if tensor.requires_grad and module_if_loaded("torch").is_grad_enabled():
        raise invalid(
            param,
            f"{param} requires a gradient, and libattn computes none; call within "
            "torch.inference_mode() or give .detach()",
        )
    return tensor.data_ptr(), *device, pair, tuple(tensor.shape), tensor.stride(), tensor


def read_only(param: str) -> Error:
    return invalid(param, f"{param} is read-only, and the call writes it; give a writable tensor")


def _describe_array(array: Any, param: str, is_writable: bool) -> Description:
    """numpy, and what looks like it."""
    interface = array.__array_interface__
    if is_writable and interface["data"][1]:
        raise read_only(param)
    pair = _dlpack_type(dtype_name(array.dtype), param)
    size = pair[1] // 8
    byte_strides = interface.get("strides")
    shape = tuple(interface["shape"])
    if byte_strides is None:
        return interface["data"][0], KDL_CPU, 0, pair, shape, contiguous_strides(shape), array
    if any(s % size for s in byte_strides):
        raise invalid(
            param, f"{param} has strides {byte_strides} bytes, which are not multiples of its element size {size}"
        )
    return interface["data"][0], KDL_CPU, 0, pair, shape, tuple(s // size for s in byte_strides), array


_capsule_pointer: Callable[..., Any] = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p  # type: ignore[attr-defined]
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]  # type: ignore[attr-defined]
_capsule_is_valid: Callable[..., Any] = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]  # type: ignore[attr-defined]


def _describe_dlpack(source: Any, param: str, is_writable: bool, stream: Optional[int]) -> Description:
    kind, _ = source.__dlpack_device__()
    capsule = (
        source.__dlpack__()
        if stream is None or int(kind) == KDL_CPU
        else source.__dlpack__(stream=stream or 1)
    )
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        # version, manager context, deleter and flags stand before the tensor
        versioned = _capsule_pointer(capsule, b"dltensor_versioned")
        if is_writable and ctypes.c_uint64.from_address(versioned + 24).value & 1:
            raise read_only(param)
        at = versioned + 32
    else:
        at = _capsule_pointer(capsule, b"dltensor")
    t = _abi.DLTensor.from_address(at)
    shape = tuple((ctypes.c_int64 * t.ndim).from_address(t.shape)) if t.ndim else ()
    strides = (
        tuple((ctypes.c_int64 * t.ndim).from_address(t.strides))
        if t.ndim and t.strides
        else contiguous_strides(shape)
    )
    pair = (t.dtype.code, t.dtype.bits)
    if pair not in NAMES and pair != (6, 8):  # (6, 8) is DLPack's bool
        raise invalid(
            param, f"{param} has elements of DLPack type {pair}; expected one of {', '.join(NAMES.values())}"
        )
    return (
        (t.data or 0) + t.byte_offset,
        t.device_type,
        t.device_id,
        pair if pair != (6, 8) else (1, 8),
        shape,
        strides,
        (source, capsule),
    )


def _describe_buffer(source: Any, param: str, is_writable: bool) -> Description:
    try:
        view = memoryview(source)
    except TypeError:
        raise invalid(
            param,
            f"{param} is {type(source).__name__}; expected a torch tensor, a numpy array, an object with "
            "__dlpack__, or a buffer",
        ) from None
    if is_writable and view.readonly:
        raise read_only(param)
    name = _BUFFER_TYPES.get(view.format.lstrip("@<="))
    if name is None:
        raise invalid(
            param, f"{param} has elements of format '{view.format}'; expected one of {''.join(_BUFFER_TYPES)}"
        )
    address, keep = address_of_buffer(view)
    shape = tuple(view.shape or ())
    size = view.itemsize
    strides = tuple(s // size for s in view.strides) if view.strides else contiguous_strides(shape)
    return address, KDL_CPU, 0, DLPACK_TYPES[name], shape, strides, (source, keep)


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("rest", ctypes.c_char * 128),
    ]


def address_of_buffer(source: Any) -> tuple[int, Any]:
    """Where a buffer's elements are, and what keeps them there."""
    view = memoryview(source)
    if not view.readonly and view.c_contiguous and view.nbytes:
        keep = (ctypes.c_char * view.nbytes).from_buffer(view)
        return ctypes.addressof(keep), keep
    raw = _PyBuffer()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
    release.argtypes = [ctypes.c_void_p]
    get(view, ctypes.addressof(raw), 0x18)  # PyBUF_STRIDES
    address = raw.buf or 0
    release(ctypes.addressof(raw))
    return address, view  # the memoryview itself holds the buffer


def describe(
    source: Any, param: str = "tensor", is_writable: bool = False, stream: Optional[int] = None
) -> Description:
    """What a tensor is, whoever made it. param: its name in messages; is_writable: a call writes it."""
    torch = module_if_loaded("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        return _describe_torch(source, param)
    if hasattr(source, "__array_interface__"):
        return _describe_array(source, param, is_writable)
    if hasattr(source, "__dlpack__"):
        return _describe_dlpack(source, param, is_writable, stream)
    return _describe_buffer(source, param, is_writable)


class TensorView:
    """One DLTensor at a fixed address that points at a tensor of any framework and keeps it alive.

    dtype: reads the same bytes as elements of another type of equal size ("fp8_e4m3" of a uint8 tensor).
    is_writable: calls write it, so a read-only tensor is refused.
    """

    __slots__ = ("_buffer", "address", "_keep", "name", "is_writable")

    def __init__(
        self, source: Any = None, name: str = "tensor", dtype: Optional[str] = None, is_writable: bool = False
    ) -> None:
        self._buffer = ctypes.create_string_buffer(_PACK.size)
        self.address: int = ctypes.addressof(self._buffer)
        self.name, self.is_writable = name, is_writable
        self._keep: Any = None
        if source is not None:
            self.set(source, dtype)

    def set(self, source: Any, dtype: Optional[str] = None, stream: Optional[int] = None) -> int:
        """Points at another tensor; returns the address of the DLTensor."""
        if fast is not None and dtype is None and fast.set(self.address, source, self.is_writable):
            self._keep = source
            return self.address
        data, kind, index, pair, shape, strides, keep = describe(source, self.name, self.is_writable, stream)
        if dtype is not None:
            other = _dlpack_type(dtype_name(dtype), self.name)
            if other[1] != pair[1]:
                raise invalid(
                    self.name, f"{self.name} has elements of {pair[1]} bits; cannot be read as {dtype}"
                )
            pair = other
        self.point(data, (kind, index), pair, shape, strides, keep)
        return self.address

    def point(
        self,
        data: int,
        device: tuple[int, int],
        pair: tuple[int, int],
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        keep: Any,
    ) -> None:
        """Points at memory: address, (DLDeviceType, number), (DLPack code, bits), sizes, strides in
        elements."""
        n = len(shape)
        if n > MAX_DIMS:
            raise invalid(self.name, f"{self.name} has {n} dimensions; expected at most {MAX_DIMS}")
        pad = _PAD[n]
        shape_at, strides_at = self.address + _SHAPE_AT, self.address + _STRIDES_AT
        head = (data, *device, n, *pair, 1, shape_at, strides_at, 0)
        _PACK.pack_into(self._buffer, 0, *head, *shape, *pad, *strides, *pad)
        self._keep = keep

    @property
    def struct(self) -> _abi.DLTensor:
        return _abi.DLTensor.from_buffer(self._buffer)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple((ctypes.c_int64 * self.struct.ndim).from_address(self.address + _SHAPE_AT))

    @property
    def dtype(self) -> str:
        t = self.struct.dtype
        return NAMES.get((t.code, t.bits), f"type {t.code} of {t.bits} bits")


def optional_view(source: Any, name: str) -> tuple[Optional[TensorView], Optional[int]]:
    """A view of a tensor and its address; (None, None) for None. A TensorView is taken as it is."""
    if source is None:
        return None, None
    view = source if isinstance(source, TensorView) else TensorView(source, name)
    return view, view.address
