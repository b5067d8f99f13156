"""Supervised fine-tuning: `python run_finetune.py config/sft.json --max_steps 100`."""

import sys

import numpy as np
import paddle
from paddlenlp.trainer import PdArgumentParser, Trainer, get_last_checkpoint, set_seed
from paddlenlp.transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from paddlenlp.utils.log import logger

from arguments import DataArgument, ModelArgument, SFTArguments


class Conversations(paddle.io.Dataset):
    def __init__(self, vocab_size, max_length, size=512):
        rng = np.random.default_rng(0)
        self.ids = rng.integers(0, vocab_size, (size, max_length)).astype("int64")

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def get_arguments():
    parser = PdArgumentParser((ModelArgument, DataArgument, SFTArguments))
    # "args.json --arg1 value1": where both give a value, the command line's holds
    if len(sys.argv) >= 2 and sys.argv[1].endswith(".json"):
        return parser.parse_json_file_and_cmd_lines()
    return parser.parse_args_into_dataclasses()


def main():
    model_args, data_args, training_args = get_arguments()
    training_args.print_config(model_args, "Model")
    training_args.print_config(data_args, "Data")
    paddle.set_device(training_args.device)
    set_seed(seed=training_args.seed)
    logger.warning(f"16-bits training: {training_args.fp16 or training_args.bf16}")

    model_config = AutoConfig.from_pretrained(model_args.model_name_or_path)
    if training_args.recompute:
        model_config.use_cache = False
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, config=model_config)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    if model_args.freeze_embedding:
        model.get_input_embeddings().weight.stop_gradient = True

    train_dataset = Conversations(tokenizer.vocab_size, data_args.max_length)
    trainer = Trainer(model=model, args=training_args, train_dataset=train_dataset, tokenizer=tokenizer)
    if training_args.do_train:
        checkpoint = training_args.resume_from_checkpoint or get_last_checkpoint(training_args.output_dir)
        result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_state()


if __name__ == "__main__":
    main()
