"""The modules of a folder that a script imports: found as Python would find them, and read as text.

Only regular files below the script's repository are read, each once, and no more than some thousands.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ampbridge.errors import SourceError
from ampbridge_port import source
from ampbridge_port.interpreter.evaluate import PUBLISHED

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampbridge_port.source import Source

MOST_FILES = 2000
MOST_BYTES = 32 * 2**20
"""As much of a folder is looked through, at most."""
MOST_MODULES = 200
"""As many modules are followed for one script, at most."""
FARTHEST = 3
"""As many folders above a script are searched where nothing shows the root of its repository."""

NEVER = PUBLISHED | {"ampbridge", "apex", "fleet", "jax", "mmengine", "paddlenlp", "torchvision"}
"""Packages that are installed: a folder of the same name is not looked into."""
_ROOTS = (".git", ".hg", "setup.py", "pyproject.toml", "setup.cfg")
_SOURCES = ("", "src")

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<module>[.\w]+)[ \t]+import[ \t]*(?P<names>\([^)]*\)|[^\n#;]*)"
    r"|import[ \t]+(?P<modules>[^\n#;]+))",
    re.M,
)


class Files:
    """Files of a folder, by path; each is read and parsed once, for however many scripts."""

    def __init__(self) -> None:
        self._data: dict[Path, bytes | None] = {}
        self._sources: dict[Path, Source | None] = {}
        self._imports: dict[Path, list[str]] = {}
        self._bytes = 0
        self.refused: dict[Path, str] = {}
        """Why a module could not be read."""

    def data(self, file: Path) -> bytes | None:
        """The bytes of a regular file; None where there are too many, or no such file is."""
        if file not in self._data:
            self._data[file] = self._read(file)
        return self._data[file]

    def know(self, file: Path, data: bytes) -> None:
        """Take ``data`` for the bytes of a file: the code of a notebook."""
        self._data[file] = data

    def _read(self, file: Path) -> bytes | None:
        try:
            size = os.stat(file).st_size
            if len(self._data) >= MOST_FILES or self._bytes + size > MOST_BYTES:
                self.refused[file] = "the folder is too large"
                return None
            self._bytes += size
            return source.load(file)
        except (OSError, SourceError) as error:
            self.refused[file] = str(error).splitlines()[0]
            return None

    def source(self, file: Path) -> Source | None:
        """The tree of a module; None where it cannot be parsed."""
        if file not in self._sources:
            data = self.data(file)
            self._sources[file] = None
            try:
                if data is not None:
                    self._sources[file] = source.parse(data, shown(file))
            except SourceError as error:
                self.refused[file] = str(error).splitlines()[0]
        return self._sources[file]

    def imports(self, file: Path) -> list[str]:
        """The modules that a file names in its imports: ``a.b`` and ``a.b.c`` of ``from a.b import c``."""
        if file not in self._imports:
            text = (self.data(file) or b"").decode("utf-8", "replace")
            self._imports[file] = list(dict.fromkeys(_imports(text)))
        return self._imports[file]


def _imports(text: str) -> Iterator[str]:
    for found in _IMPORT.finditer(text):
        module = found["module"]
        if module is None:
            yield from (each.split()[0] for each in found["modules"].split(",") if each.strip())
            continue
        yield module
        separator = "" if module.endswith(".") else "."
        for each in re.sub(r"#[^\n]*", "", found["names"]).strip("()\\ \t").split(","):
            if each.strip().strip("*\\"):
                yield f"{module}{separator}{each.split()[0]}"


def shown(file: Path) -> str:
    """How places name a file: from the working directory, if it is below."""
    try:
        return str(file.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(file)


@dataclass(frozen=True)
class _Links:
    """Which module imports which, of those that a script leads to."""

    edges: dict[Path, list[Path]]

    @cached_property
    def _importers(self) -> dict[Path, list[Path]]:
        found: dict[Path, list[Path]] = {}
        for importer, imported in self.edges.items():
            for each in imported:
                found.setdefault(each, []).append(importer)
        return found

    def leading_to(self, target: Path) -> set[Path]:
        """The modules that import ``target``, by however many others; and itself."""
        found, left = {target}, [target]
        while left:
            for each in self._importers.get(left.pop(), ()):
                if each not in found:
                    found.add(each)
                    left.append(each)
        return found


class Modules:
    """The modules that ``script`` may import.

    Args:
        concerns: whether a module's bytes hold a word of any dialect.
    """

    def __init__(self, script: str, files: Files, concerns: Callable[[bytes], bool]) -> None:
        self.script = Path(os.path.abspath(script))
        self._files, self._concerns = files, concerns
        self._found: dict[tuple[str, Path], Path | None] = {}
        self._root = root_of(self.script.parent)
        self._real_root = os.path.realpath(self._root)
        self.followed = 0

    # -- where a module stands

    def find(self, name: str, importer: Path) -> Path | None:
        """The file or the package's folder that an import of ``importer`` names; None if none here."""
        relative = name.startswith(".")
        key = (name, importer.parent)
        if key not in self._found:
            self._found[key] = (
                self._relative(name, importer) if relative else self._named(name, importer)
            )
        return self._found[key]

    def _relative(self, name: str, importer: Path) -> Path | None:
        bare = name.lstrip(".")
        base = importer.parent
        for _ in range(len(name) - len(bare) - 1):
            base = base.parent
        return self._below(base, bare.split(".") if bare else [])

    def _named(self, name: str, importer: Path) -> Path | None:
        first, *others = name.split(".")
        if first in NEVER:
            return None
        folders = (
            [self.script.parent] if first in sys.stdlib_module_names else self._folders(importer)
        )
        for folder in folders:
            if self._below(folder, [first]) is not None:
                return self._below(folder, [first, *others])
        return None

    def _folders(self, importer: Path) -> Iterator[Path]:
        """Those that ``sys.path`` may have: the script's, and above it up to the repository's root."""
        for start in dict.fromkeys((self.script.parent, importer.parent)):
            for folder in (start, *start.parents):
                if not folder.is_relative_to(self._root):
                    break
                yield from (folder / each for each in _SOURCES)

    def _below(self, folder: Path, parts: list[str]) -> Path | None:
        for index, part in enumerate(parts):
            package, file = folder / part, folder / f"{part}.py"
            is_package = self.is_here(package / "__init__.py")
            if not is_package and self.is_here(file):
                return file if index == len(parts) - 1 else None
            if not is_package and not package.is_dir():
                return None
            folder = package
        return folder if self._is_within(folder) else None

    def is_here(self, file: Path) -> bool:
        """Whether it is a regular file of the repository, and no link out of it."""
        try:
            regular = stat.S_ISREG(os.stat(file).st_mode)
        except (OSError, ValueError):
            return False
        return regular and self._is_within(file)

    def _is_within(self, path: Path) -> bool:
        return is_within(path, self._real_root)

    def file_of(self, path: Path) -> Path | None:
        """The file with a module's text; None of a folder without ``__init__.py``."""
        if path.suffix == ".py":
            return path
        file = path / "__init__.py"
        return file if self.is_here(file) else None

    def source(self, path: Path) -> Source | None:
        """The tree of a module; None where it has none, or there are too many."""
        file = self.file_of(path)
        if file is None or file == self.script or self.followed >= MOST_MODULES:
            return None
        self.followed += 1
        return self._files.source(file)

    def why_not(self, path: Path) -> str:
        """Why a module was not read; "" if it was."""
        file = self.file_of(path)
        if file is not None and self._files.source(file) is not None:
            return "" if self.followed < MOST_MODULES else "the script imports too many modules"
        return self._files.refused.get(file, "") if file is not None else ""

    # -- what a script leads to

    @cached_property
    def _links(self) -> _Links:
        edges: dict[Path, list[Path]] = {}
        for _ in self._walk(edges):
            pass
        return _Links(edges)

    def _walk(self, edges: dict[Path, list[Path]]) -> Iterator[Path]:
        """The script and what it imports, nearest first; ``edges`` are filled on the way."""
        left = deque([self.script])
        while left and len(edges) < MOST_FILES:
            file = left.popleft()
            if file not in edges:
                yield file
                edges[file] = list(dict.fromkeys(self.imported(file)))
                left.extend(edges[file])

    def imported(self, importer: Path) -> Iterator[Path]:
        """The files of the modules that a file of the folder imports."""
        names = self._files.imports(importer)
        packages = (name.rpartition(".")[0] for name in names if not name.startswith("."))
        for name in (*filter(None, packages), *names):
            path = self.find(name, importer)
            file = None if path is None else self.file_of(path)
            if file is not None and file != importer:
                yield file

    @property
    def reached(self) -> set[Path]:
        """The files of all modules that the script may import, by however many others."""
        return set(self._links.edges) - {self.script}

    @cached_property
    def concern(self) -> bool:
        """Whether one of them has a word of any dialect."""
        return any(file != self.script and self._has_words(file) for file in self._walk({}))

    def _has_words(self, file: Path) -> bool:
        return self._concerns(self._files.data(file) or b"")

    @cached_property
    def acting(self) -> dict[Path, list[Path]]:
        """By module, those that its import brings on and that may change something by themselves."""
        found: dict[Path, list[Path]] = {}
        for each in [
            file for file in self._links.edges if file != self.script and self._acts(file)
        ]:
            for importer in self._links.leading_to(each):
                found.setdefault(importer, []).append(each)
        return found

    def name_of(self, file: Path) -> tuple[Path, str]:
        """The path that ``find`` gives for a module's file, and its name below the repository's root."""
        path = file.parent if file.name == "__init__.py" else file
        parts = path.relative_to(self._root).with_suffix("").parts
        return path, ".".join(parts) or path.name

    def _acts(self, file: Path) -> bool:
        data = self._files.data(file) or b""
        if _SETS.search(data):
            return True
        return self._concerns(data) and any(map(self._concerns, _CALLS.findall(data)))


_CALLS = re.compile(
    rb"^(?!(?:def|class|async|import|from|if|elif|else|return|__all__)\b)[A-Za-z_][^\n]*(?:\(|environ)[^\n]*",
    re.M,
)
"""Lines of a module outside of functions and classes that call something."""
_SETS = re.compile(
    rb"^[A-Za-z_]\w*(?:\.\w+)*(?:\.(?!__)\w+\s*=[^=]|\.(?:update|merge\w*|override\w*|set_defaults)\()",
    re.M,
)
"""Such lines that set what another module has: ``config.LEVEL = "O2"``."""


def is_within(path: str | os.PathLike[str], real_root: str) -> bool:
    """Whether a path, with its links followed, is in a folder or is that itself."""
    real = os.path.realpath(path)
    return real == real_root or real.startswith(os.path.join(real_root, ""))


def root_of(folder: Path) -> Path:
    """The root of the repository in which a file stands; else a folder not far above it."""
    homes = {Path(tempfile.gettempdir()), Path.home(), Path(folder.anchor)}
    highest = folder
    for distance, each in enumerate((folder, *folder.parents)):
        if each in homes and each != folder:
            break
        if any((each / mark).exists() for mark in _ROOTS[:2]):
            return each
        if distance <= FARTHEST:
            highest = each
        if any((each / mark).exists() for mark in _ROOTS[2:]):
            return each
    return highest
