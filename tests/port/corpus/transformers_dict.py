import torch
import transformers

supported = torch.cuda.is_bf16_supported()
common = {"output_dir": "out", "learning_rate": 2e-5, "bf16": supported, "fp16": not supported}
args = transformers.Seq2SeqTrainingArguments(**common)
