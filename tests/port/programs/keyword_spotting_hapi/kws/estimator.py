import paddle
from paddle import nn


class Estimator:
    """``paddle.Model`` whose schedule needs the number of steps, so that ``fit`` prepares it."""

    def __init__(self, network):
        self.network = network
        self.model = paddle.Model(network)
        self.loss = nn.CrossEntropyLoss()
        self.metric = paddle.metric.Accuracy()
        self.learning_rate = None
        self.clip = None
        self.warmup = None
        self.amp_configs = None
        self.prepared = False

    def compile(self, learning_rate=1e-3, clip=None, warmup=None, amp=None):
        self.learning_rate = learning_rate
        self.clip = clip
        self.warmup = warmup
        self.amp_configs = amp
        if warmup is None:
            self._prepare(learning_rate)

    def _prepare(self, schedule):
        grad_clip = None if self.clip is None else nn.ClipGradByNorm(clip_norm=self.clip)
        optimizer = paddle.optimizer.AdamW(
            learning_rate=schedule, parameters=self.model.parameters(), grad_clip=grad_clip
        )
        self.model.prepare(
            optimizer=optimizer,
            loss=self.loss,
            metrics=self.metric,
            amp_configs=self.amp_configs,
        )
        self.prepared = True

    def fit(self, train_data, eval_data=None, epochs=10, batch_size=32, accumulate=1):
        if not self.prepared:
            steps = epochs * len(train_data) // (batch_size * accumulate)
            cosine = paddle.optimizer.lr.CosineAnnealingDecay(self.learning_rate, steps)
            self._prepare(
                paddle.optimizer.lr.LinearWarmup(
                    cosine, int(steps * self.warmup), start_lr=0.0, end_lr=self.learning_rate
                )
            )
        self.model.fit(
            train_data,
            eval_data,
            batch_size=batch_size,
            epochs=epochs,
            accumulate_grad_batches=accumulate,
            callbacks=[paddle.callbacks.LRScheduler(by_step=True, by_epoch=False)],
            save_dir="./kws_models",
            drop_last=True,
        )
