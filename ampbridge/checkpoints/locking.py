"""A file as a lock between processes, of one machine or of several that share a file system."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ampbridge.checkpoints import atomic_files

if sys.platform != "win32":
    import fcntl

LONGEST_WAIT = 600.0  # seconds: more than any save takes
_PAUSE = 0.01

# Some network file systems have no locks: there, as on Windows, nobody is kept out.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})

_holders: dict[str, int] = {}
"""Lock file -> the thread of this process that holds it."""


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock ``file``, which exists only meanwhile. Waits for whoever else holds it.

    It raises a TimeoutError if that takes more than ``LONGEST_WAIT``, or this very thread holds it.
    """
    name, thread = os.path.abspath(file), threading.get_ident()
    # A signal handler, while what it has interrupted holds the lock:
    if _holders.get(name) == thread:
        raise TimeoutError(errno.ETIMEDOUT, "It is being written by this thread", name)
    with _acquired(file):
        _holders[name] = thread
        try:
            yield
        finally:
            del _holders[name]
            atomic_files.remove(file)


def _acquired(file: Path) -> IO[bytes]:
    """``file``, opened and locked, once it is still the one of that name."""
    deadline = time.monotonic() + LONGEST_WAIT
    while True:
        with suppress(FileNotFoundError):
            atomic_files.check_regular(file, follow=False)
        # Who is given it closes it; one that has become a link or a pipe since does not hold us up.
        stream = open(file, "ab", opener=_descriptor)  # noqa: SIM115
        if _lock(stream.fileno()) and _is_the_one_at(file, stream.fileno()):
            return stream
        stream.close()
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "Another process is writing it", str(file))
        time.sleep(_PAUSE)


def _descriptor(name: str, flags: int) -> int:
    for flag in ("O_NOFOLLOW", "O_NONBLOCK"):
        flags |= getattr(os, flag, 0)
    return os.open(name, flags, 0o666)


def _lock(descriptor: int) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _is_the_one_at(file: Path, descriptor: int) -> bool:
    """Whether the open file still has that name: who held the lock before has removed its file."""
    try:
        return os.path.samestat(os.lstat(file), os.fstat(descriptor))
    except FileNotFoundError:
        return False
