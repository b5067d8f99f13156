import paddle


def evaluate(model, loader, precision="fp32", amp_level="O1"):
    model.eval()
    with paddle.no_grad():
        for data in loader:
            if precision == "fp16":
                with paddle.amp.auto_cast(
                    level=amp_level,
                    enable=True,
                    custom_white_list={"elementwise_add", "batch_norm", "sync_batch_norm"},
                    custom_black_list={"bilinear_interp_v2"},
                ):
                    model(data["img"])
            else:
                model(data["img"])
