"""Files that are written whole or not at all, and read if they are files.

A file is written under a temporary name beside its place, flushed, and renamed: whoever is killed, or
whose disk is full, leaves what was there as it was. The temporary name holds the host and the process,
so that what dead processes have left is told from what others are writing at this moment.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from ampbridge.errors import ArgumentError, ArgumentTypeError

Part = bytes | memoryview

LARGEST = 64 * 2**20  # bytes that are read: scripts, recipes and states are text

_TEMPORARY = re.compile(r"\.ampbridge-(?P<host>\w*)-(?P<process>\d{1,9})-[0-9a-f]{16}\.partial")

_FULL = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})


def path_of(path: object, hint: str) -> str:
    """The text of a path that a file can have.

    Raises:
        ArgumentTypeError: for bytes, numbers and all else that is neither a str nor a ``Path``.
        ArgumentError: for text that no file can have as its name.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        msg = f"A path is a str or a pathlib.Path, not {path!r:.100}.\nHint: {hint}"
        raise ArgumentTypeError(msg)
    if not text or "\0" in text or not _is_encodable(text):
        raise ArgumentError(f"No file or folder can have the path {text!r:.100}.\nHint: {hint}")
    return text


def _is_encodable(text: str) -> bool:
    """Whether the system can have a file of that name; of half a surrogate pair it cannot."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def write(path: str | os.PathLike[str], *parts: Part, follow: bool = True) -> None:
    """Put ``parts``, one after the other, in the place of the file ``path``.

    A new file has the mode that the umask gives it, one that is replaced keeps its own. A link is
    followed. A pipe or a device is written to as it is. Leftovers of dead processes in the same folder
    are removed.

    Args:
        follow: if False, a link, a pipe or a device is replaced by the file.

    Raises:
        OSError: if that cannot be; the file is as it was. Where there is no room, its ``strerror`` says
            how many bytes are needed.
    """
    place = Path(os.path.realpath(path) if follow else path)
    try:
        if follow and place.exists() and not place.is_file() and not place.is_dir():
            _write_into(Path(path), parts)
            return
        remove_leftovers(place.parent)
        _replace(place, parts)
    except OSError as error:
        raise OSError(error.errno, _why(error, parts), os.fspath(path)) from error


def read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file.

    Raises:
        OSError: if it cannot be read, is larger than ``LARGEST``, or is a pipe or a device, which may
            have no end.
    """
    size = check_regular(path).st_size
    if size > LARGEST:
        reason = f"It has {size:,} bytes, more than {LARGEST:,}"
        raise OSError(errno.EFBIG, reason, os.fspath(path))
    return Path(path).read_bytes()


def first_line(path: str | os.PathLike[str]) -> bytes:
    """The first line of a file, without its end; at most its first 4,096 bytes.

    Raises:
        OSError: if it cannot be read, or is a pipe or a device.
    """
    check_regular(path)
    with open(path, "rb") as file:
        return file.readline(4096).rstrip(b"\r\n")


def append(path: str | os.PathLike[str], line: str) -> None:
    """Add a line to the end of a file, which is made if it is not there, in one write.

    Raises:
        OSError: if that cannot be.
    """
    content = f"{line}\n".encode()
    with open(path, "ab", buffering=0) as file:
        written = file.write(content)
        if written != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))


def check_regular(path: str | os.PathLike[str], *, follow: bool = True) -> os.stat_result:
    """What is known of a file (a folder refuses to be read by itself).

    Raises:
        OSError: for a pipe or a device; without ``follow`` for a link too.
    """
    status = os.stat(path, follow_symlinks=follow)
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        what = "It is" if follow else f"{os.path.basename(path)!r} is a link,"
        raise OSError(errno.EINVAL, f"{what} a pipe or a device, not a file", os.fspath(path))
    return status


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that is, or was, being written here."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_leftovers(folder: Path) -> None:
    """Remove what processes of this machine that are dead were writing into ``folder``."""
    with suppress(OSError):  # a folder that cannot be listed may still be written to
        for name in os.listdir(folder):
            found = _TEMPORARY.fullmatch(name)
            if found and found["host"] == _host() and not _is_alive(int(found["process"])):
                remove(folder / name)


def remove(file: Path) -> None:
    """Remove a file that nobody needs; what cannot be removed stays."""
    with suppress(OSError):
        file.unlink()


# -- writing


def _replace(place: Path, parts: tuple[Part, ...]) -> None:
    present = place.stat() if place.is_file() else None
    if present is not None and not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
    name = f".ampbridge-{_host()}-{os.getpid()}-{os.urandom(8).hex()}.partial"
    temporary = place.parent / name
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with open(os.open(temporary, flags, 0o666), "wb") as file:
            if present is not None:
                _keep_owner_and_mode(file.fileno(), present)
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException:
        remove(temporary)
        raise
    _flush_folder(place.parent)


def _keep_owner_and_mode(descriptor: int, present: os.stat_result) -> None:
    if os.name != "posix":
        return
    with suppress(OSError):  # only root gives files away
        os.fchown(descriptor, present.st_uid, present.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(present.st_mode))


def _flush_folder(folder: Path) -> None:
    """Make a rename last, where a folder can be flushed: the file is in its place in any case."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_into(special: Path, parts: tuple[Part, ...]) -> None:
    with open(special, "wb") as file:
        file.writelines(parts)


def _why(error: OSError, parts: tuple[Part, ...]) -> str:
    reason = error.strerror or str(error)
    if error.errno not in _FULL:
        return reason
    size = sum(memoryview(part).nbytes for part in parts)
    return f"{reason}, and {size:,} bytes are needed"


# -- whose a temporary file is


def _host() -> str:
    """The name of this machine, as far as it can stand in a file's name."""
    import platform

    return re.sub(r"\W", "", platform.node(), flags=re.ASCII)[:64]


def _is_alive(process: int) -> bool:
    """Whether there is such a process; where that cannot be asked, there may be."""
    if os.name != "posix":  # on Windows, os.kill would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
