"""What is made of the trunk's representations, and the losses of it."""

import paddle
import paddle.nn as nn
import paddle.nn.functional as F


class DistogramHead(nn.Layer):
    def __init__(self, channels, config):
        super().__init__()
        self.config = config
        self.half_logits = nn.Linear(channels.pair_channel, config.num_bins)

    def forward(self, representations, batch):
        half = self.half_logits(representations["pair"])
        breaks = paddle.linspace(
            self.config.first_break, self.config.last_break, self.config.num_bins - 1
        )
        return {"logits": half + half.transpose([0, 2, 1, 3]), "bin_edges": breaks}

    def loss(self, value, batch):
        positions, mask = batch["pseudo_beta"], batch["pseudo_beta_mask"]
        squared = (positions.unsqueeze(-2) - positions.unsqueeze(-3)).square().sum(-1, keepdim=True)
        bins = (squared > value["bin_edges"].square()).astype("int64").sum(-1)
        errors = F.cross_entropy(value["logits"], bins.unsqueeze(-1), reduction="none").squeeze(-1)
        square = mask.unsqueeze(-1) * mask.unsqueeze(-2)
        return (errors * square).sum() / (1e-6 + square.sum())


class MaskedMsaHead(nn.Layer):
    def __init__(self, channels, config):
        super().__init__()
        self.logits = nn.Linear(channels.msa_channel, config.num_output)

    def forward(self, representations, batch):
        return {"logits": self.logits(representations["msa"])}

    def loss(self, value, batch):
        errors = F.cross_entropy(
            value["logits"], batch["true_msa"].unsqueeze(-1), reduction="none"
        ).squeeze(-1)
        return (errors * batch["bert_mask"]).sum() / (1e-8 + batch["bert_mask"].sum())


class StructureModule(nn.Layer):
    """Positions from the first row, moved a little by each layer."""

    def __init__(self, channels, config):
        super().__init__()
        self.num_layer = config.num_layer
        self.norm = nn.LayerNorm(channels.seq_channel)
        self.initial = nn.Linear(channels.seq_channel, config.num_channel)
        self.attention = nn.MultiHeadAttention(config.num_channel, config.num_head)
        self.transition = nn.Linear(config.num_channel, config.num_channel)
        self.update = nn.Linear(config.num_channel, 3)

    def forward(self, representations, batch):
        act = self.initial(self.norm(representations["single"]))
        position = paddle.zeros([*act.shape[:2], 3], dtype=act.dtype)
        for _ in range(self.num_layer):
            act = act + self.attention(act)
            act = act + F.relu(self.transition(act))
            position = position + self.update(act)
        return {"final_atom_positions": position, "act": act}

    def loss(self, value, batch):
        difference = value["final_atom_positions"] - batch["pseudo_beta"]
        distance = paddle.sqrt(difference.square().sum(-1) + 1e-8)
        clamped = paddle.clip(distance, max=10.0) / 10.0
        mask = batch["pseudo_beta_mask"]
        return (clamped * mask).sum() / (1e-6 + mask.sum())


class PredictedLDDTHead(nn.Layer):
    def __init__(self, channels, config):
        super().__init__()
        self.bins = config.num_bins
        self.norm = nn.LayerNorm(channels.seq_channel)
        self.hidden = nn.Linear(channels.seq_channel, config.num_channel)
        self.logits = nn.Linear(config.num_channel, config.num_bins)

    def forward(self, representations, batch):
        act = self.norm(representations["structure_module"])
        return {"logits": self.logits(F.relu(self.hidden(act)))}

    def loss(self, value, batch):
        lddt = batch["lddt"]
        bins = paddle.clip((lddt * self.bins).floor(), 0, self.bins - 1).astype("int64")
        errors = F.cross_entropy(value["logits"], bins.unsqueeze(-1), reduction="none").squeeze(-1)
        mask = batch["pseudo_beta_mask"]
        return (errors * mask).sum() / (1e-6 + mask.sum())


HEADS = {
    "distogram": DistogramHead,
    "masked_msa": MaskedMsaHead,
    "structure_module": StructureModule,
    "predicted_lddt": PredictedLDDTHead,
}
