from seg.cvlibs import manager


class SegBuilder:
    def __init__(self, config):
        self.config = config

    @property
    def model(self):
        return manager.MODELS[self.config.model_cfg.pop("type")]()

    @property
    def optimizer(self):
        cfg = self.config.optimizer_cfg
        return manager.OPTIMIZERS[cfg.pop("type")](**cfg)
