# SPDX-License-Identifier: Apache-2.0
"""Failed calls as exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from . import _abi

if TYPE_CHECKING:
    from .selection import Selection

__all__ = [
    "Error",
    "InvalidError",
    "UnsupportedError",
    "NotFoundError",
    "DeviceError",
    "StateError",
    "ParseError",
]


class Error(RuntimeError):
    """A call of libattn failed.

    code: the number, `_abi.ErrorCode`; name: "ATTN_E_INVALID" and the like; param: the parameter at fault, or
    ""; text: one line that says what is wrong, what was wanted and what to do.
    """

    def __init__(self, code: int, name: str, param: str, text: str) -> None:
        self.code, self.name, self.param, self.text = code, name, param, text
        super().__init__(f"{text} ({name}, {param})" if param else f"{text} ({name})")


class InvalidError(Error, ValueError):
    """An argument is wrong."""


class UnsupportedError(Error):
    """A valid request that no backend, or not the one asked for, serves; `selection` holds every reason."""

    selection: Optional[Selection] = None


class NotFoundError(Error, LookupError):
    """No such backend, plugin, layer, option or file."""

    selection: Optional[Selection] = None


class ParseError(Error, ValueError):
    """Configuration or problem text that cannot be read; the text has file:line or column."""


class DeviceError(Error):
    """No device, no driver, or a launch failed."""


class StateError(Error):
    """Calls in the wrong order."""


_CLASSES: dict[int, type[Error]] = {
    _abi.ATTN_E_INVALID: InvalidError,
    _abi.ATTN_E_UNSUPPORTED: UnsupportedError,
    _abi.ATTN_E_NOT_FOUND: NotFoundError,
    _abi.ATTN_E_PARSE: ParseError,
    _abi.ATTN_E_DEVICE: DeviceError,
    _abi.ATTN_E_STATE: StateError,
}


def make(code: int, param: str, text: str) -> Error:
    """The exception of a code."""
    try:
        name = "ATTN_E_" + _abi.ErrorCode(code).name
    except ValueError:
        name = "unknown"
    return _CLASSES.get(code, Error)(code, name, param, text)


def invalid(param: str, text: str) -> Error:
    """An argument that this package, not the library, refuses."""
    return make(_abi.ATTN_E_INVALID, param, text)


def in_use() -> Error:
    """Two threads in one group."""
    text = "another thread is in a call of this group; open a group for each thread"
    return make(_abi.ATTN_E_STATE, "group", text)
