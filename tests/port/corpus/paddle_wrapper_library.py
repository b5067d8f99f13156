"""What the project's own module does stands elsewhere."""
import paddle
from ppdemo.engine.amp import AmpEngine, build_grad_scaler

engine = AmpEngine(level="O2", use_fp16=True)
scaler = build_grad_scaler(config)
for x in loader:
    with engine.auto_cast():
        loss = model(x)
    scaler.scale(loss).backward()
