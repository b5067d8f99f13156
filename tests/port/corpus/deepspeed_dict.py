import deepspeed

ds_config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True, "initial_scale_power": 14, "loss_scale_window": 500, "hysteresis": 4},
    "zero_optimization": {"stage": 1},
}
engine, _, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=ds_config
)
for batch in loader:
    loss = engine(batch)
    engine.backward(loss)
    engine.step()
