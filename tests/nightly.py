"""Whether this is the nightly run, which has the long searches and what is marked ``nightly``."""

import os
from datetime import date

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
NIGHTLY = PROFILE == "nightly"
DAY = date.today().toordinal() if NIGHTLY else 0
"""What samples are drawn by: the same ones in each run but the nightly, which has others each day."""
