"""Sick trainings from public threads: speech, schedules, pretraining, segmentation, GANs and mixed precision."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, score_of, seeded, sick
from unseen.tasks import clipped, held_out

import gradwatch


class Listener(nn.Module):
    """Two layers over the frames with a clipped rectifier, a recurrence both ways, and syllables with a blank."""

    def __init__(self, syllables=5, width=32):
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, width)
        self.memory = nn.LSTM(width, width, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, syllables + 1)

    def forward(self, frames):
        heard = self.second(self.first(frames).clamp(0, 20)).clamp(0, 20)
        return self.head(self.memory(heard)[0]).log_softmax(2)


def calls(rows, sounds):
    """Calls of four syllables, each held for four to six frames, with a breath between them."""
    said = torch.randint(len(sounds), (rows, 4))
    at = torch.arange(24)[None, :, None] - torch.arange(4) * 6 - torch.randint(2, (rows, 1, 4))
    held = ((at >= 0) & (at < 4)).float()
    return held @ sounds[said] + 0.3 * torch.randn(rows, 24, sounds.shape[1]), said + 1


# https://github.com/mozilla/DeepSpeech/issues/258
@sick("lr-too-high", "update-too-large", where="all layers, from the first steps on; the loss falls at first and then "
      "stays far above what the rate of a tenth reaches", cure="a tenth of the learning rate or less")  # fmt: skip
def calls_of_a_night_bird(folder, ill):
    seeded(2644)
    net, sounds = Listener(), torch.randn(5, 8)
    optimizer = torch.optim.Adam(net.parameters(), 0.2 if ill else 0.01)
    fixed = calls(128, sounds)

    def loss_on(frames, said):
        rows, length = len(said), frames.shape[1]
        sizes = torch.full((rows,), length), torch.full((rows,), 4)
        return F.ctc_loss(net(frames).transpose(0, 1), said, *sizes, reduction="mean")

    def loss_of(step):
        return loss_on(*calls(24, sounds))

    score = score_of(lambda step: loss_on(*fixed), 1)
    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Pair(nn.Module):
    """What turns noise into points of a shore, and what tells them from the real ones."""

    def __init__(self):
        super().__init__()
        self.make = dense(4, 48, 48, 2)
        self.judge = dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))


def shore(rows):
    place = 6 * torch.rand(rows, 1) - 3
    return torch.cat([place / 1.5, place.mul(1.5).sin()], 1) + 0.05 * torch.randn(rows, 2)


def apart(one, other):
    """The energy distance of two clouds of points."""
    return float(2 * torch.cdist(one, other).mean() - torch.cdist(one, one).mean() - torch.cdist(other, other).mean())


# https://github.com/Hsintien-Ng/idinvert_pytorch-reproduced/issues/2
@sick("gradients-accumulate", where="the discriminator, at all steps: its gradients are never zeroed, those of the "
      "generator's loss among them, and its outputs grow", cure="zero the discriminator's gradients before its "
      "backward pass")  # fmt: skip
def shoreline_of_an_island(folder, ill):
    seeded(2645)
    net, real = Pair(), shore(512)
    of_make = torch.optim.Adam(net.make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(net.judge.parameters(), 2e-3, betas=(0.5, 0.999))
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net.make, of_make)}

    def score():
        with torch.no_grad():
            return apart(net.make(torch.randn(512, 4)), real)

    first = score()
    w_judge = gradwatch.watch(net.judge, of_judge, name="D", **options)
    w_make = gradwatch.watch(net.make, of_make, name="G", run=w_judge, **options)
    with w_judge, w_make:
        for _ in range(600):
            if not ill:
                of_judge.zero_grad()
            true, false = net.judge(shore(64)), net.judge(net.make(torch.randn(64, 4)).detach())
            d_loss = F.softplus(-true).mean() + F.softplus(false).mean()
            d_loss.backward()
            of_judge.step()
            w_judge.log(loss=d_loss, true=true.mean(), false=false.mean())
            of_make.zero_grad()
            g_loss = F.softplus(-net.judge(net.make(torch.randn(64, 4)))).mean()
            g_loss.backward()
            of_make.step()
            w_make.log(loss=g_loss)
    return Outcome(gradwatch.open_history(w_judge.dir.parent), first, score())


class Writer(nn.Module):
    """A small GPT of one block: which token comes next."""

    def __init__(self, tokens=16, length=12, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 64, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        states = self.words(tokens) + self.places.weight[:length]
        return self.head(self.norm(self.block(states, src_mask=mask)))


def knots(rows, next_of):
    """Instructions for a knot: each move follows from the last one, with a slip now and then."""
    moves = [torch.randint(len(next_of), (rows,))]
    for _ in range(12):
        slip = torch.randint(len(next_of), (rows,))
        moves.append(torch.where(torch.rand(rows) < 0.1, slip, next_of[moves[-1]]))
    return torch.stack(moves, 1)


# https://github.com/Lightning-AI/pytorch-lightning/issues/9599
@sick("clip-before-unscale", "clip-is-your-learning-rate", "update-too-small", where="all layers, at all steps: the "
      "gradients are clipped to 1 while they are scaled by 65536", cure="unscale the optimizer's gradients before they "
      "are clipped")  # fmt: skip
def instructions_for_knots(folder, ill):
    seeded(2646)
    net, next_of = Writer(), torch.randperm(16)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    scaler, clip, fixed = torch.amp.GradScaler("cpu"), clipped(net, 1.0), knots(256, next_of)

    def loss_on(moves):
        return F.cross_entropy(net(moves[:, :-1]).transpose(1, 2), moves[:, 1:])

    def before_step(step):
        if not ill:
            scaler.unscale_(optimizer)
        clip(step)

    def loss_of(step):
        return loss_on(knots(32, next_of))

    score = score_of(lambda step: loss_on(fixed), 1)
    return fit(folder, net, optimizer, loss_of, 350, score=score, scaler=scaler, before_step=before_step)


class Reader(nn.Module):
    """A small BERT over two sentences: which tokens were masked, and whether the second follows the first."""

    def __init__(self, tokens=20, length=12, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.parts = nn.Embedding(2, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.next, self.mask_lm = nn.Linear(width, 2), nn.Linear(width, tokens)

    def forward(self, tokens):
        part = (torch.arange(tokens.shape[1]) >= tokens.shape[1] // 2).long()
        states = self.encoder(self.words(tokens) + self.places.weight + self.parts(part))
        return self.next(states.mean(1)).log_softmax(1), self.mask_lm(states).log_softmax(2)


def verses(rows):
    """Two half verses, the second of the same rhyme or not; one token in seven is masked, others have the label 0."""
    follows, rhyme = torch.randint(2, (rows,)), torch.randint(3, (rows, 1))
    second = torch.where(follows[:, None] == 1, rhyme, (rhyme + torch.randint(1, 3, (rows, 1))) % 3)
    tokens = torch.cat([rhyme, second], 1).repeat_interleave(6, 1) * 6 + 2 + torch.randint(6, (rows, 12))
    masked = torch.rand(rows, 12) < 0.15
    return tokens.masked_fill(masked, 1), follows, tokens * masked


# https://github.com/codertimo/BERT-pytorch/issues/32
@sick("labels-ignored", "class-imbalance", where="the head for the next sentence: pairs with the label 0 are left out "
      "of its loss, which goes to nothing while the accuracy stays at a half", cure="a criterion of its own, which "
      "ignores no index, for the next sentence")  # fmt: skip
def half_verses_that_follow(folder, ill):
    seeded(2647)
    net = Reader()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, betas=(0.9, 0.999), weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    criterion = nn.NLLLoss(ignore_index=0)
    of_pairs = criterion if ill else nn.NLLLoss()

    def loss_of(step):
        tokens, follows, labels = verses(32)
        pair, named = net(tokens)
        next_loss, mask_loss = of_pairs(pair, follows), criterion(named.transpose(1, 2), labels)
        right = (pair.argmax(1) == follows).float().mean()
        return next_loss + mask_loss, {"next_loss": next_loss, "mask_loss": mask_loss, "avg_acc": right}

    def score():
        with torch.no_grad():
            tokens, follows, _ = verses(512)
            return float((net(tokens)[0].argmax(1) != follows).float().mean())

    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=warm)


class Contour(nn.Module):
    """A small U-Net whose last layer ends in a sigmoid, or not."""

    def __init__(self, ends_in_sigmoid):
        super().__init__()
        self.enter, self.down = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 24, 3, 2, 1)
        self.up, self.leave = nn.ConvTranspose2d(24, 12, 2, 2), nn.Conv2d(24, 1, 3, padding=1)
        self.norm, self.ends_in_sigmoid = nn.BatchNorm2d(12), ends_in_sigmoid

    def mask(self, x):
        wide = self.norm(self.enter(x)).relu()
        return self.leave(torch.cat([wide, self.up(self.down(wide).relu())], 1))

    def forward(self, x):
        d1 = self.mask(x)
        return d1.sigmoid() if self.ends_in_sigmoid else d1


def lakes(rows):
    """Satellite tiles of 16 by 16 pixels with one dim round lake, and where it lies."""
    at, grid = 3 + 10 * torch.rand(rows, 2, 1, 1), torch.arange(16.0)
    inside = ((grid[:, None] - at[:, :1]) ** 2 + (grid - at[:, 1:]) ** 2) < 6
    return inside.float() + 0.6 * torch.randn(rows, 1, 16, 16), inside.float()


# https://github.com/avBuffer/UNet3plus_pth/issues/23
@sick("softmax-twice", "sigmoid-twice", "logits-bounded", where="the last layer: its sigmoid goes into a loss that "
      "takes logits and cannot fall below 0.69 on the background", cure="no sigmoid at the end of the net")  # fmt: skip
def lakes_on_satellite_tiles(folder, ill):
    seeded(2648)
    net = Contour(ill)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    tiles, fixed = lakes(256)

    def loss_of(step):
        x, mask = lakes(12)
        return F.binary_cross_entropy_with_logits(net(x), mask)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net.mask(tiles), fixed))
    return fit(folder, net, optimizer, loss_of, 400, score=score)
