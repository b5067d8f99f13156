import logging

_logger = logging.getLogger("clas")


def info(fmt, *args):
    _logger.info(fmt, *args)
