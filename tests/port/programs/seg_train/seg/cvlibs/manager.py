class ComponentManager:
    """Implement a manager class to add the new component properly."""

    def __init__(self, name=None):
        self._components_dict = dict()
        self._name = name

    def __len__(self):
        return len(self._components_dict)

    def __getitem__(self, item):
        if item not in self._components_dict.keys():
            raise KeyError("{} does not exist in availabel {}".format(item, self))
        return self._components_dict[item]

    @property
    def components_dict(self):
        return self._components_dict

    def add_component(self, components):
        for component in components if isinstance(components, (list, tuple)) else [components]:
            self._components_dict[component.__name__] = component
        return components


MODELS = ComponentManager("models")
DATASETS = ComponentManager("datasets")
LOSSES = ComponentManager("losses")
OPTIMIZERS = ComponentManager("optimizers")
