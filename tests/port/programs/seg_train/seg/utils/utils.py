import os

import paddle

from seg.utils import logger


def set_device(device):
    env_nranks = paddle.distributed.ParallelEnv().nranks
    if device == 'gpu' and (not paddle.is_compiled_with_cuda() or env_nranks == 0):
        device = 'cpu'
    paddle.set_device(device)


def show_env_info():
    info = ['', format('Environment Information', '-^48s'), 'paddle: ' + paddle.__version__, '-' * 48]
    logger.info('\n'.join(info))


def show_cfg_info(config):
    msg = ['', format('Config Information', '-^48s'), str(config.dic), '-' * 48]
    logger.info('\n'.join(msg))


def convert_sync_batchnorm(model, device):
    # Convert bn to sync_bn when use multi GPUs
    env_nranks = paddle.distributed.ParallelEnv().nranks
    if device == 'gpu' and env_nranks > 1:
        model = paddle.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        logger.info("Convert bn to sync_bn")
    return model


def resume(model, optimizer, resume_model):
    if not os.path.exists(resume_model):
        raise ValueError('Directory of the model needed to resume is not Found: {}'.format(resume_model))
    logger.info('Resume model from {}'.format(resume_model))
    model.set_state_dict(paddle.load(os.path.join(resume_model, 'model.pdparams')))
    optimizer.set_state_dict(paddle.load(os.path.join(resume_model, 'model.pdopt')))
    return int(os.path.basename(resume_model.rstrip('/')).split('_')[-1])
