# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel: the Autotools build of this clone, without CUDA, into libattn/_native, the module _abi
from the headers, and the compiled module _fast. It needs what configure needs (../../quickstart installs
that)."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
SOURCE = Path(os.environ.get("LIBATTN_SOURCE") or HERE.parent.parent).resolve()
BUILD = Path(os.environ.get("LIBATTN_BUILD") or HERE / "build" / "native").resolve()


def version():
    text = (SOURCE / "configure.ac").read_text(encoding="utf-8")
    return re.search(r"^AC_INIT\(\[libattn\], \[([^]]+)\]", text, flags=re.M).group(1)


def run(*command, cwd):
    print("+", *command, flush=True)
    try:
        subprocess.run(command, cwd=cwd, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"libattn: {error}. The build needs a C and C++ compiler, make, autoconf, automake, libtool, "
            "pkg-config, libinih, libjansson and the DLPack header; ./quickstart installs them on Debian"
        ) from None


def build_native(target):
    """libattn.so, its plugins and the attn command, as installed, into the folder `target`."""
    if not (SOURCE / "configure").exists():
        run("./autogen.sh", cwd=SOURCE)
    BUILD.mkdir(parents=True, exist_ok=True)
    if not (BUILD / "config.status").exists():
        # folders of the system's configuration, and of plugins where none lie beside the library
        folders = ["--prefix=/usr", "--sysconfdir=/etc", "--libdir=/usr/lib"]
        run(str(SOURCE / "configure"), "--quiet", *folders, "--without-cuda", cwd=BUILD)
    jobs = len(os.sched_getaffinity(0))
    # the command finds libattn beside it; libtool must not link it anew for /usr/lib
    origin = "tools_attn_LDFLAGS=$(OPENMP_CFLAGS) -Wl,-rpath,'$$ORIGIN/../lib'"
    run("make", "-s", f"-j{jobs}", "tools/attn", origin, cwd=BUILD)
    run("make", "-s", f"-j{jobs}", "plugins-built/stamp", cwd=BUILD)
    stage = BUILD / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    install = ["install-libLTLIBRARIES", "install-pluginLTLIBRARIES", "install-binPROGRAMS"]
    run("make", "-s", *install, f"DESTDIR={stage}", origin, cwd=BUILD)
    shutil.rmtree(target, ignore_errors=True)
    for folder in ("lib/attn", "bin"):
        (target / folder).mkdir(parents=True)
    shutil.copy(stage / "usr/lib/libattn.so.0", target / "lib/libattn.so.0")
    for plugin in sorted((stage / "usr/lib/attn").glob("*.so")):
        shutil.copy(plugin, target / "lib/attn" / plugin.name)
    shutil.copy(stage / "usr/bin/attn", target / "bin/attn")
    if os.environ.get("LIBATTN_LICENSES"):  # of the libraries that build_wheel adds
        shutil.copytree(os.environ["LIBATTN_LICENSES"], target / "licenses")
    for file in (*target.glob("lib/*.so.0"), *target.glob("lib/attn/*.so"), target / "bin/attn"):
        if shutil.which("strip"):
            run("strip", "--strip-unneeded", str(file), cwd=target)
        file.chmod(0o755)


class BuildPackage(build_py):
    def run(self):
        super().run()
        package = HERE / "libattn" if self.editable_mode else Path(self.build_lib).resolve() / "libattn"
        generate = [sys.executable, str(HERE / "generate_abi.py"), str(SOURCE / "include")]
        run(*generate, str(package / "_abi.py"), cwd=HERE)
        build_native(package / "_native")


class BuildModule(build_ext):
    def build_extension(self, extension):
        extension.include_dirs.append(str(SOURCE / "include"))
        super().build_extension(extension)


if not (SOURCE / "include" / "attn" / "attn.h").exists():
    raise SystemExit(
        f"libattn: {SOURCE} is not libattn's source; build in a clone, or set LIBATTN_SOURCE to one"
    )
setup(
    version=version(),
    ext_modules=[
        Extension("libattn._fast", ["libattn/_fast.c"], extra_compile_args=["-std=c11"], py_limited_api=True)
    ],
    exclude_package_data={"libattn": ["*.c"]},
    package_data={"libattn": ["py.typed"]},
    cmdclass={"build_py": BuildPackage, "build_ext": BuildModule},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
