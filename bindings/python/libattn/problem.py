# SPDX-License-Identifier: Apache-2.0
"""Problems (what an attention layer is) and devices."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any, Iterable, Mapping, Optional, Union

from . import _abi
from ._load import call, library, module_if_loaded, text_of
from .errors import invalid

__all__ = ["Problem", "Device", "ProblemLike", "DeviceLike", "dtype_name"]

_ENUMS: dict[str, type[IntEnum]] = {
    "role": _abi.Role,
    "mask": _abi.Mask,
    "dtype": _abi.DType,
    "out_dtype": _abi.DType,
    "query_dtype": _abi.DType,
    "kv_cache_dtype": _abi.KVDType,
    "kv_layout": _abi.Layout,
}
_MEMBERS = tuple(name for name, *_ in _abi.attn_problem_t._fields_ if name not in ("struct_size", "reserved"))
_DTYPE_WORDS = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


def dtype_name(dtype: Any) -> str:
    """libattn's name of an element type: of a torch or numpy dtype, an enumeration's member, or a name."""
    if isinstance(dtype, IntEnum):
        return dtype.name.lower()
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype)
    text = text.rpartition(".")[2]
    return _DTYPE_WORDS.get(text, text)


def _word(name: str, value: Any) -> str:
    """The value of a member in canonical text."""
    if name == "features":
        if isinstance(value, _abi.Feature):
            value = [bit.name.lower() for bit in _abi.Feature if bit & value and bit.name]
        elif isinstance(value, int):
            value = [f"bit{bit}" for bit in range(64) if value >> bit & 1]
        return value if isinstance(value, str) else ",".join(dtype_name(v) for v in value)
    if name in _ENUMS:
        if isinstance(value, int) and not isinstance(value, IntEnum):
            return str(value)
        return dtype_name(value)
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            value = value.item() if hasattr(value, "item") else value.__index__()
        except (AttributeError, ValueError):
            raise invalid(name, f"{name} is {value!r}; expected a number") from None
    return repr(value)


class Problem:
    """One attention layer: everything that is fixed when a layer is made. Members are those of
    attn_problem_t.

        Problem(role="decoder", mask="causal", dtype="bfloat16", num_heads=32, num_kv_heads=8, head_size=128,
                scale=128 ** -0.5)
        Problem("role=decoder mask=causal dtype=bfloat16 ...")        # canonical text; str(problem) gives it
        back

    dtypes may be those of torch or numpy; features is a list of names. None and 0 mean "not given". Reading
    gives words for enumerations ("decoder"), a frozenset of names for features, numbers for the rest; None if
    not given. Immutable; equal if every member is. Raises ParseError or InvalidError that names the member.
    """

    __slots__ = ("_struct", "_text")
    _struct: _abi.attn_problem_t
    _text: str

    def __init__(self, text: Union[str, Mapping[str, Any], None] = None, /, **members: Any) -> None:
        if isinstance(text, Mapping):
            members = {**text, **members}
            text = None
        words = [text] if text else []
        for name, value in members.items():
            if name not in _MEMBERS:
                words.append(f"{name}=?")  # the library's message has the nearest name
            elif value is not None and (word := _word(name, value)) not in ("", "0"):
                words.append(f"{name}={word}")
        struct = _abi.attn_problem_t()
        call("attn_problem_parse", " ".join(words).encode(), ctypes.addressof(struct))
        self._set(struct)

    def _set(self, struct: _abi.attn_problem_t) -> None:
        call("attn_problem_check", ctypes.addressof(struct))
        object.__setattr__(self, "_struct", struct)
        length = library.attn_problem_format(ctypes.addressof(struct), None, 0)
        buffer = ctypes.create_string_buffer(length + 1)
        library.attn_problem_format(ctypes.addressof(struct), buffer, length + 1)
        object.__setattr__(self, "_text", buffer.value.decode())

    @classmethod
    def from_struct(cls, address: int) -> Problem:
        """A copy of the attn_problem_t at an address."""
        problem = cls.__new__(cls)
        problem._set(_abi.attn_problem_t.from_buffer_copy(_abi.attn_problem_t.from_address(address)))
        return problem

    @classmethod
    def of(cls, problem: ProblemLike, **changes: Any) -> Problem:
        """A Problem of anything that describes one."""
        if isinstance(problem, Problem):
            return problem.replace(**changes) if changes else problem
        return cls(problem, **changes)

    def replace(self, **changes: Any) -> Problem:
        """This problem with other values for some members; None or 0 takes one out."""
        words = dict(word.split("=", 1) for word in self._text.split())
        return Problem({**words, **changes})

    @property
    def address(self) -> int:
        """Of the attn_problem_t; valid as long as this object."""
        return ctypes.addressof(self._struct)

    def __getattr__(self, name: str) -> Any:
        if name not in _MEMBERS:
            raise AttributeError(f"a problem has no member {name}")
        value = getattr(self._struct, name)
        if name == "features":
            words = dict(word.split("=", 1) for word in self._text.split())
            return frozenset(words["features"].split(",")) if value else frozenset()
        if not value:
            return None
        if name == "kv_layout":
            return _abi.Layout(value).name
        return _ENUMS[name](value).name.lower() if name in _ENUMS else value

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a problem is immutable; replace() makes another one")

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Problem({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> Any:
        return Problem, (self._text,)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *_MEMBERS]


class Device:
    """A device: "cpu", "cuda:0" (present), "sm_90" (hypothetical), or a torch.device; None: cuda:0 if there
    is one, else cpu."""

    __slots__ = ("_struct",)

    def __init__(self, text: Any = None) -> None:
        torch = module_if_loaded("torch")
        if torch is not None and isinstance(text, torch.device):
            text = f"{text.type}:{text.index}" if text.index is not None else text.type
        if text == "cuda":
            text = (
                f"cuda:{torch.cuda.current_device()}"
                if torch is not None and torch.cuda.is_available()
                else "cuda:0"
            )
        if text is not None and not isinstance(text, str):
            raise invalid(
                "device", f"device is {text!r}; expected text such as 'cpu' or 'cuda:0', or a torch.device"
            )
        if text == "cpu:0":
            text = "cpu"
        self._struct = _abi.attn_device_t()
        call("attn_device_parse", None if text is None else text.encode(), ctypes.addressof(self._struct))

    @classmethod
    def of(cls, device: DeviceLike) -> Device:
        return device if isinstance(device, Device) else cls(device)

    @property
    def address(self) -> int:
        """Of the attn_device_t; valid as long as this object."""
        return ctypes.addressof(self._struct)

    @property
    def type(self) -> int:
        """DLDeviceType: 1 CPU, 2 CUDA."""
        return int(self._struct.type)

    @property
    def index(self) -> int:
        """Ordinal; -1: hypothetical."""
        return int(self._struct.id)

    @property
    def is_cpu(self) -> bool:
        return bool(self._struct.type == 1)

    @property
    def compute_capability(self) -> int:
        """major * 10 + minor; 0 for a CPU."""
        return int(self._struct.compute_capability)

    @property
    def name(self) -> str:
        return text_of(self._struct.name)

    @property
    def memory_bytes(self) -> Optional[int]:
        return self._struct.memory_bytes or None

    def __repr__(self) -> str:
        return f"<Device {'cpu' if self.is_cpu else f'type {self.type} number {self.index}'}: {self.name}>"


ProblemLike = Union[Problem, str, Mapping[str, Any]]
DeviceLike = Any  # Device, str, torch.device or None
