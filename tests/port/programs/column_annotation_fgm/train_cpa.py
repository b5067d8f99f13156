"""Relations between columns of tables (CPA): fine-tunes a BERT, with adversarial training and EMA."""

import argparse
import os

import paddle
from adversarial import FGM, ExponentialMovingAverage
from paddle import nn
from paddle.io import DataLoader
from paddlenlp.transformers import AutoTokenizer, LinearDecayWithWarmup
from tables import ColumnPairModel, ColumnPairs, collate


def evaluate(model, loader, use_amp, ema):
    model.eval()
    if ema is not None:
        ema.apply()
    right = total = 0
    with paddle.no_grad():
        for batch in loader:
            with paddle.amp.auto_cast(enable=use_amp):
                logits = model(batch["data"], batch["mask"])
            right += int((logits.argmax(axis=1) == batch["label"]).sum())
            total += len(batch["label"])
    if ema is not None:
        ema.restore()
    return right / max(1, total)


def run_training(args):
    device = paddle.set_device(args.device)
    tokenizer = AutoTokenizer.from_pretrained(args.shortcut_name)
    train_set = ColumnPairs(args.train_dir, tokenizer, args.max_length)
    valid_set = ColumnPairs(args.valid_dir, tokenizer, args.max_length)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, collate_fn=collate)
    valid_loader = DataLoader(valid_set, batch_size=args.batch_size, collate_fn=collate)

    model = ColumnPairModel(args.shortcut_name, train_set.num_classes, args.dropout)
    total_steps = max(1, len(train_loader) * args.epochs)
    lr_scheduler = LinearDecayWithWarmup(args.lr, total_steps, args.warmup_ratio)
    optimizer = paddle.optimizer.AdamW(
        learning_rate=lr_scheduler,
        parameters=model.parameters(),
        weight_decay=args.weight_decay,
        grad_clip=nn.ClipGradByGlobalNorm(args.max_grad_norm),
    )
    criterion = nn.CrossEntropyLoss(weight=train_set.class_weights())

    use_amp = args.use_amp and str(device) != "cpu"
    scaler = paddle.amp.GradScaler(init_loss_scaling=1024) if use_amp else None
    ema = ExponentialMovingAverage(model.parameters(), args.ema_decay) if args.use_ema else None
    fgm = FGM(model) if args.use_fgm else None

    def train_one_epoch():
        model.train()
        total = 0.0
        for batch in train_loader:
            data, mask, label = batch["data"], batch["mask"], batch["label"]
            if use_amp:
                with paddle.amp.auto_cast(enable=True):
                    loss = criterion(model(data, mask), label)
                scaled = scaler.scale(loss)
                scaled.backward()
                if fgm is not None:
                    fgm.attack(epsilon=args.fgm_epsilon)
                    with paddle.amp.auto_cast(enable=True):
                        loss_adv = criterion(model(data, mask), label)
                    scaled_adv = scaler.scale(loss_adv)
                    scaled_adv.backward()
                    fgm.restore()
                scaler.minimize(optimizer, scaled)
                optimizer.clear_grad()
            else:
                loss = criterion(model(data, mask), label)
                loss.backward()
                if fgm is not None:
                    fgm.attack(epsilon=args.fgm_epsilon)
                    criterion(model(data, mask), label).backward()
                    fgm.restore()
                optimizer.step()
                optimizer.clear_grad()
            if ema is not None:
                ema.step()
            lr_scheduler.step()
            total += float(loss)
        return total / max(1, len(train_loader))

    best = 0.0
    for epoch in range(args.epochs):
        mean_loss = train_one_epoch()
        accuracy = evaluate(model, valid_loader, use_amp, ema)
        print(f"epoch {epoch + 1}: loss {mean_loss:.4f}, accuracy {accuracy:.4f}")
        if accuracy > best:
            best = accuracy
            paddle.save(model.state_dict(), os.path.join(args.output_dir, "best.pdparams"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="column pair annotation")
    parser.add_argument("--train_dir", default="./dataset/train")
    parser.add_argument("--valid_dir", default="./dataset/valid")
    parser.add_argument("--output_dir", default="./cpa_models")
    parser.add_argument("--shortcut_name", default="bert-base-uncased")
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--warmup_ratio", type=float, default=0.1)
    parser.add_argument("--weight_decay", type=float, default=1e-4)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--use_fgm", action="store_true", default=True)
    parser.add_argument("--fgm_epsilon", type=float, default=1.0)
    parser.add_argument("--use_ema", action="store_true", default=True)
    parser.add_argument("--ema_decay", type=float, default=0.999)
    parser.add_argument("--use_amp", action="store_true", default=False, help="mixed precision")
    parser.add_argument("--device", default="gpu")
    run_training(parser.parse_args())
