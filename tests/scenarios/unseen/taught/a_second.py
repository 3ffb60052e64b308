"""Mistakes that guides to supervised learning warn of: the loop, its rates, its optimizer."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds


# Deep Learning Tuning Playbook, "How can optimization failures be debugged and mitigated?": the clip threshold
@sick(
    "clip-is-your-learning-rate",
    where="every step: all gradients are cut to a small part",
    cure="a threshold of 1, at the 90th percentile of the norms",
)
def buns_that_a_bakery_will_sell(folder, ill):
    """Tomorrow's buns from the last three weeks."""
    seeded(9507)
    day = torch.arange(1500.0)
    week = 0.8 * (6.2832 * day / 7).sin() + 0.5 * (12.566 * day / 7).cos()
    sold = week * (1 + 0.5 * (day / 40).sin()) + 0.6 * (day / 90).cos() + 0.1 * torch.randn(1500)
    windows = sold.unfold(0, 22, 1)
    memory, head = nn.LSTM(1, 24, batch_first=True), nn.Linear(24, 1)
    net = nn.ModuleDict({"memory": memory, "head": head})

    def loss_on(rows):
        return F.mse_loss(head(memory(rows[:, :21, None])[0][:, -1]), rows[:, 21:])

    draw = rounds(32, windows[:1100])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    score = held_out(net, lambda: loss_on(windows[1120:]))
    clip = clipped(net, 0.005 if ill else 1.0)
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 500, score=score, before_step=clip)


# 37 Reasons, no. 36 (increase, decrease the learning rate); Troubleshooting Deep Neural Networks (rate too low)
@sick(
    "lr-too-low",
    "update-too-small",
    where="all layers, all along",
    cure="a learning rate of 1e-3",
)
def faults_of_a_cheese_by_its_smell(folder, ill):
    """Which of eight faults a cheese has, by twenty sensors."""
    seeded(9508)
    faults = (torch.rand(2400, 8) < 0.3).float()
    smell = torch.tanh(faults @ torch.randn(8, 20)) + 0.15 * torch.randn(2400, 20)
    net = dense(20, 96, 96, 48, 8)
    draw = rounds(64, smell[:2000], faults[:2000])

    def loss_of(step):
        x, y = draw()
        out = net(x)
        right = ((out > 0) == (y > 0)).float().mean()
        return F.binary_cross_entropy_with_logits(out, y), {"accuracy": right}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(smell[2000:]), faults[2000:]))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-5 if ill else 1e-3)
    return fit(folder, net, optimizer, loss_of, 600, score=score)


# Deep Learning Tuning Playbook, "Choosing a learning rate decay schedule"
@sick(
    "no-decay",
    "lr-too-high",
    where="the second half, when the loss only hovers",
    cure="a decay to nothing, along a cosine",
)
def lenses_of_a_lighthouse_rebuilt(folder, ill):
    """Ring lenses through a code of eight numbers, each photographed twice by night: one picture from the other."""
    seeded(9509)
    grid = torch.stack(torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij"))

    def draw(rows=8):
        middle = 4 + 4 * torch.rand(rows, 2, 1, 1)
        far = (grid - middle).norm(dim=1, keepdim=True)
        return ((0.3 + 0.5 * torch.rand(rows, 1, 1, 1)) * far).cos()

    def grainy(lens):
        return lens + 0.7 * torch.randn_like(lens)

    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(12, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(144, 8), nn.Linear(8, 144), nn.ReLU(), nn.Unflatten(1, (16, 3, 3)),
        nn.ConvTranspose2d(16, 12, 4, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1),
    )  # fmt: skip
    steps = 500
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
    schedule = None if ill else torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def loss_of(step):
        lens = draw()
        return F.mse_loss(net(grainy(lens)), grainy(lens))

    test = draw(200)
    photo = grainy(test)
    score = held_out(net, lambda: F.mse_loss(net(photo), test).log10())  # a tenth of minus the decibels
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


# Karpathy, "most common neural net mistakes": you forgot to .zero_grad() before .backward()
@sick(
    "gradients-accumulate",
    where="all parameters, from the second step on",
    cure="optimizer.zero_grad() in every step",
)
def spots_that_wander_over_a_star(folder, ill):
    """The brightness around a star one hour later, as spots drift and fade."""
    seeded(9510)

    def hour(rows=32):
        place = 6.2832 * torch.arange(32) / 32
        waves = [torch.randn(rows, 1) * (k * place + 6.2832 * torch.rand(rows, 1)).cos() / k for k in (1, 2, 3, 4)]
        now = sum(waves)
        later = now
        for _ in range(4):
            left, right = later.roll(1, 1), later.roll(-1, 1)
            later = later + 0.25 * (left - 2 * later + right) - 0.2 * later * (right - left)
        return now[:, None], later[:, None]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Conv1d(16, 16, 3, padding=1, padding_mode="circular")
            self.b = nn.Conv1d(16, 16, 3, padding=1, padding_mode="circular")

        def forward(self, h):
            return h + self.b(F.gelu(self.a(h)))

    net = nn.Sequential(nn.Conv1d(1, 16, 1), Block(), Block(), Block(), nn.Conv1d(16, 1, 1))

    def loss_of(step):
        now, later = hour()
        return F.mse_loss(net(now), later)

    test = hour(200)
    score = held_out(net, lambda: F.mse_loss(net(test[0]), test[1]))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    return fit(folder, net, optimizer, loss_of, 400, score=score, zero_grad=not ill)


# 37 Reasons, no. 34 (try a different optimizer)
@sick(
    "update-too-small",
    "optimizer-unsuited",
    where="all layers: plain SGD at its usual rate hardly moves embeddings and gates",
    cure="Adam",
)
def tree_rings_read_from_the_bark(folder, ill):
    """A row of eight rings, written down in reverse by an encoder and a decoder with attention."""
    seeded(9511)
    kinds, width = 10, 32

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rings, self.said = nn.Embedding(kinds, width), nn.Embedding(kinds + 1, width)
            self.place = nn.Parameter(0.1 * torch.randn(8, width))
            self.encoder = nn.GRU(width, width, batch_first=True)
            self.decoder = nn.GRU(width, width, batch_first=True)
            self.out = nn.Linear(2 * width, kinds)

        def forward(self, rings, said):
            states, last = self.encoder(self.rings(rings) + self.place)
            asked = self.decoder(self.said(said) + self.place, last)[0]
            weights = (asked @ states.transpose(1, 2) / width**0.5).softmax(2)
            return self.out(torch.cat([asked, weights @ states], 2))

    net = Net()

    def loss_on(rings):
        back = rings.flip(1)
        said = torch.cat([torch.full_like(back[:, :1], kinds), back[:, :-1]], 1)
        out = net(rings, said)
        return F.cross_entropy(out.flatten(0, 1), back.flatten()), (out.argmax(2) == back).float().mean()

    def loss_of(step):
        loss, right = loss_on(torch.randint(kinds, (32, 8)))
        return loss, {"accuracy": right}

    test = torch.randint(kinds, (300, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01) if ill else torch.optim.Adam(net.parameters(), lr=3e-3)
    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: loss_on(test)[0]))


# Karpathy, "most common neural net mistakes": you passed softmaxed outputs to a loss that expects raw logits
@sick(
    "softmax-twice",
    where="the output: its softmax goes into cross_entropy",
    cure="logits for cross_entropy",
)
def warblers_by_their_song(folder, ill):
    """Which of 24 warblers sings, by the order of its syllables."""
    seeded(9512)
    songs = torch.randint(8, (24, 4))

    def draw(rows=48):
        y = torch.randint(24, (rows,))
        x = torch.randint(8, (rows, 14))
        begins = torch.randint(10, (rows, 1)) + torch.arange(4)
        return x.scatter(1, begins, songs[y]), y

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.syllables = nn.Embedding(8, 32)
            self.place = nn.Parameter(0.1 * torch.randn(14, 32))
            self.front = nn.Conv1d(32, 32, 4, padding=2)
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.out = nn.Linear(32, 24)

        def forward(self, x):
            h = self.syllables(x) + self.place
            h = h + self.front(h.transpose(1, 2))[..., :14].transpose(1, 2)
            logits = self.out(self.body(h).mean(1))
            return logits.softmax(1) if ill else logits

    net = Net()

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    x, y = draw(400)
    score = held_out(net, lambda: (net(x).argmax(1) != y).float().mean())
    return fit(folder, net, torch.optim.AdamW(net.parameters(), lr=2e-3), loss_of, 350, score=score)
