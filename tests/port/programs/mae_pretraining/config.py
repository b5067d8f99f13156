"""Configuration: the defaults, which a yaml file and some options of the command line overwrite."""

import os

import yaml
from yacs.config import CfgNode as CN

_C = CN()
_C.BASE = [""]

# data settings
_C.DATA = CN()
_C.DATA.BATCH_SIZE = 256
_C.DATA.BATCH_SIZE_EVAL = None
_C.DATA.DATA_PATH = "/dataset/imagenet/"
_C.DATA.IMAGE_SIZE = 224
_C.DATA.CROP_PCT = 0.875
_C.DATA.NUM_WORKERS = 2
_C.DATA.IMAGENET_MEAN = [0.485, 0.456, 0.406]
_C.DATA.IMAGENET_STD = [0.229, 0.224, 0.225]

# model settings
_C.MODEL = CN()
_C.MODEL.TYPE = "MAEPRETRAIN"
_C.MODEL.NAME = "MAE"
_C.MODEL.MAE_PRETRAIN = True
_C.MODEL.RESUME = None
_C.MODEL.DROPPATH = 0.1
_C.MODEL.PATCH_SIZE = 16
_C.MODEL.MASK_RATIO = 0.75
_C.MODEL.NORM_PIX_LOSS = True
_C.MODEL.ENCODER = CN()
_C.MODEL.ENCODER.EMBED_DIM = 768
_C.MODEL.ENCODER.DEPTH = 12
_C.MODEL.ENCODER.NUM_HEADS = 12
_C.MODEL.DECODER = CN()
_C.MODEL.DECODER.EMBED_DIM = 512
_C.MODEL.DECODER.DEPTH = 8
_C.MODEL.DECODER.NUM_HEADS = 8

# training settings
_C.TRAIN = CN()
_C.TRAIN.LAST_EPOCH = 0
_C.TRAIN.NUM_EPOCHS = 800
_C.TRAIN.WARMUP_EPOCHS = 40
_C.TRAIN.WEIGHT_DECAY = 0.05
_C.TRAIN.BASE_LR = 1.5e-4
_C.TRAIN.WARMUP_START_LR = 1e-6
_C.TRAIN.END_LR = 0.0
_C.TRAIN.GRAD_CLIP = None
_C.TRAIN.ACCUM_ITER = 1
_C.TRAIN.OPTIMIZER = CN()
_C.TRAIN.OPTIMIZER.NAME = "AdamW"
_C.TRAIN.OPTIMIZER.EPS = 1e-8
_C.TRAIN.OPTIMIZER.BETAS = (0.9, 0.95)

# misc
_C.SAVE = "./output"
_C.SAVE_FREQ = 10
_C.REPORT_FREQ = 20
_C.SEED = 0
_C.EVAL = False
_C.AMP = False


def _update_config_from_file(config, cfg_file):
    config.defrost()
    with open(cfg_file, "r") as infile:
        yaml_cfg = yaml.load(infile, Loader=yaml.FullLoader)
    for cfg in yaml_cfg.setdefault("BASE", [""]):
        if cfg:
            _update_config_from_file(config, os.path.join(os.path.dirname(cfg_file), cfg))
    config.merge_from_file(cfg_file)
    config.freeze()


def update_config(config, args):
    """The options of the command line over those of the file."""
    if args.cfg:
        _update_config_from_file(config, args.cfg)
    config.defrost()
    if args.batch_size:
        config.DATA.BATCH_SIZE = args.batch_size
    if args.data_path:
        config.DATA.DATA_PATH = args.data_path
    if args.output:
        config.SAVE = args.output
    if args.resume:
        config.MODEL.RESUME = args.resume
    if args.amp:
        config.AMP = True
    if args.accum_iter:
        config.TRAIN.ACCUM_ITER = args.accum_iter
    config.freeze()
    return config


def get_config(cfg_file=None):
    """A copy of the defaults, with those of a file over them."""
    config = _C.clone()
    if cfg_file:
        _update_config_from_file(config, cfg_file)
    return config
