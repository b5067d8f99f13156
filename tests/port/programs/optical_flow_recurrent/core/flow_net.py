"""Recurrent refinement of a flow field."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from core.corr import CorrBlock
from core.update import BasicUpdateBlock


def coords_grid(batch, ht, wd, device):
    coords = torch.meshgrid(torch.arange(ht, device=device), torch.arange(wd, device=device), indexing="ij")
    return torch.stack(coords[::-1], dim=0).float()[None].repeat(batch, 1, 1, 1)


class BasicEncoder(nn.Module):
    def __init__(self, output_dim, norm):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3), norm(64), nn.ReLU(),
            nn.Conv2d(64, 96, 3, 2, 1), norm(96), nn.ReLU(),
            nn.Conv2d(96, 128, 3, 2, 1), norm(128), nn.ReLU(),
            nn.Conv2d(128, output_dim, 1))

    def forward(self, x):
        return self.layers(x)


class FlowNet(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.hidden_dim = self.context_dim = 128
        self.dtype = getattr(torch, args.precision_dtype, torch.float16)
        self.fnet = BasicEncoder(256, nn.InstanceNorm2d)
        self.cnet = BasicEncoder(self.hidden_dim + self.context_dim, nn.BatchNorm2d)
        self.update_block = BasicUpdateBlock(args, hidden_dim=self.hidden_dim)

    def freeze_bn(self):
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eval()

    def upsample_flow(self, flow, mask):
        """Upsample flow field [H/8, W/8, 2] -> [H, W, 2] using convex combination."""
        N, _, H, W = flow.shape
        mask = torch.softmax(mask.view(N, 1, 9, 8, 8, H, W), dim=2)
        up_flow = F.unfold(8 * flow, [3, 3], padding=1).view(N, 2, 9, 1, 1, H, W)
        up_flow = torch.sum(mask * up_flow, dim=2).permute(0, 1, 4, 2, 5, 3)
        return up_flow.reshape(N, 2, 8 * H, 8 * W)

    def forward(self, image1, image2, iters=12, test_mode=False):
        """Estimate optical flow between pair of frames."""
        image1 = (2 * (image1 / 255.0) - 1.0).contiguous()
        image2 = (2 * (image2 / 255.0) - 1.0).contiguous()

        with torch.autocast("cuda", enabled=self.args.mixed_precision, dtype=self.dtype):
            fmap1, fmap2 = self.fnet(torch.cat([image1, image2])).chunk(2)
            corr_fn = CorrBlock(fmap1, fmap2, self.args.corr_levels, self.args.corr_radius)
            net, inp = torch.split(self.cnet(image1), [self.hidden_dim, self.context_dim], dim=1)
            net, inp = torch.tanh(net), torch.relu(inp)

            N, _, H, W = fmap1.shape
            coords0 = coords_grid(N, H, W, image1.device)
            coords1 = coords_grid(N, H, W, image1.device)
            flow_predictions = []
            for itr in range(iters):
                coords1 = coords1.detach()
                corr = corr_fn(coords1)  # index correlation volume
                net, up_mask, delta_flow = self.update_block(net, inp, corr, coords1 - coords0)
                coords1 = coords1 + delta_flow
                flow_predictions.append(self.upsample_flow(coords1 - coords0, up_mask))
        return flow_predictions[-1] if test_mode else flow_predictions
