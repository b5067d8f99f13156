from .eager_engine import EagerEngine
from .module import BasicModule

__all__ = ["EagerEngine", "BasicModule"]
