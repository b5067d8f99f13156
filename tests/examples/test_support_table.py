"""The table of docs/support.md says what the backends do."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "scripts/write_tables.py"


def test_the_support_table_is_up_to_date():
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, check=False)
    assert done.returncode == 0, "run `make tables` and look at what changed"
