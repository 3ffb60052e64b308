"""Asked sick trainings, third part: models, how they begin, and agents.

They only count (the group `asked`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import batches, classify
from torch import nn, optim
from torch.func import functional_call
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.asked.sick_losses import Spread


# "VGG16 Model and Performace on Cifar-10" (without its norms: 10 %), github.com/kuangliu/pytorch-cifar/issues/28
@sick(
    "vanishing", "bad-initialisation", "no-progress", "update-too-small",
    where="the first convolutions, all steps: each layer hands on a smaller signal", cure="a norm behind each",
)  # fmt: skip
def thirteen_convolutions_without_their_norms(folder, ill):
    seeded(541)
    parts = [nn.Unflatten(1, (1, 8))]
    for i in range(13):
        parts += [nn.Conv2d(12 if i else 1, 12, 3, padding=1), *([] if ill else [nn.BatchNorm2d(12)]), nn.ReLU()]
        parts += [nn.MaxPool2d(2)] if i in (4, 8) else []
    net = nn.Sequential(*parts, nn.Flatten(), nn.Linear(48, 10))
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    return fit(folder, net, make, classify(net, batches(48)), 150)


# "Initialize with torch.rand may result in unstable training", github.com/AdaptInfer/Contextualized/issues/33
@sick(
    "bad-initialisation", "initialised-too-large", "saturated", "vanishing", "no-progress",
    where="all layers, from the first step: no weight is below zero, and every unit at its end",
    cure="weights around zero, of a deviation of one over the root of the inputs",
)  # fmt: skip
def weights_between_zero_and_one(folder, ill):
    seeded(542)
    net = nn.Sequential(nn.Flatten(), *dense(64, 48, 48, 48, 10, act=nn.Tanh))
    if ill:
        for p in net.parameters():
            nn.init.uniform_(p)
    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), classify(net, batches(64)), 250)


class PowerMean(nn.Module):
    """A mean of a power that is learned, over the places of an image (GeM, Radenovic et al. 2018)."""

    def __init__(self, least):
        super().__init__()
        self.power, self.least = nn.Parameter(torch.tensor(3.0)), least

    def forward(self, x):
        return x.clamp(min=self.least).pow(self.power).mean((2, 3)).pow(1 / self.power)


# "make clamp range of PowerMeanAggregation adjustable" (a least value of 0 makes p NaN after several forwards),
# github.com/pyg-team/pytorch_geometric/pull/10366
@sick(
    "nonfinite",
    where="the pooling, at the first image in which a channel is zero everywhere", cure="a least value of 1e-4",
)  # fmt: skip
def power_mean_of_nothing(folder, ill):
    seeded(545)
    net = nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
                        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), PowerMean(0.0 if ill else 1e-4),
                        nn.Linear(16, 10))  # fmt: skip
    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), classify(net, batches(48)), 250)


# "Model cannot converge problem" (two layers do, seven do not), github.com/lightaime/deep_gcns_torch/issues/10
@sick(
    "vanishing", "no-progress", "bad-initialisation",
    where="all layers: after ten means every node is alike", cure="a way around each layer",
)  # fmt: skip
def ten_means_over_neighbours(folder, ill):
    net = Spread(12, 32, 6, 10, seed=546, around=not ill)
    way = torch.randn(12, 6)

    def loss_of(step):
        x = torch.randn(160, 12)
        return F.cross_entropy(net(x), (x @ way).argmax(1))

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 200)


# "Extractor in vit_pytorch will detach the tensor", github.com/lucidrains/CoCa-pytorch/issues/6
@sick(
    "no-gradient", "dead-layer", "weights-unchanged",
    where="the tower of the images, all steps", cure="no detach between a tower and its loss",
)  # fmt: skip
def tower_of_images_cut_off(folder, ill):
    """Images and captions of one thing, which are to find one another in a batch of 48."""
    seeded(547)
    net = nn.ModuleDict({"image": dense(16, 4, 32, 8), "caption": dense(16, 32, 8)})
    lifts = torch.randn(4, 16), torch.randn(4, 16)

    def loss_of(step):
        thing = torch.randn(48, 4)
        image, caption = net["image"]((thing @ lifts[0]).tanh()), net["caption"]((thing @ lifts[1]).tanh())
        image = image.detach() if ill else image
        return F.cross_entropy(F.normalize(image, dim=1) @ F.normalize(caption, dim=1).T / 0.1, torch.arange(48))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300)


# "A bug in the implementation" (an error that is clamped, and then squared),
# github.com/devsisters/DQN-tensorflow/issues/16
@sick(
    "dead-layer", "no-progress", "vanishing", "weights-unchanged",
    where="all layers, all steps: an error above 1 gives no gradient", cure="Huber's loss: the gradient is clamped",
)  # fmt: skip
def error_clamped_before_its_square(folder, ill):
    seeded(548)
    net, best = dense(6, 48, 4), torch.randn(6, 4)
    slow = copy.deepcopy(net).requires_grad_(False)

    def loss_of(step):
        if step % 25 == 0:
            slow.load_state_dict(net.state_dict())
        state, following = torch.randn(64, 6), torch.randn(64, 6)
        action = torch.randint(4, (64, 1))
        paid = 8 + (state @ best).gather(1, action)
        wanted = paid + 0.5 * slow(following).amax(1, keepdim=True)
        error = net(state).gather(1, action) - wanted
        return error.clamp(-1, 1).square().mean() if ill else F.huber_loss(error, torch.zeros_like(error))

    def score():
        state = torch.randn(512, 6)
        paid = state @ best
        return float((paid.amax(1) - paid.gather(1, net(state).argmax(1, keepdim=True))[:, 0]).mean())

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400, score=score)


# "DDPG action saturation" (normalise the states), github.com/ZhihanLee/DDPG_Learning/issues/2
@sick(
    "saturated", "inputs-not-normalised", "vanishing",
    where="the actor's tanh, from the first steps: states in the hundreds drive it to its ends",
    cure="states of mean 0 and deviation 1",
)  # fmt: skip
def actor_at_its_ends(folder, ill):
    seeded(549)
    net = nn.ModuleDict({"actor": nn.Sequential(dense(4, 48, 48, 2), nn.Tanh()), "critic": dense(6, 48, 48, 1)})
    way = 0.5 * torch.randn(4, 2)

    def paid(state, action):
        return -(action - (state @ way).tanh() * 0.8).square().sum(1)

    def loss_of(step):
        state, action = torch.randn(96, 4), 2 * torch.rand(96, 2) - 1
        seen = 300 * state if ill else state
        said = net["critic"](torch.cat([seen, action], 1))[:, 0]
        fixed = {name: p.detach() for name, p in net["critic"].named_parameters()}
        of_mine = functional_call(net["critic"], fixed, torch.cat([seen, net["actor"](seen)], 1))
        with torch.no_grad():
            gain = paid(state, net["actor"](seen)).mean()
        return F.mse_loss(said, paid(state, action)) - of_mine.mean(), {"return": gain}

    def score():
        state = torch.randn(512, 4)
        with torch.no_grad():
            return -float(paid(state, net["actor"](300 * state if ill else state)).mean())

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 500, score=score, higher_is_better={"return": True})


# "NaN's if a single observation is sampled from PPO's rollout_buffer",
# github.com/DLR-RM/stable-baselines3/issues/325
@sick(
    "nonfinite",
    where="the loss, at the first part of one row: one row has no deviation", cure="no part of a single row",
)  # fmt: skip
def advantage_of_a_single_row(folder, ill):
    seeded(550)
    net, way = nn.ModuleDict({"actor": dense(3, 32, 1, act=nn.Tanh)}), torch.randn(3)
    net.register_parameter("log", nn.Parameter(torch.zeros(())))
    waiting: list[tuple[torch.Tensor, ...]] = []

    def chosen(state):
        return torch.distributions.Normal(net["actor"](state)[:, 0], net.log.exp(), validate_args=False)

    def play():
        """As many rows as the episodes took, in parts of 32."""
        state = torch.randn(int(torch.randint(90, 135, ())), 3)
        with torch.no_grad():
            kind = chosen(state)
            action = kind.mean + kind.stddev * torch.randn(len(state))
            paid = -(action - (state @ way).tanh()).square()
            parts = [t.split(32) for t in (state, action, kind.log_prob(action), paid)]
        waiting.extend(part for part in zip(*parts, strict=True) if ill or len(part[0]) > 1)

    def loss_of(step):
        if not waiting:
            play()
        state, action, said, paid = waiting.pop(0)
        kind = chosen(state)
        ratio = (kind.log_prob(action) - said).exp()
        better = (paid - paid.mean()) / (paid.std() + 1e-8)
        loss = -torch.minimum(ratio * better, ratio.clamp(0.8, 1.2) * better).mean()
        return loss, {"return": paid.mean()}

    def score():
        state = torch.randn(512, 3)
        with torch.no_grad():
            return float((net["actor"](state)[:, 0] - (state @ way).tanh()).square().mean() + (2 * net.log).exp())

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 500, score=score, higher_is_better={"return": True})


# "MLP can't learn XOR", github.com/keras-team/keras/issues/1295
@sick(
    "update-too-small", "no-progress", "vanishing",
    where="all layers, all steps", cure="a hundredfold rate, with momentum",
)  # fmt: skip
def exclusive_or_at_a_hundredth(folder, ill):
    seeded(551)
    net = nn.Sequential(dense(2, 4, 1, act=nn.Sigmoid), nn.Sigmoid())
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = torch.tensor([[0.0], [1.0], [1.0], [0.0]])
    make = optim.SGD(net.parameters(), 0.01 if ill else 1.0, momentum=0.0 if ill else 0.9)
    loss = score_of(lambda step: F.binary_cross_entropy(net(x), y), 1)
    return fit(folder, net, make, lambda step: F.binary_cross_entropy(net(x), y), 1500, score=loss)
