import lightning as L

trainer = L.Trainer(
    max_epochs=10,
    accelerator="gpu",
    devices=2,
    precision="16-mixed",
    accumulate_grad_batches=4,
    gradient_clip_val=0.5,
)
trainer.fit(model, datamodule)
