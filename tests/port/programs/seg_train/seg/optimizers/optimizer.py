import paddle

from seg.cvlibs import manager


class BaseOptimizer(object):
    """
    Base optimizer in PaddleSeg's way.

    Args:
        weight_decay (float, optional): The weight decay coefficient. Default: None.
        grad_clip_cfg (dict, optional): A dict to set grad_clip. Default: None.
        custom_cfg (list[dict], optional): A list of dicts, each with the parameters that a name matches.
    """

    def __init__(self, weight_decay=None, grad_clip_cfg=None, custom_cfg=None):
        if weight_decay is not None:
            assert isinstance(weight_decay, float), "`weight_decay` must be a float."
        if grad_clip_cfg is not None:
            assert isinstance(grad_clip_cfg, dict), "`grad_clip_cfg` must be a dict."
            grad_clip_names = ['ClipGradByValue', 'ClipGradByNorm', 'ClipGradByGlobalNorm']
            assert grad_clip_cfg['name'] in grad_clip_names, \
                'grad_clip name should be {}'.format(grad_clip_names)
        self.weight_decay = weight_decay
        self.custom_cfg = custom_cfg
        self.args = {'weight_decay': weight_decay}
        if grad_clip_cfg is not None:
            grad_clip_cfg = grad_clip_cfg.copy()
            grad_clip_name = grad_clip_cfg.pop('name')
            try:
                grad_clip = getattr(paddle.nn, grad_clip_name)(**grad_clip_cfg)
            except Exception as e:
                raise RuntimeError(
                    "Create grad_clip has failed. Please check grad_clip_cfg in config. "
                    f"The error message: \n{str(e)}")
            self.args.update({'grad_clip': grad_clip})

    def __call__(self, model, lr):
        # Create optimizer
        pass

    def _collect_params(self, model):
        # Collect different parameter groups
        if self.custom_cfg is None or len(self.custom_cfg) == 0:
            return model.parameters()
        groups = [[] for _ in range(len(self.custom_cfg) + 1)]
        for name, param in model.named_parameters():
            for i, item in enumerate(self.custom_cfg):
                if item['name'] in name:
                    groups[i].append(param)
                    break
            else:
                groups[-1].append(param)
        return [{'params': params} for params in groups if params]


@manager.OPTIMIZERS.add_component
class Momentum(BaseOptimizer):
    def __init__(self, momentum=0.9, use_nesterov=False, weight_decay=None, grad_clip_cfg=None, custom_cfg=None):
        super().__init__(weight_decay, grad_clip_cfg, custom_cfg)
        self.args.update({'momentum': momentum, 'use_nesterov': use_nesterov})

    def __call__(self, model, lr):
        params = self._collect_params(model)
        return paddle.optimizer.Momentum(learning_rate=lr, parameters=params, **self.args)


@manager.OPTIMIZERS.add_component
class Adam(BaseOptimizer):
    def __init__(self, beta1=0.9, beta2=0.999, weight_decay=None, grad_clip_cfg=None, custom_cfg=None):
        super().__init__(weight_decay, grad_clip_cfg, custom_cfg)
        self.args.update({'beta1': beta1, 'beta2': beta2})

    def __call__(self, model, lr):
        params = self._collect_params(model)
        opt = paddle.optimizer.Adam(learning_rate=lr, parameters=params, **self.args)
        return opt


@manager.OPTIMIZERS.add_component
class AdamW(BaseOptimizer):
    def __init__(self, beta1=0.9, beta2=0.999, weight_decay=0.01, grad_clip_cfg=None, custom_cfg=None):
        super().__init__(weight_decay, grad_clip_cfg, custom_cfg)
        self.args.update({'beta1': beta1, 'beta2': beta2})

    def __call__(self, model, lr):
        params = self._collect_params(model)
        return paddle.optimizer.AdamW(learning_rate=lr, parameters=params, **self.args)
