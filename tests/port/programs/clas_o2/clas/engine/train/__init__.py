from clas.engine.train.train import train_epoch
