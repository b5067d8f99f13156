"""The loop."""

import os

import paddle


def training_step(model, optimizer, sample, scaler=None, amp_cfg=None):
    optimizer.clear_grad()
    if scaler is None:
        loss = model(sample)["loss"]
        loss.backward()
        optimizer.step()
    else:
        with paddle.amp.auto_cast(**amp_cfg):
            loss = model(sample)["loss"]
        scaled = scaler.scale(loss)
        scaled.backward()
        scaler.step(optimizer)
        scaler.update()
    if isinstance(optimizer._learning_rate, paddle.optimizer.lr.LRScheduler):
        optimizer._learning_rate.step()
    return loss.detach()


class Trainer:
    def __init__(self, model, optimizer, iters, batch_size=1, amp_cfg=None, save_dir="output"):
        self.model = model
        self.optimizer = optimizer
        self.iters = iters
        self.batch_size = batch_size
        self.save_dir = save_dir
        self.scaler = None
        self.amp_cfg = None
        if amp_cfg is not None and amp_cfg.pop("enabled", True):
            scaler_cfg = dict(init_loss_scaling=2.0**15)
            scaler_cfg.update(**amp_cfg.pop("scaler", dict()))
            self.scaler = paddle.amp.GradScaler(**scaler_cfg)
            self.amp_cfg = amp_cfg

    def samples(self):
        for _ in range(self.iters):
            yield {
                "images": paddle.randn([self.batch_size, 3, 128, 320]),
                "boxes": paddle.rand([self.batch_size, 9]),
            }

    def train(self):
        self.model.train()
        for iteration, sample in enumerate(self.samples(), 1):
            loss = training_step(self.model, self.optimizer, sample, self.scaler, self.amp_cfg)
            if iteration % 50 == 0:
                print(f"[TRAIN] iter={iteration}/{self.iters}, loss={float(loss):.6f}")
        os.makedirs(self.save_dir, exist_ok=True)
        paddle.save(self.model.state_dict(), os.path.join(self.save_dir, "model.pdparams"))
