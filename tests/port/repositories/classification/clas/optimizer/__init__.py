from clas.optimizer import optimizers


def build_optimizer(config, model_list):
    name = config.pop("name")
    optim = getattr(optimizers, name)(**config)(model_list)
    return [optim], [optim.lr]
