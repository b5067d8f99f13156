import lightning.pytorch as pl
import torch


class Model(pl.LightningModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        z = self.encoder(x)
        with torch.autocast(device_type="cuda", enabled=False):
            return self.loss(z.float(), y)


pl.Trainer(precision="16-mixed", max_steps=100).fit(Model(), loader)
