import paddle
from paddle import fluid
from paddle.fluid import dygraph as dg

custom = dict(custom_white_list=['conv2d', 'batch_norm'], custom_black_list=('softmax',))
scaler = dg.amp.AmpScaler()
for images, labels in loader:
    with dg.amp.amp_guard(True, **custom):
        out = model(images)
        loss = fluid.layers.reduce_mean(fluid.layers.cross_entropy(out, labels))
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.minimize(optimizer, scaled)
