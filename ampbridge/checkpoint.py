"""A training state as files: JSON beside safetensors, replaced as one. No pickle anywhere.

    checkpoint/
      state.json                       everything but arrays; names the tensor file
      tensors-<digest>.safetensors

``state.json`` is replaced last, by one rename: whoever is killed while saving leaves the old
checkpoint whole. What is read is checked against its length and digest before anybody sees it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ampbridge.errors import StateError

FORMAT, VERSION = "ampbridge checkpoint", 1
STATE_FILE = "state.json"
LARGEST_STATE_FILE = 64 * 2**20  # bytes; arrays are elsewhere, so that more is no state of ours

Array = npt.NDArray[Any]

_TENSOR_FILE = re.compile(r"tensors-[0-9a-f]{32}\.safetensors")
_HINT = "Hint: step.save(path) writes a checkpoint; pass the same path."


class Checkpoint(NamedTuple):
    """``state`` holds plain JSON values, ``tensors`` arrays by name."""

    state: dict[str, Any]
    tensors: Mapping[str, Array]


def write(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Save to the folder ``path``, made if need be, in the place of the checkpoint that is there.

    Raises:
        StateError: if ``path`` is a file, or holds a ``state.json`` of something else.
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise StateError(
            f"{str(folder)!r} is a file; a checkpoint is a folder.\nHint: step.save('runs/one')"
        )
    _refuse_foreign(folder)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(folder)
    _save_tensors(checkpoint.tensors, temporary)
    digest, size = _digest(temporary), temporary.stat().st_size
    tensor_file = f"tensors-{digest}.safetensors"
    _into_place(temporary, folder / tensor_file)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "tensors": {"file": tensor_file, "bytes": size, "blake2b": digest},
        "state": checkpoint.state,
    }
    text = json.dumps(document, indent=1, allow_nan=False)
    temporary = _temporary(folder)
    temporary.write_text(text, encoding="utf-8")
    _into_place(temporary, folder / STATE_FILE)
    _remove_leftovers(folder, keep=tensor_file)


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint in the folder ``path``, complete and undamaged.

    Raises:
        StateError: if it is not.
    """
    folder = Path(path)
    document = _read_document(folder)
    described = document.get("tensors")
    state = document.get("state")
    if not isinstance(described, dict) or not isinstance(state, dict):
        raise StateError(f"{STATE_FILE} of {str(folder)!r} lacks its parts.\n{_HINT}")
    name = described.get("file")
    if not isinstance(name, str) or not _TENSOR_FILE.fullmatch(name):
        raise StateError(
            f"{STATE_FILE} of {str(folder)!r} names no tensor file: {name!r:.200}.\n{_HINT}"
        )
    return Checkpoint(state, _read_tensors(folder / name, described))


# -- reading


def _read_document(folder: Path) -> dict[str, Any]:
    file = folder / STATE_FILE
    try:
        if file.stat().st_size > LARGEST_STATE_FILE:
            raise StateError(
                f"{str(file)!r} is too large for a checkpoint's {STATE_FILE}.\n{_HINT}"
            )
        document = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise StateError(
            f"There is no checkpoint at {str(folder)!r}: {error.strerror}.\n{_HINT}"
        ) from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise StateError(f"{str(file)!r} is no JSON file: {error!s:.200}.\n{_HINT}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise StateError(f"{str(file)!r} is of another program.\n{_HINT}")
    if document.get("version") != VERSION:
        msg = (
            f"{str(file)!r} is of version {document.get('version')!r:.200}; this ampbridge reads "
            f"version {VERSION}.\nHint: pip install --upgrade ampbridge"
        )
        raise StateError(msg)
    return document


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


def _read_tensors(file: Path, described: Mapping[str, Any]) -> Mapping[str, Array]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        if file.stat().st_size != described.get("bytes") or _digest(file) != described.get(
            "blake2b"
        ):
            msg = f"{str(file)!r} is damaged: it is not the file that was saved.\n"
            raise StateError(msg + "Hint: load an earlier checkpoint.")
        tensors: Mapping[str, Array] = load_file(file)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise StateError(f"{str(file)!r} cannot be read: {error!s:.200}.\n{_HINT}") from error
    return tensors


def _digest(file: Path) -> str:
    digest = blake2b(digest_size=16)
    with file.open("rb") as stream:
        while chunk := stream.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


# -- writing


def _refuse_foreign(folder: Path) -> None:
    if not (folder / STATE_FILE).exists():
        return
    try:
        _read_document(folder)
    except StateError as error:
        msg = f"{str(folder)!r} holds a {STATE_FILE} that no checkpoint of ours has.\n"
        raise StateError(msg + "Hint: save to a folder of its own.") from error


def _save_tensors(tensors: Mapping[str, Array], file: Path) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.asarray(array, order="C") for name, array in tensors.items()}, file)


def _temporary(folder: Path) -> Path:
    return folder / f".{os.urandom(8).hex()}.partial"


def _into_place(temporary: Path, place: Path) -> None:
    """On the disk under its name, or not at all."""
    _flush(temporary, os.O_RDWR)
    os.replace(temporary, place)
    if os.name == "posix":  # elsewhere a folder cannot be flushed
        _flush(place.parent, os.O_RDONLY)


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(folder: Path, keep: str) -> None:
    """Tensor files of older checkpoints, and what a killed process left."""
    for file in folder.iterdir():
        old = _TENSOR_FILE.fullmatch(file.name) and file.name != keep
        if old or file.name.endswith(".partial"):
            file.unlink(missing_ok=True)
