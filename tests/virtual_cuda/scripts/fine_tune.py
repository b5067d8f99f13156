"""Fine-tune a small BERT for classification, in mixed precision on a GPU."""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    get_linear_schedule_with_warmup,
    set_seed,
)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--per_device_train_batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--init_scale", type=float, default=2.0**16)
    parser.add_argument("--fused", action="store_true")
    return parser.parse_args()


def get_dataset(vocab_size):
    input_ids = torch.randint(5, vocab_size, (64, 16))
    attention_mask = torch.ones_like(input_ids)
    labels = torch.randint(0, 2, (64,))
    return TensorDataset(input_ids, attention_mask, labels)


def main():
    args = parse_args()
    set_seed(42)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    model.to(device)

    train_dataloader = DataLoader(
        get_dataset(config.vocab_size),
        batch_size=args.per_device_train_batch_size,
        shuffle=True,
        pin_memory=True,
    )

    no_decay = ["bias", "LayerNorm.weight"]
    optimizer_grouped_parameters = [
        {
            "params": [
                p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)
            ],
            "weight_decay": 0.01,
        },
        {
            "params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)],
            "weight_decay": 0.0,
        },
    ]
    optimizer = torch.optim.AdamW(
        optimizer_grouped_parameters, lr=args.learning_rate, fused=args.fused
    )
    max_train_steps = (
        args.num_train_epochs * len(train_dataloader) // args.gradient_accumulation_steps
    )
    lr_scheduler = get_linear_schedule_with_warmup(optimizer, 2, max_train_steps)
    scaler = torch.amp.GradScaler("cuda", init_scale=args.init_scale)

    model.train()
    for epoch in range(args.num_train_epochs):
        total_loss = 0.0
        for step, batch in enumerate(train_dataloader):
            input_ids, attention_mask, labels = (t.to(device, non_blocking=True) for t in batch)
            with torch.autocast("cuda", dtype=torch.float16):
                outputs = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
                loss = outputs.loss / args.gradient_accumulation_steps
            scaler.scale(loss).backward()
            if (step + 1) % args.gradient_accumulation_steps == 0:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                scaler.step(optimizer)
                scaler.update()
                lr_scheduler.step()
                optimizer.zero_grad(set_to_none=True)
                total_loss += loss.item() * args.gradient_accumulation_steps
        print(f"epoch {epoch}: loss {total_loss / len(train_dataloader):.4f}")


if __name__ == "__main__":
    main()
