import logging

logger = logging.getLogger("fleetgpt")
logging.basicConfig(level=logging.INFO, format="[%(asctime)s] [%(levelname)8s] - %(message)s")


def advertise():
    line = "=" * 60
    logger.info("\n%s\n==%s==\n%s", line, "A toolkit for large models".center(56), line)
