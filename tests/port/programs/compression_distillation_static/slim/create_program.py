"""The program that is trained: student, teacher, their loss, and the optimizer that minimizes it."""

import paddle
import paddle.distributed.fleet as fleet
import paddle.nn.functional as F
import paddle.optimizer as optimizer
import paddle.regularizer as regularizer

from .networks import student_net, teacher_net
from .strategy_config import ProgramInfo


def _create_lr_scheduler(train_config):
    if "learning_rate" not in train_config:
        raise RuntimeError("No `learning_rate` specified in the configuration file.")
    if isinstance(train_config.get("learning_rate"), float):
        return train_config.get("learning_rate")
    params = train_config.get("learning_rate")
    lr_type = params.pop("type")
    return getattr(optimizer.lr, lr_type)(**params)


def _create_optimizer(train_config):
    """create optimizer"""
    optimizer_builder = train_config["optimizer_builder"]
    assert isinstance(optimizer_builder, dict)
    if "grad_clip" in optimizer_builder:
        g_clip_params = optimizer_builder["grad_clip"]
        g_clip_type = g_clip_params.pop("type")
        grad_clip = getattr(paddle.nn, g_clip_type)(**g_clip_params)
    else:
        grad_clip = None

    ### build regularization
    if "regularizer" in optimizer_builder:
        reg_params = optimizer_builder["regularizer"]
        reg_type = reg_params.pop("type")
        reg = getattr(regularizer, reg_type)(**reg_params)
    elif "weight_decay" in optimizer_builder:
        reg = optimizer_builder.pop("weight_decay")
    else:
        reg = None

    ### build learning rate
    lr = _create_lr_scheduler(train_config)

    ### build optimizer
    optim_params = optimizer_builder["optimizer"]
    optim_type = optim_params.pop("type")
    opt = getattr(optimizer, optim_type)(
        learning_rate=lr, grad_clip=grad_clip, weight_decay=reg, **optim_params)
    return opt, lr


def _distill_loss(config, teacher, student):
    if config.loss == "soft_label":
        target = F.softmax(teacher / config.temperature)
        return F.cross_entropy(student / config.temperature, target, soft_label=True)
    return F.mse_loss(student, teacher)


def build_distill_program(config, train_config, num_classes, image_size, dist_strategy=None):
    """build distill program with infermodel"""
    startup_program = paddle.static.Program()
    train_program = paddle.static.Program()
    with paddle.static.program_guard(train_program, startup_program):
        image = paddle.static.data("image", [None, 3, image_size, image_size], "float32")
        label = paddle.static.data("label", [None, 1], "int64")
        with paddle.utils.unique_name.guard("merge"):
            student = student_net(image, num_classes)
            teacher = teacher_net(image, num_classes)
            optimizer, learning_rate = _create_optimizer(train_config)

            if dist_strategy is not None:
                optimizer = fleet.distributed_optimizer(optimizer, dist_strategy)
            else:
                if train_config.get("amp_config") is not None:
                    custom_white_list = train_config["amp_config"].get("custom_white_list", None)
                    if custom_white_list is not None:
                        train_config["amp_config"].pop("custom_white_list")

                    custom_black_list = train_config["amp_config"].get("custom_black_list", None)
                    if custom_black_list is not None:
                        train_config["amp_config"].pop("custom_black_list")

                    custom_black_varnames = train_config["amp_config"].get("custom_black_varnames", None)
                    if custom_black_varnames is not None:
                        train_config["amp_config"].pop("custom_black_varnames")

                    amp_list = paddle.static.amp.CustomOpLists(
                        custom_white_list=custom_white_list,
                        custom_black_list=custom_black_list,
                        custom_black_varnames=custom_black_varnames)
                    optimizer = paddle.static.amp.decorate(
                        optimizer=optimizer,
                        amp_lists=amp_list,
                        init_loss_scaling=128.0,
                        use_dynamic_loss_scaling=True,
                        **train_config["amp_config"])

            loss = F.cross_entropy(student, label) + config.alpha * _distill_loss(config, teacher, student)
            loss = paddle.mean(loss)
            loss.stop_gradient = False
            optimizer.minimize(loss)

    return ProgramInfo(startup_program, train_program, ["image", "label"], [loss], optimizer, learning_rate)
