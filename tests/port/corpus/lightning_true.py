from lightning.pytorch import Trainer

Trainer(precision="bf16-true", accumulate_grad_batches={0: 8, 4: 4}).fit(model)
