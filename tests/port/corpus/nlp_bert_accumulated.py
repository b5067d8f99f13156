"""Pretraining with accumulated gradients; a level for AMP, and clipping by the scaler's unscaled gradients."""

import argparse

import paddle


def get_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--use_amp", action="store_true")
    parser.add_argument("--amp_level", type=str, default="O2", choices=["O1", "O2"])
    parser.add_argument("--gradient_merge_steps", type=int, default=4)
    parser.add_argument("--scale_loss", type=float, default=1.0)
    parser.add_argument("--use_dynamic_loss_scaling", type=bool, default=True)
    return parser


class Trainer:
    def __init__(self, args, model, optimizer):
        self.args, self.model, self.optimizer = args, model, optimizer
        self.scaler = None
        if self.args.use_amp:
            self.scaler = paddle.amp.GradScaler(
                init_loss_scaling=self.args.scale_loss,
                use_dynamic_loss_scaling=self.args.use_dynamic_loss_scaling,
            )
            if self.args.amp_level == "O2":
                self.model, self.optimizer = paddle.amp.decorate(
                    models=self.model, optimizers=self.optimizer, level="O2", master_weight=True
                )

    def train(self, loader):
        for step, batch in enumerate(loader):
            with paddle.amp.auto_cast(
                enable=self.args.use_amp,
                custom_white_list={"layer_norm", "gelu", "fused_attention"},
                level=self.args.amp_level,
            ):
                loss = self.model(*batch) / self.args.gradient_merge_steps
            if self.scaler is not None:
                self.scaler.scale(loss).backward()
            else:
                loss.backward()
            if (step + 1) % self.args.gradient_merge_steps == 0:
                if self.scaler is not None:
                    self.scaler.unscale_(self.optimizer)
                    paddle.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                else:
                    self.optimizer.step()
                self.optimizer.clear_grad()


args = get_parser().parse_args()
Trainer(args, build_model(args), build_optimizer(args)).train(loader)
