import logging
import os


def setup_logger(output_dir=None, name="quality", level=logging.INFO):
    logger = logging.getLogger(name)
    logger.setLevel(level)
    handlers = [logging.StreamHandler()]
    if output_dir:
        os.makedirs(output_dir, exist_ok=True)
        handlers.append(logging.FileHandler(os.path.join(output_dir, "workerlog.txt")))
    for handler in handlers:
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s"))
        logger.addHandler(handler)
    return logger


def get_logger(name):
    return logging.getLogger(name)
