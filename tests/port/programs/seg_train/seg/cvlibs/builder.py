import copy

import paddle

from seg import datasets, losses, models, optimizers  # noqa: F401, they register themselves
from seg.cvlibs import manager
from seg.utils import logger


class Builder(object):
    """The base class for building components."""

    def __init__(self, config, comp_list=None):
        super().__init__()
        self.config = config
        self.comp_list = comp_list

    def build_component(self, cfg):
        """Create component object, such as model, loss, dataset, etc."""
        cfg = copy.deepcopy(cfg)
        if 'type' not in cfg:
            raise RuntimeError("It is not possible to create a component object from {}".format(cfg))
        class_type = cfg.pop('type')
        com_class = self.load_component_class(class_type)
        params = {}
        for key, val in cfg.items():
            if isinstance(val, dict) and 'type' in val:
                params[key] = self.build_component(val)
            else:
                params[key] = val
        try:
            obj = com_class(**params)
        except Exception as e:
            raise RuntimeError("Tried to create a {} object, but failed: {}".format(class_type, e))
        return obj

    def load_component_class(self, class_type):
        for com in self.comp_list:
            if class_type in com.components_dict:
                return com[class_type]
        raise RuntimeError("The specified component ({}) was not found.".format(class_type))


class SegBuilder(Builder):
    """This class is responsible for building components for semantic segmentation."""

    def __init__(self, config, comp_list=None):
        if comp_list is None:
            comp_list = [manager.MODELS, manager.DATASETS, manager.LOSSES, manager.OPTIMIZERS]
        super().__init__(config, comp_list)
        self._model = None

    @property
    def model(self):
        if self._model is None:
            self._model = self.build_component(self.config.model_cfg)
        return self._model

    @property
    def optimizer(self):
        opt_cfg = self.config.optimizer_cfg
        # For compatibility
        if opt_cfg['type'] == 'adam':
            opt_cfg['type'] = 'Adam'
        if opt_cfg['type'] == 'sgd':
            opt_cfg['type'] = 'SGD'
        if opt_cfg['type'] == 'SGD' and 'momentum' in opt_cfg:
            opt_cfg['type'] = 'Momentum'
            logger.info('If the type is SGD and momentum in optimizer config, the type is changed to Momentum.')
        opt = self.build_component(opt_cfg)
        return opt(self.model, self.lr_scheduler)

    @property
    def lr_scheduler(self):
        lr_cfg = self.config.lr_scheduler_cfg
        assert lr_cfg != {}, 'No lr_scheduler specified in the configuration file.'
        use_warmup = False
        if 'warmup_iters' in lr_cfg:
            use_warmup = True
            warmup_iters = lr_cfg.pop('warmup_iters')
            warmup_start_lr = lr_cfg.pop('warmup_start_lr')
            end_lr = lr_cfg['learning_rate']
        lr_type = lr_cfg.pop('type')
        if lr_type == 'PolynomialDecay':
            iters = self.config.iters - warmup_iters if use_warmup else self.config.iters
            lr_cfg.setdefault('decay_steps', max(iters, 1))
        lr_sche = getattr(paddle.optimizer.lr, lr_type)(**lr_cfg)
        if use_warmup:
            lr_sche = paddle.optimizer.lr.LinearWarmup(
                learning_rate=lr_sche,
                warmup_steps=warmup_iters,
                start_lr=warmup_start_lr,
                end_lr=end_lr)
        return lr_sche

    @property
    def loss(self):
        loss_cfg = self.config.loss_cfg
        assert 'types' in loss_cfg and 'coef' in loss_cfg, 'Loss config should contain keys of "types" and "coef"'
        return {
            'types': [self.build_component(each) for each in loss_cfg['types']],
            'coef': loss_cfg['coef'],
        }

    @property
    def train_dataset(self):
        dataset = self.build_component(self.config.train_dataset_cfg)
        assert len(dataset) != 0, 'The number of samples in train_dataset is 0. Please check whether it is valid.'
        return dataset

    @property
    def val_dataset(self):
        cfg = self.config.val_dataset_cfg
        return self.build_component(cfg) if cfg else None
