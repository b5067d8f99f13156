"""What is trained: networks, their optimizers, and one iteration."""

from collections import OrderedDict

import paddle

from . import networks  # noqa: F401, registers
from .config import CRITERIONS, MODELS, NETWORKS, build_from_config


def build_model(cfg):
    return build_from_config(cfg, MODELS)


class BaseModel:
    def __init__(self):
        self.nets = OrderedDict()
        self.optimizers = OrderedDict()
        self.losses = OrderedDict()

    def setup_input(self, input):
        self.lq = paddle.to_tensor(input["lq"])
        self.gt = paddle.to_tensor(input["gt"])

    def setup_lr_schedulers(self, cfg):
        cfg_ = dict(cfg)
        self.lr_scheduler = getattr(paddle.optimizer.lr, cfg_.pop("name"))(**cfg_)
        return self.lr_scheduler

    def setup_optimizers(self, lr, cfg):
        for opt_name, opt_cfg in cfg.items():
            cfg_ = dict(opt_cfg)
            parameters = []
            for net_name in cfg_.pop("net_names"):
                parameters += self.nets[net_name].parameters()
            optim = getattr(paddle.optimizer, cfg_.pop("name"))
            self.optimizers[opt_name] = optim(learning_rate=lr, parameters=parameters, **cfg_)
        return self.optimizers

    def set_requires_grad(self, net, requires_grad=False):
        for param in net.parameters():
            param.trainable = requires_grad


@MODELS.register()
class ESRGAN(BaseModel):
    def __init__(self, generator, discriminator, pixel_criterion, gan_criterion):
        super().__init__()
        self.nets["generator"] = build_from_config(generator, NETWORKS)
        self.nets["discriminator"] = build_from_config(discriminator, NETWORKS)
        self.pixel_criterion = build_from_config(pixel_criterion, CRITERIONS)
        self.gan_criterion = build_from_config(gan_criterion, CRITERIONS)

    def loss_g(self):
        self.output = self.nets["generator"](self.lq)
        l_pix = self.pixel_criterion(self.output, self.gt)
        real_d_pred = self.nets["discriminator"](self.gt).detach()
        fake_g_pred = self.nets["discriminator"](self.output)
        l_g_real = self.gan_criterion(real_d_pred - paddle.mean(fake_g_pred), False)
        l_g_fake = self.gan_criterion(fake_g_pred - paddle.mean(real_d_pred), True)
        l_g_gan = (l_g_real + l_g_fake) / 2
        self.losses["loss_pix"], self.losses["l_g_gan"] = l_pix, l_g_gan
        return l_pix + l_g_gan

    def loss_d(self):
        real_d_pred = self.nets["discriminator"](self.gt)
        fake_d_pred = self.nets["discriminator"](self.output.detach())
        l_d_real = self.gan_criterion(real_d_pred - paddle.mean(fake_d_pred), True, is_disc=True) * 0.5
        l_d_fake = self.gan_criterion(fake_d_pred - paddle.mean(real_d_pred.detach()), False, is_disc=True) * 0.5
        self.losses["l_d_real"], self.losses["l_d_fake"] = l_d_real, l_d_fake
        return l_d_real + l_d_fake

    def train_iter(self, optimizers=None):
        optimizers["optimG"].clear_grad()
        self.set_requires_grad(self.nets["discriminator"], False)
        self.loss_g().backward()
        optimizers["optimG"].step()

        self.set_requires_grad(self.nets["discriminator"], True)
        optimizers["optimD"].clear_grad()
        self.loss_d().backward()
        optimizers["optimD"].step()

    # amp training
    def train_iter_amp(self, optimizers=None, scalers=None, amp_level="O1"):
        optimizers["optimG"].clear_grad()
        self.set_requires_grad(self.nets["discriminator"], False)

        # put fwd and loss computation in amp context
        with paddle.amp.auto_cast(enable=True, level=amp_level):
            l_total = self.loss_g()

        scaled_l_total = scalers[0].scale(l_total)
        scaled_l_total.backward()
        optimizers["optimG"].step()
        scalers[0].minimize(optimizers["optimG"], scaled_l_total)

        self.set_requires_grad(self.nets["discriminator"], True)
        optimizers["optimD"].clear_grad()

        with paddle.amp.auto_cast(enable=True, level=amp_level):
            l_d = self.loss_d()

        scaled_l_d = scalers[1].scale(l_d)
        scaled_l_d.backward()
        scalers[1].minimize(optimizers["optimD"], scaled_l_d)

    def test_iter(self):
        with paddle.no_grad():
            self.output = self.nets["generator"](self.lq)
