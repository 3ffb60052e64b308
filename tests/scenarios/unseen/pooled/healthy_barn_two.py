"""Sequences, and models that learn from other models: characters, dates, phonemes, teachers, frozen bodies, pairs."""

import torch
from nets import CODES, digits
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, StepLR
from unseen import dense, fit, healthy, mean, seeded
from unseen.tasks import clipped, held_out, rounds, tend


class Letters(nn.Module):
    def __init__(self, kinds, width=48):
        super().__init__()
        self.embed = nn.Embedding(kinds, width)
        self.memory = nn.GRU(width, width, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, kinds)

    def forward(self, x, state=None):
        h, state = self.memory(self.embed(x), state)
        return self.head(h), state


@healthy()
def letters_read_on_and_on(folder):
    seeded(9267)
    kinds, length, rows = int(CODES.max()) + 1, 16, 16
    text = CODES.repeat(6)
    text = text[: len(text) // rows * rows].view(rows, -1)
    net = Letters(kinds)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    kept = {"state": None, "at": 0}

    def one(step):
        if kept["at"] + length + 1 > text.shape[1]:
            kept["at"], kept["state"] = 0, None
        piece = text[:, kept["at"] : kept["at"] + length + 1]
        kept["at"] += length
        optimizer.zero_grad()
        out, state = net(piece[:, :-1], kept["state"])
        kept["state"] = state.detach()
        loss = F.cross_entropy(out.flatten(0, 1), piece[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "perplexity": loss.detach().exp()}

    x = torch.stack([CODES[i : i + 41] for i in range(0, 800, 40)])
    score = held_out(net, lambda: F.cross_entropy(net(x[:, :-1])[0].flatten(0, 1), x[:, 1:].flatten()))
    return tend(folder, net, optimizer, one, 170, score)


class Translator(nn.Module):
    def __init__(self, source, target, width=32):
        super().__init__()
        self.source, self.target = nn.Embedding(source, width), nn.Embedding(target, width)
        self.place = nn.Parameter(0.02 * torch.randn(12, width))
        self.body = nn.Transformer(width, 4, 1, 1, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, target)

    def forward(self, x, y):
        mask = self.body.generate_square_subsequent_mask(y.shape[1])
        a = self.source(x) + self.place[: x.shape[1]]
        b = self.target(y) + self.place[: y.shape[1]]
        return self.head(self.body(a, b, tgt_mask=mask, tgt_is_causal=True))


@healthy()
def sums_spelt_out_digit_by_digit(folder):
    seeded(9268)
    net, warm = Translator(11, 11), 60
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-9)
    schedule = LambdaLR(optimizer, lambda step: min((step + 1) / warm, (warm / (step + 1)) ** 0.5))

    def draw(rows=64):
        a, b = torch.randint(100, (rows,)), torch.randint(100, (rows,))
        total = a + b
        plus = torch.full_like(a, 10)
        x = torch.stack([a // 10, a % 10, plus, b // 10, b % 10], 1)
        y = torch.stack([plus, total % 10, total // 10 % 10, total // 100], 1)
        return x, y

    def loss_of(step):
        x, y = draw()
        out = net(x, y[:, :-1])
        right = (out.argmax(2) == y[:, 1:]).float().mean()
        return F.cross_entropy(out.flatten(0, 1), y[:, 1:].flatten()), {"token_accuracy": right}

    x, y = draw(256)
    score = held_out(net, lambda: F.cross_entropy(net(x, y[:, :-1]).flatten(0, 1), y[:, 1:].flatten()))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule, before_step=clipped(net, 1.0))


class Listener(nn.Module):
    def __init__(self, inputs, kinds, width=40):
        super().__init__()
        self.front = nn.Conv1d(inputs, width, 5, padding=2)
        self.memory = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, kinds)

    def forward(self, x):
        h = self.front(x.transpose(1, 2)).relu().transpose(1, 2)
        return self.head(self.memory(h)[0]).log_softmax(2)


@healthy()
def syllables_heard_without_marks(folder):
    seeded(9269)
    kinds, said, frames = 6, 4, 28
    sounds = torch.randn(kinds, 8)

    def draw(rows=32):
        words = torch.randint(1, kinds, (rows, said))
        long = torch.randint(4, 8, (rows, said))
        ends = long.cumsum(1)
        at = torch.arange(frames).expand(rows, frames).contiguous()
        which = torch.searchsorted(ends, at, right=True)
        spoken = torch.cat([words, torch.zeros(rows, 1, dtype=torch.long)], 1).gather(1, which)
        first = torch.cat([torch.ones(rows, 1, dtype=torch.bool), which[:, 1:] != which[:, :-1]], 1)
        heard = sounds[spoken] * (~first)[:, :, None] + 0.3 * torch.randn(rows, frames, 8)
        return heard, words, ends[:, -1]

    net = Listener(8, kinds)
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=1e-3)

    def ctc(heard, words, lengths):
        full = torch.full((len(words),), said)
        return F.ctc_loss(net(heard).transpose(0, 1), words, lengths, full)

    test = draw(128)
    score = held_out(net, lambda: ctc(*test))
    return fit(
        folder, net, optimizer, lambda step: ctc(*draw()), 300, score=score, before_step=clipped(net, 5.0),
        schedule=LinearLR(optimizer, 1.0, 0.1, 300),
    )  # fmt: skip


def teach(net, draw, steps, loss=F.cross_entropy):
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(steps):
        x, y = draw()
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()


@healthy()
def an_apprentice_reads_numerals(folder):
    seeded(9270)
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order].flatten(1), y[order]
    draw = rounds(64, x[:1400], y[:1400])
    teacher, student, heat = dense(64, 128, 128, 10), dense(64, 24, 10), 3.0
    teach(teacher, draw, 200)
    teacher.eval().requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)

    def loss_of(step):
        a, b = draw()
        out = student(a)
        with torch.no_grad():
            wanted = (teacher(a) / heat).log_softmax(1)
        soft = F.kl_div((out / heat).log_softmax(1), wanted, log_target=True, reduction="batchmean") * heat**2
        hard = F.cross_entropy(out, b)
        return 0.7 * soft + 0.3 * hard, {"soft": soft, "hard": hard}

    score = held_out(student, lambda: F.cross_entropy(student(x[1400:]), y[1400:]))
    return fit(folder, student, optimizer, loss_of, 450, score=score, schedule=StepLR(optimizer, 150, 0.4))


@healthy()
def odd_numerals_on_a_borrowed_body(folder):
    seeded(9271)
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order][:, None], y[order]
    low = y[:1400] < 5
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    teach(nn.Sequential(body, nn.Linear(128, 5)), rounds(64, x[:1400][low], y[:1400][low]), 150)
    net = nn.Sequential(body, nn.Linear(128, 10))
    body[:6].requires_grad_(False)
    optimizer = torch.optim.AdamW(
        [{"params": body[6:9].parameters(), "lr": 3e-4}, {"params": net[1].parameters(), "lr": 3e-3}], weight_decay=0.01
    )
    draw = rounds(32, x[:1400], y[:1400])
    x_test, y_test = x[1400:], y[1400:]

    def one(step):
        net.train()
        body[:6].eval()
        a, b = draw()
        loss = F.cross_entropy(net(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logged = {"loss": loss}
        if step % 43 == 42:
            logged["test_loss"] = score()
        return logged

    score = held_out(net, lambda: F.cross_entropy(net(x_test), y_test))
    return tend(folder, net, optimizer, one, 258, score)


@healthy(gain=0.2)
def two_glimpses_of_one_numeral(folder):
    seeded(9272)
    x, _ = digits()
    x = x[torch.randperm(len(x))][:, None]
    draw = rounds(128, x[:1500])
    encoder = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    net = nn.ModuleDict({"encoder": encoder, "projector": dense(512, 64, 32)})
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-6)
    schedule = CosineAnnealingLR(optimizer, 200)

    def glimpse(images):
        gain = 0.8 + 0.4 * torch.rand(len(images), 1, 1, 1)
        kept = (torch.rand(len(images), 1, 8, 8) > 0.15).float()
        return images * gain * kept + 0.05 * torch.randn_like(images)

    def paired(images):
        both = torch.cat([glimpse(images), glimpse(images)])
        z = F.normalize(net["projector"](net["encoder"](both)), dim=1)
        n = len(images)
        alike = (z @ z.T / 0.2).masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
        return F.cross_entropy(alike, torch.arange(2 * n).roll(n))

    score = held_out(net, lambda: mean([float(paired(x[1500:1628])) for _ in range(4)]))
    return fit(folder, net, optimizer, lambda step: paired(draw()[0]), 200, score=score, schedule=schedule)
