"""Classes by name."""


class Registry:
    def __init__(self):
        self._entries = {}

    def register(self, name):
        def decorator(entry):
            self._entries[name] = entry
            return entry

        return decorator

    def lookup(self, name):
        return self._entries[name]


TrainerRegistry = Registry()
