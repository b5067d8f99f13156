from . import logger
from .config import get_config
