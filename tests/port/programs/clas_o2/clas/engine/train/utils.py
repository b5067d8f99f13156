import datetime

from clas.utils import logger
from clas.utils.misc import AverageMeter


def update_metric(trainer, out, batch, batch_size):
    right = (out.astype("float32").argmax(-1) == batch[1].flatten()).astype("float32").mean()
    if "top1" not in trainer.output_info:
        trainer.output_info["top1"] = AverageMeter("top1", "7.5f")
    trainer.output_info["top1"].update(float(right), batch_size)


def update_loss(trainer, loss_dict, batch_size):
    for key in loss_dict:
        if key not in trainer.output_info:
            trainer.output_info[key] = AverageMeter(key, "7.5f")
        trainer.output_info[key].update(float(loss_dict[key]), batch_size)


def log_info(trainer, batch_size, epoch_id, iter_id):
    lr_msg = "lr: {:.8f}".format(trainer.lr_sch.get_lr())
    metric_msg = ", ".join(trainer.output_info[key].avg_info for key in trainer.output_info)
    time_msg = "s, ".join(
        "{}: {:.5f}".format(key, trainer.time_info[key].avg) for key in trainer.time_info
    )
    ips_msg = "ips: {:.5f} samples/s".format(batch_size / trainer.time_info["batch_cost"].avg)
    left = (trainer.config["Global"]["epochs"] - epoch_id + 1) * trainer.max_iter - iter_id
    eta_sec = left * trainer.time_info["batch_cost"].avg
    eta_msg = "eta: {:s}".format(str(datetime.timedelta(seconds=int(eta_sec))))
    logger.info(
        "[Train][Epoch {}/{}][Iter: {}/{}]{}, {}, {}, {}, {}".format(
            epoch_id, trainer.config["Global"]["epochs"], iter_id, trainer.max_iter,
            lr_msg, metric_msg, time_msg, ips_msg, eta_msg,
        )
    )  # fmt: skip
