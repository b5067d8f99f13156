"""Check what would be uploaded of the last commit: ``python scripts/release_check.py``.

Wheel and sdist are built from two clones, and have to be the same bytes. Their metadata is checked.
Then the wheel is installed into an empty environment of each Python that the classifiers name and
this machine has, where the demo and the README's script run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import indent

import tomlkit

ROOT = Path(__file__).parents[1]
PROJECT = tomlkit.parse((ROOT / "pyproject.toml").read_text()).unwrap()["project"]
VERSIONS = [v for c in PROJECT["classifiers"] if (v := c.rpartition(" :: ")[2]).startswith("3.")]


def run(*command: object, cwd: Path = ROOT, **added: str) -> str:
    """What a command prints, without the paths and settings that make our checkout importable."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env={**env, **added}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def built(folder: Path) -> dict[str, str]:
    """The digests of wheel and sdist, which are left in ``folder``/dist."""
    run("git", "clone", "--quiet", ROOT, folder)
    when = run("git", "log", "-1", "--format=%ct").strip()
    run(sys.executable, "-m", "build", cwd=folder, SOURCE_DATE_EPOCH=when)
    files = (folder / "dist").iterdir()
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def has(python: str) -> bool:
    """That it starts: pyenv has commands of versions that do not."""
    return subprocess.run(["sh", "-c", f"python{python} -V"], capture_output=True).returncode == 0


def smoke_test(python: str, wheel: Path, folder: Path) -> None:
    """Install the wheel alone; run the demo, and the README's script, which prints what stands there."""
    run(f"python{python}", "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", wheel)
    run(folder / "bin/ampbridge", "demo", cwd=folder)
    readme = (ROOT / "README.md").read_text()
    code = readme.partition("```python\n")[2].partition("```")[0]
    printed = indent(run(folder / "bin/python", "-c", code, cwd=folder), "    ")
    if printed not in readme:
        sys.exit(f"the README's script printed\n{printed}")


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        first, second = built(folder / "first"), built(folder / "another")
        if first != second:
            sys.exit(f"two builds differ:\n{first}\n{second}")
        dist = folder / "first/dist"
        run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir())
        print("built twice to the same bytes, and metadata is as an index wants it:", *first)
        (wheel,) = dist.glob("*.whl")
        for python in VERSIONS:
            if has(python):
                smoke_test(python, wheel, folder / python)
                print(f"Python {python}: the demo and the README's script run")
            else:
                print(f"Python {python}: not on this machine")


if __name__ == "__main__":
    main()
