from .language_module import GPTModule


def build_module(config):
    module_name = config.Model.get("module", "GPTModule")
    return eval(module_name)(config)
