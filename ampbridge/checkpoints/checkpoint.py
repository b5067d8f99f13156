"""A training state as files: JSON beside safetensors, replaced as one. No pickle anywhere.

    checkpoint/
      state.json                       everything but arrays, a digest of itself; names the tensor file
      tensors-<digest>.safetensors

``state.json`` is replaced last, by one rename: whoever is killed while saving, or finds the disk full,
leaves the old checkpoint whole. What is read is checked against lengths and digests before anybody sees
it. One save at a time writes to a folder; loads need not wait for it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from ampbridge.checkpoints import atomic_files, tensor_file
from ampbridge.checkpoints.locking import locked
from ampbridge.checkpoints.tensor_file import Array
from ampbridge.errors import StateError, UnsupportedError, WriteError

FORMAT, VERSION = "ampbridge checkpoint", 1
STATE_FILE = "state.json"
LOCK_FILE = ".ampbridge.lock"
LARGEST_STATE_FILE = atomic_files.LARGEST  # arrays are elsewhere, so that more is no state of ours

_DIGEST = "blake2b"

# The digest is that of the rest.
_KEYS = {"format", "version", "tensors", "state", _DIGEST}

_TENSOR_FILE = re.compile(r"tensors-[0-9a-f]{32}\.safetensors")
_HINT = "Hint: step.save(path) writes a checkpoint; pass the same path."
_HINT_IF_DAMAGED = "Hint: load an earlier checkpoint."


class Checkpoint(NamedTuple):
    """``state`` holds plain JSON values, ``tensors`` arrays by name."""

    state: dict[str, Any]
    tensors: Mapping[str, Array]


def write(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Save to the folder ``path``, made if need be, in the place of the checkpoint that is there.

    Waits while another thread or process saves to the same folder. Refuses a folder of something else,
    and values that neither JSON nor safetensors has. Whatever is raised, the old checkpoint is whole.
    """
    folder = Path(atomic_files.path_of(path, "step.save('runs/one')"))
    try:
        _refuse_foreign(folder)
        parts = tensor_file.parts(checkpoint.tensors)
        digest = _digest(parts)
        name = f"tensors-{digest}.safetensors"
        described = {
            "file": name,
            "bytes": sum(memoryview(part).nbytes for part in parts),
            _DIGEST: digest,
        }
        text = _document(described, checkpoint.state)
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / LOCK_FILE):
            _remove_leftovers(folder)
            try:
                atomic_files.write(folder / name, *parts, follow=False)
                atomic_files.write(folder / STATE_FILE, text, follow=False)
            finally:
                _remove_leftovers(folder)
    except OSError as error:
        msg = f"Cannot save to {str(folder)!r:.200}: {error.strerror or error}.\n"
        hint = "Hint: step.save(path) on a disk with room, to a folder of its own."
        raise WriteError(msg + hint) from error


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint in the folder ``path``, complete and undamaged. Saves meanwhile do no harm."""
    folder = Path(
        atomic_files.path_of(path, "step.load('runs/one'), amp.load_weights('runs/one', model)")
    )
    tried = None
    while True:
        document = _read_document(folder)
        file = folder / _tensor_file_of(document, folder)
        try:
            return Checkpoint(document["state"], _read_tensors(file, document["tensors"]))
        except FileNotFoundError as error:
            if document == tried:
                msg = f"There is no {str(file)!r}, which its {STATE_FILE} names.\n"
                raise StateError(msg + _HINT_IF_DAMAGED) from error
            tried = document  # a save may have replaced both files since


def _read_document(folder: Path) -> dict[str, Any]:
    """What ``state.json`` holds, undamaged, and written by this version of ampbridge."""
    file = folder / STATE_FILE
    try:
        if file.stat().st_size > LARGEST_STATE_FILE:
            raise StateError(
                f"{str(file)!r} is too large for a checkpoint's {STATE_FILE}.\n{_HINT}"
            )
        content = atomic_files.read(file)
    except OSError as error:
        raise StateError(
            f"There is no checkpoint at {str(folder)!r:.200}: {error.strerror}.\n{_HINT}"
        ) from error
    try:
        document = json.loads(
            content.decode(), parse_constant=_no_number, object_pairs_hook=_without_repetition
        )
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError too
        raise StateError(f"{str(file)!r} is no JSON file: {error!s:.200}.\n{_HINT}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise StateError(f"{str(file)!r} was not written by ampbridge.\n{_HINT}")
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise StateError(
            f"{str(file)!r} is of version {version!r:.200}; this ampbridge reads version {VERSION}.\n"
            "Hint: pip install --upgrade ampbridge"
        )
    if document.keys() != _KEYS:
        raise StateError(f"{str(file)!r} has missing or unexpected parts.\n{_HINT}")
    try:
        is_whole = document.pop(_DIGEST) == _digest_of_values(document)
    except (ValueError, RecursionError):  # numbers and depths that are never written
        is_whole = False
    if not is_whole:
        msg = f"{str(file)!r} is damaged: it is not the file that was saved.\n"
        raise StateError(msg + _HINT_IF_DAMAGED)
    return document


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("it has a duplicate key")
    return values


def _tensor_file_of(document: Mapping[str, Any], folder: Path) -> str:
    described, state = document["tensors"], document["state"]
    if not isinstance(described, dict) or not isinstance(state, dict):
        raise StateError(f"{STATE_FILE} of {str(folder)!r} lacks its parts.\n{_HINT}")
    name = described.get("file")
    if not isinstance(name, str) or not _TENSOR_FILE.fullmatch(name):
        raise StateError(
            f"{STATE_FILE} of {str(folder)!r} names no tensor file: {name!r:.200}.\n{_HINT}"
        )
    return name


def _read_tensors(file: Path, described: Mapping[str, Any]) -> Mapping[str, Array]:
    """The arrays of an undamaged file; a FileNotFoundError if there is none."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        size, digest = file.stat().st_size, described.get(_DIGEST)
        if size != described.get("bytes") or _digest_of_file(file) != digest:
            msg = f"{str(file)!r} is damaged: it is not the file that was saved.\n"
            raise StateError(msg + _HINT_IF_DAMAGED)
        tensors: Mapping[str, Array] = load_file(file)
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise StateError(f"{str(file)!r} cannot be read: {error!s:.200}.\n{_HINT}") from error
    return tensors


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _digest_of_file(file: Path) -> str:
    with file.open("rb") as stream:
        return _digest(iter(lambda: stream.read(2**20), b""))


def _digest_of_values(document: Mapping[str, Any]) -> str:
    """A digest of the values, however the file spaces them."""
    return _digest([json.dumps(document, separators=(",", ":"), allow_nan=False).encode()])


def _document(described: Mapping[str, Any], state: Mapping[str, Any]) -> bytes:
    """The text of ``state.json``."""
    document = {"format": FORMAT, "version": VERSION, "tensors": described, "state": state}
    try:
        document[_DIGEST] = _digest_of_values(document)
        text = json.dumps(document, indent=1, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"A checkpoint cannot hold this state: {error!s:.200}.\n"
        raise UnsupportedError(
            msg + "Hint: settings are finite numbers, text and lists."
        ) from error
    if len(text) > LARGEST_STATE_FILE:
        msg = f"A checkpoint cannot hold a state of {len(text):,} bytes beside its arrays.\n"
        raise UnsupportedError(msg + f"Hint: up to {LARGEST_STATE_FILE:,}; keep data in arrays.")
    return text


def _refuse_foreign(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise StateError(
            f"{str(folder)!r} is a file; a checkpoint is a folder.\nHint: step.save('runs/one')"
        )
    if not (folder / STATE_FILE).exists():
        return
    try:
        _read_document(folder)
    except StateError as error:
        msg = f"{str(folder)!r} holds a {STATE_FILE} that is not an ampbridge checkpoint's.\n"
        raise StateError(msg + "Hint: save to a folder of its own.") from error


def _remove_leftovers(folder: Path) -> None:
    """Remove tensor files that ``state.json`` does not name, and what killed processes were writing.

    Only for who holds the lock: nobody else is writing then.
    """
    try:
        kept = _tensor_file_of(_read_document(folder), folder)
    except StateError:
        if (folder / STATE_FILE).exists():
            return  # it may name any of them
        kept = None
    for name in os.listdir(folder):
        old = name != kept and _TENSOR_FILE.fullmatch(name)
        if old or atomic_files.is_temporary(name):
            atomic_files.remove(folder / name)
