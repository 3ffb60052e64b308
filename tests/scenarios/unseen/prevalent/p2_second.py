"""A reserve, a museum, a brigade, an airport and a bank: camera traps, coins, sensors, gates, beetles, payments."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, in_turn, judged, now_and_then, rounds


# 22 of the list
@sick("no-gradient", where="the body, all steps",
      cure="unfreeze the body once the head has warmed up")  # fmt: skip
def animals_before_the_camera_traps_of_another_park(folder, ill):
    seeded(14206)
    shapes = torch.randn(11, 1, 5, 5)

    def pictures(kind):
        image = 0.5 * torch.randn(len(kind), 1, 12, 12)
        for row, (top, left) in enumerate(torch.randint(8, (len(kind), 2)).tolist()):
            image[row, :, top : top + 5, left : left + 5] += shapes[kind[row]]
        return image

    body = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    )  # fmt: skip
    net = nn.Sequential(body, nn.Linear(32, 3))
    before = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(40):
        kind = torch.randint(3, (32,))
        before.zero_grad()
        F.cross_entropy(net(pictures(kind)), kind).backward()
        before.step()

    y, ty = torch.randint(8, (1200,)), torch.randint(8, (600,))
    x, tx = pictures(y + 3), pictures(ty + 3)
    draw = rounds(32, x, y)
    net[1] = nn.Linear(32, 8)
    body.requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    validate = now_and_then(net, 37, judged(net, tx, ty))

    def loss_of(step):
        if step == 40 and not ill:
            body.requires_grad_(True)
        picture, animal = draw()
        return F.cross_entropy(net(picture), animal), validate(step)

    return fit(folder, net, optimizer, loss_of, 333, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 26 of the list
@sick("generator-starves", "discriminator-too-strong", where="the generator, all steps",
      cure="a discriminator at a tenth of its rate, one step of it for one of the generator's")  # fmt: skip
def forged_coins_for_a_museum_shop(folder, ill):
    seeded(14207)
    lift = torch.randn(2, 6)

    def coins(rows=64):
        angle = 6.2832 * torch.rand(rows)
        return 3 + torch.stack([angle.cos(), angle.sin()], 1) @ lift + 0.1 * torch.randn(rows, 6)

    make, judge = dense(4, 48, 48, 6), dense(6, 64, 64, 1, act=nn.GELU)
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-2 if ill else 1e-3, betas=(0.5, 0.999))

    def judge_loss():
        forged = make(torch.randn(64, 4)).detach()
        return F.softplus(-judge(coins())).mean() + F.softplus(judge(forged)).mean()

    def make_loss():
        """The game of the first paper: the logarithm of one less what the judge says."""
        return F.logsigmoid(-judge(make(torch.randn(64, 4)))).mean()

    real, noise = coins(400), torch.randn(400, 4)

    def score():
        """The energy distance of what is made and what is real."""
        with torch.no_grad():
            made = make(noise)
            across, within = torch.cdist(made, real).mean(), torch.cdist(made, made).mean()
            return float(2 * across - within - torch.cdist(real, real).mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 300, score, rounds=3 if ill else 1)


# 27 of the list
@sick("posterior-collapse", "kl-weight-too-strong", where="the encoder's mean and spread, all steps",
      cure="sum the reconstruction over the features, as the divergence is summed over the code")  # fmt: skip
def codes_for_the_readings_of_smoke_detectors(folder, ill):
    seeded(14208)
    lift = torch.randn(3, 24) / 3**0.5

    def readings(rows):
        return (torch.randn(rows, 3) @ lift * 1.5).tanh() + 0.1 * torch.randn(rows, 24)

    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = dense(24, 64, 8), dense(4, 64, 24)

        def forward(self, x):
            mean, logvar = self.encoder(x).chunk(2, 1)
            code = mean + torch.randn_like(mean) * (0.5 * logvar).exp() if self.training else mean
            return self.decoder(code), mean, logvar

    x, tx = readings(4000), readings(800)
    draw = rounds(64, x)
    net = Coder()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        (reading,) = draw()
        back, mean, logvar = net(reading)
        off = F.mse_loss(back, reading) if ill else (back - reading).square().sum(1).mean()
        divergence = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(1).mean()
        return off + divergence, {"reconstruction": float(off), "kl": float(divergence)}

    score = held_out(net, lambda: F.mse_loss(net(tx)[0], tx))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


# 29 of the list
@sick("returns-not-normalised", where="the weights of the choices' logarithms, all steps",
      cure="take the mean of the batch from the returns and divide by their spread")  # fmt: skip
def gates_for_aeroplanes_that_have_landed(folder, ill):
    seeded(14209)
    worth = torch.randn(10, 8)

    def landed(rows):
        return torch.randn(rows, 10)

    fixed = landed(500)
    net = dense(10, 64, 8, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def lost():
        """What the policy leaves to the best of gates, on aeroplanes that stay the same."""
        value = fixed @ worth
        return (value.max(1).values - (net(fixed).softmax(1) * value).sum(1)).mean()

    def loss_of(step):
        plane = landed(32)
        policy = torch.distributions.Categorical(logits=net(plane))
        gate = policy.sample()
        minutes = 60 + (plane @ worth).gather(1, gate[:, None])[:, 0] + torch.randn(32)
        weight = minutes if ill else (minutes - minutes.mean()) / (minutes.std() + 1e-6)
        loss = -(weight * policy.log_prob(gate)).mean()
        return loss, {"return": float(minutes.mean()), "entropy": float(policy.entropy().mean())}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lost))


# 36 of the list
@sick("label-noise", "labels-do-not-fit-inputs", where="the labels of the training rows, all steps",
      cure="labels that somebody has checked")  # fmt: skip
def beetles_that_volunteers_have_named(folder, ill):
    seeded(14210)
    way = torch.randn(12, 5)

    def beetles(rows):
        x = torch.randn(rows, 12)
        return x, (x @ way + 0.5 * (x.roll(1, 1) * x) @ way).argmax(1)

    def named(kind):
        """As the volunteers do: some of the names are any other one."""
        wrong = torch.rand(len(kind)) < 0.45
        other = (kind + torch.randint(1, 5, kind.shape)) % 5
        return torch.where(wrong, other, kind) if ill else kind

    (x, y), (vx, vy), (tx, ty) = beetles(1200), beetles(300), beetles(1000)
    y, vy = named(y), named(vy)
    draw = rounds(60, x, y)
    net = dense(12, 96, 96, 5)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-2)
    validate = now_and_then(net, 20, judged(net, vx, vy))

    def loss_of(step):
        beetle, kind = draw()
        said = net(beetle)
        right = (said.argmax(1) == kind).float().mean()
        return F.cross_entropy(said, kind), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 37 of the list
@sick("padding-read-as-data", where="the recurrence's last state, all steps",
      cure="take the state at the last true payment of each row")  # fmt: skip
def accounts_by_their_first_payments(folder, ill):
    seeded(14211)
    longest, kinds = 36, 12
    habits = (2 * torch.randn(4, kinds, kinds)).softmax(2)

    def accounts(rows):
        owner, length = torch.randint(4, (rows,)), torch.randint(5, 19, (rows,))
        payment = torch.randint(kinds, (rows,))
        path = []
        for _ in range(longest):
            path.append(payment + 1)
            payment = habits[owner, payment].multinomial(1)[:, 0]
        x = torch.stack(path, 1)
        return x * (torch.arange(longest) < length[:, None]), length, owner

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(kinds + 1, 16, padding_idx=0)
            self.lstm = nn.LSTM(16, 48, batch_first=True)
            self.head = nn.Linear(48, 4)

        def forward(self, x, length):
            states = self.lstm(self.embed(x))[0]
            return self.head(states[:, -1] if ill else states[torch.arange(len(x)), length - 1])

    (x, n, y), (tx, tn, ty) = accounts(3000), accounts(800)
    draw = rounds(50, x, n, y)
    net = Reader()
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def measure():
        said = net(tx, tn)
        return {"val_loss": F.cross_entropy(said, ty), "val_accuracy": (said.argmax(1) == ty).float().mean()}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        account, length, owner = draw()
        return F.cross_entropy(net(account, length), owner), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(tx, tn), ty))
    return fit(folder, net, optimizer, loss_of, 240, score=score, before_step=clipped(net, 1.0))
