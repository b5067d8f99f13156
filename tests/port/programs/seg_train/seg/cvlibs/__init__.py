from . import manager
from .builder import SegBuilder
from .config import Config
