"""Supervised fine-tuning: python run_sft.py configs/sft_full.yaml [--max_steps 100 ...]"""

import sys

import paddle
from paddleformers.datasets import load_dataset
from paddleformers.trainer import PdArgumentParser, set_seed
from paddleformers.transformers import AutoModelForCausalLM, AutoTokenizer
from sft.arguments import DataConfig, ModelConfig, SFTConfig
from sft.data import DialogueCollator, convert_example
from sft.trainer import SFTTrainer


def main():
    parser = PdArgumentParser((ModelConfig, DataConfig, SFTConfig))
    if len(sys.argv) >= 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file_and_cmd_lines()
    elif len(sys.argv) >= 2 and sys.argv[1].endswith(".yaml"):
        model_args, data_args, training_args = parser.parse_yaml_file_and_cmd_lines()
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()

    training_args.print_config(model_args, "Model")
    training_args.print_config(data_args, "Data")
    paddle.set_device(training_args.device)
    set_seed(training_args.seed)

    dtype = "float32"
    if training_args.fp16_opt_level == "O2":
        if training_args.fp16:
            dtype = "float16"
        if training_args.bf16:
            dtype = "bfloat16"
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, dtype=dtype)

    train_dataset = load_dataset("json", data_files=data_args.train_dataset_path)[0]
    train_dataset = train_dataset.map(
        lambda example: convert_example(example, tokenizer, data_args.max_seq_len)
    )
    trainer = SFTTrainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        tokenizer=tokenizer,
        data_collator=DialogueCollator(tokenizer.pad_token_id),
    )
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    main()
