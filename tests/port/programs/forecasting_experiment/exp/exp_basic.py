import os

import paddle


class ExpBasic(object):
    def __init__(self, args):
        self.args = args
        self.device = self._acquire_device()
        self.model = self._build_model()

    def _build_model(self):
        raise NotImplementedError

    def _acquire_device(self):
        if self.args.use_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = "0"
            device = paddle.set_device("gpu")
        else:
            device = paddle.set_device("cpu")
        return device

    def _get_data(self, flag):
        pass

    def vali(self, loader, criterion):
        pass

    def main(self, setting):
        pass
