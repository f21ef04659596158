# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel libattn-cuNN: the CUDA plugins of an existing build (LIBATTN_CUDA_BUILD), for the folder of
plugins of the package libattn. It has no code of its own: libattn finds what lies in that folder."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
PLUGINS = ("flash", "mla", "mla_sparse", "mm_encoder")
FOLDER = "libattn._native.lib.attn"


def fail(why):
    raise SystemExit(f"libattn-cu: {why}")


build = Path(os.environ.get("LIBATTN_CUDA_BUILD") or fail("set LIBATTN_CUDA_BUILD to a build with CUDA"))
makefile = build / "Makefile"
if not makefile.exists():
    fail(f"there is no {makefile}; expected the folder of a finished build")
variables = dict(re.findall(r"^(\w+) = (.*)$", makefile.read_text(encoding="utf-8"), flags=re.M))
files = [build / "plugins-built" / f"{name}.so" for name in PLUGINS]
files = [file for file in files if file.exists()]
if not files:
    fail(f"{build} has none of the plugins {', '.join(PLUGINS)}; configure it with CUDA, and make")
said = subprocess.run([variables["NVCC"].split()[-1], "--version"], stdout=subprocess.PIPE, text=True, check=True)
toolkit = re.search(r"release (\d+)\.", said.stdout).group(1)
architectures = variables["CUDA_ARCH"]
# what TRITON_ATTN compiles with; libattn looks for it beside its own package. torch's wheels ask for the same package.
nvrtc = f"nvidia-cuda-nvrtc-cu{toolkit}" if int(toolkit) < 13 else "nvidia-cuda-nvrtc"

staged = HERE / "build" / "staged"
shutil.rmtree(staged, ignore_errors=True)
staged.mkdir(parents=True)
for file in files:
    shutil.copy(file, staged / file.name)
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", str(staged / file.name)], check=True)
    (staged / file.name).chmod(0o755)


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    """One for every Python: there is no module in it."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    name=f"libattn-cu{toolkit}",
    version=variables["PACKAGE_VERSION"],
    description=f"Backends of libattn for NVIDIA GPUs, compiled by CUDA {toolkit} for {architectures}",
    long_description=f"The plugins {', '.join(f.stem for f in files)} of libattn, in the folder of plugins of the "
    f"package libattn, compiled for the architectures {architectures}. They need NVIDIA's driver for CUDA {toolkit}; "
    "`attn info` shows them, and why they serve nothing where there is none. They contain NVIDIA's CUDA runtime. NVRTC, "
    f"with which TRITON_ATTN compiles its kernels, comes as the package {nvrtc}.",
    long_description_content_type="text/plain",
    license="Apache-2.0",
    python_requires=">=3.11",
    install_requires=[
        f"libattn=={variables['PACKAGE_VERSION']}",
        f"{nvrtc}>={toolkit}.0,<{int(toolkit) + 1}",
    ],
    packages=[FOLDER],
    package_dir={FOLDER: "build/staged"},
    package_data={FOLDER: ["*.so"]},
    distclass=Binary,
    cmdclass={"bdist_wheel": Wheel},
)
