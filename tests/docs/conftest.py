"""Documents are run in processes of their own, and the site that is made of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import run_python

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))  # for code_blocks; pytest adds no paths


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: any warning ends it, and so does a failing tutorial."""
    folder = tmp_path_factory.mktemp("site")
    command = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    run_python(*command, cwd=ROOT, environment={"NO_MKDOCS_2_WARNING": "1"})
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "site" in getattr(item, "fixturenames", ()):  # all tutorials run for it
            item.add_marker(pytest.mark.slow)
