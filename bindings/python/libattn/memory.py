# SPDX-License-Identifier: Apache-2.0
"""Memory that the package takes for a caller: caches, spaces, outputs, and host integers."""

from __future__ import annotations

import array
from dataclasses import dataclass
from typing import Any, Iterable, Optional, Sequence, Union

from ._load import module_if_loaded
from .errors import invalid
from .problem import Device, dtype_name
from .tensors import address_of_buffer, describe

__all__ = ["Memory", "allocate", "empty", "host_ints", "host_table"]


@dataclass(frozen=True)
class Memory:
    """Some bytes: .owner is a torch or numpy uint8 array, or a memoryview, of exactly these bytes."""

    address: int
    nbytes: int
    owner: Any


def framework_of(wanted: Optional[str], device: Device) -> str:
    """ "torch", "numpy" or "bytes": what new memory is made with. None: torch if the program has imported it,
    else numpy if it is installed, else bytes."""
    if wanted not in (None, "torch", "numpy", "bytes"):
        raise invalid("framework", f"framework is {wanted!r}; expected 'torch', 'numpy', 'bytes' or None")
    if not device.is_cpu:
        if wanted not in (None, "torch") or not _can_import("torch"):
            raise invalid(
                "framework",
                f"memory on {device!r} is taken through torch; install torch, or give your own tensors",
            )
        return "torch"
    if wanted is None:
        return (
            "torch" if module_if_loaded("torch") is not None else "numpy" if _can_import("numpy") else "bytes"
        )
    if wanted != "bytes" and not _can_import(wanted):
        raise invalid("framework", f"{wanted} is not installed; install it, or say framework='bytes'")
    return wanted


def _can_import(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def torch_device(device: Device) -> str:
    return "cpu" if device.is_cpu else f"cuda:{device.index}"


def allocate(
    nbytes: int,
    alignment: int,
    device: Device,
    *,
    framework: Optional[str] = None,
    pinned: bool = False,
    zero: bool = False,
) -> Memory:
    """nbytes of a device, aligned. pinned: host memory that the device copies from."""
    nbytes, alignment = max(int(nbytes), 1), max(int(alignment), 64)
    total = nbytes + alignment
    made_with = framework_of(framework, device)
    if made_with == "torch":
        import torch

        make = torch.zeros if zero else torch.empty
        raw: Any = make(
            total,
            dtype=torch.uint8,
            device="cpu" if pinned else torch_device(device),
            pin_memory=pinned and not device.is_cpu,
        )
        address = raw.data_ptr()
    elif made_with == "numpy":
        import numpy

        raw = numpy.zeros(total, "uint8") if zero else numpy.empty(total, "uint8")
        address = raw.ctypes.data
    else:
        raw = memoryview(bytearray(total))
        address, _ = address_of_buffer(raw)
    at = -address % alignment
    return Memory(address + at, nbytes, raw[at : at + nbytes])


_FORMATS = {"float32": "f", "float64": "d", "int8": "b", "uint8": "B", "int32": "i", "int64": "q"}


def empty(shape: tuple[int, ...], dtype: str, like: Any, param: str) -> Any:
    """A new tensor of the framework and device of another one."""
    torch = module_if_loaded("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        return torch.empty(shape, dtype=torch_dtype(dtype), device=like.device)
    numpy = module_if_loaded("numpy")
    if numpy is not None and isinstance(like, numpy.ndarray):
        try:
            return numpy.empty(shape, like.dtype if dtype_name(like.dtype) == dtype else dtype)
        except TypeError:  # numpy alone has no bfloat16 and no fp8
            pass
    elif not hasattr(like, "__dlpack__") and dtype in _FORMATS:
        n = 1
        for size in shape:
            n *= size
        if n:
            code: Any = _FORMATS[dtype]
            return memoryview(bytearray(n * array.array(code).itemsize)).cast(code, list(shape))
    raise invalid(
        param, f"{param}: cannot make a {dtype} tensor of {shape} like a {type(like).__name__}; give {param}="
    )


def torch_dtype(name: str) -> Any:
    import torch

    return getattr(torch, {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}.get(name, name))


@dataclass(frozen=True)
class HostInts:
    """Integers in host memory, contiguous: where, their shape, and what keeps them."""

    address: int
    shape: tuple[int, ...]
    owner: Any

    def __len__(self) -> int:
        return self.shape[0]


_CODES = {4: "i", 8: "q", 1: "B"}
IntsLike = Union[Sequence[int], Iterable[int], Any]


def host_ints(source: IntsLike, param: str, itemsize: int = 4) -> HostInts:
    """1-D integers that the host reads: no copy of contiguous ones of the right size, else a copy. A tensor
    on another device is refused: reading it would wait for the device."""
    code = _CODES[itemsize]
    if not isinstance(source, (list, tuple, range)) and (
        hasattr(source, "shape") or isinstance(source, array.array)
    ):
        data, kind, _, (kind_of_type, bits), shape, strides, keep = describe(source, param)
        if kind not in (1, 3):
            raise invalid(
                param, f"{param} is on device type {kind}, but the host reads it; give a list or a CPU tensor"
            )
        if len(shape) != 1:
            raise invalid(param, f"{param} has {len(shape)} dimensions; expected 1")
        if kind_of_type in (0, 1) and bits == itemsize * 8 and (strides[0] == 1 or shape[0] < 2):
            return HostInts(data, shape, keep)
        source = source.tolist()  # type: ignore[union-attr]
    try:
        made = array.array(code, source)
    except (TypeError, OverflowError) as error:
        raise invalid(param, f"{param}: {error}; expected integers of {itemsize * 8} bits") from None
    return HostInts(made.buffer_info()[0], (len(made),), made)


def host_table(rows: Any, param: str) -> HostInts:
    """int32 [n, width] of a list of rows of any lengths, filled up with 0, or of a 2-D array."""
    lists = rows.tolist() if hasattr(rows, "tolist") else [list(row) for row in rows]
    width = max([len(row) for row in lists] + [1])
    try:
        flat = array.array("i", (b for row in lists for b in (*row, *(0,) * (width - len(row)))))
    except (TypeError, OverflowError) as error:
        raise invalid(param, f"{param}: {error}; expected rows of block numbers") from None
    return HostInts(flat.buffer_info()[0], (len(lists), width), flat)
