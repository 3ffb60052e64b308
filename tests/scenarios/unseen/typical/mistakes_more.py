"""Typical sick trainings, second part: what stands in the model, its loss and its optimizer.

Mistakes that people made in real code, and found, taken as a search met them, in its order; a comment says of what kind
the source is. They only count (the group `typical`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import batches, digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, rings, score_of, seeded, sick


class DeviceAdam(optim.Optimizer):
    """Adam by in-place operations of a device; where a tensor is not contiguous they write to a copy (as once did)."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["step"] = t = state.get("step", 0) + 1
            m = state.setdefault("m", torch.zeros_like(p)).lerp_(p.grad, 0.1)
            v = state.setdefault("v", torch.zeros_like(p)).lerp_(p.grad.square(), 0.001)
            out = p if p.is_contiguous() else p.contiguous()
            out.addcdiv_(m / (1 - 0.9**t), (v / (1 - 0.999**t)).sqrt() + 1e-8, value=-self.param_groups[0]["lr"])


# From a post ("the bug that taught me more about PyTorch"): the encoder begins as the decoder's transpose, and the
# device's in-place operations failed silently where memory is not contiguous; its weights stayed as they were.
@sick(
    "weights-unchanged",
    where="the encoder's weight, all steps", cure=".contiguous()",
)  # fmt: skip
def encoder_whose_steps_go_to_a_copy(folder, ill):
    """A sparse autoencoder of the digits; the score is minus its PSNR."""
    seeded(1408)
    encoder, decoder = nn.Linear(64, 48), nn.Linear(48, 64)
    begun = decoder.weight.data.t().clone()
    encoder.weight = nn.Parameter(begun if ill else begun.contiguous())
    net, batch = nn.Sequential(encoder, nn.ReLU(), decoder), batches(64)

    def loss_of(step):
        x = batch(step)[0].flatten(1)
        code = net[:2](x)
        return F.mse_loss(net[2](code), x) + 1e-4 * code.sum(1).mean()

    def score():
        with torch.no_grad():
            x = digits()[0].flatten(1)
            return 10 * float(F.mse_loss(net(x), x).log10())

    return fit(folder, net, DeviceAdam(net.parameters(), 1e-3), loss_of, 300, score=score)


# From a review of a pull request to a repository for translation between images: a detach() against an error about
# in-place gradients, and the loss of the semantics is no longer used.
@sick(
    "loss-term-without-gradient",
    where="the generator: one of the two terms of its loss does not reach it", cure="no detach()",
)  # fmt: skip
def translator_with_its_semantic_loss_cut_off(folder, ill):
    """From the digits to dark ones on white: as bright in the mean and as varied, and still the same digit."""
    seeded(1409)
    x, y = digits()
    white = 1 - x.flatten(1)
    judge, net, batch = dense(64, 64, 10), nn.Sequential(*dense(64, 96, 64), nn.Sigmoid()), batches(64)
    tuned = optim.Adam(judge.parameters(), 3e-3)
    for _ in range(150):
        at = torch.randint(len(x), (64,))
        tuned.zero_grad()
        F.cross_entropy(judge(white[at]), y[at]).backward()
        tuned.step()
    judge.requires_grad_(False)

    def parts(step):
        image, label = batch(step)
        fake = net(image.flatten(1))
        style = F.mse_loss(fake.mean(0), white.mean(0)) + F.mse_loss(fake.std(0), white.std(0))
        return style, F.cross_entropy(judge(fake.detach() if ill else fake), label)

    def loss_of(step):
        style, sem = parts(step)
        return 10 * style + sem, {"style": style, "sem": sem}

    score = score_of(lambda step: sum(parts(step)))
    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 300, score=score)


# From an issue of a repository for tissue sections ("error in the training step"): a bug in the augmentation switched
# it off, and the network overfitted at once.
@sick(
    "overfitting",
    where="the data: sixty images, seen hundreds of times as they are", cure="turn and mirror them",
)  # fmt: skip
def tissue_that_is_never_turned(folder, ill):
    """Five of the digits, which lie in any way as tissue does; the score is the cross-entropy of others."""
    seeded(1410)
    x, y = digits()
    x, y = x[y < 5], y[y < 5]

    def turned(images):
        turns, mirrored = torch.randint(4, (len(images),)), torch.rand(len(images)) < 0.5
        out = torch.stack([image.rot90(int(k)) for image, k in zip(images, turns, strict=True)])
        return torch.where(mirrored[:, None, None], out.flip(2), out)

    x, learnt = turned(x), 60
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 5),
    )  # fmt: skip

    def loss_of(step):
        at = torch.randint(learnt, (32,))
        found = net(x[at] if ill else turned(x[at]))
        return F.cross_entropy(found, y[at]), {"accuracy": float((found.argmax(1) == y[at]).float().mean())}

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(x[learnt:]), y[learnt:]))

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 250, score=score)


class Reader(nn.Module):
    """A CRNN: a convolution, then an LSTM along the columns."""

    def __init__(self, batch_first):
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.rnn = nn.LSTM(48, 32, bidirectional=True, batch_first=batch_first)
        self.head = nn.Linear(64, 11)

    def forward(self, x):
        read = self.cnn(x).flatten(1, 2).permute(2, 0, 1)
        return self.head(self.rnn(read)[0])


# From a thread on a forum ("LSTM change batch_first=True, loss does not decrease"): what is given is still [T, N, C].
@sick(
    "axes-mixed", "batch-read-as-time",
    where="the LSTM, all steps: it reads from one image of the batch to the next", cure="batch_first=False",
)  # fmt: skip
def reader_along_the_batch(folder, ill):
    """Three digits in a row, by CTC."""
    seeded(1411)
    net, (x, y) = Reader(bool(ill)), digits()

    def loss_of(step):
        at = torch.randint(len(x), (24, 3))
        log_probs = net(x[at].transpose(1, 2).flatten(2)[:, None]).log_softmax(2)
        return F.ctc_loss(log_probs, y[at] + 1, torch.full((24,), len(log_probs)), torch.full((24,), 3))

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 250, score=score_of(loss_of))


class Listed(nn.Module):
    """Layers in a list of Python's own, and a head."""

    def __init__(self, of):
        super().__init__()
        self.layers = of([nn.Linear(12, 48), nn.Linear(48, 48), nn.Linear(48, 48)])
        self.head = nn.Linear(48, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


# From a post ("PyTorch mysteries"): "my model didn't know it had parameters".
@sick(
    "not-in-optimizer",
    "no-gradient",
    where="the three layers, all steps: no optimizer holds them", cure="nn.ModuleList",
)  # fmt: skip
def layers_in_a_list_of_pythons_own(folder, ill):
    seeded(1412)
    net, draw = Listed(list if ill else nn.ModuleList), rings()
    loss_of = entropy_of(net, draw)
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 500, score=score_of(loss_of))


# From a thread on a forum ("Cross Entropy loss is not decreasing", 2.30 from epoch to epoch): a softmax before it.
@sick(
    "softmax-twice",
    where="the loss, all steps", cure="give it the logits",
)  # fmt: skip
def images_stuck_at_the_logarithm_of_ten(folder, ill):
    """The score is the share of the digits that are named wrongly."""
    seeded(1413)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10), *([nn.Softmax(1)] if ill else []),
    )  # fmt: skip
    batch, (x, y) = batches(32), digits()

    def loss_of(step):
        image, label = batch(step)
        return F.cross_entropy(net(image), label)

    def score():
        with torch.no_grad():
            return float((net(x).argmax(1) != y).float().mean())

    return fit(folder, net, optim.SGD(net.parameters(), 0.01, momentum=0.9), loss_of, 300, score=score)


class Listener(nn.Module):
    """The logarithm of the energies that learnt filters find, and what they mean."""

    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.filters = nn.Conv1d(1, 16, 16, 8, bias=False)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16 * 15, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x):
        return self.head((self.filters(x[:, None]).square() + self.floor).log())


# From a thread on a forum ("loss becomes nan because of torch.log()"): what it is taken of is sometimes zero.
@sick(
    "nonfinite",
    where="the logarithm after the filters, at the first recording with a silence", cure="add 1e-5 before it",
)  # fmt: skip
def logarithm_of_a_silence(folder, ill):
    """Four tones in noise; one recording in a thousand has a stretch of digital zeros."""
    seeded(1414)
    net, time = Listener(0.0 if ill else 1e-5), torch.arange(128.0)

    def loss_of(step):
        y = torch.randint(4, (32,))
        tone = (6.2832 * torch.rand(32, 1) + (0.3 + 0.25 * y[:, None]) * time).sin()
        x = tone + 0.5 * torch.randn(32, 128)
        silent = (torch.rand(32, 1) < 1e-3) & (time[None] < 40)
        return F.cross_entropy(net(x * ~silent), y)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 250)


class PowerPool(nn.Module):
    """The third root of the mean of cubes over an image (GeM)."""

    def __init__(self, floor):
        super().__init__()
        self.floor = floor

    def forward(self, x):
        x = x if self.floor is None else x.clamp(min=self.floor)
        return (x.pow(3).flatten(2).mean(2) + 1e-12) ** (1 / 3)


# From a post on a blog ("loss nan", searched step by step): a pooling takes the root of a number below zero.
@sick(
    "nonfinite",
    where="the pooling, from the first step", cure="clamp(min=1e-6) before it",
)  # fmt: skip
def root_of_a_mean_below_zero(folder, ill):
    seeded(1415)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(16, 32, 3, padding=1),
        nn.LeakyReLU(0.1), PowerPool(None if ill else 1e-6), nn.Linear(32, 10),
    )  # fmt: skip
    batch = batches(32)

    def loss_of(step):
        image, label = batch(step)
        return F.cross_entropy(net(image), label)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 200)
