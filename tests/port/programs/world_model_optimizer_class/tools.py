import torch


class RequiresGrad:
    def __init__(self, model):
        self._model = model

    def __enter__(self):
        self._model.requires_grad_(requires_grad=True)

    def __exit__(self, *args):
        self._model.requires_grad_(requires_grad=False)


class Optimizer:
    """An optimizer with its clipping, its weight decay and its scaler."""

    def __init__(
        self, name, parameters, lr, eps=1e-4, clip=None, wd=None, opt="adam", use_amp=False
    ):
        assert wd is None or 0 <= wd < 1
        assert not clip or 1 <= clip
        parameters = list(parameters)
        self._name = name
        self._clip = clip
        self._wd = wd
        self._opt = {
            "adam": lambda: torch.optim.Adam(parameters, lr=lr, eps=eps),
            "sgd": lambda: torch.optim.SGD(parameters, lr=lr),
            "momentum": lambda: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
        }[opt]()
        self._scaler = torch.cuda.amp.GradScaler(enabled=use_amp)

    def __call__(self, loss, params, retain_graph=False):
        assert len(loss.shape) == 0, loss.shape
        metrics = {f"{self._name}_loss": loss.detach().cpu().numpy()}
        self._opt.zero_grad()
        self._scaler.scale(loss).backward(retain_graph=retain_graph)
        self._scaler.unscale_(self._opt)
        norm = torch.nn.utils.clip_grad_norm_(params, self._clip)
        if self._wd:
            for parameter in params:
                parameter.data = (1 - self._wd) * parameter.data
        self._scaler.step(self._opt)
        self._scaler.update()
        metrics[f"{self._name}_grad_norm"] = norm.item()
        return metrics


def args_type(default):
    def parse_string(x):
        if default is None:
            return x
        if isinstance(default, bool):
            return bool(["False", "True"].index(x))
        if isinstance(default, int):
            return float(x) if ("e" in x or "." in x) else int(x)
        return type(default)(x)

    return lambda x: parse_string(x) if isinstance(x, str) else x
