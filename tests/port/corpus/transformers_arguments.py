from transformers import Trainer, TrainingArguments

training_args = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    fp16=True,
    max_grad_norm=0.3,
)
Trainer(model=model, args=training_args, train_dataset=data).train()
