"""The line of somebody's script that is running, behind the frames of torch and of libraries."""

from __future__ import annotations

import linecache
import sys
import sysconfig
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

import ampbridge
import ampbridge_rehearse
import ampbridge_torch

_OURS = (ampbridge, ampbridge_rehearse, ampbridge_torch)
_PACKAGES = tuple(f"{Path(module.__path__[0])}/" for module in (torch, *_OURS))
_INSTALLED = ("site-packages/", "dist-packages/")
_PYTHONS = tuple(sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib"))


class Line(NamedTuple):
    """A line of code.

    Attributes:
        file: its path as it is shown: from the script's folder, or a package's name and the file's.
        number: of the line.
        text: what stands there.
        caller: for a line of a library, ``file:number`` of the script's line that called it.
    """

    file: str
    number: int
    text: str
    caller: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


NOWHERE = Line("?", 0, "")


def running_line(folder: str) -> Line:
    """The innermost line that is neither torch's, nor ours, nor Python's.

    In a thread that has none, as autograd's have, that of the main thread, which waits for it.

    Args:
        folder: that of the script.
    """
    frame = _innermost(sys._getframe(1))
    if frame is None:
        main = threading.main_thread().ident
        frame = _innermost(sys._current_frames().get(main if main is not None else 0))
    if frame is None:
        return NOWHERE
    file, number = frame.f_code.co_filename, frame.f_lineno
    caller = ""
    if _is_installed(file):
        calling = frame.f_back
        while calling is not None and not _is_own(calling.f_code.co_filename):
            calling = calling.f_back
        if calling is not None:
            caller = f"{_shown(calling.f_code.co_filename, folder)}:{calling.f_lineno}"
    text = linecache.getline(file, number).strip()
    return Line(_shown(file, folder), number, text, caller)


def frames_of_others() -> Iterator[FrameType]:
    """The frames of this thread that are neither torch's, nor ours, nor Python's; innermost first."""
    frame = _innermost(sys._getframe(1))
    while frame is not None:
        yield frame
        frame = _innermost(frame.f_back)


def _innermost(frame: FrameType | None) -> FrameType | None:
    while frame is not None and _is_between(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@cache
def _is_installed(file: str) -> bool:
    return any(part in file for part in _INSTALLED)


@cache
def _is_between(file: str) -> bool:
    """Whether the code is torch's, ours, Python's, or generated."""
    if file.startswith(("<", *_PACKAGES)):
        return True
    return file.startswith(_PYTHONS) and not _is_installed(file)


def _is_own(file: str) -> bool:
    return not _is_between(file) and not _is_installed(file)


@cache
def _shown(file: str, folder: str) -> str:
    for part in _INSTALLED:
        if part in file:
            package, _, within = file.rpartition(part)[2].partition("/")
            return f"{package}/.../{Path(within).name}" if "/" in within else f"{package}/{within}"
    path = Path(file).resolve()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name
