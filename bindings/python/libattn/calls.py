# SPDX-License-Identifier: Apache-2.0
"""The calls of every step, through libattn._fast where it was built, else through ctypes."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Optional

from ._load import ErrorBuffer, fast, library
from .errors import in_use

_HOT = (
    "attn_group_build_metadata",
    "attn_group_update_block_table",
    "attn_layer_update_kv_cache",
    "attn_layer_forward",
)
_LAYER = "group handle update_args forward_args query key value output lse slots kv_cache"


class _GroupStruct(ctypes.Structure):
    """struct group_calls of _fast.c."""

    _fields_ = [
        ("is_busy", ctypes.c_int32),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("handle", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
        *[(name, ctypes.c_void_p) for name in _HOT],
    ]


class LayerStruct(ctypes.Structure):
    """struct layer_calls of _fast.c."""

    _fields_ = [(name, ctypes.c_void_p) for name in _LAYER.split()]


class GroupCalls:
    """What the calls of a group share: its handle, its error, and who is in it."""

    def __init__(self, handle: int, device_type: int, device_id: int) -> None:
        self.error = ErrorBuffer()
        self._struct = _GroupStruct(
            device_type=device_type, device_id=device_id, handle=handle, error=self.error.at
        )
        for name in _HOT:
            setattr(self._struct, name, library.address(name))
        self.address = ctypes.addressof(self._struct)
        self._lock = threading.Lock()

    def build(self, batch: int, space: int, stream: Optional[int], is_table: bool) -> None:
        if fast is not None:
            try:
                code = fast.build(self.address, batch, space, stream, int(is_table))
            except BlockingIOError:
                raise in_use() from None
        else:
            function = getattr(library, _HOT[1] if is_table else _HOT[0])
            with self:
                code = function(self._struct.handle, batch, space, stream, self.error.at)
        if code != 0:
            raise self.error.exception(code)

    def __enter__(self) -> None:
        """Takes the group for this thread, or raises StateError."""
        if fast is None:
            if not self._lock.acquire(False):
                raise in_use()
            return
        try:
            fast.enter(self.address)
        except BlockingIOError:
            raise in_use() from None

    def __exit__(self, *_: Any) -> None:
        if fast is None:
            self._lock.release()
        else:
            fast.leave(self.address)
