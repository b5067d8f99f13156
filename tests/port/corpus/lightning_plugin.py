import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision

precision = MixedPrecision(
    "16-mixed",
    device="cuda",
    scaler=torch.amp.GradScaler("cuda", init_scale=2.0**14, growth_interval=50),
)
trainer = Trainer(plugins=[precision], gradient_clip_val=1.0, gradient_clip_algorithm="value")
trainer.fit(model)
