from . import trainer
from .trainer import *

__all__ = trainer.__all__
