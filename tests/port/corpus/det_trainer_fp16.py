"""Object detection before it had levels."""

from paddle import DataParallel, amp
from paddle.distributed import ParallelEnv
from ppdet.core.workspace import create


class Trainer(object):
    def __init__(self, cfg, mode="train"):
        self.cfg = cfg
        self.mode = mode.lower()
        self.optimizer = None
        self.model = create(cfg.architecture)
        if self.mode == "train":
            self.optimizer = create("OptimizerBuilder")(self.lr, self.model.parameters())
        self._nranks = ParallelEnv().nranks
        self._local_rank = ParallelEnv().local_rank

    def train(self, validate=False):
        assert self.mode == "train", "Model not in 'train' mode"
        model = self.model
        if self._nranks > 1:
            model = DataParallel(self.model)
        if self.cfg.fp16:
            scaler = amp.GradScaler(enable=self.cfg.use_gpu, init_loss_scaling=1024)
        for epoch_id in range(self.cfg.epoch):
            for step_id, data in enumerate(self.loader):
                if self.cfg.fp16:
                    with amp.auto_cast(enable=self.cfg.use_gpu):
                        outputs = model(data)
                        loss = outputs["loss"]
                    scaled_loss = scaler.scale(loss)
                    scaled_loss.backward()
                    scaler.minimize(self.optimizer, scaled_loss)
                else:
                    outputs = model(data)
                    loss = outputs["loss"]
                    loss.backward()
                    self.optimizer.step()
                self.optimizer.clear_grad()
            if validate and (self._nranks < 2 or self._local_rank == 0):
                self.evaluate()
