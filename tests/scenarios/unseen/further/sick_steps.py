"""Sick trainings of the group `further`: the step, first part (accumulation, decay, what is frozen, epsilon, clips)."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick

# ------------------------------------------------------------------------------------------- one fruit, two filters


@sick(
    "loss-not-averaged", "lr-too-high", "update-too-large",
    where="all layers, all steps: gradients are eight times those of one batch",
    cure="divide the loss of each of the eight micro-batches by eight",
)  # fmt: skip
def fruit_seen_through_two_filters(folder, ill):
    """Contrastive views in eight micro-batches, of which the gradients are added up and not averaged."""
    seeded(2020)
    net, lifts = dense(24, 96, 96, 16), torch.randn(2, 5, 24)

    def loss_of(step, parts=1):
        fruit = torch.randn(32, 5)
        a, b = (F.normalize(net((fruit @ lift).sin() + 0.2 * torch.randn(32, 24)), dim=1) for lift in lifts)
        alike = a @ b.T / 0.1
        at = torch.arange(32)
        return 0.5 * (F.cross_entropy(alike, at) + F.cross_entropy(alike.T, at)) / parts

    def part_of(step):
        return loss_of(step, 1 if ill else 8)

    make = optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)
    return fit(folder, net, make, part_of, 150, score=score_of(loss_of), accumulate=8)


# -------------------------------------------------------------------------------------------- a ferry in a current


@sick(
    "weight-decay-too-strong", "weights-shrink",
    where="all layers, from the first steps on", cure="AdamW, which the decay of 0.1 was meant for, in place of Adam",
)  # fmt: skip
def ferry_steered_across_a_current(folder, ill):
    """REINFORCE. The decay of an AdamW recipe was given to Adam, whose decay is a part of the gradient."""
    seeded(2021)
    net = dense(3, 48, 48, 3, act=nn.Tanh)
    kind = optim.Adam if ill else optim.AdamW
    make = kind(net.parameters(), 3e-3, weight_decay=0.1)

    def cross(boats=64, length=10):
        """Log-probabilities `[T, B]` and rewards `[T, B]` of boats that should come to land near 0."""
        at, drift = 2 * torch.rand(boats) - 1, 0.12 * (2 * torch.rand(boats) - 1)
        said, paid = [], []
        for t in range(length):
            chance = torch.distributions.Categorical(
                logits=net(torch.stack([at, 8 * drift, torch.full((boats,), t / length)], 1))
            )
            way = chance.sample()
            at = at + drift + 0.2 * (way - 1) + 0.02 * torch.randn(boats)
            said.append(chance.log_prob(way))
            paid.append(-at.abs())
        return torch.stack(said), torch.stack(paid)

    def loss_of(step):
        said, paid = cross()
        to_go = paid.flip(0).cumsum(0).flip(0)
        gain = to_go - to_go.mean(1, keepdim=True)
        return -(said * gain / (gain.std() + 1e-6)).mean(), {"return": float(paid.sum(0).mean())}

    def score():
        with torch.no_grad():
            return -float(cross(512)[1].sum(0).mean())

    return fit(folder, net, make, loss_of, 200, score=score)


# ------------------------------------------------------------------------------------------ words and what they are


class Tagger(nn.Module):
    """Names each word by what stands on both sides of it."""

    def __init__(self, words=40, kinds=5):
        super().__init__()
        self.embed = nn.Embedding(words, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, kinds)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0])


@sick(
    "not-in-optimizer",
    where="embed and lstm, from step 50 on, when they are thawed", cure="the optimizer takes all parameters at once",
)  # fmt: skip
def verbs_and_nouns_in_both_directions(folder, ill):
    """The head first, with the rest frozen; the optimizer was made of what needed gradients then."""
    seeded(2022)
    net, kind = Tagger(), torch.randint(5, (40,))
    body = [*net.embed.parameters(), *net.lstm.parameters()]
    for p in body:
        p.requires_grad_(False)
    held = [p for p in net.parameters() if p.requires_grad] if ill else net.parameters()
    make = optim.SGD(held, 0.5, momentum=0.9)

    def loss_of(step):
        if step == 50:
            for p in body:
                p.requires_grad_(True)
        x = torch.randint(40, (24, 9))
        known = kind[x]
        tag = (known + (F.pad(known, (1, 0))[:, :-1] > 2).long()) % 5
        out = net(x)
        hits = float((out.argmax(2) == tag).float().mean())
        return F.cross_entropy(out.flatten(0, 1), tag.flatten()), {"accuracy": hits}

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    score = score_of(lambda step: loss_of(-1)[0])
    return fit(folder, net, make, loss_of, 400, before_step=clip, score=score)


# ------------------------------------------------------------------------------------------------ a hum in a recording


class Mask(nn.Module):
    """How much of each of 32 bands is to be kept, by three frames."""

    def __init__(self, bands=32):
        super().__init__()
        self.body = dense(3 * bands, 128, 128, bands)

    def forward(self, loud):
        return self.body(loud.clamp(min=1e-3).log().flatten(1)).sigmoid()


@sick(
    "bad-initialisation",
    where="all layers, at the first step", cure="leave the weights as PyTorch draws them (or Kaiming's)",
)  # fmt: skip
def hum_taken_out_of_a_recording(folder, ill):
    """A mask over bands. The weights of all layers are drawn anew with a deviation of one."""
    seeded(2023)
    net = Mask()
    if ill:
        for layer in net.body:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight)
                nn.init.zeros_(layer.bias)
    bands = torch.arange(32.0)

    def loss_of(step):
        pitch, hum = 4 + 12 * torch.rand(64, 1), 3 + 26 * torch.rand(64, 1)
        voice = sum((-0.5 * (bands - pitch * k).square()).exp() / k for k in (1, 2, 3))
        clean = voice[:, None] * (0.5 + torch.rand(64, 3, 1))
        noisy = clean + (-0.2 * (bands - hum).square()).exp()[:, None] + 0.1 * torch.rand(64, 3, 32)
        return F.mse_loss(net(noisy) * noisy[:, 1], clean[:, 1])

    return fit(folder, net, optim.RAdam(net.parameters(), 1e-3), loss_of, 400, score=score_of(loss_of))


# ------------------------------------------------------------------------------------------------------------- knocks


@sick(
    "below-epsilon",
    where="all layers, all steps", cure="Adam's epsilon of 1e-8, not 0.1",
)  # fmt: skip
def knocks_on_wood_and_metal(folder, ill):
    """A GRU over 12 frames. The epsilon is from a recipe for images."""
    seeded(2024)
    net = nn.ModuleDict({"gru": nn.GRU(16, 32, batch_first=True), "head": nn.Linear(32, 4)})
    pitch, length = torch.tensor([3.0, 5.0, 9.0, 12.0]), torch.tensor([2.0, 6.0, 2.0, 6.0])
    bands, times = torch.arange(16.0), torch.arange(12.0)

    def loss_of(step):
        kind = torch.randint(4, (48,))
        tone = (-0.3 * (bands - (pitch[kind] + torch.randn(48))[:, None]).square()).exp()
        fade = (-times / (length[kind] * (0.7 + 0.6 * torch.rand(48)))[:, None]).exp()
        heard = 2 * fade[:, :, None] * tone[:, None] + 0.4 * torch.randn(48, 12, 16)
        out = net["head"](net["gru"](heard)[0][:, -1])
        return F.cross_entropy(out, kind), {"accuracy": float((out.argmax(1) == kind).float().mean())}

    make = optim.Adam(net.parameters(), 2e-3, eps=0.1 if ill else 1e-8)
    return fit(folder, net, make, loss_of, 300, score=score_of(lambda step: loss_of(step)[0]))


# -------------------------------------------------------------------------------------------------------------- ponds


class Ponds(nn.Module):
    """Down to a quarter and up again, with a way past."""

    def __init__(self, width=12):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.low = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x):
        wide = self.first(x).relu()
        low = self.low(self.down(wide).relu()).relu()
        return self.last(torch.cat([wide, self.up(low).relu()], 1))[:, 0]


@sick(
    "loss-not-averaged", "clip-is-your-learning-rate", "lr-too-high",
    where="all layers, all steps: each is clipped and as long as the last", cure="the mean over pixels, not their sum",
)  # fmt: skip
def ponds_on_an_aerial_photo(folder, ill):
    """The loss is summed over all pixels, so the clip of norm at 1 binds at every step."""
    seeded(2025)
    net, at = Ponds(), torch.arange(16.0)

    def draw(batch=12):
        spot, size = 3 + 10 * torch.rand(2, batch, 1), 2 + 2 * torch.rand(batch, 1, 1)
        far = (at - spot[0]).square()[:, :, None] + (at - spot[1]).square()[:, None]
        pond = (far < size.square()).float()
        tint = torch.tensor([-0.3, 0.1, 0.6])[None, :, None, None]
        return pond[:, None] * tint + 0.5 * torch.randn(batch, 3, 16, 16), pond

    def loss_of(step):
        x, pond = draw()
        return F.binary_cross_entropy_with_logits(net(x), pond, reduction="sum" if ill else "mean")

    held = draw(64)

    def score():
        with torch.no_grad():
            return float(F.binary_cross_entropy_with_logits(net(held[0]), held[1]))

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    make = optim.SGD(net.parameters(), 0.5, momentum=0.9)
    return fit(folder, net, make, loss_of, 300, score=score, before_step=clip)
