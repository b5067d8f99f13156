"""Everything from a configuration that is read when it runs."""
import paddle
import yaml

config = yaml.safe_load(open("config.yml"))
amp_config = config["AMP"]
use_amp = amp_config.get("use_amp", False)
scaler = paddle.amp.GradScaler(init_loss_scaling=amp_config["scale_loss"], use_dynamic_loss_scaling=True) if use_amp else None
for x in loader:
    if use_amp:
        with paddle.amp.auto_cast(custom_black_list={"flatten_contiguous_range", "greater_than"}, level=amp_config["level"]):
            loss = model(x)
        scaler.scale(loss).backward()
        scaler.minimize(optimizer, loss)
    else:
        model(x).backward()
        optimizer.step()
