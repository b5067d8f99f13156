import os
import shutil
import time
from collections import deque
from copy import deepcopy

import paddle
import paddle.nn.functional as F

from seg.core.val import evaluate
from seg.utils import TimeAverager, calculate_eta, logger, resume


def check_logits_losses(logits_list, losses):
    len_logits = len(logits_list)
    len_losses = len(losses['types'])
    if len_logits != len_losses:
        raise RuntimeError(
            'The length of logits_list should equal to the types of loss config: {} != {}.'
            .format(len_logits, len_losses))


def loss_computation(logits_list, labels, edges, losses):
    check_logits_losses(logits_list, losses)
    loss_list = []
    for i in range(len(logits_list)):
        logits = logits_list[i]
        loss_i = losses['types'][i]
        coef_i = losses['coef'][i]
        if loss_i.__class__.__name__ in ('BCELoss', ) and loss_i.edge_label:
            # Use edges as labels According to loss type.
            loss_list.append(coef_i * loss_i(logits, edges))
        else:
            loss_list.append(coef_i * loss_i(logits, labels))
    return loss_list


class EMA(object):
    """A moving average of what is trained, for the evaluation."""

    def __init__(self, model, decay=0.99):
        self.model = model
        self.decay = decay
        self.copy = deepcopy(model)
        self.copy.eval()

    @paddle.no_grad()
    def step(self):
        for kept, p in zip(self.copy.parameters(), self.model.parameters()):
            kept.set_value(self.decay * kept + (1 - self.decay) * p.astype(kept.dtype))


def train(model,
          train_dataset,
          val_dataset=None,
          optimizer=None,
          save_dir='output',
          iters=10000,
          batch_size=2,
          resume_model=None,
          save_interval=1000,
          log_iters=10,
          num_workers=0,
          use_vdl=False,
          use_ema=False,
          losses=None,
          keep_checkpoint_max=5,
          test_config=None,
          precision='fp32',
          amp_level='O1',
          profiler_options=None):
    """
    Launch training.

    Args:
        model(nn.Layer): A semantic segmentation model.
        train_dataset (paddle.io.Dataset): Used to read and process training datasets.
        val_dataset (paddle.io.Dataset, optional): Used to read and process validation datasets.
        optimizer (paddle.optimizer.Optimizer): The optimizer.
        save_dir (str, optional): The directory for saving the model snapshot. Default: 'output'.
        iters (int, optional): How may iters to train the model. Default: 10000.
        batch_size (int, optional): Mini batch size of one gpu or cpu. Default: 2.
        resume_model (str, optional): The path of resume model.
        save_interval (int, optional): How many iters to save a model snapshot once during training.
        log_iters (int, optional): Display logging information at every log_iters. Default: 10.
        num_workers (int, optional): Num workers for data loader. Default: 0.
        use_vdl (bool, optional): Whether to record the data to VisualDL during training.
        losses (dict, optional): A dict including 'types' and 'coef'.
        keep_checkpoint_max (int, optional): Maximum number of checkpoints to save. Default: 5.
        precision (str, optional): Use AMP if precision='fp16'. Default: 'fp32'.
        amp_level (str, optional): Auto mixed precision level, “O1” or “O2”. Default is O1.
        profiler_options (str, optional): The option of train profiler.
    """
    model.train()
    nranks = paddle.distributed.ParallelEnv().nranks
    local_rank = paddle.distributed.ParallelEnv().local_rank

    start_iter = 0
    if resume_model is not None:
        start_iter = resume(model, optimizer, resume_model)

    if not os.path.isdir(save_dir):
        if os.path.exists(save_dir):
            os.remove(save_dir)
        os.makedirs(save_dir, exist_ok=True)

    # use amp
    if precision == 'fp16':
        logger.info('use AMP to train. AMP level = {}'.format(amp_level))
        scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
        if amp_level == 'O2':
            model, optimizer = paddle.amp.decorate(
                models=model,
                optimizers=optimizer,
                level='O2',
                save_dtype='float32')

    if nranks > 1:
        paddle.distributed.fleet.init(is_collective=True)
        optimizer = paddle.distributed.fleet.distributed_optimizer(
            optimizer)  # The return is Fleet object
        ddp_model = paddle.distributed.fleet.distributed_model(model)

    batch_sampler = paddle.io.DistributedBatchSampler(
        train_dataset, batch_size=batch_size, shuffle=True, drop_last=True)
    loader = paddle.io.DataLoader(
        train_dataset,
        batch_sampler=batch_sampler,
        num_workers=num_workers,
        return_list=True)

    if use_vdl:
        from visualdl import LogWriter
        log_writer = LogWriter(save_dir)
    if use_ema:
        ema_model = EMA(model)

    avg_loss = 0.0
    avg_loss_list = []
    iters_per_epoch = len(batch_sampler)
    best_mean_iou = -1.0
    best_model_iter = -1
    reader_cost_averager = TimeAverager()
    batch_cost_averager = TimeAverager()
    save_models = deque()
    batch_start = time.time()

    iter = start_iter
    while iter < iters:
        for data in loader:
            iter += 1
            if iter > iters:
                break
            reader_cost_averager.record(time.time() - batch_start)
            images = data['img']
            labels = data['label'].astype('int64')
            edges = None
            if 'edge' in data.keys():
                edges = data['edge'].astype('int64')
            if hasattr(model, 'data_format') and model.data_format == 'NHWC':
                images = images.transpose((0, 2, 3, 1))

            if precision == 'fp16':
                with paddle.amp.auto_cast(
                        level=amp_level,
                        enable=True,
                        custom_white_list={
                            "elementwise_add", "batch_norm", "sync_batch_norm"
                        },
                        custom_black_list={'bilinear_interp_v2'}):
                    logits_list = ddp_model(images) if nranks > 1 else model(images)
                    loss_list = loss_computation(
                        logits_list=logits_list,
                        labels=labels,
                        edges=edges,
                        losses=losses)
                    loss = sum(loss_list)

                scaled = scaler.scale(loss)  # scale the loss
                scaled.backward()  # do backward
                if isinstance(optimizer, paddle.distributed.fleet.Fleet):
                    scaler.minimize(optimizer.user_defined_optimizer, scaled)
                else:
                    scaler.minimize(optimizer, scaled)  # update parameters
            else:
                logits_list = ddp_model(images) if nranks > 1 else model(images)
                loss_list = loss_computation(
                    logits_list=logits_list,
                    labels=labels,
                    edges=edges,
                    losses=losses)
                loss = sum(loss_list)
                loss.backward()
                # if the optimizer is ReduceOnPlateau, the loss is the one which has been pass into step.
                if isinstance(optimizer, paddle.optimizer.lr.ReduceOnPlateau):
                    optimizer.step(loss)
                else:
                    optimizer.step()

            lr = optimizer.get_lr()

            # update lr
            if isinstance(optimizer, paddle.distributed.fleet.Fleet):
                lr_sche = optimizer.user_defined_optimizer._learning_rate
            else:
                lr_sche = optimizer._learning_rate
            if isinstance(lr_sche, paddle.optimizer.lr.LRScheduler):
                lr_sche.step()

            if use_ema:
                ema_model.step()

            model.clear_gradients()

            avg_loss += float(loss)
            if not avg_loss_list:
                avg_loss_list = [float(each) for each in loss_list]
            else:
                for i in range(len(loss_list)):
                    avg_loss_list[i] += float(loss_list[i])
            batch_cost_averager.record(time.time() - batch_start, num_samples=batch_size)

            if (iter) % log_iters == 0 and local_rank == 0:
                avg_loss /= log_iters
                avg_loss_list = [each / log_iters for each in avg_loss_list]
                remain_iters = iters - iter
                avg_train_batch_cost = batch_cost_averager.get_average()
                avg_train_reader_cost = reader_cost_averager.get_average()
                eta = calculate_eta(remain_iters, avg_train_batch_cost)
                logger.info(
                    "[TRAIN] epoch: {}, iter: {}/{}, loss: {:.4f}, lr: {:.6f}, batch_cost: {:.4f}, "
                    "reader_cost: {:.5f}, ips: {:.4f} samples/sec | ETA {}".format(
                        (iter - 1) // iters_per_epoch + 1, iter, iters, avg_loss, lr,
                        avg_train_batch_cost, avg_train_reader_cost,
                        batch_cost_averager.get_ips_average(), eta))
                if use_vdl:
                    log_writer.add_scalar('Train/loss', avg_loss, iter)
                    for i, value in enumerate(avg_loss_list):
                        log_writer.add_scalar('Train/loss_' + str(i), value, iter)
                    log_writer.add_scalar('Train/lr', lr, iter)
                    log_writer.add_scalar('Train/batch_cost', avg_train_batch_cost, iter)
                avg_loss = 0.0
                avg_loss_list = []
                reader_cost_averager.reset()
                batch_cost_averager.reset()

            if (iter % save_interval == 0 or iter == iters) and (val_dataset is not None):
                mean_iou, acc = evaluate(
                    ema_model.copy if use_ema else model,
                    val_dataset,
                    precision=precision,
                    amp_level=amp_level,
                    num_workers=1 if num_workers > 0 else 0)
                model.train()

            if (iter % save_interval == 0 or iter == iters) and local_rank == 0:
                current_save_dir = os.path.join(save_dir, "iter_{}".format(iter))
                os.makedirs(current_save_dir, exist_ok=True)
                paddle.save(model.state_dict(), os.path.join(current_save_dir, 'model.pdparams'))
                paddle.save(optimizer.state_dict(), os.path.join(current_save_dir, 'model.pdopt'))
                save_models.append(current_save_dir)
                if len(save_models) > keep_checkpoint_max > 0:
                    model_to_remove = save_models.popleft()
                    shutil.rmtree(model_to_remove)

                if val_dataset is not None and mean_iou > best_mean_iou:
                    best_mean_iou = mean_iou
                    best_model_iter = iter
                    best_model_dir = os.path.join(save_dir, "best_model")
                    os.makedirs(best_model_dir, exist_ok=True)
                    paddle.save(model.state_dict(), os.path.join(best_model_dir, 'model.pdparams'))
                    logger.info('[EVAL] The model with the best validation mIoU ({:.4f}) was saved at iter {}.'
                                .format(best_mean_iou, best_model_iter))
            batch_start = time.time()

    # Sleep for a second to let dataloader release resources.
    time.sleep(1)
    if use_vdl:
        log_writer.close()
