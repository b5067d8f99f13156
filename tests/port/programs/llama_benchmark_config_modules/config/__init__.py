# The case, then what this machine changes.
from ._base import *  # noqa: F403
from .config_A100x1x1 import *  # noqa: F403
