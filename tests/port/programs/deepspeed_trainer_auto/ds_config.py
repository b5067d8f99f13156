"""DeepSpeed's configuration. The Trainer fills in "auto" from its own arguments."""

AUTO = "auto"


def get_train_ds_config(stage=2, offload=False, loss_scale_window=1000):
    device = "cpu" if offload else "none"
    zero_opt_dict = {
        "stage": stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": AUTO,
        "offload_optimizer": {"device": device},
    }
    if stage == 3:
        zero_opt_dict.update(
            offload_param={"device": device},
            stage3_param_persistence_threshold=AUTO,
            stage3_gather_16bit_weights_on_model_save=True,
        )
    config = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": AUTO,
        "gradient_clipping": AUTO,
        "zero_optimization": zero_opt_dict,
        "steps_per_print": 2000,
        "wall_clock_breakdown": False,
    }
    config["fp16"] = {
        "enabled": AUTO,
        "loss_scale": 0,
        "loss_scale_window": loss_scale_window,
        "initial_scale_power": 13,
        "hysteresis": 2,
        "min_loss_scale": 1,
    }
    config["bf16"] = {"enabled": AUTO}
    return config
