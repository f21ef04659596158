# SPDX-License-Identifier: Apache-2.0
"""The attn command of the wheel."""

from __future__ import annotations

import os
import sys

from . import _load


def main() -> int:
    """Becomes the attn program that was installed with this package."""
    program = _load.NATIVE / "bin" / "attn"
    if not program.exists():
        print(f"attn: there is no {program}: this package was installed without the command", file=sys.stderr)
        return 1
    os.execv(program, [sys.argv[0], *sys.argv[1:]])
