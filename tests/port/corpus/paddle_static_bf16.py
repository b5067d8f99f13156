import paddle

mp = paddle.static.amp.bf16
optimizer = mp.decorate_bf16(
    optimizer,
    amp_lists=mp.AutoMixedPrecisionListsBF16(custom_fp32_list={'softmax', 'layer_norm'}),
    use_bf16_guard=False,
    use_pure_bf16=False)
optimizer.minimize(loss)
