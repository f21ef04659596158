# SPDX-License-Identifier: Apache-2.0
"""The build backend of the clone's root: setuptools in bindings/python."""

import os
from pathlib import Path

from setuptools import build_meta

HERE = Path(__file__).resolve().parent


def _there(hook):
    def call(*arguments, **keywords):
        arguments = [
            os.path.abspath(a) if isinstance(a, str) and i == 0 else a for i, a in enumerate(arguments)
        ]
        before = os.getcwd()
        os.chdir(HERE)
        try:
            return hook(*arguments, **keywords)
        finally:
            os.chdir(before)

    return call


build_wheel = _there(build_meta.build_wheel)
build_editable = _there(build_meta.build_editable)
prepare_metadata_for_build_wheel = _there(build_meta.prepare_metadata_for_build_wheel)
prepare_metadata_for_build_editable = _there(build_meta.prepare_metadata_for_build_editable)
get_requires_for_build_wheel = _there(build_meta.get_requires_for_build_wheel)
get_requires_for_build_editable = _there(build_meta.get_requires_for_build_editable)
