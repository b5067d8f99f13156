import logging
import sys

FORMAT = '[%(asctime)s.%(msecs)03d] %(levelname)s %(name)s:%(lineno)d - %(message)s'


def setup_logger(name, output=None):
    logger = logging.getLogger(name)
    if logger.handlers:
        return logger
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.StreamHandler(sys.stdout) if output is None else logging.FileHandler(output)
    handler.setFormatter(logging.Formatter(FORMAT, datefmt='%Y-%m-%d %H:%M:%S'))
    logger.addHandler(handler)
    return logger
