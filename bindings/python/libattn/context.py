# SPDX-License-Identifier: Apache-2.0
"""Contexts: configuration, plugins, backends, and selection."""

from __future__ import annotations

import ctypes
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from . import _abi
from ._load import ErrorBuffer, library, text_of
from .errors import NotFoundError, UnsupportedError, invalid
from .problem import Device, DeviceLike, Problem, ProblemLike
from .selection import Reason, Selection

if TYPE_CHECKING:
    from .group import Group

__all__ = ["Context", "Backend", "ConfigValue", "Plugin"]

_LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p)
LogFunction = Callable[[str, str], None]


@dataclass(frozen=True)
class ConfigValue:
    """One effective configuration value and where it came from."""

    section: str
    key: str
    value: str
    source: str  # path, "default", "environment", "api"
    line: int  # 0: not from a file


@dataclass(frozen=True)
class Plugin:
    """One plugin that the configuration names, loaded or refused."""

    name: str
    path: str  # "" if none was found
    is_loaded: bool
    version: str
    vendor: str
    license: str
    build_id: str
    reason: str  # what is wrong and what to do; "" if nothing is


class Backend:
    """A backend of a loaded plugin. Lives as long as its context."""

    __slots__ = ("_address", "name", "doc", "_context")

    def __init__(self, address: int, context: Context) -> None:
        struct = _abi.attn_backend_t.from_address(address)
        self._address, self._context = address, context
        self.name, self.doc = text_of(struct.name), text_of(struct.doc)

    def __repr__(self) -> str:
        return f"<Backend {self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backend) and self._address == other._address

    def __hash__(self) -> int:
        return hash(self._address)

    def validate(self, problem: ProblemLike, device: DeviceLike = None) -> tuple[Reason, ...]:
        """All reasons why it does not serve a problem on a device; () if it does. device None: device
        questions are skipped."""
        p, error = Problem.of(problem), ErrorBuffer()
        d = None if device is None else Device.of(device)
        items = (_abi.attn_reason_t * 64)()
        reasons = _abi.attn_reasons_t(capacity=len(items), items=ctypes.addressof(items))
        error.check(
            library.attn_backend_validate(
                self._address, p.address, d and d.address, ctypes.addressof(reasons), error.at
            )
        )
        size = ctypes.sizeof(_abi.attn_reason_t)
        return tuple(
            Reason.at(ctypes.addressof(items) + i * size) for i in range(min(reasons.count, len(items)))
        )

    def supports(self, question: str, *values: Any) -> bool:
        """A capability query by the name of its C function: supports("head_size", 128), supports("sink")."""
        try:
            function = getattr(library, f"attn_backend_supports_{question}")
        except AttributeError:
            raise invalid(
                "question", f"there is no attn_backend_supports_{question} in <attn/attn.h>"
            ) from None
        return bool(function(self._address, *values))

    def supports_feature(self, name: str) -> bool:
        """A feature by name: "sink", "lse", "capture"."""
        try:
            bit = _abi.Feature[name.upper()]
        except KeyError:
            known = ", ".join(str(f.name).lower() for f in _abi.Feature)
            raise invalid("name", f"no feature is called '{name}'; known are {known}") from None
        return bool(library.attn_backend_supports_feature(self._address, int(bit)))

    @property
    def is_mla(self) -> bool:
        return bool(library.attn_backend_is_mla(self._address))

    @property
    def is_sparse(self) -> bool:
        return bool(library.attn_backend_is_sparse(self._address))

    @property
    def forward_includes_kv_cache_update(self) -> bool:
        return bool(library.attn_backend_forward_includes_kv_cache_update(self._address))

    @property
    def graph_support(self) -> _abi.GraphSupport:
        return _abi.GraphSupport(library.attn_backend_graph_support(self._address))

    @property
    def reorder_threshold(self) -> int:
        return int(library.attn_backend_reorder_threshold(self._address))

    @property
    def required_kv_layout(self) -> Optional[str]:
        value = library.attn_backend_required_kv_layout(self._address)
        return _abi.Layout(value).name if value else None

    def preferred_block_size(self, default: int = 16) -> int:
        return int(library.attn_backend_preferred_block_size(self._address, default))


def _destroy(handle: int, groups: dict[int, dict[int, Any]]) -> None:
    """Frees a context with what is still open in it, innermost first."""
    while groups:
        group, layers = groups.popitem()
        while layers:
            layer, struct = layers.popitem()
            struct.handle = None
            library.attn_layer_destroy(layer)
        library.attn_group_close(group)
    library.attn_context_destroy(handle)


class Context:
    """Configuration and plugins. May be used from every thread.

    config: INI text, strongest of all sources; config_file: an INI file, read after the system's (None:
    $ATTN_CONFIG); plugin_dir: an absolute folder. log: called with ("error" | "warn" | "info" | "debug",
    text), from any thread; log_level: the least urgent level wanted. system_config False: neither sysconfdir
    nor $ATTN_CONFIG is read; plugins False: the configuration is read and nothing loaded.
    A context closes what was opened in it: on close(), at the end of a with block, or when nothing refers to
    it.
    """

    def __init__(
        self,
        config: Optional[str] = None,
        *,
        config_file: Union[str, os.PathLike[str], None] = None,
        plugin_dir: Union[str, os.PathLike[str], None] = None,
        log: Optional[LogFunction] = None,
        log_level: Optional[str] = None,
        system_config: bool = True,
        plugins: bool = True,
    ) -> None:
        options = _abi.attn_context_options_t()
        options.config_text = None if config is None else config.encode()
        options.config_file = None if config_file is None else os.fsencode(config_file)
        options.plugin_dir = None if plugin_dir is None else os.fsencode(plugin_dir)
        options.flags = (0 if system_config else _abi.ATTN_CONTEXT_NO_SYSTEM_CONFIG) | (
            0 if plugins else _abi.ATTN_CONTEXT_NO_PLUGINS
        )
        if log_level is not None:
            try:
                options.log_level = _abi.LogLevel[log_level.upper()]
            except KeyError:
                raise invalid(
                    "log_level", f"log_level is '{log_level}'; expected error, warn, info or debug"
                ) from None
        if log is not None:

            def write(_: Any, level: int, text: Optional[bytes]) -> None:
                log(_abi.LogLevel(level).name.lower(), text_of(text))

            self._log = _LOG(write)  # kept: the library calls it until the context is destroyed
            options.log = ctypes.cast(self._log, ctypes.c_void_p)
        handle, error = ctypes.c_void_p(), ErrorBuffer()
        error.check(
            library.attn_context_create(ctypes.addressof(options), ctypes.addressof(handle), error.at)
        )
        assert handle.value is not None
        self._handle: Optional[int] = handle.value
        self._groups: dict[int, dict[int, Any]] = {}  # handles of groups, each with those of its layers
        self._finalizer = weakref.finalize(self, _destroy, handle.value, self._groups)

    @property
    def handle(self) -> int:
        """The attn_context_t; a closed context has none."""
        if self._handle is None:
            raise invalid("context", "the context is closed")
        return self._handle

    def close(self) -> None:
        """Closes all layers and groups, then the context. Again: nothing."""
        self._handle = None
        self._finalizer()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _list(self, function: str, struct: Any) -> list[Any]:
        found: list[Any] = []
        while True:
            value = struct()
            if getattr(library, function)(self.handle, len(found), ctypes.addressof(value)) != 0:
                return found
            found.append(value)

    def config(self) -> list[ConfigValue]:
        """Every effective value, by section in file order."""
        return [
            ConfigValue(text_of(v.section), text_of(v.key), text_of(v.value), text_of(v.source), v.line)
            for v in self._list("attn_context_config", _abi.attn_config_value_t)
        ]

    def plugins(self) -> list[Plugin]:
        """Every plugin that the configuration names, in its order."""
        return [
            Plugin(
                text_of(v.name),
                text_of(v.path),
                v.status == 0,
                text_of(v.version),
                text_of(v.vendor),
                text_of(v.license),
                text_of(v.build_id),
                text_of(v.reason),
            )
            for v in self._list("attn_context_plugin", _abi.attn_plugin_info_t)
        ]

    def backends(self) -> list[Backend]:
        """Backends of the loaded plugins, in load order."""
        found: list[Backend] = []
        while address := library.attn_context_backend(self.handle, len(found)):
            found.append(Backend(address, self))
        return found

    def backend(self, name: str) -> Backend:
        """A backend by name; NotFoundError has the nearest name."""
        error = ErrorBuffer()
        address = library.attn_context_find_backend(self.handle, name.encode(), error.at)
        if not address:
            raise error.exception(error.code)
        return Backend(address, self)

    def select(
        self, problem: ProblemLike, device: DeviceLike = "cpu", backend: Optional[str] = None
    ) -> Selection:
        """Who would serve a problem, and why not the others, without opening it. backend: by name; it or
        nobody. A selection of nobody is False; nothing is raised for it."""
        p, d, error = Problem.of(problem), Device.of(device), ErrorBuffer()
        record = ctypes.c_void_p()
        code = library.attn_select(
            self.handle,
            p.address,
            d.address,
            None if backend is None else backend.encode(),
            ctypes.addressof(record),
            error.at,
        )
        if not record.value:
            error.check(code)
        return Selection.take(record.value or 0)

    def select_phase(
        self, problem: ProblemLike, phase: str, device: DeviceLike = "cpu"
    ) -> Optional[Selection]:
        """Who is named for the phase "decode" or "prefill" by the configuration (prefill_backend and so on);
        None: nobody is, `select` decides. Whether both can share a cache is known when a group is open."""
        numbers = {"decode": _abi.ATTN_PHASE_DECODE, "prefill": _abi.ATTN_PHASE_PREFILL}
        p, d, error = Problem.of(problem), Device.of(device), ErrorBuffer()
        record = ctypes.c_void_p()
        code = library.attn_select_phase(
            self.handle, p.address, d.address, numbers.get(phase, 0), ctypes.addressof(record), error.at
        )
        if not record.value:
            error.check(code)
            return None
        return Selection.take(record.value)

    def open_group(
        self,
        problem: Optional[ProblemLike] = None,
        device: DeviceLike = "cpu",
        backend: Optional[str] = None,
        **members: Any,
    ) -> Group:
        """Selects a backend and opens a problem on it. members: the problem's, or changes to it. May be slow.
        UnsupportedError and NotFoundError hold the selection."""
        from .group import Group

        p, d, error = (
            Problem.of({} if problem is None else problem, **members),
            Device.of(device),
            ErrorBuffer(),
        )
        handle, record = ctypes.c_void_p(), ctypes.c_void_p()
        code = library.attn_group_open(
            self.handle,
            p.address,
            d.address,
            None if backend is None else backend.encode(),
            ctypes.addressof(handle),
            ctypes.addressof(record),
            error.at,
        )
        selection = Selection.take(record.value) if record.value else None
        if code != 0 or handle.value is None or selection is None:
            failure = error.exception(code)
            if isinstance(failure, (UnsupportedError, NotFoundError)):
                failure.selection = selection
            raise failure
        return Group(self, handle.value, d, selection)
