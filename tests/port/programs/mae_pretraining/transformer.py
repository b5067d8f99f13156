"""Masked autoencoder: an encoder of the patches that are seen, a decoder of all."""

import paddle
import paddle.nn as nn


class MAEPretrain(nn.Layer):
    def __init__(self, image_size, patch_size, encoder, decoder, mask_ratio, norm_pix_loss):
        super().__init__()
        self.patch_size, self.mask_ratio = patch_size, mask_ratio
        self.norm_pix_loss = norm_pix_loss
        count = (image_size // patch_size) ** 2
        width = encoder.EMBED_DIM
        self.patches = nn.Conv2D(3, width, patch_size, patch_size)
        self.position = self.create_parameter([1, count, width])
        layer = nn.TransformerEncoderLayer(width, encoder.NUM_HEADS, 4 * width, 0.0, "gelu")
        self.encoder = nn.TransformerEncoder(layer, encoder.DEPTH)
        self.norm = nn.LayerNorm(width)
        wide = decoder.EMBED_DIM
        self.embed = nn.Linear(width, wide)
        self.mask_token = self.create_parameter([1, 1, wide])
        self.decoder_position = self.create_parameter([1, count, wide])
        layer = nn.TransformerEncoderLayer(wide, decoder.NUM_HEADS, 4 * wide, 0.0, "gelu")
        self.decoder = nn.TransformerEncoder(layer, decoder.DEPTH)
        self.predict = nn.Linear(wide, 3 * patch_size**2)

    def patchify(self, images):
        size = self.patch_size
        batch, channels, height, width = images.shape
        x = images.reshape([batch, channels, height // size, size, width // size, size])
        return x.transpose([0, 2, 4, 3, 5, 1]).reshape([batch, -1, 3 * size**2])

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose([0, 2, 1]) + self.position
        batch, count, width = x.shape
        order = paddle.argsort(paddle.rand([batch, count]), axis=1)
        kept = order[:, : int(count * (1 - self.mask_ratio))]
        seen = paddle.take_along_axis(x, kept.unsqueeze(-1).tile([1, 1, width]), 1)
        seen = self.embed(self.norm(self.encoder(seen)))
        masks = self.mask_token.tile([batch, count - kept.shape[1], 1])
        back = paddle.argsort(order, axis=1).unsqueeze(-1).tile([1, 1, seen.shape[-1]])
        full = paddle.take_along_axis(paddle.concat([seen, masks.astype(seen.dtype)], 1), back, 1)
        predicted = self.predict(self.decoder(full + self.decoder_position)).astype("float32")
        target = self.patchify(images)
        if self.norm_pix_loss:
            mean, spread = target.mean(-1, keepdim=True), target.var(-1, keepdim=True)
            target = (target - mean) / (spread + 1e-6).sqrt()
        return (predicted - target).square().mean()


def build_mae_pretrain(config):
    return MAEPretrain(
        config.DATA.IMAGE_SIZE,
        config.MODEL.PATCH_SIZE,
        config.MODEL.ENCODER,
        config.MODEL.DECODER,
        config.MODEL.MASK_RATIO,
        config.MODEL.NORM_PIX_LOSS,
    )
