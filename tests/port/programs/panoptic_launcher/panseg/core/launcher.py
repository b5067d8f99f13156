"""How a step of a runner is launched: in float32, or in mixed precision."""

import contextlib

import paddle

AMP_WHITE_LIST = {"elementwise_add", "batch_norm", "sync_batch_norm"}
AMP_BLACK_LIST = {"bilinear_interp_v2"}


class AMPLauncher(object):
    def __init__(self, runner, precision="fp32", amp_level="O1"):
        super().__init__()
        if precision not in ("fp32", "fp16"):
            raise ValueError("`precision` must be fp32 or fp16, not {}".format(precision))
        self.runner = runner
        self.precision = precision
        self.amp_level = amp_level
        self.scaler = None
        if self.use_amp:
            self.scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
            if amp_level == "O2":
                self.runner.model, self.runner.optimizer = paddle.amp.decorate(
                    models=self.runner.model,
                    optimizers=self.runner.optimizer,
                    level="O2",
                    save_dtype="float32",
                )
        if paddle.distributed.get_world_size() > 1:
            self.wrap_distributed()

    @property
    def use_amp(self):
        return self.precision == "fp16"

    def wrap_distributed(self):
        paddle.distributed.fleet.init(is_collective=True)
        self.runner.optimizer = paddle.distributed.fleet.distributed_optimizer(self.runner.optimizer)
        self.runner.model = paddle.distributed.fleet.distributed_model(self.runner.model)
        if self.scaler is not None:
            self.scaler = paddle.distributed.fleet.distributed_scaler(self.scaler)

    def amp_context(self):
        if not self.use_amp:
            return contextlib.nullcontext()
        return paddle.amp.auto_cast(
            enable=True,
            level=self.amp_level,
            custom_white_list=AMP_WHITE_LIST,
            custom_black_list=AMP_BLACK_LIST,
        )

    def train_step(self, data):
        """One step; the losses by name."""
        with self.amp_context():
            losses = self.runner.train_forward(data)
        loss = sum(losses.values())
        if self.use_amp:
            scaled = self.scaler.scale(loss)
            scaled.backward()
            self.scaler.minimize(self.runner.optimizer, scaled)
        else:
            loss.backward()
            self.runner.optimizer.step()
        self.runner.optimizer.clear_grad()
        return {name: float(value) for name, value in losses.items()}

    @paddle.no_grad()
    def infer_step(self, data):
        return self.runner.eval_forward(data)
