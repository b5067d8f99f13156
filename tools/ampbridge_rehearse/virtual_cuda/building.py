"""The device's C++ part: compiled once for each torch, compiler and source, and kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from ampbridge.checkpoints.locking import locked
from ampbridge.errors import UnsupportedError

SOURCES = ("kernels.cpp", "cuda_only.cpp", "autocast.cpp", "memory.cpp", "notes.cpp", "install.cpp")
HEADERS = ("device.h",)
FLAGS = ("-O1", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-DNDEBUG")
_HERE = Path(__file__).parent


def built() -> Path:
    """The compiled library; half a minute the first time.

    Raises:
        UnsupportedError: if torch has CUDA, or there is no C++ compiler, or it fails.
    """
    if (torch_folder() / "lib" / "libtorch_cuda.so").exists():
        msg = (
            "This torch is built for CUDA; the virtual CUDA device is for CPU builds of it.\n"
            "Hint: in an environment of its own, "
            "pip install torch --index-url https://download.pytorch.org/whl/cpu"
        )
        raise UnsupportedError(msg)
    compiler = _compiler()
    place = _cache() / f"{_key(compiler)}.so"
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with locked(place.with_suffix(".lock")):
        if not place.exists():
            _build(compiler, place)
    return place


def torch_folder() -> Path:
    """Where torch is installed. Does not import it."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        msg = "The virtual CUDA device needs torch.\nHint: pip install 'ampbridge[torch]'"
        raise UnsupportedError(msg)
    return Path(found.origin).parent


def _compiler() -> str:
    named = os.environ.get("CXX", "g++")
    found = shutil.which(named)
    if found is None:
        msg = (
            f"The virtual CUDA device is compiled once, and there is no C++ compiler {named!r} here.\n"
            "Hint: apt-get install g++, or CXX=/path/to/compiler"
        )
        raise UnsupportedError(msg)
    return found


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ampbridge" / "virtual_cuda"


def _key(compiler: str) -> str:
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    digest = hashlib.sha256()
    for part in (version("torch"), sysconfig.get_platform(), said.stdout, *FLAGS):
        digest.update(part.encode() + b"\0")
    for name in (*SOURCES, *HEADERS):
        digest.update((_HERE / name).read_bytes())
    return digest.hexdigest()[:16]


def _build(compiler: str, place: Path) -> None:
    torch = torch_folder()
    include = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
    options = [*FLAGS, *include]
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        objects = [f"{folder}/{name}.o" for name in SOURCES]

        def compile_one(name: str, made: str) -> None:
            _call([compiler, *options, "-c", str(_HERE / name), "-o", made])

        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            list(pool.map(compile_one, SOURCES, objects))
        library = f"{folder}/library.so"
        link = [f"-L{torch}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch}/lib"]
        _call([compiler, "-shared", *objects, *link, "-o", library])
        os.replace(library, place)


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        msg = (
            f"The virtual CUDA device does not compile with torch {version('torch')} "
            f"(checked with torch 2.13):\n{done.stderr[:2000]}\n"
            "Hint: pip install 'torch==2.13.*'"
        )
        raise UnsupportedError(msg)
