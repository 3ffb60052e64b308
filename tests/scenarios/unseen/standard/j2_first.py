"""Schools, classrooms, orchestras and rehearsals: mistakes drawn by lot from forty of memory, the first half."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


class Diary(nn.Module):
    """A GRU over the weeks of a pupil's practice, then one number."""

    def __init__(self, columns, width):
        super().__init__()
        self.rnn = nn.GRU(columns, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, weeks):
        return self.head(self.rnn(weeks)[0][:, -1])


# 5 of the list
@sick("shapes-broadcast", where="the loss, all steps: outputs (N, 1) against targets (N,) make N x N differences",
      cure="squeeze the output")  # fmt: skip
def marks_at_an_audition_by_weeks_of_practice(folder, ill):
    seeded(13600)
    weeks = torch.randn(1600, 10, 3)
    fades = 0.85 ** torch.arange(9, -1, -1).float()
    skill = ((weeks[:, :, 0] + 0.5 * weeks[:, :, 1] * weeks[:, :, 2]) * fades).sum(1)
    mark = skill.mul(0.7).tanh() * 2 + 0.4 * weeks[:, -1, 1] + 0.1 * torch.randn(1600)
    mark = (mark - mark[:1300].mean()) / mark[:1300].std()
    test_x, test_y = weeks[1300:], mark[1300:]
    net = Diary(3, 40)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    batch = rounds(40, weeks[:1300], mark[:1300])

    def said(x):
        return net(x) if ill else net(x).squeeze(1)

    validate = now_and_then(net, 26, lambda: {"val_loss": F.mse_loss(said(test_x), test_y)})

    def loss_of(step):
        x, y = batch()
        return F.mse_loss(said(x), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(test_x).squeeze(1), test_y))
    return fit(folder, net, optimizer, loss_of, 320, score=score, before_step=clipped(net, 1.0))


class Slate(nn.Module):
    """A convolutional variational autoencoder of pictures of 16 x 16."""

    def __init__(self, code):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(512, 64), nn.ReLU(),
        )  # fmt: skip
        self.mu, self.log_var = nn.Linear(64, code), nn.Linear(64, code)
        self.decode = nn.Sequential(
            nn.Linear(code, 512), nn.ReLU(), nn.Unflatten(1, (32, 4, 4)), nn.ConvTranspose2d(32, 16, 4, 2, 1),
            nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x):
        h = self.encode(x)
        mu, log_var = self.mu(h), self.log_var(h)
        z = mu + torch.randn_like(mu) * (0.5 * log_var).exp() if self.training else mu
        return self.decode(z), mu, log_var


# 13 of the list
@sick("posterior-collapse", "posterior-collapsed", "loss-terms-unbalanced", "loss-terms-out-of-balance",
      where="the loss, all steps: the reconstruction is a mean over pixels, the KL a sum over batch and code",
      cure="sum the pixels of each picture, and take the mean of both terms over the batch")  # fmt: skip
def chalk_figures_left_on_the_blackboard(folder, ill):
    seeded(13601)
    grid = torch.linspace(-1, 1, 16)

    def boards(rows):
        at, radius = 0.8 * torch.rand(rows, 2, 1, 1) - 0.4, 0.3 + 0.3 * torch.rand(rows, 1, 1)
        u, v = grid[:, None] - at[:, 0], grid - at[:, 1]
        square = torch.maximum(u.abs(), v.abs())
        round_ = (u.square() + v.square()).sqrt()
        far = torch.where(torch.rand(rows, 1, 1) < 0.5, square, round_)
        return (-((far - radius) / 0.12).square()).exp()[:, None]

    drawn, test = boards(2000), boards(400)
    net = Slate(6)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    batch = rounds(64, drawn)

    def loss_of(step):
        (x,) = batch()
        logits, mu, log_var = net(x)
        kl = -0.5 * (1 + log_var - mu.square() - log_var.exp()).sum()
        if ill:
            error = F.binary_cross_entropy_with_logits(logits, x)
        else:
            error = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x)
            kl = kl / len(x)
        return error + kl, {"recon_loss": error, "kl_loss": kl}

    score = held_out(net, lambda: 10 * F.mse_loss(net(test)[0].sigmoid(), test))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Listener(nn.Module):
    """Convolutions along the time of a spectrogram, then a number for each section of the orchestra."""

    def __init__(self, bands, sections, last):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(bands, 48, 5, padding=2), nn.BatchNorm1d(48), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(48, 64, 3, padding=1), nn.BatchNorm1d(64), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
        )  # fmt: skip
        self.head, self.last = nn.Linear(64, sections), last

    def forward(self, x):
        return self.last(self.head(self.body(x)))


# 24 of the list
@sick("activation-on-logits", "sigmoid-twice", where="the model's last operation and the loss, all steps",
      cure="hand logits to the loss")  # fmt: skip
def sections_that_play_in_a_bar(folder, ill):
    seeded(13602)
    bands, sections, length = 20, 10, 24
    timbre = torch.randn(sections, bands)

    def bars(rows):
        plays = (torch.rand(rows, sections) < 0.2).float()
        begin = torch.randint(length - 6, (rows, sections, 1))
        when = torch.arange(length)
        heard = ((when >= begin) & (when < begin + 6)).float() * plays[:, :, None]
        loud = 0.5 + 0.5 * torch.rand(rows, sections, 1)
        return torch.einsum("nst,sb->nbt", heard * loud, timbre) + 0.7 * torch.randn(rows, bands, length), plays

    x, y = bars(2500)
    test_x, test_y = bars(500)
    net = Listener(bands, sections, nn.Sigmoid() if ill else nn.Identity())
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    batch = rounds(64, x, y)
    over = 0.5 if ill else 0.0

    def f_score(said, y):
        guess = (said > over).float()
        return 2 * (guess * y).sum() / (guess.sum() + y.sum()).clamp(min=1)

    def measure():
        said = net(test_x)
        return {"val_loss": F.binary_cross_entropy_with_logits(said, test_y), "val_f1": f_score(said, test_y)}

    validate = now_and_then(net, 39, measure)

    def loss_of(step):
        a, b = batch()
        return F.binary_cross_entropy_with_logits(net(a), b), validate(step)

    return fit(folder, net, optimizer, loss_of, 312, score=held_out(net, lambda: 1 - f_score(net(test_x), test_y)))


class Ear(nn.Module):
    """An LSTM over frames, with the mean of its states classified."""

    def __init__(self, bands, width, classes):
        super().__init__()
        self.norm = nn.LayerNorm(bands)
        self.rnn = nn.LSTM(bands, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, frames):
        return self.head(self.rnn(self.norm(frames))[0].mean(1))


# 1 of the list
@sick("gradients-accumulate", where="all layers, all steps: the gradients of all batches so far are in the sum",
      cure="zero_grad in each step")  # fmt: skip
def school_bells_told_by_their_ring(folder, ill):
    seeded(13603)
    bells, bands, length = 24, 16, 16
    strike = torch.randn(bells, 3, bands)
    decay = 0.6 + 0.35 * torch.rand(bells, 3)

    def rings(rows):
        y = torch.randint(bells, (rows,))
        fall = decay[y][:, :, None] ** torch.arange(length).float()
        sound = torch.einsum("nkt,nkb->ntb", fall, strike[y])
        return sound + 1.8 * torch.randn(rows, length, bands), y

    x, y = rings(2400)
    test = rings(500)
    net = Ear(bands, 48, bells)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    batch = rounds(48, x, y)
    validate = now_and_then(net, 50, judged(net, *test))

    def loss_of(step):
        a, b = batch()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean(), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, 300, score=score, zero_grad=not ill)


class Pencil(nn.Module):
    """Causal convolutions with gates and ever wider gaps, then the next letter."""

    def __init__(self, letters, width=40):
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(5))
        self.mixes = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(5))
        self.head = nn.Linear(width, letters)

    def forward(self, text):
        x = self.letter(text).transpose(1, 2)
        for i, (gate, mix) in enumerate(zip(self.gates, self.mixes, strict=True)):
            a, b = gate(F.pad(x, (2**i, 0))).chunk(2, 1)
            x = x + mix(a.tanh() * b.sigmoid())
        return self.head(x.transpose(1, 2))


# 3 of the list
@sick("lr-too-high", "update-too-large", where="all layers, from the first steps on", cure="a rate of 0.003")
def notes_the_conductor_pencils_in(folder, ill):
    seeded(13604)
    who, what = ["horns", "violas", "flutes", "timpani"], ["softer", "later", "with the oboe", "on the string"]
    when = ["from bar nine", "at letter c", "to the end"]
    picks = torch.randint(12, (1200, 3)).tolist()
    text = "".join(f"{who[a % 4]} {what[b % 4]} {when[c % 3]}; " for a, b, c in picks)
    letters = sorted(set(text))
    index = {letter: i for i, letter in enumerate(letters)}
    text = torch.tensor([index[letter] for letter in text])
    train, test = text[:-1600], text[-1600:].view(40, 40)
    net = Pencil(len(letters))
    optimizer = torch.optim.Adam(net.parameters(), 0.1 if ill else 3e-3)

    def loss_on(rows):
        return F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    validate = now_and_then(net, 50, lambda: {"val_loss": loss_on(test)})

    def loss_of(step):
        begin = torch.randint(len(train) - 40, (16, 1))
        loss = loss_on(train[begin + torch.arange(40)])
        return loss, {"perplexity": loss.detach().exp(), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: loss_on(test)))


# 38 of the list
@sick("optimizer-state-lost", "moments-begin-anew",
      where="every four steps: each epoch begins with a fresh Adam, whose moments are nothing",
      cure="keep the optimizer's state over the epochs")  # fmt: skip
def minutes_that_pupils_linger_at_their_lockers(folder, ill):
    seeded(13605)
    way = torch.randn(5, 4) / 2
    asked = torch.randn(1168, 5)
    minutes = (asked @ way).sin().sum(1, keepdim=True)
    minutes = (minutes - minutes[:768].mean()) / minutes[:768].std()
    test_x, test_y = asked[768:], minutes[768:]
    net = dense(5, 64, 64, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 2e-2)
    per_epoch = 4
    batch = rounds(768 // per_epoch, asked[:768], minutes[:768])
    validate = now_and_then(net, 5 * per_epoch, lambda: {"val_rmse": F.mse_loss(net(test_x), test_y).sqrt()})
    fresh = copy.deepcopy(optimizer.state_dict())

    def one(step):
        if ill and step % per_epoch == 0:
            optimizer.load_state_dict(fresh)
        x, y = batch()
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": float(loss.detach()), **validate(step)}

    return tend(folder, net, optimizer, one, 480, held_out(net, lambda: F.mse_loss(net(test_x), test_y).sqrt()))
