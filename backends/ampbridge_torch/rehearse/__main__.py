"""``python -m ampbridge_torch.rehearse``."""

import sys

from ampbridge_torch.rehearse.command import main

sys.exit(main())
