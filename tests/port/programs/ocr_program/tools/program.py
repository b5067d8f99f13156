"""What every tool shares: its options, its configuration, its loop."""

import logging
import os
import platform
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import paddle
import paddle.distributed as dist
import yaml


class ArgsParser(ArgumentParser):
    def __init__(self):
        super(ArgsParser, self).__init__(formatter_class=RawDescriptionHelpFormatter)
        self.add_argument("-c", "--config", help="configuration file to use")
        self.add_argument("-o", "--opt", nargs="+", help="set configuration options")

    def parse_args(self, argv=None):
        args = super(ArgsParser, self).parse_args(argv)
        assert args.config is not None, "Please specify --config=configure_file_path."
        args.opt = self._parse_opt(args.opt)
        return args

    def _parse_opt(self, opts):
        config = {}
        if not opts:
            return config
        for s in opts:
            s = s.strip()
            k, v = s.split("=")
            config[k] = yaml.load(v, Loader=yaml.Loader)
        return config


def load_config(file_path):
    _, ext = os.path.splitext(file_path)
    assert ext in [".yml", ".yaml"], "only support yaml files for now"
    return yaml.load(open(file_path, "rb"), Loader=yaml.Loader)


def merge_config(config, opts):
    """Keys with dots go into the sections that they name."""
    for key, value in opts.items():
        if "." not in key:
            if isinstance(value, dict) and key in config:
                config[key].update(value)
            else:
                config[key] = value
        else:
            sub_keys = key.split(".")
            assert sub_keys[0] in config, "no section {}".format(sub_keys[0])
            cur = config[sub_keys[0]]
            for idx, sub_key in enumerate(sub_keys[1:]):
                if idx == len(sub_keys) - 2:
                    cur[sub_key] = value
                else:
                    cur = cur[sub_key]
    return config


def get_logger(log_file=None):
    logger = logging.getLogger("ocr")
    logger.setLevel(logging.INFO)
    handler = logging.FileHandler(log_file) if log_file else logging.StreamHandler()
    logger.addHandler(handler)
    return logger


def preprocess(is_train=False):
    FLAGS = ArgsParser().parse_args()
    config = load_config(FLAGS.config)
    config = merge_config(config, FLAGS.opt)
    if is_train:
        save_model_dir = config["Global"]["save_model_dir"]
        os.makedirs(save_model_dir, exist_ok=True)
        logger = get_logger(os.path.join(save_model_dir, "train.log"))
    else:
        logger = get_logger()
    use_gpu = config["Global"].get("use_gpu", False)
    use_xpu = config["Global"].get("use_xpu", False)
    if use_xpu:
        device = "xpu:{0}".format(os.getenv("FLAGS_selected_xpus", 0))
    else:
        device = "gpu:{}".format(dist.ParallelEnv().dev_id) if use_gpu else "cpu"
    device = paddle.set_device(device)
    config["Global"]["distributed"] = dist.get_world_size() != 1
    return config, device, logger


def to_float32(preds):
    if isinstance(preds, dict):
        return {k: to_float32(v) for k, v in preds.items()}
    if isinstance(preds, (list, tuple)):
        return [to_float32(v) for v in preds]
    return preds.astype(paddle.float32) if isinstance(preds, paddle.Tensor) else preds


def train(
    config,
    train_dataloader,
    valid_dataloader,
    device,
    model,
    loss_class,
    optimizer,
    lr_scheduler,
    logger,
    scaler=None,
    amp_level="O2",
    amp_custom_black_list=[],
    amp_custom_white_list=[],
    amp_dtype="float16",
):
    epoch_num = config["Global"]["epoch_num"]
    print_batch_step = config["Global"]["print_batch_step"]
    start_eval_step, eval_batch_step = config["Global"]["eval_batch_step"]
    global_step = 0
    model.train()
    for epoch in range(1, epoch_num + 1):
        batch_start = time.time()
        max_iter = len(train_dataloader) - (platform.system() == "Windows")
        for idx, batch in enumerate(train_dataloader):
            if idx >= max_iter:
                break
            lr = optimizer.get_lr()
            images = batch[0]
            if scaler:
                with paddle.amp.auto_cast(
                    level=amp_level,
                    custom_black_list=amp_custom_black_list,
                    custom_white_list=amp_custom_white_list,
                    dtype=amp_dtype,
                ):
                    preds = model(images)
                preds = to_float32(preds)
                loss = loss_class(preds, batch)
                avg_loss = loss["loss"]
                scaled_avg_loss = scaler.scale(avg_loss)
                scaled_avg_loss.backward()
                scaler.minimize(optimizer, scaled_avg_loss)
            else:
                preds = model(images)
                loss = loss_class(preds, batch)
                avg_loss = loss["loss"]
                avg_loss.backward()
                optimizer.step()
            optimizer.clear_grad()
            if not isinstance(lr_scheduler, float):
                lr_scheduler.step()
            if dist.get_rank() == 0 and global_step % print_batch_step == 0:
                cost = time.time() - batch_start
                logger.info("epoch {} lr {} loss {} {:.5f}s".format(epoch, lr, avg_loss, cost))
            if global_step > start_eval_step and global_step % eval_batch_step == 0:
                logger.info("eval: {}".format(evaluate(model, valid_dataloader)))
            global_step += 1
            batch_start = time.time()
        if dist.get_rank() == 0 and epoch % config["Global"]["save_epoch_step"] == 0:
            prefix = os.path.join(config["Global"]["save_model_dir"], str(epoch))
            paddle.save(model.state_dict(), prefix + ".pdparams")


def evaluate(model, valid_dataloader):
    model.eval()
    right = total = 0
    with paddle.no_grad():
        for batch in valid_dataloader:
            preds = model(batch[0])
            right += int((preds.argmax(-1) == batch[1]).all(-1).sum())
            total += len(batch[0])
    model.train()
    return {"acc": right / max(total, 1)}
