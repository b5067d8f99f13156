class AverageMeter(object):
    """Computes and stores the average and current value"""

    def __init__(self, name="", fmt="f", postfix="", need_avg=True):
        self.name = name
        self.fmt = fmt
        self.postfix = postfix
        self.need_avg = need_avg
        self.reset()

    def reset(self):
        self.val = 0
        self.avg = 0
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    @property
    def avg_info(self):
        return "{}: {:.5f}".format(self.name, self.avg)

    @property
    def value(self):
        return "{self.name}: {self.val:{self.fmt}}{self.postfix}".format(self=self)
