import copy

from fleetgpt.core.module import BasicModule
from fleetgpt.utils.log import logger

from .gpt import GPTForPretraining, GPTPretrainingCriterion


class GPTModule(BasicModule):
    def __init__(self, configs):
        super().__init__(configs)
        self.loss_fn = GPTPretrainingCriterion()

    def get_model(self):
        settings = copy.deepcopy(self.configs["Model"])
        settings.pop("module")
        settings.pop("name")
        settings.pop("use_recompute")
        return GPTForPretraining(**settings)

    def forward(self, tokens, ids):
        return self.model(tokens, ids)

    def training_step(self, batch):
        tokens, position_ids, labels, loss_mask = batch
        loss_mask.stop_gradient = True
        labels.stop_gradient = True
        preds = self(tokens, position_ids)
        return self.loss_fn(preds, labels, loss_mask)

    def validation_step(self, batch):
        tokens, position_ids, labels, loss_mask = batch
        return self.loss_fn(self(tokens, position_ids), labels, loss_mask)

    def training_step_end(self, log_dict):
        speed = 1.0 / log_dict["train_cost"]
        logger.info(
            "[train] epoch: %d, batch: %d, loss: %.9f, avg_batch_cost: %.5f sec, speed: %.2f step/s",
            log_dict["epoch"], log_dict["batch"], log_dict["loss"], log_dict["train_cost"], speed,
        )  # fmt: skip

    def validation_step_end(self, log_dict):
        logger.info(
            "[eval] epoch: %d, batch: %d, loss: %.9f",
            log_dict["epoch"], log_dict["batch"], log_dict["loss"],
        )  # fmt: skip
