"""Files that are written whole or not at all, and read if they are files.

A file is written under a temporary name beside its place, flushed, and renamed: whoever is killed, or
whose disk is full, leaves what was there as it was. The temporary name holds the host and the process,
so that what dead processes have left is told from what others are writing at this moment.
"""

from __future__ import annotations

import errno
import os
import platform
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
    """The text of a path that a file can have; refuses what is none. ``hint`` is the code to write."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        msg = f"A path is a str or a pathlib.Path, not {path!r:.100}.\nHint: {hint}"
        raise ArgumentTypeError(msg)
    try:
        is_possible = text and "\0" not in text and os.fsencode(text)
    except UnicodeEncodeError:  # half a surrogate pair
        is_possible = False
    if not is_possible:
        raise ArgumentError(f"No file or folder can have the path {text!r:.100}.\nHint: {hint}")
    return text


def write(path: str | os.PathLike[str], *parts: Part, follow: bool = True) -> None:
    """Put ``parts``, one after the other, in the place of the file ``path``.

    A new file has the mode that the umask gives it, one that is replaced keeps its own. A link is
    followed, and a pipe or a device is written to as it is; without ``follow`` they are replaced.
    Leftovers of dead processes in the same folder are removed. After an OSError the file is as it was;
    where there is no room, its ``strerror`` says how many bytes are needed.
    """
    place = Path(os.path.realpath(path) if follow else path)
    try:
        if follow and place.exists() and not place.is_file() and not place.is_dir():
            with open(path, "wb") as special:
                special.writelines(parts)
            return
        remove_leftovers(place.parent)
        _replace(place, parts)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            size = sum(memoryview(part).nbytes for part in parts)
            reason = f"{reason}, and {size:,} bytes are needed"
        raise OSError(error.errno, reason, os.fspath(path)) from error


def read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file of ``LARGEST`` at most; not of a pipe or a device, which may have no end."""
    size = check_regular(path).st_size
    if size > LARGEST:
        reason = f"It has {size:,} bytes, more than {LARGEST:,}"
        raise OSError(errno.EFBIG, reason, os.fspath(path))
    return Path(path).read_bytes()


def first_line(path: str | os.PathLike[str]) -> bytes:
    """The first line of a file, without its end; at most its first 4,096 bytes."""
    check_regular(path)
    with open(path, "rb") as file:
        return file.readline(4096).rstrip(b"\r\n")


def append(path: str | os.PathLike[str], line: str) -> None:
    """Add a line to the end of a file, which is made if it is not there, in one write."""
    content = f"{line}\n".encode()
    with open(path, "ab", buffering=0) as file:
        written = file.write(content)
        if written != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))


def check_regular(path: str | os.PathLike[str], *, follow: bool = True) -> os.stat_result:
    """What is known of a file. Refuses a pipe or a device; without ``follow`` a link too."""
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


def _replace(place: Path, parts: tuple[Part, ...]) -> None:
    present = place.stat() if place.is_file() else None
    if present is not None and not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
    name = f".ampbridge-{_host()}-{os.getpid()}-{os.urandom(8).hex()}.partial"
    temporary = place.parent / name
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with open(os.open(temporary, flags, 0o666), "wb") as file:
            if present is not None and os.name == "posix":
                with suppress(OSError):  # only root gives files away
                    os.fchown(file.fileno(), present.st_uid, present.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(present.st_mode))
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException:
        remove(temporary)
        raise
    with suppress(OSError):  # makes the rename last, where a folder can be flushed
        descriptor = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _host() -> str:
    """The name of this machine, as far as it can stand in a file's name."""
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
