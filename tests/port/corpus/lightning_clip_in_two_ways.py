import torch
from lightning.pytorch import LightningModule, Trainer


class Net(LightningModule):
    def on_before_optimizer_step(self, optimizer):
        torch.nn.utils.clip_grad_value_(self.parameters(), 0.1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return torch.nn.functional.mse_loss(self(x), y)


net = Net()
net.on_before_optimizer_step(optimizer)
trainer = Trainer(precision="16-mixed", gradient_clip_val=1.0)
trainer.fit(net, loader)
