"""Finds and parses the modules of a repository that a script imports, as Python finds them."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from ampbridge.errors import SourceError
from ampbridge_port.reader import source
from ampbridge_port.reader.source import Module

MOST_MODULES = 300
"""As many modules are read for one script, at most."""
MOST_BYTES = 12 * 2**20
FARTHEST = 3
"""As many folders above a script are searched where nothing shows the root of its repository."""
ROOTS = (".git", ".hg", "setup.py", "pyproject.toml", "setup.cfg")
INSTALLED = frozenset([
    "accelerate", "ampbridge", "apex", "deepspeed", "fleet", "jax", "keras", "lightning",
    "lightning_fabric", "mmengine", "numpy", "paddle", "paddlenlp", "pytorch_lightning",
    "tensorflow", "tf_keras", "torch", "torchvision", "transformers", "yaml",
])  # fmt: skip
"""Packages that a folder of the same name in the repository does not stand for."""
STAND_INS = {
    name: Path(__file__).with_name("stand_ins") / "timm_utils.py"
    for name in ("timm.utils", "timm.utils.cuda", "timm.utils.clip_grad")
}
"""Installed modules in which a program's step may stand, and a file with what such a step does."""


def root_of(folder: Path) -> Path:
    """The folder of the repository that ``folder`` is in."""
    for above in (folder, *folder.parents):
        if any((above / name).exists() for name in ROOTS):
            return above
    return folder if len(folder.parents) <= FARTHEST else folder.parents[FARTHEST - 1]


def is_within(path: Path | str, root: Path | str) -> bool:
    """Whether ``path`` is below ``root``, links followed."""
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
    except (OSError, ValueError):
        return False


def shown(path: Path) -> str:
    """How places name a file: from the working directory, if it is below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


TOO_MUCH = "too much would have to be read"


class Files:
    """Parsed modules by path; each is parsed once, for however many scripts."""

    def __init__(self) -> None:
        self._modules: dict[Path, Module | None] = {}
        self.refused: dict[Path, str] = {}
        self.read_with: dict[str, frozenset[str]] = {}
        """By script, the modules that were read with it."""
        self.bytes = 0

    def module(self, path: Path) -> Module | None:
        """The tree of a file; None where it cannot be read, or too much was."""
        if path not in self._modules:
            self._modules[path] = None
            try:
                size = os.stat(path).st_size
                if self.bytes + size > MOST_BYTES or len(self._modules) > MOST_MODULES:
                    self.refused[path] = TOO_MUCH
                    return None
                self.bytes += size
                data = source.load(path)
                self._modules[path] = source.parse(data, shown(path), path, is_script=False)
            except (OSError, SourceError) as error:
                self.refused[path] = str(error).splitlines()[0]
        return self._modules[path]


class Finder:
    """The modules below the root of a script's repository, by their dotted names."""

    def __init__(self, script: Module, files: Files) -> None:
        self.script, self._files = script, files
        self.root = root_of(script.path.parent) if script.path else None
        self.refused = files.refused
        self.added: dict[str, None] = {}
        """What the program adds to ``sys.path``."""
        self._found: dict[tuple[object, ...], Module | Path | None] = {}

    def find(self, name: str, level: int, importer: Module) -> Module | Path | None:
        """The module that an import names; the folder of a package without ``__init__``; or None."""
        key = (name, level, importer.path, len(self.added))
        if key not in self._found:
            self._found[key] = self._find(name, level, importer)
        return self._found[key]

    def _find(self, name: str, level: int, importer: Module) -> Module | Path | None:
        if importer.path is None or self.root is None:
            return None
        parts = name.split(".") if name else []
        if level:
            base = importer.path.parent
            for _ in range(level - 1):
                base = base.parent
            return self._below(base, parts)
        if not parts or parts[0] in INSTALLED:
            return None
        first = self.script.path.parent if self.script.path else importer.path.parent
        folders = [first] if parts[0] in sys.stdlib_module_names else self._folders(first, importer)
        found: Module | Path | None = None
        for folder in folders:
            found = self._below(folder, parts)
            if isinstance(found, Module) or self._starts(folder, parts[0]):
                return found
        if name in STAND_INS:
            return self._files.module(STAND_INS[name])
        return next((f for each in folders if (f := self._below(each, parts)) is not None), None)

    def why_not(self, name: str) -> str:
        """Why the module of a dotted name could not be read, if it stands here."""
        tail = name.replace(".", "/")
        for path, why in self._files.refused.items():
            if str(path.with_suffix("")).endswith((tail, tail.rpartition("/")[0] or tail)):
                return why
        return ""

    def file(self, name: str, importer: Module | None) -> Path | None:
        """The file of the repository that a path in the program names, if it is there."""
        if self.root is None or self.script.path is None or "\0" in name or not name:
            return None
        beside = [importer.path.parent] if importer is not None and importer.path else []
        for folder in (Path.cwd(), self.script.path.parent, *beside, self.root):
            path = folder / name
            if self._is_here(path):
                return path
        return None

    def parsed(self, path: Path) -> Module | None:
        """The module of a file that was found here."""
        return self._files.module(path)

    def _folders(self, first: Path, importer: Module) -> list[Path]:
        assert importer.path is not None
        assert self.root is not None
        found: dict[Path, None] = {}
        for start in (first, importer.path.parent):
            for folder in (start, *start.parents):
                if not folder.is_relative_to(self.root):
                    break
                found |= {folder: None, folder / "src": None}
        found |= {base / each: None for each in self.added for base in (first, Path.cwd())}
        return list(found)

    def _starts(self, folder: Path, name: str) -> bool:
        return self._is_here(folder / f"{name}.py") or self._is_here(folder / name / "__init__.py")

    def _below(self, folder: Path, parts: list[str]) -> Module | Path | None:
        package = folder.joinpath(*parts)
        for path in (package.with_suffix(".py") if parts else None, package / "__init__.py"):
            if path is not None and self._is_here(path) and path != self.script.path:
                return self._files.module(path)
        is_folder = self.root is not None and package.is_dir() and is_within(package, self.root)
        return package if parts and is_folder else None

    def _is_here(self, path: Path) -> bool:
        """Whether it is a regular file of the repository, and no link out of it."""
        try:
            return stat.S_ISREG(os.stat(path).st_mode) and is_within(path, self.root or path.parent)
        except (OSError, ValueError):
            return False
