"""The settings of pre-training. Arguments that were not given leave them as they are."""


class PretrainingConfig:
    def __init__(self, model_name, **overrides):
        self.model_name = model_name
        self.mask_prob = 0.15
        self.max_seq_length = 128

        # mixed precision
        self.amp = True
        self.init_loss_scale = 2**13
        self.loss_scale_window = 1000

        # optimization
        self.optimizer = "adam"
        self.learning_rate = 5e-4
        self.num_train_steps = 100000
        self.train_batch_size = 128
        self.gradient_accumulation_steps = 8

        self.vocab_size = 30522
        self.update(overrides)
        if self.vocab_size % 8 != 0:
            self.vocab_size += 8 - self.vocab_size % 8
        small = self.model_name == "small"
        self.hidden_size = 256 if small else 768
        self.num_layers = 4 if small else 12

    def update(self, overrides):
        for key, value in overrides.items():
            if value is not None:
                self.__dict__[key] = value
