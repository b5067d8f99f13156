"""Settings of every test process."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# Deadlines measure the machine, not the code. The nightly profile searches longer.
settings.register_profile("default", deadline=None, max_examples=100)
settings.register_profile(
    "nightly", deadline=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

sys.path.insert(0, str(Path(__file__).parent))  # for what folders share; pytest adds no paths
