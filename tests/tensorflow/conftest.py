"""Settings of the TensorFlow test process, made before TensorFlow is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # its start-up notes are no test output

sys.path.insert(0, str(Path(__file__).parent))  # for recorder; pytest adds no paths
