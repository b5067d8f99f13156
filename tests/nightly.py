"""Whether this is the nightly run, which has the long searches and what is marked ``nightly``."""

import os

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
NIGHTLY = PROFILE == "nightly"
