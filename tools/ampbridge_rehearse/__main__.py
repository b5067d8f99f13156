"""``python -m ampbridge_rehearse``."""

import sys

from ampbridge_rehearse.command import main

sys.exit(main())
