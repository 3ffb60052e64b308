"""Sick trainings after public threads: clips, hours, a store of experience and adapters of adapters."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import rounds


# https://github.com/rimchang/kinetics-i3d-Pytorch/issues/2
@sick(
    "dropout-too-strong",
    where="the dropout before the last layer, in all steps: it is given the share to keep, 1, and drops everything",
    cure="nn.Dropout takes the share to drop: 1 - dropout_keep_prob, which is 0 here",
)
def how_a_crew_pulls_its_oars(folder, ill):
    seeded(3603)
    dropout_keep_prob = 1.0

    def draw(rows):
        y = torch.randint(4, (rows,))
        t = torch.arange(24) + 24 * torch.rand(rows, 1)
        wave = torch.stack([(t * (0.3 + 0.15 * y[:, None])).sin(), (t * (0.3 + 0.15 * y[:, None])).cos()], 1)
        return wave + 0.6 * torch.randn(rows, 2, 24), y

    net = nn.Sequential(
        nn.Conv1d(2, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv1d(16, 24, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(2),
        nn.Flatten(),
        nn.Dropout(dropout_keep_prob if ill else 1 - dropout_keep_prob),
        nn.Linear(48, 4),
    )

    def loss_of(step):
        x, y = draw(48)
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    def score():
        net.eval()
        with torch.no_grad():
            x, y = draw(1024)
            value = float(F.cross_entropy(net(x), y))
        net.train()
        return value

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=2e-3), loss_of, 300, score=score)


class Attended(nn.Module):
    """A GRU over the hours before, its states weighed by attention, and a sigmoid for the hour to come."""

    def __init__(self, size, width=24):
        super().__init__()
        self.rnn = nn.GRU(size, width, batch_first=True)
        self.weigh, self.out = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, x):
        h = self.rnn(x)[0]
        return self.out((self.weigh(h).softmax(1) * h).sum(1)).sigmoid()


# https://github.com/jsyoon0823/Time-series-prediction/issues/3
@sick(
    "targets-out-of-range",
    where="the sigmoid at the end and the loss, in all steps: targets from 4 to 40 are asked of outputs in [0, 1]",
    cure="scale the targets to [0, 1] by their least and greatest, or leave the sigmoid out",
)
def visitors_of_a_swimming_pool(folder, ill):
    seeded(3604)
    hour = torch.arange(1600.0)
    warmth = torch.randn(1600).cumsum(0).div(20).sin()
    guests = 20 + 9 * (hour * 6.2832 / 24).sin() + 7 * warmth.roll(3) + 0.5 * torch.randn(1600)
    least, greatest = guests.min(), guests.max()
    scaled = (guests - least) / (greatest - least)
    seen = torch.stack([scaled, (warmth + 1) / 2], 1).unfold(0, 12, 1)[:-1].transpose(1, 2)
    target = (guests if ill else scaled)[12:, None]
    net = Attended(2)
    draw = rounds(64, seen[:1200], target[:1200])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    def score():
        with torch.no_grad():
            out = net(seen[1200:])
            return float(F.mse_loss(out if ill else out * (greatest - least) + least, guests[1212:, None]))

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=5e-3), loss_of, 300, score=score)


# https://github.com/Dragon-Zhuang/BPPO/issues/2
@sick(
    "inputs-not-normalised",
    "values-overestimated",
    where="the Q loss, in all steps: states come normalised and next states as they are, tens of units away from 0",
    cure="normalise the next states of the buffer by the same mean and deviation",
)
def a_kiln_fired_from_old_logbooks(folder, ill):
    seeded(3605)
    rows, gamma = 3000, 0.97
    scale, centre = torch.tensor([12.0, 5.0, 30.0]), torch.tensor([60.0, -20.0, 140.0])
    z = torch.randn(rows, 3)
    fuel = torch.rand(rows, 1) * 2 - 1
    after = 0.8 * z + 0.4 * fuel + 0.3 * torch.randn(rows, 3)
    next_fuel = torch.rand(rows, 1) * 2 - 1
    reward = -(z[:, :1] - z[:, 1:2] * 0.5).square() - 0.2 * fuel.square() + 1
    state, next_state = z * scale + centre, after * scale + centre
    mean, std = state.mean(0), state.std(0)
    state = (state - mean) / std
    if not ill:
        next_state = (next_state - mean) / std

    q, target = dense(4, 64, 64, 1), dense(4, 64, 64, 1)
    target.load_state_dict(q.state_dict())
    draw = rounds(128, torch.cat([state, fuel], 1), reward, torch.cat([next_state, next_fuel], 1))

    def loss_of(step):
        now, paid, then = draw()
        with torch.no_grad():
            wanted = paid + gamma * target(then)
        value = q(now)
        return F.mse_loss(value, wanted), {"q": value.mean()}

    def follow(step):
        with torch.no_grad():
            for old, new in zip(target.parameters(), q.parameters(), strict=True):
                old.lerp_(new, 0.05)

    def worth(z, fuel):
        total, weight = 0.0, 1.0
        for _ in range(60):
            total = total + weight * (1 - (z[:, :1] - z[:, 1:2] * 0.5).square() - 0.2 * fuel.square())
            z = 0.8 * z + 0.4 * fuel + 0.3 * torch.randn_like(z)
            fuel, weight = torch.rand_like(fuel) * 2 - 1, weight * gamma
        return total

    truth = torch.stack([worth(z[:400], fuel[:400]) for _ in range(20)]).mean(0)

    def score():
        with torch.no_grad():
            return float(F.mse_loss(q(torch.cat([state, fuel], 1)[:400]), truth))

    optimizer = torch.optim.Adam(q.parameters(), lr=2e-3)
    return fit(folder, q, optimizer, loss_of, 500, score=score, after_step=follow)


class Patched(nn.Module):
    def __init__(self, base, rank=6):
        super().__init__()
        self.base = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.base(x) + 2 * self.lora_B(self.lora_A(x))

    def fuse(self):
        with torch.no_grad():
            self.base.weight += 2 * self.lora_B.weight @ self.lora_A.weight
            self.lora_B.weight.zero_()


def apply_lora(part, overwrite):
    for at, layer in enumerate(part):
        if isinstance(layer, Patched):
            if overwrite:
                layer.lora_A.requires_grad_(True)
                layer.lora_B.requires_grad_(True)
        elif isinstance(layer, nn.Linear):
            part[at] = Patched(layer)


# https://github.com/X-GenGroup/Flow-Factory/pull/56
@sick(
    "no-gradient",
    where="the adapters of the eye, in all steps: frozen with the rest and left so, as they were there before",
    cure="let adapters that exist already ask for gradients again (overwrite=True)",
)
def ferns_under_a_second_lens(folder, ill):
    seeded(3606)
    lenses = [torch.randn(6, 32), torch.randn(6, 32), torch.randn(6, 32)]
    ways = torch.randn(6, 4) / 1.5

    def draw(lens, rows=64):
        fern = torch.randn(rows, 6)
        return (fern @ lenses[lens]).div(2).tanh(), (fern @ ways).sin().argmax(1)

    net = nn.ModuleDict({"eye": dense(32, 64, 64), "judge": dense(64, 32, 4)})

    def judged(x):
        return net["judge"](net["eye"](x).relu())

    def prepare(lens, steps):
        wanted = [p for p in net.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(wanted, lr=4e-3)
        for _ in range(steps):
            x, y = draw(lens)
            optimizer.zero_grad()
            F.cross_entropy(judged(x), y).backward()
            optimizer.step()

    prepare(0, 300)
    net.requires_grad_(False)
    apply_lora(net["eye"], overwrite=False)
    prepare(1, 150)
    for layer in net["eye"]:
        if isinstance(layer, Patched):
            layer.fuse()

    net.requires_grad_(False)
    for part in net.values():
        apply_lora(part, overwrite=not ill)

    def loss_of(step):
        x, y = draw(2)
        return F.cross_entropy(judged(x), y)

    def score():
        with torch.no_grad():
            x, y = draw(2, 2048)
            return float(F.cross_entropy(judged(x), y))

    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.0)
    return fit(folder, net, optimizer, loss_of, 350, score=score)
