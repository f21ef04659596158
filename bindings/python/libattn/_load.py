# SPDX-License-Identifier: Apache-2.0
"""Finds and opens libattn.so: $LIBATTN_LIBRARY if set, else the wheel's own, else the system's."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from . import _abi, errors

fast: Any  # the compiled module of the hot path; None: it is not built, and ctypes serves, slower
try:
    fast = importlib.import_module("libattn._fast")
except ImportError:
    fast = None

NATIVE = Path(__file__).resolve().parent / "_native"
SONAME = "libattn.so.0"


def library_path() -> str:
    """The file or name that is handed to dlopen."""
    given = os.environ.get("LIBATTN_LIBRARY")
    if given:
        return given
    for folder in ("lib", "."):
        own = NATIVE / folder / SONAME
        if own.exists():
            return str(own)
    return SONAME


class Library:
    """The C functions, by name, with their types; opened once."""

    def __init__(self) -> None:
        self.path = library_path()
        try:
            self.cdll = ctypes.CDLL(self.path)
        except OSError as error:
            raise ImportError(
                f"cannot open libattn ({error}). Install the wheel, or the library (`make install`, then "
                f"ldconfig), or set LIBATTN_LIBRARY to the path of {SONAME}"
            ) from None

    def __getattr__(self, name: str) -> Any:
        if name not in _abi.FUNCTIONS:
            raise AttributeError(f"libattn has no function {name}")
        try:
            function = getattr(self.cdll, name)
        except AttributeError:
            raise AttributeError(
                f"{self.path} is older than this package: it has no {name}; install a newer libattn, "
                "or unset LIBATTN_LIBRARY"
            ) from None
        function.restype, function.argtypes = _abi.FUNCTIONS[name]
        setattr(self, name, function)
        return function

    def address(self, name: str) -> int:
        """Where a function is."""
        return ctypes.cast(getattr(self, name), ctypes.c_void_p).value or 0


library = Library()


class ErrorBuffer(_abi.attn_error_t):
    """The attn_error_t of a call. `at` is its address; check(code) raises it."""

    at: int
    param: bytes
    text: bytes

    def __init__(self) -> None:
        super().__init__()
        self.at = ctypes.addressof(self)

    def check(self, code: int) -> None:
        if code != 0:
            raise self.exception(code)

    def exception(self, code: int) -> errors.Error:
        made = errors.make(code, text_of(self.param), text_of(self.text))
        self.param, self.text = b"", b""
        return made


def call(name: str, *arguments: Any) -> None:
    """Calls a function whose last parameter is the error; raises it."""
    error = ErrorBuffer()
    error.check(getattr(library, name)(*arguments, error.at))


def text_of(raw: Any) -> str:
    """str of a char pointer or array; "" for NULL."""
    return raw.decode("utf-8", "replace") if raw else ""


def version() -> str:
    """Version of the library that is running."""
    return text_of(library.attn_version())


def module_if_loaded(name: str) -> Any:
    """A module that the program has imported already, else None."""
    return sys.modules.get(name)
