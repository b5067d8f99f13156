import argparse
import paddle
import paddle.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--max_grad_norm", type=float, default=50.0)
args = parser.parse_args()

model = build_model()
lr = paddle.optimizer.lr.CosineAnnealingDecay(learning_rate=5e-4, T_max=100)
clip = nn.ClipGradByNorm(clip_norm=args.max_grad_norm)
optimizer = paddle.optimizer.Adam(learning_rate=lr, parameters=model.parameters(), grad_clip=clip)
scaler = paddle.amp.GradScaler(init_loss_scaling=1024)

for data, label in loader():
    with paddle.amp.auto_cast():
        loss = nn.functional.cross_entropy(model(data), label)
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.minimize(optimizer, scaled)
    optimizer.clear_grad()
