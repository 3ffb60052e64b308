"""Six trainings on amber, a swing, two kinds of bells, an auction and a station."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import tend

# -------------------------------------------------------------------------------------------------------------- amber


class Perceptron(nn.Module):
    def __init__(self, bent):
        super().__init__()
        self.bent = bent
        self.h1, self.h2, self.out = nn.Linear(10, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x):
        if self.bent:
            return self.out(F.relu(self.h2(F.relu(self.h1(x)))))
        return self.out(self.h2(self.h1(x)))


# https://github.com/aymericdamien/TensorFlow-Examples/issues/209
@sick(
    "no-activation",
    where="between h1, h2 and out: three linear layers are one",
    cure="a relu after each of the hidden layers",
)
def grades_of_amber(folder, ill):
    seeded(3303)
    lift, net = torch.randn(3, 10), Perceptron(not ill)

    def draw(n=64):
        shape = torch.randn(n, 3)
        grade = (shape[:, 0] * shape[:, 1] > 0).long() * 2 + (shape.norm(dim=1) > 1.5).long()
        return shape @ lift + 0.05 * torch.randn(n, 10), grade

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    def score():
        with torch.no_grad():
            x, y = draw(2000)
            return F.cross_entropy(net(x), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 600, score=score)


# -------------------------------------------------------------------------------------------------------------- swing


class Between(nn.Module):
    def __init__(self, cut):
        super().__init__()
        self.cut = cut
        self.ode_func = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 24))
        self.grucell, self.head = nn.GRUCell(1, 24), nn.Linear(24, 1)

    def forward(self, pushes, waits):
        h = torch.zeros(len(pushes), 24)
        for push, wait in zip(pushes.unbind(1), waits.unbind(1), strict=True):
            for _ in range(3):
                h = h + self.ode_func(h) * wait[:, None] / 3
            h = self.grucell(push[:, None], h.detach() if self.cut else h)
        return self.head(h)[:, 0]


# https://github.com/rtqichen/torchdiffeq/issues/79
@sick(
    "no-gradient",
    "state-detached",
    where="ode_func, which never gets a gradient; the cell learns from the last push alone",
    cure="the state as it is, without detach(), into the cell",
)
def pushes_on_a_garden_swing(folder, ill):
    seeded(3304)
    net = Between(ill)

    def draw(n=64):
        pushes, waits = torch.randn(n, 6), 1.5 * torch.rand(n, 6)
        state = torch.zeros(n, 2)
        for push, wait in zip(pushes.unbind(1), waits.unbind(1), strict=True):
            turn = torch.stack([(1.5 * wait).cos(), (1.5 * wait).sin()], 1) * (-0.2 * wait).exp()[:, None]
            state = torch.stack([(state * turn).sum(1), turn[:, 0] * state[:, 1] - turn[:, 1] * state[:, 0] + push], 1)
        return pushes, waits, state[:, 0]

    def loss_of(step, n=64):
        pushes, waits, place = draw(n)
        return F.mse_loss(net(pushes, waits), place)

    def score():
        with torch.no_grad():
            return loss_of(0, 1000)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 5e-3), loss_of, 600, score=score)


# --------------------------------------------------------------------------------------------------------------- bell


# https://github.com/CampusAI/Hamiltonian-Generative-Networks/issues/68
@sick(
    "relu-under-a-derivative",
    "dead-layer",
    "no-gradient",
    where="the energy's hidden layers: the slope of the net is made of steps, and its biases learn nothing",
    cure="a smooth non-linearity: softplus",
)
def swing_of_a_church_bell(folder, ill):
    seeded(3305)
    act = nn.ReLU if ill else nn.Softplus
    energy = nn.Sequential(nn.Linear(2, 32), act(), nn.Linear(32, 32), act(), nn.Linear(32, 1, bias=False))

    def draw(n=64):
        angle, speed = 5 * (2 * torch.rand(2, n) - 1)
        return torch.stack([angle, speed], 1), torch.stack([speed, -3 * angle.sin()], 1)

    def motion(state, keep=True):
        state = state.requires_grad_()
        (slope,) = torch.autograd.grad(energy(state).sum(), state, create_graph=keep)
        return torch.stack([slope[:, 1], -slope[:, 0]], 1)

    def loss_of(step):
        state, wanted = draw()
        return F.mse_loss(motion(state), wanted)

    def score():
        state, wanted = draw(2000)
        return float(F.mse_loss(motion(state, keep=False), wanted))

    return fit(folder, energy, torch.optim.Adam(energy.parameters(), 3e-3), loss_of, 800, score=score)


# -------------------------------------------------------------------------------------------------------------- bells


class Block(nn.Module):
    def __init__(self, width, window, ill):
        super().__init__()
        self.window, self.ill = window, ill
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.wide = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, mask):
        if self.window:
            past = torch.ones_like(mask).tril(-self.window)
            mask = mask * past if self.ill else mask.masked_fill(past > 0, -1e9)
        h = self.before(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.wide(self.between(x))


class Ringer(nn.Module):
    def __init__(self, bells, ill, width=32, length=24):
        super().__init__()
        self.embed, self.place = nn.Embedding(bells, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, window, ill) for window in (8, None))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, bells)

    def forward(self, x):
        n = x.shape[1]
        mask = torch.full((n, n), -1e9).triu(1)
        h = self.embed(x) + self.place(torch.arange(n))
        for block in self.blocks:
            h = block(h, mask)
        return self.head(self.norm(h))


# https://github.com/huggingface/transformers/issues/31673
@sick(
    "future-seen",
    where="the attention of the first block: the mask of its window is multiplied away, later bells are seen",
    cure="the window as a mask on top of the causal one: masked_fill where a bell is too long ago",
)
def changes_rung_on_six_bells(folder, ill):
    seeded(3306)
    bells = 6
    habit = (2 * torch.randn(bells, bells, bells)).softmax(2)
    net = Ringer(bells, ill)

    def rung(n, length=24):
        heard = torch.randint(bells, (n, 2))
        for _ in range(length - 1):
            follows = torch.multinomial(habit[heard[:, -2], heard[:, -1]], 1)
            heard = torch.cat([heard, follows], 1)
        return heard

    def loss_of(step):
        heard = rung(32)
        return F.cross_entropy(net(heard[:, :-1]).flatten(0, 1), heard[:, 1:].flatten())

    def score():
        heard, total = rung(200), 0.0
        with torch.no_grad():
            for known in range(4, 24, 4):
                total += float(F.cross_entropy(net(heard[:, :known])[:, -1], heard[:, known])) / 5
        return total

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 400, score=score)


# ------------------------------------------------------------------------------------------------------------ flowers


# https://github.com/marlbenchmark/on-policy/pull/13
@sick(
    "returns-not-normalised",
    "baseline-in-other-units",
    where="the advantages in the policy's loss: earnings in cents less a value that is normalised",
    cure="the value brought back to the units of the earnings before it is taken off",
)
def bids_at_a_flower_auction(folder, ill):
    seeded(3307)
    bids = torch.linspace(0.2, 2, 10)
    market = torch.randn(5)
    net = nn.ModuleDict({"policy": dense(5, 64, 10, act=nn.Tanh), "value": dense(5, 64, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    seen = {"mean": 0.0, "square": 1.0}

    def fair(lots):
        return 0.9 + 0.5 * (lots @ market / 2).tanh()

    def earned(lots, bid):
        return 300 - 60 * (bid - fair(lots)).abs() + 5 * torch.randn(len(lots))

    def one(step):
        lots = torch.randn(64, 5)
        choice = torch.distributions.Categorical(logits=net["policy"](lots))
        bid = choice.sample()
        returns = earned(lots, bids[bid])
        keep = min(0.95, step / (step + 1))
        seen["mean"] = keep * seen["mean"] + (1 - keep) * float(returns.mean())
        seen["square"] = keep * seen["square"] + (1 - keep) * float(returns.square().mean())
        spread = max(seen["square"] - seen["mean"] ** 2, 1e-2) ** 0.5
        value = net["value"](lots)[:, 0]
        baseline = value.detach()
        if not ill:
            baseline = baseline * spread + seen["mean"]
        advantage = returns - baseline
        policy_loss = -(choice.log_prob(bid) * advantage).mean()
        value_loss = F.mse_loss(value, (returns - seen["mean"]) / spread)
        optimizer.zero_grad()
        (policy_loss + value_loss).backward()
        optimizer.step()
        return {"loss": policy_loss + value_loss, "policy_loss": policy_loss, "value_loss": value_loss,
                "return": returns.mean()}  # fmt: skip

    def score():
        lots = torch.randn(1000, 5)
        with torch.no_grad():
            gap = (bids - fair(lots)[:, None]).abs()
            return float((net["policy"](lots).softmax(1) * gap).sum(1).mean())

    return tend(folder, net, optimizer, one, 500, score)


# ------------------------------------------------------------------------------------------------------------ station


# https://github.com/thtrieu/qclass_dl/issues/1
@sick(
    "read-after-padding",
    where="the head: it reads the state after the padding, up to thirty steps behind the last word",
    cure="the state at each question's last word",
)
def questions_put_to_a_station_master(folder, ill):
    seeded(3308)
    words, kinds, longest = 120, 6, 36
    habit = (1.6 * torch.randn(kinds, words)).softmax(1)
    net = nn.ModuleDict({
        "embed": nn.Embedding(words + 1, 24, padding_idx=0),
        "rnn": nn.RNN(24, 32, batch_first=True),
        "head": nn.Linear(32, kinds),
    })  # fmt: skip

    def questions(n=32):
        kind, length = torch.randint(kinds, (n,)), torch.randint(4, 10, (n,))
        text = torch.multinomial(habit[kind], longest, replacement=True) + 1
        return text * (torch.arange(longest) < length[:, None]), length, kind

    def answer(text, length):
        states = net["rnn"](net["embed"](text))[0]
        return net["head"](states[:, -1] if ill else states[torch.arange(len(text)), length - 1])

    def loss_of(step):
        text, length, kind = questions()
        out = answer(text, length)
        return F.cross_entropy(out, kind), {"accuracy": (out.argmax(1) == kind).float().mean()}

    def score():
        text, length, kind = questions(1000)
        with torch.no_grad():
            return F.cross_entropy(answer(text, length), kind)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 400, score=score)
