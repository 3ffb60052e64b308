"""Sick trainings drawn by lot, mistakes of models, losses and data: readers, residuals, tables, adapters."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, rings, score_of, seeded, sick
from unseen.tasks import in_turn


class Encoder(nn.Module):
    """Tokens to a number per token and kind: a small transformer, read from both sides or from the left alone."""

    def __init__(self, vocabulary, kinds, width=32, length=16, depth=2, causal=False):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(0.5 * torch.randn(length, width))
        layers = [
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, norm_first=True, batch_first=True)
            for _ in range(depth)
        ]
        self.blocks = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, kinds)
        self.causal = causal

    def forward(self, tokens):
        h = self.embed(tokens) + self.place[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]) if self.causal else None
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=self.causal)
        return self.head(self.norm(h))


def adversaries(folder, make, judge, of_make, of_judge, real, losses, noise, steps, score, rounds=1):
    """Two networks in turn: `real()` draws what is true, `losses` are the judge's of both kinds and the maker's."""
    judge_loss, make_loss = losses

    def judged():
        x = real()
        return judge_loss(judge(x), judge(make(torch.randn(len(x), noise)).detach()))

    def made():
        return make_loss(judge(make(torch.randn(64, noise))))

    return in_turn(folder, make, judge, of_make, of_judge, judged, made, steps, score, rounds)


# ------------------------------------------------------------------------------------------- 1: recurrence x contrast


class Melody(nn.Module):
    """A GRU over sequences of unlike lengths and the projection of what it remembers, for InfoNCE."""

    def __init__(self, at_the_end):
        super().__init__()
        self.rnn = nn.GRU(4, 32, batch_first=True)
        self.project = dense(32, 32, 16)
        self.at_the_end = at_the_end

    def forward(self, x, length):
        out, _ = self.rnn(x)
        state = out[:, -1] if self.at_the_end else out[torch.arange(len(x)), length - 1]
        return F.normalize(self.project(state), dim=1)


@sick(
    "vanishing", "dead-layer", "state-read-after-padding", "padding-read-as-data",
    where="rnn, all steps: its gradients are lost on the way through forty-odd steps of zeros",
    cure="read the state at each sequence's own last step (or pack the sequences), not at the padded end",
)  # fmt: skip
def two_hearings_of_a_melody_of_any_length(folder, ill):
    seeded(701)
    net, rows, width = Melody(ill), 32, 56

    def loss_of(step):
        tune = torch.randn(rows, 4).repeat(2, 1)
        length = torch.randint(5, 12, (2 * rows,))
        x = tune[:, None] + 0.4 * torch.randn(2 * rows, width, 4)
        x = x * (torch.arange(width) < length[:, None])[..., None]
        a, b = net(x, length).chunk(2)
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(rows))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 150)


# ---------------------------------------------------------------------------------------- 2: residuals x distillation


class Branch(nn.Module):
    def __init__(self, width, normed):
        super().__init__()
        self.norm = nn.LayerNorm(width) if normed else nn.Identity()
        self.widen, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        for layer in (self.widen, self.narrow):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return x + self.narrow(self.widen(self.norm(x)).relu())


@sick(
    "bad-initialisation", "exploding", "missing-normalisation", "activations-grow-with-depth",
    where="all blocks, from the first step: each of the twenty branches multiplies what goes in",
    cure="a LayerNorm before each branch and before the head (or the last layer of each branch begun at zero)",
)  # fmt: skip
def twenty_branches_that_follow_a_teacher(folder, ill):
    seeded(702)
    draw = rings()
    teacher = dense(12, 64, 64, 4)
    taught = optim.Adam(teacher.parameters(), 5e-3)
    of_teacher = entropy_of(teacher, draw)
    for step in range(200):
        taught.zero_grad()
        of_teacher(step).backward()
        taught.step()
    teacher.requires_grad_(False)
    blocks = [Branch(24, not ill) for _ in range(20)]
    last = nn.Identity() if ill else nn.LayerNorm(24)
    student = nn.Sequential(nn.Linear(12, 24), *blocks, last, nn.Linear(24, 4))

    def loss_of(step, heat=2.0):
        x, _ = draw()
        said = F.log_softmax(student(x) / heat, 1)
        return heat**2 * F.kl_div(said, F.log_softmax(teacher(x) / heat, 1), reduction="batchmean", log_target=True)

    make = optim.AdamW(student.parameters(), 1e-3)
    return fit(folder, student, make, loss_of, 200, score=score_of(loss_of))


# ----------------------------------------------------------------------------------------- 4: temperature x triplets


@sick(
    "temperature-too-small", "lr-too-high", "update-too-large", "exploding", "saturated",
    where="all layers, from the first steps: cosines over a thousandth are handed to the softplus",
    cure="a temperature of 0.1: at 0.001 the loss and its gradients are a hundredfold and all or nothing",
)  # fmt: skip
def triplets_whose_cosines_count_a_thousandfold(folder, ill):
    seeded(704)
    net, draw = dense(12, 64, 64, 8), rings(96, classes=6)

    def at(temperature):
        def loss_of(step):
            x, y = draw()
            found = F.normalize(net(x), dim=1)
            alike = (y[:, None] == y).float()
            others = alike - torch.eye(len(y))
            friend = torch.multinomial(others + 1e-9, 1)[:, 0]
            stranger = torch.multinomial(1 - alike + 1e-9, 1)[:, 0]
            nearness = (found * found[friend]).sum(1) - (found * found[stranger]).sum(1)
            return F.softplus(-nearness / temperature).mean()

        return loss_of

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, make, at(0.001 if ill else 0.1), 300, score=score_of(at(0.1)))


# ------------------------------------------------------------------------------------ 5: imbalance x masked language


def forms(rows=64, length=16, kinds=4):
    """Forms that are nearly empty: zeros, and now and then a run of numbers that count on."""
    begins = torch.rand(rows, length) < 0.02
    goes_on = torch.rand(rows, length) < 0.5
    which = torch.randint(1, kinds + 1, (rows, length))
    columns = [torch.zeros(rows, dtype=torch.long)]
    for i in range(length):
        before = columns[-1]
        on = (before > 0) & goes_on[:, i]
        fresh = torch.where(begins[:, i], which[:, i], 0)
        columns.append(torch.where(on, before % kinds + 1, fresh))
    return torch.stack(columns[1:], 1)


@sick(
    "class-imbalance",
    where="head, all steps: 96 of 100 targets are the empty cell",
    cure="weights against the frequencies in the cross-entropy (or mask and count written cells more often)",
)  # fmt: skip
def hidden_cells_of_nearly_empty_forms(folder, ill):
    seeded(705)
    net = Encoder(6, 5)
    weights = None if ill else torch.tensor([1.0] + [25.0] * 4)

    def hide():
        tokens = forms()
        hidden = torch.rand(tokens.shape) < 0.3
        return net(tokens.masked_fill(hidden, 5))[hidden], tokens[hidden]

    def loss_of(step):
        found, wanted = hide()
        return F.cross_entropy(found, wanted, weight=weights)

    def missed():
        """The share of the written cells that are not found."""
        with torch.no_grad():
            found, wanted = zip(*(hide() for _ in range(12)), strict=True)
        found, wanted = torch.cat(found).argmax(1), torch.cat(wanted)
        return float((found != wanted)[wanted > 0].float().mean())

    return fit(folder, net, optim.AdamW(net.parameters(), 3e-3), loss_of, 250, score=missed)


# -------------------------------------------------------------------------------------- 6: unscaled attention x LoRA


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * self.b(self.a(x))


class Lookup(nn.Module):
    """One question to a dozen entries, by attention."""

    def __init__(self, size=8, width=64):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(size, width) for _ in range(3))
        self.out = nn.Linear(width, size)
        self.scale = None

    def forward(self, question, keys, values):
        q, k, v = self.q(question[:, None]), self.k(keys), self.v(values)
        return self.out(F.scaled_dot_product_attention(q, k, v, scale=self.scale))[:, 0]


@sick(
    "attention-unscaled", "attention-logits-grow", "attention-collapsed", "saturated",
    where="q and k, from the first step of the tuning: all of the attention lies on one entry",
    cure="divide the products by the root of the width, as the pretrained weights expect it",
)  # fmt: skip
def lookup_tuned_after_it_was_rewritten(folder, ill):
    seeded(706)
    net = Lookup()
    turn = torch.linalg.qr(torch.eye(8) + 0.25 * torch.randn(8, 8)).Q

    def error(way):
        def loss_of(step):
            question, keys, values = torch.randn(64, 8), torch.randn(64, 12, 8), torch.randn(64, 12, 8)
            share = (0.7 * (keys @ (question @ way)[..., None])[..., 0]).softmax(1)
            return F.mse_loss(net(question, keys, values), (share[..., None] * values).sum(1))

        return loss_of

    before, known = optim.Adam(net.parameters(), 3e-3), error(torch.eye(8))
    for step in range(500):
        before.zero_grad()
        known(step).backward()
        before.step()
    net.requires_grad_(False)
    net.q, net.v = LoRALinear(net.q), LoRALinear(net.v)
    if ill:
        net.scale = 1.0
    trained = [p for p in net.parameters() if p.requires_grad]
    return fit(folder, net, optim.AdamW(trained, 2e-3), error(turn), 300)


# ------------------------------------------------------------------------------------------ 7: one wild column x GAN


@sick(
    "inputs-not-normalised", "targets-not-normalised", "columns-on-unlike-scales",
    where="the first layer of the judge and the last of the maker, all steps: the income is in whole units of money",
    cure="standardise each column before the judge sees it, and undo it on what the maker makes",
)  # fmt: skip
def households_made_up_with_their_incomes(folder, ill):
    seeded(707)
    mix = torch.randn(3, 4)
    middle = torch.tensor([0.0, 0.0, 3000.0, 0.0]) if ill else torch.zeros(4)
    spread = torch.tensor([1.0, 1.0, 800.0, 1.0]) if ill else torch.ones(4)
    make, judge = dense(6, 48, 48, 4), dense(4, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))

    def real(rows=64):
        x = (torch.randn(rows, 3) @ mix).tanh() + 0.1 * torch.randn(rows, 4)
        return middle + spread * x

    def far():
        """How far mean and spread of the columns are from the true ones, in their own units."""
        with torch.no_grad():
            made, true = (make(torch.randn(1024, 6)) - middle) / spread, (real(1024) - middle) / spread
            return float(((made.mean(0) - true.mean(0)).abs() + (made.std(0) - true.std(0)).abs()).mean())

    losses = (lambda yes, no: F.softplus(-yes).mean() + F.softplus(no).mean(), lambda said: F.softplus(-said).mean())
    of_make = optim.Adam(make.parameters(), 5e-4, betas=(0.5, 0.99))
    of_judge = optim.Adam(judge.parameters(), 2e-3, betas=(0.5, 0.99))
    return adversaries(folder, make, judge, of_make, of_judge, real, losses, 6, 450, far)
