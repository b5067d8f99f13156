"""``python -m ampbridge``."""

import sys

from ampbridge.cli import main

sys.exit(main())
