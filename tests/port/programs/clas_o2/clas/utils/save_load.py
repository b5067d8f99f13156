import os

import paddle


def load_dygraph_pretrain(model, path):
    if not os.path.exists(path + ".pdparams"):
        raise ValueError("Model pretrain path {}.pdparams does not exists.".format(path))
    model.set_state_dict(paddle.load(path + ".pdparams"))


def init_model(config, net, optimizer=None, loss=None):
    """Load the model, and what the optimizer had."""
    checkpoints = config.get("checkpoints")
    if checkpoints and optimizer is not None:
        net.set_state_dict(paddle.load(checkpoints + ".pdparams"))
        optimizer.set_state_dict(paddle.load(checkpoints + ".pdopt"))
        if os.path.exists(checkpoints + ".pdstates"):
            return paddle.load(checkpoints + ".pdstates")
    return None


def save_model(net, optimizer, model_path, prefix):
    if paddle.distributed.get_rank() != 0:
        return
    os.makedirs(model_path, exist_ok=True)
    path = os.path.join(model_path, prefix)
    paddle.save(net.state_dict(), path + ".pdparams")
    paddle.save(optimizer.state_dict(), path + ".pdopt")
