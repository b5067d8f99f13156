import argparse
import json
import math
import os
import time
import warnings
from contextlib import nullcontext

import paddle
import paddle.distributed as dist
import paddle.nn as nn
from paddle.io import DataLoader, Dataset
from transformers import AutoTokenizer

from model.config import LMConfig
from model.model import MiniLM

warnings.filterwarnings("ignore")


def Logger(content):
    if not ddp or dist.get_rank() == 0:
        print(content)


def get_lr(current_step, total_steps, lr):
    return lr / 10 + 0.5 * lr * (1 + math.cos(math.pi * current_step / total_steps))


class SFTDataset(Dataset):
    def __init__(self, path, tokenizer, max_length):
        super().__init__()
        self.tokenizer, self.max_length = tokenizer, max_length
        with open(path, encoding="utf-8") as f:
            self.samples = [json.loads(line) for line in f]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        turns = self.samples[index]["conversations"]
        prompt = self.tokenizer.apply_chat_template(turns[:-1], tokenize=True)
        answer = self.tokenizer(turns[-1]["content"]).input_ids
        ids = (prompt + answer)[: self.max_length]
        pad = self.max_length - len(ids)
        mask = [0] * len(prompt) + [1] * len(answer)
        ids, mask = ids + [0] * pad, (mask + [0] * pad)[: self.max_length]
        ids = paddle.to_tensor(ids)
        return ids[:-1], ids[1:], paddle.to_tensor(mask[1:])


def train_epoch(epoch):
    loss_fct = nn.CrossEntropyLoss(reduction="none")
    start_time = time.time()
    for step, (X, Y, loss_mask) in enumerate(train_loader):
        lr = get_lr(epoch * iter_per_epoch + step, args.epochs * iter_per_epoch, args.learning_rate)
        optimizer.set_lr(lr)

        with ctx:
            logits = model(X)
            loss = loss_fct(logits.reshape([-1, logits.shape[-1]]), Y.reshape([-1]))
            loss = (loss.reshape(Y.shape) * loss_mask).sum() / loss_mask.sum()
            loss = loss / args.accumulation_steps

        scaler.scale(loss).backward()

        if (step + 1) % args.accumulation_steps == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)

            scaler.step(optimizer)
            scaler.update()

            optimizer.clear_grad(set_to_zero=False)

        if step % args.log_interval == 0:
            spend_time = time.time() - start_time
            Logger(
                "Epoch:[{}/{}]({}/{}) loss:{:.3f} lr:{:.12f} epoch_Time:{}min:".format(
                    epoch + 1,
                    args.epochs,
                    step,
                    iter_per_epoch,
                    loss.item() * args.accumulation_steps,
                    lr,
                    spend_time / (step + 1) * iter_per_epoch // 60 - spend_time // 60,
                )
            )

        if (step + 1) % args.save_interval == 0 and (not ddp or dist.get_rank() == 0):
            model.eval()
            state = {k: v.astype("float16") for k, v in model.state_dict().items()}
            paddle.save(state, f"{args.out_dir}/full_sft_{lm_config.dim}.pdparams")
            model.train()


def init_model(lm_config):
    tokenizer = AutoTokenizer.from_pretrained("./model/minilm_tokenizer")
    model = MiniLM(lm_config)
    model.set_state_dict(paddle.load(f"./out/pretrain_{lm_config.dim}.pdparams"))
    count = sum(int(p.size) for p in model.parameters() if not p.stop_gradient)
    Logger(f"LLM parameters: {count / 1e6:.3f} M")
    return model, tokenizer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Mini LM full SFT")
    parser.add_argument("--out_dir", type=str, default="out")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--device", type=str, default="gpu:0")
    parser.add_argument("--num_workers", type=int, default=1)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--accumulation_steps", type=int, default=8)
    parser.add_argument("--grad_clip", type=float, default=1.0)
    parser.add_argument("--log_interval", type=int, default=100)
    parser.add_argument("--save_interval", type=int, default=100)
    parser.add_argument("--dim", default=512, type=int)
    parser.add_argument("--n_layers", default=8, type=int)
    parser.add_argument("--max_seq_len", default=512, type=int)
    parser.add_argument("--data_path", type=str, default="./dataset/sft_mini_512.jsonl")
    args = parser.parse_args()

    lm_config = LMConfig(dim=args.dim, n_layers=args.n_layers, max_seq_len=args.max_seq_len)
    os.makedirs(args.out_dir, exist_ok=True)
    paddle.seed(1337)
    ddp = int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1
    if ddp:
        dist.init_parallel_env()
    paddle.set_device(args.device)

    ctx = nullcontext() if args.device == "cpu" else paddle.amp.auto_cast("float16")
    scaler = paddle.amp.GradScaler()

    model, tokenizer = init_model(lm_config)
    train_ds = SFTDataset(args.data_path, tokenizer, max_length=lm_config.max_seq_len)
    train_loader = DataLoader(
        train_ds, batch_size=args.batch_size, shuffle=True, num_workers=args.num_workers
    )
    optimizer = paddle.optimizer.AdamW(
        learning_rate=args.learning_rate, parameters=model.parameters()
    )
    if ddp:
        model = paddle.DataParallel(model)

    iter_per_epoch = len(train_loader)
    for epoch in range(args.epochs):
        train_epoch(epoch)
