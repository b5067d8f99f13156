from paddlenlp.trainer import Trainer, TrainingArguments
from paddlenlp.transformers import AutoModelForSequenceClassification

model = AutoModelForSequenceClassification.from_pretrained("ernie-3.0-medium-zh", num_classes=2)
args = TrainingArguments(
    output_dir="checkpoints",
    per_device_train_batch_size=32,
    gradient_accumulation_steps=2,
    fp16=True,
    fp16_opt_level="O2",
    amp_custom_black_list=["softmax"],
    amp_master_grad=True,
    scale_loss=1024,
)
trainer = Trainer(model=model, args=args, train_dataset=train_dataset)
trainer.train()
