class ComponentManager:
    def __init__(self, name=None):
        self._components_dict = dict()
        self._name = name

    def __getitem__(self, item):
        return self._components_dict[item]

    def add_component(self, component):
        self._components_dict[component.__name__] = component
        return component


MODELS = ComponentManager("models")
OPTIMIZERS = ComponentManager("optimizers")
