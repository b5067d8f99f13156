from .util import save, setup_logger
