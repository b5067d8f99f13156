"""An acoustic model without attention between text and speech, and how it is updated."""

import logging
from pathlib import Path

import paddle
import paddle.nn.functional as F
from paddle import nn

from tts.training.trainer import StandardUpdater

logger = logging.getLogger(__name__)


class VariancePredictor(nn.Layer):
    def __init__(self, width, channels=256, kernel=3):
        super().__init__()
        self.conv = nn.Conv1D(width, channels, kernel, padding=kernel // 2)
        self.norm = nn.LayerNorm(channels)
        self.linear = nn.Linear(channels, 1)

    def forward(self, x):
        x = F.relu(self.conv(x.transpose([0, 2, 1]))).transpose([0, 2, 1])
        return self.linear(self.norm(x))


class FastSpeech2(nn.Layer):
    def __init__(self, idim, odim, adim=384, aheads=2, elayers=4, eunits=1536, dlayers=4, dunits=1536):
        super().__init__()
        self.embed = nn.Embedding(idim, adim, padding_idx=0)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(adim, aheads, eunits), elayers)
        self.duration_predictor = VariancePredictor(adim)
        self.pitch_predictor = VariancePredictor(adim)
        self.pitch_embed = nn.Conv1D(1, adim, 9, padding=4)
        self.decoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(adim, aheads, dunits), dlayers)
        self.feat_out = nn.Linear(adim, odim)

    def regulate(self, hs, durations):
        rows = [paddle.repeat_interleave(h, d, axis=0) for h, d in zip(hs, durations)]
        return paddle.stack(rows)

    def forward(self, text, durations, pitch, speech):
        hs = self.encoder(self.embed(text))
        d_outs = self.duration_predictor(hs).squeeze(-1)
        p_outs = self.pitch_predictor(hs)
        hs = hs + self.pitch_embed(pitch.transpose([0, 2, 1])).transpose([0, 2, 1])
        after_outs = self.feat_out(self.decoder(self.regulate(hs, durations)))
        return after_outs, d_outs, p_outs


class FastSpeech2Loss(nn.Layer):
    def forward(self, after_outs, d_outs, p_outs, ys, ds, ps):
        l1_loss = F.l1_loss(after_outs, ys)
        duration_loss = F.mse_loss(d_outs, paddle.log(ds.astype("float32") + 1.0))
        pitch_loss = F.mse_loss(p_outs, ps)
        return l1_loss, duration_loss, pitch_loss


class FastSpeech2Updater(StandardUpdater):
    def __init__(
            self,
            model,
            optimizer,
            dataloader,
            init_state=None,
            accum_grad: int=1,
            use_amp: bool=False,
            amp_level: str="O1",
            amp_dtype: str="float16",
            scale_loss: float=32768.0,
            output_dir: Path=None, ):
        super().__init__(model, optimizer, dataloader, init_state=None)
        self.criterion = FastSpeech2Loss()
        self.accum_grad = accum_grad
        self.use_amp = use_amp
        self.amp_level = amp_level
        self.amp_dtype = amp_dtype
        if self.use_amp and self.amp_level == "O2":
            self.model, self.optimizer = paddle.amp.decorate(
                models=self.model, optimizers=self.optimizer, level=self.amp_level, dtype=self.amp_dtype)
        self.scaler = paddle.amp.GradScaler(
            enable=self.use_amp and self.amp_dtype == "float16", init_loss_scaling=scale_loss)
        logger.addHandler(logging.FileHandler(str(output_dir / "worker.log")))
        self.msg = ""

    def update_core(self, batch):
        losses_dict = {}
        with paddle.amp.auto_cast(enable=self.use_amp, level=self.amp_level, dtype=self.amp_dtype):
            after_outs, d_outs, p_outs = self.model(**batch)
            l1_loss, duration_loss, pitch_loss = self.criterion(
                after_outs=after_outs,
                d_outs=d_outs,
                p_outs=p_outs,
                ys=batch["speech"],
                ds=batch["durations"],
                ps=batch["pitch"], )
            loss = l1_loss + duration_loss + pitch_loss

        self.scaler.scale(loss / self.accum_grad).backward()
        if (self.state.iteration + 1) % self.accum_grad == 0:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.clear_grad()

        losses_dict["l1_loss"] = float(l1_loss)
        losses_dict["duration_loss"] = float(duration_loss)
        losses_dict["pitch_loss"] = float(pitch_loss)
        losses_dict["loss"] = float(loss)
        self.msg = ", ".join("{}: {:>.6f}".format(k, v) for k, v in losses_dict.items())
