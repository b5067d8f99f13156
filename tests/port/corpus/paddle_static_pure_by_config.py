"""A static graph, in pure bfloat16 or not."""

import paddle


def optimizer_of(config, parameters):
    optimizer = paddle.optimizer.SGD(0.1)
    return paddle.static.amp.bf16.decorate_bf16(optimizer, use_pure_bf16=config.pure)
