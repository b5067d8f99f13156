from argparse import ArgumentParser

import pytorch_lightning as pl

parser = ArgumentParser()
parser.add_argument("--precision", default=16, type=int)
hparams = parser.parse_args()

trainer = pl.Trainer(gpus=1, precision=hparams.precision, amp_backend="apex", amp_level="O2")
trainer.fit(model)
