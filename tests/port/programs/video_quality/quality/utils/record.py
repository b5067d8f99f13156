from quality.utils.logger import get_logger


class AverageMeter(object):
    def __init__(self, name="", fmt="f"):
        self.name, self.fmt = name, fmt
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    @property
    def value(self):
        return "{self.name}: {self.val:{self.fmt}} ({self.avg:{self.fmt}})".format(self=self)


def build_record(cfg):
    return {
        "loss": AverageMeter("loss", ".5f"),
        "lr": AverageMeter("lr", ".6f"),
        "batch_time": AverageMeter("batch_cost", ".3f"),
        "reader_time": AverageMeter("reader_cost", ".3f"),
    }


def log_batch(metric_list, batch_id, epoch_id, total_epoch, mode):
    metrics = " ".join(m.value for m in metric_list.values())
    get_logger("quality").info(
        "epoch:[%3d/%d] %s step:%d %s", epoch_id, total_epoch, mode, batch_id, metrics
    )


def log_epoch(metric_list, epoch, mode):
    metrics = " ".join("{}: {:.5f}".format(m.name, m.avg) for m in metric_list.values())
    get_logger("quality").info("END epoch:%3d %s %s", epoch, mode, metrics)
