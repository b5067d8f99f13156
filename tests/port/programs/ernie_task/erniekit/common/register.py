# -*- coding: utf-8 -*
"""Classes by their names, as the json files call them."""
import importlib
import logging


class Register(object):
    def __init__(self, registry_name):
        self._dict = {}
        self._name = registry_name

    def __setitem__(self, key, value):
        if not callable(value):
            raise Exception("Value of a Registry must be a callable.")
        if key is None:
            key = value.__name__
        if key in self._dict:
            logging.warning("Key %s already in registry %s.", key, self._name)
        self._dict[key] = value

    def register(self, param):
        """Decorator to register a function or class."""

        def decorator(key, value):
            self[key] = value
            return value

        if callable(param):
            # @reg.register
            return decorator(None, param)
        # @reg.register('alias')
        return lambda x: decorator(param, x)

    def __getitem__(self, key):
        try:
            return self._dict[key]
        except Exception as e:
            logging.error("module %s not found: %s", key, e)
            raise e

    def __contains__(self, key):
        return key in self._dict


class RegisterSet(object):
    data_set_reader = Register("data_set_reader")
    models = Register("models")
    trainer = Register("trainer")


def import_modules(names):
    """Whoever registers something has to be imported first."""
    for name in names:
        importlib.import_module(name)
