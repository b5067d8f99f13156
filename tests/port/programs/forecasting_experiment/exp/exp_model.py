import os
import time

import numpy as np
import paddle
import paddle.nn as nn
from paddle.io import DataLoader

from data_provider import DatasetElec
from exp.exp_basic import ExpBasic
from models.model import Model


class EarlyStopping:
    def __init__(self, patience=7, delta=0.0):
        self.patience, self.delta = patience, delta
        self.counter, self.best, self.early_stop = 0, None, False

    def __call__(self, loss, model, path):
        if self.best is None or loss < self.best - self.delta:
            self.best, self.counter = loss, 0
            paddle.save(model.state_dict(), os.path.join(path, "checkpoint.pdparams"))
        else:
            self.counter += 1
            self.early_stop = self.counter >= self.patience


def adjust_learning_rate(optimizer, epoch, args):
    if args.lradj == "type1":
        optimizer.set_lr(args.learning_rate * 0.5 ** (epoch - 1))


class ExpModel(ExpBasic):
    def _build_model(self):
        args = self.args
        return Model(
            args.enc_in, args.c_out, args.pred_len, args.d_model, args.n_heads, args.e_layers,
            args.dropout,
        )

    def _get_data(self, flag):
        args = self.args
        data_set = DatasetElec(
            root_path=args.root_path, flag=flag, size=[args.seq_len, args.label_len, args.pred_len]
        )
        loader = DataLoader(
            data_set, batch_size=args.batch_size, shuffle=flag == "train", drop_last=True
        )
        return data_set, loader

    def _select_optimizer(self):
        clip = paddle.nn.ClipGradByNorm(clip_norm=50.0)
        model_optim = paddle.optimizer.Adam(
            parameters=self.model.parameters(),
            learning_rate=self.args.learning_rate,
            grad_clip=clip,
        )
        return model_optim

    def _select_criterion(self):
        return nn.MSELoss(reduction="mean")

    def vali(self, loader, criterion):
        self.model.eval()
        losses = []
        for batch_x, batch_y in loader:
            sample, true = self._process_one_batch(batch_x, batch_y)
            losses.append(criterion(sample, true).item())
        self.model.train()
        return np.average(losses)

    def main(self, setting):
        _, train_loader = self._get_data(flag="train")
        _, vali_loader = self._get_data(flag="val")
        path = os.path.join(self.args.checkpoints, setting)
        os.makedirs(path, exist_ok=True)
        time_now = time.time()
        early_stopping = EarlyStopping(patience=self.args.patience)
        model_optim = self._select_optimizer()
        criterion = self._select_criterion()

        if self.args.use_amp:
            scaler = paddle.amp.GradScaler()
        for epoch in range(self.args.train_epochs):
            train_loss = []
            self.model.train()
            for i, (batch_x, batch_y) in enumerate(train_loader):
                sample, true = self._process_one_batch(batch_x, batch_y)
                loss = criterion(sample, true)
                train_loss.append(loss.item())
                if (i + 1) % 100 == 0:
                    speed = (time.time() - time_now) / 100
                    print("\titers: {}, loss: {:.7f}, {:.4f}s".format(i + 1, loss.item(), speed))
                    time_now = time.time()
                if self.args.use_amp:
                    scaler.scale(loss).backward()
                    scaler.step(model_optim)
                    scaler.update()
                else:
                    loss.backward()
                    model_optim.minimize(loss)
                    model_optim.step()
            vali_loss = self.vali(vali_loader, criterion)
            print("Epoch: {} | {:.7f} {:.7f}".format(epoch + 1, np.average(train_loss), vali_loss))
            early_stopping(vali_loss, self.model, path)
            if early_stopping.early_stop:
                print("Early stopping")
                break
            adjust_learning_rate(model_optim, epoch + 1, self.args)
        return self.model

    def _process_one_batch(self, batch_x, batch_y):
        batch_x = batch_x.astype("float32")
        batch_y = batch_y.astype("float32")
        if self.args.use_amp:
            with paddle.amp.auto_cast():
                sample = self.model(batch_x)
        else:
            sample = self.model(batch_x)
        f_dim = -1 if self.args.features == "MS" else 0
        batch_y = batch_y[:, -self.args.pred_len :, f_dim:].astype("float32")
        return sample[..., :, f_dim:].astype("float32"), batch_y
