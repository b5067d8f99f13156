"""One update of the hidden state and of the flow."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvGRU(nn.Module):
    def __init__(self, hidden_dim, input_dim):
        super().__init__()
        self.convz = nn.Conv2d(hidden_dim + input_dim, hidden_dim, 3, padding=1)
        self.convr = nn.Conv2d(hidden_dim + input_dim, hidden_dim, 3, padding=1)
        self.convq = nn.Conv2d(hidden_dim + input_dim, hidden_dim, 3, padding=1)

    def forward(self, h, x):
        hx = torch.cat([h, x], dim=1)
        z = torch.sigmoid(self.convz(hx))
        r = torch.sigmoid(self.convr(hx))
        q = torch.tanh(self.convq(torch.cat([r * h, x], dim=1)))
        return (1 - z) * h + z * q


class BasicUpdateBlock(nn.Module):
    def __init__(self, args, hidden_dim=128):
        super().__init__()
        corr_planes = args.corr_levels * (2 * args.corr_radius + 1) ** 2
        self.convc = nn.Conv2d(corr_planes, 192, 1)
        self.convf = nn.Conv2d(2, 64, 7, padding=3)
        self.conv = nn.Conv2d(192 + 64, 126, 3, padding=1)
        self.gru = ConvGRU(hidden_dim, 128 + hidden_dim)
        self.flow_head = nn.Sequential(nn.Conv2d(hidden_dim, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 2, 3, padding=1))
        self.mask = nn.Sequential(nn.Conv2d(hidden_dim, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 64 * 9, 1))

    def forward(self, net, inp, corr, flow):
        cor, flo = F.relu(self.convc(corr)), F.relu(self.convf(flow))
        motion = torch.cat([F.relu(self.conv(torch.cat([cor, flo], dim=1))), flow], dim=1)
        net = self.gru(net, torch.cat([inp, motion], dim=1))
        # scale mask to balence gradients
        return net, 0.25 * self.mask(net), self.flow_head(net)
