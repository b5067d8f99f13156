"""Speech recognition: options of yacs, accumulated gradients, the data type by the device."""

import paddle


class U2Trainer(Trainer):
    def __init__(self, config, args):
        super().__init__(config, args)
        self.use_amp = getattr(args, "use_amp", False)
        self.accum_grad = config.get("accum_grad", 2)
        self.scaler = paddle.amp.GradScaler(
            enable=self.use_amp, init_loss_scaling=getattr(config, "init_loss_scaling", 2.0**12)
        )

    def train_batch(self, batch_index, batch_data):
        dtype = "bfloat16" if paddle.device.get_device() == "cpu" else "float16"
        with paddle.amp.auto_cast(enable=self.use_amp, dtype=dtype):
            loss, attention_loss, ctc_loss = self.model(*batch_data[1:])
            loss /= self.accum_grad
        self.scaler.scale(loss).backward()
        if (batch_index + 1) % self.accum_grad == 0:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.clear_grad()
            self.lr_scheduler.step()

    @paddle.no_grad()
    def valid(self):
        self.model.eval()
        for batch in self.valid_loader:
            with paddle.amp.auto_cast(enable=self.use_amp):
                self.model(*batch[1:])
