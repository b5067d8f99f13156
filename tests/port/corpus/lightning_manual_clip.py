import pytorch_lightning as pl


class GAN(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        loss = self.generator_loss(batch)
        self.manual_backward(loss)
        self.clip_gradients(opt, gradient_clip_val=0.5, gradient_clip_algorithm="value")
        opt.step()
        opt.zero_grad()


trainer = pl.Trainer(precision="16-mixed", max_epochs=10)
trainer.fit(GAN(), datamodule=dm)
