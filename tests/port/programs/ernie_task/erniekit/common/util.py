# -*- coding: utf-8 -*
import json
import logging


def from_file(filename):
    """A dict of a json file, whose lines may end in a comment."""
    with open(filename, encoding="utf-8") as f:
        lines = [line.partition("###")[0] for line in f]
    return json.loads("".join(lines))


def print_params(params, indent=0):
    for key, value in params.items():
        if isinstance(value, dict):
            logging.info("%s%s:", " " * indent, key)
            print_params(value, indent + 2)
        else:
            logging.info("%s%s: %s", " " * indent, key, value)
