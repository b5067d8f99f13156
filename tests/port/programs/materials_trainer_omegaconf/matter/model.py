import paddle
from paddle import nn


class AtomNet(nn.Layer):
    """Sums what its layers say of each atom to an energy of the crystal."""

    def __init__(self, atom_types, width, layers):
        super().__init__()
        self.embedding = nn.Embedding(atom_types, width)
        self.layers = nn.LayerList([nn.Linear(width, width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, batch):
        x = self.embedding(batch["atoms"])
        for layer in self.layers:
            x = x + nn.functional.silu(layer(x))
        energy = self.head(self.norm(x)).mean(axis=1).squeeze(-1)
        loss = nn.functional.l1_loss(paddle.cast(energy, "float32"), batch["energy"])
        return {"loss_dict": {"loss": loss}, "pred_dict": {"energy": energy}}
