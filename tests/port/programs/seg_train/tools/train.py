import argparse
import random

import cv2
import numpy as np
import paddle

from seg.core import train
from seg.cvlibs import Config, SegBuilder
from seg.utils import logger, utils


def parse_args():
    hstr = "Model Training\n\n" \
           "Example 1, train model with one GPU: \n" \
           "    export CUDA_VISIBLE_DEVICES=0 \n" \
           "    python tools/train.py --config configs/pp_liteseg_cityscapes.yml \n\n" \
           "Example 2, train model with several GPUs: \n" \
           "    python -m paddle.distributed.launch tools/train.py \\\n" \
           "        --config configs/pp_liteseg_cityscapes.yml \n\n"
    parser = argparse.ArgumentParser(
        description=hstr, formatter_class=argparse.RawTextHelpFormatter)

    # Common params
    parser.add_argument("--config", help="The path of config file.", type=str)
    parser.add_argument(
        '--device',
        help='Set the device place for training model.',
        default='gpu',
        choices=['cpu', 'gpu', 'xpu', 'npu', 'mlu'],
        type=str)
    parser.add_argument(
        '--save_dir',
        help='The directory for saving the model snapshot.',
        type=str,
        default='./output')
    parser.add_argument(
        '--num_workers',
        help='Number of workers for data loader.',
        type=int,
        default=0)
    parser.add_argument(
        '--do_eval',
        help='Whether to do evaluation in training.',
        action='store_true')
    parser.add_argument(
        '--use_vdl',
        help='Whether to record the data to VisualDL in training.',
        action='store_true')
    parser.add_argument(
        '--use_ema',
        help='Whether to ema the model in training.',
        action='store_true')

    # Runtime params
    parser.add_argument('--resume_model', help='The path of the model to resume.', type=str)
    parser.add_argument('--iters', help='Iterations in training.', type=int)
    parser.add_argument('--batch_size', help='Mini batch size of one gpu or cpu.', type=int)
    parser.add_argument('--learning_rate', help='Learning rate.', type=float)
    parser.add_argument(
        '--save_interval',
        help='How many iters to save a model snapshot once during training.',
        type=int,
        default=1000)
    parser.add_argument(
        '--log_iters', help='Display logging information at every `log_iters`.', default=10, type=int)
    parser.add_argument(
        '--keep_checkpoint_max', help='Maximum number of checkpoints to save.', type=int, default=5)

    # Other params
    parser.add_argument('--seed', help='Set the random seed in training.', default=None, type=int)
    parser.add_argument(
        "--precision",
        default="fp32",
        type=str,
        choices=["fp32", "fp16"],
        help="Use AMP (Auto mixed precision) if precision='fp16'. If precision='fp32', the training is normal.")
    parser.add_argument(
        "--amp_level",
        default="O1",
        type=str,
        choices=["O1", "O2"],
        help="Auto mixed precision level. Accepted values are “O1” and “O2”: O1 represent mixed precision, the input "
             "data type of each operator will be casted by white_list and black_list; O2 represent Pure fp16, all "
             "operators parameters and input data will be casted to fp16, except operators in black_list, don't "
             "support fp16 kernel and batchnorm. Default is O1(amp).")
    parser.add_argument(
        '--profiler_options', type=str, help='The option of train profiler.')
    parser.add_argument(
        '--data_format', help='Data format that specifies the layout of input.', type=str, default='NCHW')
    parser.add_argument('--opts', help='Update the key-value pairs of all options.', nargs='+')

    return parser.parse_args()


def main(args):
    assert args.config is not None, \
        'No configuration file specified, please set --config'
    cfg = Config(
        args.config,
        learning_rate=args.learning_rate,
        iters=args.iters,
        batch_size=args.batch_size,
        opts=args.opts)
    builder = SegBuilder(cfg)

    utils.show_env_info()
    utils.show_cfg_info(cfg)
    if args.seed is not None:
        paddle.seed(args.seed)
        np.random.seed(args.seed)
        random.seed(args.seed)
    cv2.setNumThreads(0)
    utils.set_device(args.device)

    # TODO refactor
    # Only support for the DeepLabv3+ model
    if args.data_format == 'NHWC':
        logger.warning('The NHWC of {} is not checked.'.format(cfg.dic['model']['type']))
        cfg.dic['model']['data_format'] = args.data_format

    model = utils.convert_sync_batchnorm(builder.model, args.device)

    train_dataset = builder.train_dataset
    val_dataset = builder.val_dataset if args.do_eval else None
    optimizer = builder.optimizer
    loss = builder.loss

    train(
        model,
        train_dataset,
        val_dataset=val_dataset,
        optimizer=optimizer,
        save_dir=args.save_dir,
        iters=cfg.iters,
        batch_size=cfg.batch_size,
        resume_model=args.resume_model,
        save_interval=args.save_interval,
        log_iters=args.log_iters,
        num_workers=args.num_workers,
        use_vdl=args.use_vdl,
        use_ema=args.use_ema,
        losses=loss,
        keep_checkpoint_max=args.keep_checkpoint_max,
        precision=args.precision,
        amp_level=args.amp_level,
        profiler_options=args.profiler_options)


if __name__ == '__main__':
    args = parse_args()
    main(args)
