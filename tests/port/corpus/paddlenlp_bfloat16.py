from paddlenlp.trainer import TrainingArguments

args = TrainingArguments(output_dir="out", bf16=True, max_grad_norm=0.0)
