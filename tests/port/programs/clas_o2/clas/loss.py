import paddle.nn as nn
import paddle.nn.functional as F


class CELoss(nn.Layer):
    def __init__(self, epsilon=None):
        super().__init__()
        self.epsilon = epsilon

    def forward(self, x, label):
        label = label.flatten()
        if self.epsilon is not None:
            label = F.label_smooth(F.one_hot(label, x.shape[-1]), epsilon=self.epsilon)
            return {"CELoss": F.cross_entropy(x, label, soft_label=True)}
        return {"CELoss": F.cross_entropy(x, label)}


class CombinedLoss(nn.Layer):
    def __init__(self, config_list):
        super().__init__()
        self.loss_func, self.loss_weight = nn.LayerList(), []
        for config in config_list:
            (name, param), *_ = config.items()
            self.loss_weight.append(param.pop("weight"))
            self.loss_func.append({"CELoss": CELoss}[name](**param))

    def __call__(self, x, label):
        loss_dict = {}
        for weight, loss_func in zip(self.loss_weight, self.loss_func):
            loss_dict.update({k: v * weight for k, v in loss_func(x, label).items()})
        loss_dict["loss"] = sum(loss_dict.values())
        return loss_dict


def build_loss(config):
    return CombinedLoss([{k: dict(v) for k, v in each.items()} for each in config])
