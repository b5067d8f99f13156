import paddle

from quality.loader import build_dataloader
from quality.modeling.recognizer import build_model
from quality.utils.logger import get_logger
from tasks.train import evaluate


@paddle.no_grad()
def test_model(cfg, weights):
    logger = get_logger("quality")
    places = paddle.set_device("gpu")
    loader = build_dataloader(
        cfg.DATASET.test, cfg.DATASET.get("test_batch_size", 1), places, shuffle=False
    )
    model = build_model(cfg.MODEL)
    model.set_state_dict(paddle.load(weights))
    model.eval()
    logger.info("correlation %.4f", evaluate(model, loader))
