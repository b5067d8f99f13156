import logging
import os

import paddle.distributed as dist

_logger = logging.getLogger("root")


def init_logger(name="root", log_file=None, log_level=logging.INFO):
    _logger.setLevel(log_level if dist.get_rank() == 0 else logging.ERROR)
    _logger.addHandler(logging.StreamHandler())
    if log_file is not None and dist.get_rank() == 0:
        os.makedirs(os.path.split(log_file)[0], exist_ok=True)
        _logger.addHandler(logging.FileHandler(log_file, "a"))


def info(fmt, *args):
    _logger.info(fmt, *args)


def debug(fmt, *args):
    _logger.debug(fmt, *args)


def warning(fmt, *args):
    _logger.warning(fmt, *args)
