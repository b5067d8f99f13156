"""A moving average of the parameters, which is what is evaluated and kept."""

import paddle


class ParamEMA(object):
    def __init__(self, model, decay=0.999):
        self.model = model
        self.decay = decay
        self.shadow = {
            name: p.astype("float32").clone().detach()
            for name, p in model.named_parameters()
            if not p.stop_gradient
        }
        self.backup = None

    @paddle.no_grad()
    def update(self):
        for name, p in self.model.named_parameters():
            if name in self.shadow:
                kept = self.decay * self.shadow[name]
                self.shadow[name] = kept + (1.0 - self.decay) * p.astype("float32")

    @paddle.no_grad()
    def apply(self):
        self.backup = {name: p.clone() for name, p in self.model.named_parameters()}
        for name, p in self.model.named_parameters():
            if name in self.shadow:
                p.set_value(self.shadow[name].astype(p.dtype))

    @paddle.no_grad()
    def restore(self):
        for name, p in self.model.named_parameters():
            p.set_value(self.backup[name])
        self.backup = None
