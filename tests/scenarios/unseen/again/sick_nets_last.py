"""Sick trainings drawn by lot, third part: values, codes, recommenders, graphs, actors, pictures."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick

# ------------------------------------------------------------------------------------------- 15: raw targets x DQN


@sick(
    "targets-not-normalised", "rewards-unscaled",
    where="the targets of the values, all steps: they are in the thousands and what the net says is near one",
    cure="divide the rewards by what the goal pays",
)  # fmt: skip
def way_through_a_hall_paid_in_cents(folder, ill):
    """A hall of 4 x 4: the corner pays 5000, each other step costs 200."""
    seeded(715)
    pay, cost, gamma = 5000.0, 200.0, 0.95
    unit = 1.0 if ill else pay
    cell = torch.arange(16)
    moves = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])
    place = (torch.stack([cell // 4, cell % 4], 1)[:, None] + moves).clamp(0, 3)
    after = place[..., 0] * 4 + place[..., 1]
    reward = torch.where(after == 15, pay, -cost)
    best = torch.zeros(16)
    for _ in range(100):
        best = (reward + gamma * torch.where(after == 15, 0.0, best[after])).max(1).values
        best[15] = 0.0
    net, eye = dense(16, 64, 64, 4), torch.eye(16)
    target = copy.deepcopy(net).requires_grad_(False)

    def loss_of(step):
        if step % 20 == 0:
            target.load_state_dict(net.state_dict())
        s, a = torch.randint(15, (64,)), torch.randint(4, (64,))
        s2 = after[s, a]
        wanted = reward[s, a] / unit + gamma * (s2 != 15) * target(eye[s2]).max(1).values
        return F.mse_loss(net(eye[s]).gather(1, a[:, None])[:, 0], wanted)

    def error():
        with torch.no_grad():
            return float((net(eye[:15]).max(1).values * unit - best[:15]).abs().mean() / pay)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 500, score=error)


# --------------------------------------------------------------------------------------------- 16: divergence x seq2seq


class Reverser(nn.Module):
    """A GRU reads, a noisy code of each symbol is kept, another GRU looks at the codes and writes."""

    def __init__(self, symbols=6, hidden=48, code=8, length=6):
        super().__init__()
        self.symbols = symbols
        self.read_in = nn.Embedding(symbols, 16)
        self.reader = nn.GRU(16, hidden, batch_first=True)
        self.mean, self.log_var = nn.Linear(hidden, code), nn.Linear(hidden, code)
        self.write_in = nn.Embedding(symbols + 1, 16)
        self.writer = nn.GRU(16, hidden, batch_first=True)
        self.ask, self.place = nn.Linear(hidden, 16), nn.Parameter(0.5 * torch.randn(length, 16))
        self.head = dense(hidden + code, 48, symbols)

    def forward(self, x, wanted):
        h, _ = self.reader(self.read_in(x))
        mean, log_var = self.mean(h), self.log_var(h)
        code = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        start = torch.full_like(wanted[:, :1], self.symbols)
        state, _ = self.writer(self.write_in(torch.cat([start, wanted[:, :-1]], 1)))
        share = (self.ask(state) @ self.place.T / 4).softmax(-1)
        said = self.head(torch.cat([state, share @ code], -1))
        return said, 0.5 * (mean.square() + log_var.exp() - 1 - log_var)


@sick(
    "posterior-collapse", "loss-terms-out-of-balance", "loss-terms-unbalanced", "imbalance",
    where="mean and log_var, within the first steps: the codes say nothing and the reader has no gradient",
    cure="divide the divergence by the number of symbols, as the cross-entropy is, and weigh it by 0.05",
)  # fmt: skip
def symbols_written_backwards_from_noisy_codes(folder, ill):
    seeded(716)
    net = Reverser()

    def both(step):
        x = torch.randint(6, (64, 6))
        wanted = x.flip(1)
        said, apart = net(x, wanted)
        return F.cross_entropy(said.flatten(0, 1), wanted.flatten()), apart

    def loss_of(step):
        error, apart = both(step)
        loss = error + (apart.sum() if ill else 0.05 * apart.sum(-1).mean())
        return loss, {"cross_entropy": error}

    make = optim.Adam(net.parameters(), 5e-3)
    return fit(folder, net, make, loss_of, 400, score=score_of(lambda step: both(step)[0]))


# -------------------------------------------------------------------------------------- 19: a second loss x films


class Films(nn.Module):
    """Ratings by products of two tables; what a film cost, by a layer on the table of films."""

    def __init__(self, users=60, films=80, size=6):
        super().__init__()
        self.users, self.films = nn.Embedding(users, size), nn.Embedding(films, size)
        self.cost = nn.Linear(size, 1)
        for table in (self.users, self.films):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, user, film):
        of_film = self.films(film)
        return (self.users(user) * of_film).sum(1), self.cost(of_film)[:, 0]


@sick(
    "targets-not-normalised", "loss-terms-out-of-balance", "loss-terms-unbalanced", "imbalance",
    where="films.weight, all steps: its gradient is that of the costs, which are in thousands",
    cure="standardise the costs and weigh their loss by a tenth",
)  # fmt: skip
def films_rated_and_their_costs_guessed(folder, ill):
    seeded(719)
    liking, kind = torch.randn(60, 4), torch.randn(80, 4)
    cost = 3000 * (0.5 * kind @ torch.randn(4)).exp()
    wanted_cost = cost if ill else (cost - cost.mean()) / cost.std()
    net = Films()

    def both(step):
        user, film = torch.randint(60, (256,)), torch.randint(80, (256,))
        stars = (liking[user] * kind[film]).sum(1) + 0.2 * torch.randn(256)
        said, guess = net(user, film)
        return F.mse_loss(said, stars), F.mse_loss(guess, wanted_cost[film])

    def loss_of(step):
        rating, costs = both(step)
        return rating + (costs if ill else 0.1 * costs), {"rating": rating, "costs": costs}

    make = optim.Adam(net.parameters(), 1e-2)
    return fit(folder, net, make, loss_of, 400, score=score_of(lambda step: both(step)[0]))


# ----------------------------------------------------------------------------------------- 20: tiny weights x graph net


class Convolved(nn.Module):
    """Five graph convolutions."""

    def __init__(self, around, sizes=(16, 32, 32, 32, 32, 3)):
        super().__init__()
        self.register_buffer("around", around)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = self.around @ layer(x if i == 0 else x.relu())
        return x


@sick(
    "vanishing", "bad-initialisation",
    where="layers.0 to layers.4, all steps: each layer makes a thirtieth of what goes in, and of gradients",
    cure="Glorot's (or Kaiming's) initialisation in the place of a deviation of 0.01",
)  # fmt: skip
def members_of_three_circles_of_friends(folder, ill):
    seeded(720)
    circle = torch.arange(150) % 3
    tied = torch.rand(150, 150) < torch.where(circle[:, None] == circle, 0.15, 0.01)
    adjacent = torch.triu(tied, 1).float()
    adjacent = adjacent + adjacent.T + torch.eye(150)
    root = adjacent.sum(1).rsqrt()
    net = Convolved(root[:, None] * adjacent * root)
    for layer in net.layers:
        if ill:
            nn.init.normal_(layer.weight, std=0.01)
        else:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    x = 0.5 * torch.randn(3, 16)[circle] + torch.randn(150, 16)
    known = torch.rand(150) < 0.4

    def loss_of(step):
        return F.cross_entropy(net(x)[known], circle[known])

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(x)[~known], circle[~known]))

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    return fit(folder, net, make, loss_of, 250, score=score)


# ------------------------------------------------------------------------------------ 21: forgotten x actor-critic


@sick(
    "not-in-optimizer",
    "weights-unchanged", "parameters-not-in-the-optimizer",
    where="actor.0, actor.2 and actor.4, all steps: gradients, and never an update",
    cure="hand the parameters of both to the optimizer: only the critic's are in it",
)  # fmt: skip
def levers_pulled_and_judged(folder, ill):
    seeded(721)
    net = nn.ModuleDict({"actor": dense(6, 32, 32, 4, act=nn.Tanh), "critic": dense(6, 32, 32, 1, act=nn.Tanh)})
    gain = torch.randn(6, 4)

    def loss_of(step):
        state = torch.randn(64, 6)
        policy = torch.distributions.Categorical(logits=net["actor"](state))
        action = policy.sample()
        reward = (state @ gain).gather(1, action[:, None])[:, 0] + 0.5 * torch.randn(64)
        value = net["critic"](state)[:, 0]
        advantage = (reward - value).detach()
        loss = -(policy.log_prob(action) * advantage).mean() + 0.5 * F.mse_loss(value, reward)
        return loss - 0.01 * policy.entropy().mean(), {"reward": reward.mean()}

    def regret():
        with torch.no_grad():
            state = torch.randn(512, 6)
            pays = state @ gain
            return float((pays.max(1).values - (net["actor"](state).softmax(1) * pays).sum(1)).mean())

    trained = net["critic"].parameters() if ill else net.parameters()
    return fit(folder, net, optim.Adam(trained, 5e-3), loss_of, 400, score=regret)


# ------------------------------------------------------------------------------------------ 22: biased to death x VAE


class Sketches(nn.Module):
    """A variational autoencoder of images of 8 x 8."""

    def __init__(self, code=4, width=64):
        super().__init__()
        self.encoder, self.decoder = dense(64, width, width, 2 * code), dense(code, width, width, 64)

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, 1)
        code = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        return self.decoder(code), 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1).mean()


@sick(
    "dead-units", "dead-layer", "bad-initialisation",
    where="the hidden layers of encoder and decoder, from the first step: all biases begin at -4",
    cure="the bias of the share of ink belongs to the decoder's last layer alone; the others begin at zero",
)  # fmt: skip
def sketches_whose_ink_is_rare(folder, ill):
    seeded(722)
    net, strokes = Sketches(), torch.randn(3, 64)

    def init_weights(module):
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.constant_(module.bias, -4.0 if ill or module is net.decoder[-1] else 0.0)

    net.apply(init_weights)

    def loss_of(step):
        x = (torch.randn(64, 3) @ strokes > 2.5).float()
        found, apart = net(x)
        return F.binary_cross_entropy_with_logits(found, x, reduction="sum") / len(x) + apart

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400)
