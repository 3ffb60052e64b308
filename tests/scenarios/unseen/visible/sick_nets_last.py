"""Sick trainings of nets, the last three: a class, a bias and a temperature."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick


@sick(
    "class-imbalance",
    where="all layers, all steps: 97 images of 100 are of the first caption",
    cure="draw as many images of each caption (WeightedRandomSampler)",
)  # fmt: skip
def images_told_by_captions_of_mostly_one(folder, ill):
    seeded(917)
    net = nn.ModuleDict({"image": dense(12, 64, 64, 16), "text": nn.Embedding(8, 16)})
    lift = torch.randn(2, 12)
    often = torch.tensor([0.97 if ill else 0.125] + [(0.03 if ill else 0.875) / 7] * 7)

    def told(y):
        angle = 6.2832 * torch.rand(len(y))
        flat = torch.stack([angle.cos(), angle.sin()], 1) * (0.5 + 0.4 * y[:, None])
        image = net["image"]((flat + 0.05 * torch.randn(len(y), 2)) @ lift)
        return F.cross_entropy(F.normalize(image) @ F.normalize(net["text"].weight).T / 0.1, y)

    def score():
        with torch.no_grad():
            return float(told(torch.arange(1024) % 8))

    make = optim.AdamW(net.parameters(), 2e-3)
    return fit(folder, net, make, lambda step: told(torch.multinomial(often, 64, True)), 300, score=score)


class Neighbours(nn.Module):
    """Three graph convolutions, each the mean over a node and its neighbours."""

    def __init__(self, near):
        super().__init__()
        self.register_buffer("near", near)
        self.layers = nn.ModuleList([nn.Linear(8, 48), nn.Linear(48, 48), nn.Linear(48, 1)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(self.near @ x).relu()
        return self.layers[-1](self.near @ x)[:, 0]


@sick(
    "dead-units", "dead-layer", "bad-initialisation",
    where="layers.0 and layers.1, all steps: at a bias of -4.6 no unit is ever above zero",
    cure="the bias of a rare class is for the last layer only; 0 in the others",
)  # fmt: skip
def frauds_in_a_graph_with_the_bias_of_the_rare(folder, ill):
    seeded(918)
    edges = (torch.rand(200, 200) < 0.02).float().triu(1)
    edges = edges + edges.T + torch.eye(200)
    net, x = Neighbours(edges / edges.sum(1, keepdim=True)), torch.randn(200, 8)
    for layer in net.layers[:] if ill else net.layers[-1:]:
        nn.init.constant_(layer.bias, -4.6)
    strange = (net.near @ x[:, :2]).square().sum(1)
    y = (strange > strange.quantile(0.85)).float()

    def loss_of(step):
        return F.binary_cross_entropy_with_logits(net(x), y)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 250)


class Patches(nn.Module):
    """A small ViT whose head compares by cosines."""

    def __init__(self, scale, width=32):
        super().__init__()
        self.cut = nn.Conv2d(1, width, 2, stride=2)
        self.first = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.kinds, self.scale = nn.Parameter(torch.randn(10, width)), scale

    def forward(self, x):
        h = self.cut(x[:, None]).flatten(2).transpose(1, 2)
        h = torch.cat([self.first.expand(len(h), 1, -1), h], 1) + self.place
        h = self.encoder(h)[:, 0]
        return F.normalize(h.float(), dim=1) @ F.normalize(self.kinds, dim=1).T * self.scale


@sick(
    "temperature-too-high", "no-progress", "logits-bounded",
    where="the head, all steps: cosines over 10 give logits between -0.1 and 0.1, the loss stays above 2.1",
    cure="cosines times 10: the temperature is 0.1",
)  # fmt: skip
def patches_compared_by_a_tenth_of_a_cosine(folder, ill):
    seeded(919)
    net, (images, kinds) = Patches(0.1 if ill else 10.0), digits()

    def loss_of(step):
        at = torch.randint(len(images), (32,))
        with torch.autocast("cpu", torch.bfloat16):
            said = net(images[at])
        return F.cross_entropy(said.float(), kinds[at])

    make = optim.AdamW(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 250)
    return fit(folder, net, make, loss_of, 250, schedule=plan)
