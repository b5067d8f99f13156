"""The toy is no package that is installed: its modules are found in the docs."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "docs" / "toy"), str(Path(__file__).parent)]
