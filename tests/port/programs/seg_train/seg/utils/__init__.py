from . import logger
from .timer import TimeAverager, calculate_eta
from .utils import resume
