"""The device's library, compiled once for this Paddle, this compiler and these sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from signatures import INCLUDE, INCLUDES, write_sources

from ampbridge.checkpoints.locking import locked

HERE = Path(__file__).parent
CACHE = Path.home() / ".cache/ampbridge/virtual_paddle"
LIBRARY = "libvirtual_gpu.so"

_COMPILER = "g++"
_PARTS = 4
# -O0: what computes is Paddle's, and compiled. -w: warnings would be of Paddle's headers.
_OPTIONS = ["-std=c++17", "-O0", "-fPIC", "-w", "-DPADDLE_WITH_CUSTOM_DEVICE"]
_LIBRARIES = INCLUDE.parent / "libs"
_LINKED = [
    *(f"-L{_LIBRARIES}", "-l:libphi_core.so", "-l:libcommon.so"),
    f"-Wl,-rpath,{_LIBRARIES}",
]


def why_not() -> str | None:
    """Why the device cannot be built here, or None."""
    if sys.platform != "linux":
        return f"the device is built for Linux, and this is {sys.platform}"
    if shutil.which(_COMPILER) is None:
        return f"no {_COMPILER} was found, which compiles the device"
    return None


def built() -> Path:
    """The folder with the library, which is compiled if it is not there; a minute and a half."""
    folder = CACHE / _key()
    library = folder / LIBRARY
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        if not library.exists():
            # Paddle says what kernels it has, and loads devices as it is imported: another process.
            _run([sys.executable, "-W", "ignore", __file__, str(library)])
    return folder


def _key() -> str:
    """A hash of all that the library is made of."""
    sources = [Path(__file__), HERE / "signatures.py", *sorted((HERE / "device").iterdir())]
    versions = [version("paddlepaddle"), sys.version, _compiler_version()]
    digest = hashlib.sha256("\n".join(versions).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _compiler_version() -> str:
    command = [_COMPILER, "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _compile(library: Path) -> None:
    """Whole or not at all: under another name first."""
    with tempfile.TemporaryDirectory(dir=library.parent) as temporary:
        folder = Path(temporary)
        sources = [*sorted((HERE / "device").glob("*.cc")), *write_sources(folder, _PARTS)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda source: _object(source, folder), sources))
        unfinished = folder / LIBRARY
        _run([_COMPILER, "-shared", "-o", str(unfinished), *map(str, objects), *_LINKED])
        unfinished.replace(library)


def _object(source: Path, folder: Path) -> Path:
    compiled = folder / f"{source.stem}.o"
    own = f"-I{HERE / 'device'}"
    _run([_COMPILER, *_OPTIONS, *INCLUDES, own, "-c", str(source), "-o", str(compiled)])
    return compiled


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    _compile(Path(sys.argv[1])) if sys.argv[1:] else built()
