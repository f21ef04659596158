#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python_metadata.py PYPROJECT VERSION FOLDER: what pip and entry points know of the package libattn, as a .dist-info
from pyproject.toml. The command attn is not in it, because libattn-tools has it."""
import sys
import tomllib
from pathlib import Path


def main():
    source, version, folder = sys.argv[1:]
    with open(source, "rb") as f:
        project = tomllib.load(f)["project"]
    info = Path(folder) / f"{project['name']}-{version}.dist-info"
    info.mkdir()
    metadata = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}",
                f"Summary: {project['description']}", f"License: {project['license']}",
                f"Requires-Python: {project['requires-python']}"]
    metadata += [f"Classifier: {c}" for c in project["classifiers"]]
    (info / "METADATA").write_text("\n".join(metadata) + "\n", encoding="utf-8")
    (info / "INSTALLER").write_text("dpkg\n", encoding="ascii")
    lines = []
    for group, entries in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


main()
