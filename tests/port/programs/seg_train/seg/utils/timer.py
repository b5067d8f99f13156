class TimeAverager(object):
    def __init__(self):
        self.reset()

    def reset(self):
        self._cnt = 0
        self._total_time = 0
        self._total_samples = 0

    def record(self, usetime, num_samples=None):
        self._cnt += 1
        self._total_time += usetime
        if num_samples:
            self._total_samples += num_samples

    def get_average(self):
        return self._total_time / float(self._cnt) if self._cnt else 0

    def get_ips_average(self):
        return float(self._total_samples) / self._total_time if self._total_samples else 0


def calculate_eta(remaining_step, speed):
    if remaining_step < 0:
        remaining_step = 0
    remaining_time = int(remaining_step * speed)
    minute, second = divmod(remaining_time, 60)
    hour, minute = divmod(minute, 60)
    return "{:0>2}:{:0>2}:{:0>2}".format(hour, minute, second)
