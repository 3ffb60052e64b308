"""Trainings whose mistakes people asked about in public, each on another subject."""

import torch
from nets import batches
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import in_turn


class SplitSoftmax(nn.Module):
    """Common words and one stand-in for each group of rare words first; then the word within its group."""

    def __init__(self, width, ends):
        super().__init__()
        self.ends = ends
        self.group_vectors = nn.Parameter(torch.zeros(len(ends) - 1, width))
        self.group_bias = nn.Parameter(torch.zeros(len(ends) - 1))

    def forward(self, decoder, hidden, wanted):
        words = decoder(hidden)
        groups = F.linear(hidden, self.group_vectors, self.group_bias)
        first = torch.cat([words[:, : self.ends[0]], groups], 1).log_softmax(1)
        found = first[:, : self.ends[0]]
        parts = [found]
        for k, (begin, end) in enumerate(zip(self.ends[:-1], self.ends[1:], strict=True)):
            parts.append(first[:, self.ends[0] + k, None] + words[:, begin:end].log_softmax(1))
        return F.nll_loss(torch.cat(parts, 1), wanted)


# https://github.com/salesforce/awd-lstm-lm/issues/30
@sick(
    "not-in-optimizer",
    where="group_vectors and group_bias of the criterion, all steps",
    cure="give the optimizer the parameters of the criterion as well as those of the model",
)
def spices_for_a_dish_and_a_season(folder, ill):
    seeded(9201)
    table = torch.randint(52, (24, 4))
    model = nn.ModuleDict(
        {
            "dish": nn.Embedding(24, 24),
            "season": nn.Embedding(4, 24),
            "body": dense(24, 48, 32),
            "words": nn.Linear(32, 52),
        }
    )
    net = nn.ModuleDict({"model": model, "criterion": SplitSoftmax(32, [6, 16, 28, 40, 52])})
    learnt = model.parameters() if ill else net.parameters()
    optimizer = torch.optim.Adam(learnt, lr=4e-3)

    def loss_of(step):
        dish, season = torch.randint(24, (64,)), torch.randint(4, (64,))
        other = torch.randint(52, (64,))
        spice = torch.where(torch.rand(64) < 0.9, table[dish, season], other)
        hidden = model["body"](model["dish"](dish) + model["season"](season))
        return net["criterion"](model["words"], hidden, spice)

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


# https://github.com/orybkin/sigma-vae-pytorch/pull/12
@sick(
    "posterior-collapse",
    where="the encoder's mean and log variance, from the first hundred steps on",
    cure="sum the squared errors over the pixels of an image, as the divergence is summed over its codes",
)
def tiles_of_a_bathhouse_floor(folder, ill):
    seeded(9202)
    across = torch.linspace(-1, 1, 10)
    net = nn.ModuleDict({"encode": dense(100, 96, 12), "decode": dense(6, 96, 100)})

    def tiles(rows=64):
        phase, wide, tilt = 6.28 * torch.rand(rows, 1, 1), 2 + 2 * torch.rand(rows, 1, 1), torch.rand(rows, 1, 1)
        ripple = (wide * (tilt * across[None, :, None] + (1 - tilt) * across[None, None, :]) + phase).sin()
        return (ripple + 0.1 * torch.randn(rows, 10, 10)).flatten(1)

    def loss_of(step):
        x = tiles()
        mean, log_var = net["encode"](x).chunk(2, 1)
        drawn = mean + (log_var / 2).exp() * torch.randn_like(mean)
        made = net["decode"](drawn)
        rebuilt = F.mse_loss(made, x) if ill else F.mse_loss(made, x, reduction="sum") / len(x)
        kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
        return rebuilt + kl, {"reconstruction": rebuilt, "kl": kl}

    def error(step):
        x = tiles()
        return F.mse_loss(net["decode"](net["encode"](x)[:, :6]), x)

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=2e-3), loss_of, 700, score=score_of(error))


# https://github.com/soumith/cudnn.torch/issues/377
@sick(
    "nonfinite",
    where="the weights of all layers, after the first steps of Adam",
    cure="an eps of Adam that float16 can hold, 1e-4 for one, or weights in float32",
)
def moths_told_by_their_wings(folder, ill):
    seeded(9203)
    kinds = torch.randn(6, 20)
    net = dense(20, 48, 48, 6).half()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-8 if ill else 1e-4)

    def loss_of(step):
        kind = torch.randint(6, (64,))
        angle = kinds[kind] + 0.7 * torch.randn(64, 20)
        wings = torch.where(angle.sum(1, keepdim=True) > 0, angle, -angle.roll(3, 1))
        return F.cross_entropy(net(wings.half()).float(), kind)

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))


# https://github.com/LeeDoYup/DeblurGAN-tf/issues/11
@sick(
    "nonfinite",
    where="the critic, at the first batch with a point at which it is flat",
    cure="a small number under the square root of the gradient penalty",
)
def buoys_in_two_harbours(folder, ill):
    seeded(9204)
    make, critic = dense(4, 48, 48, 2), dense(2, 24, 24, 1)
    of_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.5, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))

    def buoys(rows=64):
        harbour = torch.randint(2, (rows, 1)).float()
        return torch.cat([3 * harbour - 1.5, 1.5 - harbour], 1) + 0.3 * torch.randn(rows, 2)

    def penalty(real, fake):
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        squares = slope.square().sum(1)
        norm = squares.sqrt() if ill else (squares + 1e-8).sqrt()
        return (norm - 1).square().mean()

    def critic_loss():
        real, fake = buoys(), make(torch.randn(64, 4)).detach()
        return critic(fake).mean() - critic(real).mean() + 5 * penalty(real, fake)

    def make_loss():
        return -critic(make(torch.randn(64, 4))).mean()

    def score():
        with torch.no_grad():
            real, fake = buoys(400), make(torch.randn(400, 4))
            apart = (
                torch.cdist(real, fake).mean() - torch.cdist(real, real).mean() / 2 - torch.cdist(fake, fake).mean() / 2
            )
        return float(apart.nan_to_num(torch.inf))

    return in_turn(folder, make, critic, of_make, of_critic, critic_loss, make_loss, 300, score, rounds=3)


# https://stats.stackexchange.com/revisions/2bda6552-783b-4fb7-ba2b-a03d2266e69b/view-source
@sick(
    "dead-layer",
    "targets-out-of-range",
    where="all layers, every step: the gradient is zero because the last operation gives one whatever it is given",
    cure="a sigmoid instead of a softmax over a single unit",
)
def fines_at_the_ticket_gate(folder, ill):
    seeded(9205)
    net = nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 1), nn.Softmax(dim=1) if ill else nn.Sigmoid())

    def loss_of(step):
        marks = torch.randint(2, (64, 9)).float()
        fined = ((marks[:, :3].sum(1) > 1) ^ (marks[:, 3] * marks[:, 4] > 0)).float()
        said = net(marks)[:, 0]
        accuracy = ((said > 0.5) == (fined > 0.5)).float().mean()
        return F.binary_cross_entropy(said, fined), {"accuracy": accuracy}

    def score():
        with torch.no_grad():
            return sum(1 - float(loss_of(0)[1]["accuracy"]) for _ in range(20)) / 20

    return fit(folder, net, torch.optim.RMSprop(net.parameters(), lr=3e-3), loss_of, 800, score=score)


def squash(s):
    size = s.square().sum(-1, keepdim=True)
    return size / (1 + size) * s / (size + 1e-7).sqrt()


class Capsules(nn.Module):
    def __init__(self, std):
        super().__init__()
        self.conv = nn.Conv2d(1, 32, 3, stride=2)
        self.primary = nn.Conv2d(32, 32, 2)
        self.transform = nn.Parameter(std * torch.randn(16, 10, 8, 8))

    def forward(self, x):
        x = self.primary(F.relu(self.conv(x[:, None])))
        low = squash(x.reshape(len(x), 4, 8, 4).transpose(2, 3).reshape(len(x), 16, 8))
        votes = torch.einsum("nij,bni->bnj", self.transform.permute(0, 2, 1, 3).reshape(16, 8, 80), low)
        votes = votes.unflatten(2, (10, 8))
        weight = torch.zeros(votes.shape[:3])
        for _ in range(2):
            high = squash((weight.softmax(2)[..., None] * votes).sum(1))
            weight = weight + (votes * high[:, None]).sum(3)
        return (high.square().sum(2) + 1e-7).sqrt()


# https://github.com/ageron/handson-ml/pull/176
@sick(
    "bad-initialisation",
    where="the transform between the capsules, which began far too small",
    cure="a standard deviation of 0.1 or more for the transform",
)
def meter_dials_read_by_capsules(folder, ill):
    seeded(9206)
    net = Capsules(0.01 if ill else 0.3)
    batch = batches(32, 9206)

    def loss_of(step):
        x, y = batch(step)
        length, wanted = net(x), F.one_hot(y, 10)
        present, absent = (0.9 - length).relu().square(), (length - 0.1).relu().square()
        return (wanted * present + 0.5 * (1 - wanted) * absent).sum(1).mean()

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 240, score=score_of(loss_of))
