"""A rover, a till, gas, maps, switches and a hold."""

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, mean, seeded, sick


# https://github.com/keras-team/keras-io/issues/194
@sick("value-not-detached", "advantage-not-detached", "policy-loss-trains-critic",
      where="the head of the value and the shared layer",
      cure="detach the value where the difference multiplies the log-probability")  # fmt: skip
def a_rover_on_its_way_home(folder, ill):
    seeded(2626)
    angle = torch.arange(8) * 6.2832 / 8
    moves = 0.2 * torch.stack([angle.cos(), angle.sin()], 1)
    net = nn.ModuleDict({"common": nn.Linear(2, 128), "actor": nn.Linear(128, 8), "critic": nn.Linear(128, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 0.01)

    def travelled(count, hours=16):
        place, states, picks, rewards = torch.randn(count, 2), [], [], []
        with torch.no_grad():
            for _ in range(hours):
                states.append(place)
                picks.append(Categorical(logits=net["actor"](net["common"](place).relu())).sample())
                place = place + moves[picks[-1]] + 0.1 * torch.randn(count, 2)
                rewards.append(-place.norm(dim=1))
        return torch.stack(states), torch.stack(picks), torch.stack(rewards)

    def loss_of(step):
        states, picks, rewards = travelled(8)
        returns, ahead = torch.zeros_like(rewards), 0.0
        for i in reversed(range(len(rewards))):
            ahead = returns[i] = rewards[i] + 0.9 * ahead
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        seen = net["common"](states).relu()
        value = net["critic"](seen)[..., 0]
        difference = returns - (value if ill else value.detach())
        actor_loss = -(Categorical(logits=net["actor"](seen)).log_prob(picks) * difference).sum() / 8
        critic_loss = F.huber_loss(value, returns, reduction="sum") / 8
        logged = {"actor_loss": actor_loss, "critic_loss": critic_loss, "reward": rewards.mean()}
        return actor_loss + critic_loss, logged

    return fit(folder, net, optimizer, loss_of, 300, score=lambda: -float(travelled(512)[2][-4:].mean()))


class Memory(nn.Module):
    """Two recurrent cells, one over the other, between two linear layers."""

    def __init__(self, size, width, keep):
        super().__init__()
        self.enter, self.leave = nn.Linear(size, width), nn.Linear(width, 1)
        self.cells = keep(nn.LSTMCell(width, width) for _ in range(2))

    def forward(self, x):
        states = [None, None]
        for now in self.enter(x).unbind(1):
            below = now
            for i, cell in enumerate(self.cells):
                states[i] = cell(below, states[i])
                below = states[i][0]
        return self.leave(below)[:, 0]


# https://github.com/ikostrikov/pytorch-meta-optimizer/issues/11
@sick("not-in-optimizer", "weights-unchanged", where="both recurrent cells, which are no part of the net's parameters",
      cure="keep the cells in a ModuleList")  # fmt: skip
def a_till_that_adds_up_two_prices(folder, ill):
    seeded(2627)
    net = Memory(2, 24, list if ill else nn.ModuleList)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def draw(rows=64, length=12):
        prices, marked = torch.rand(rows, length), torch.rand(rows, length).argsort(1) < 2
        return torch.stack([prices, marked.float()], 2), (prices * marked).sum(1)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    def score():
        with torch.no_grad():
            return mean([float(loss_of(0)) for _ in range(8)])

    return fit(folder, net, optimizer, loss_of, 350, score=score)


class Encoder(nn.Module):
    """A small transformer that reads a window and says what comes next."""

    def __init__(self, length, width=32):
        super().__init__()
        self.value, self.place = nn.Linear(1, width), nn.Parameter(0.1 * torch.randn(length, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 64, dropout=0.05, activation="gelu", batch_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        x = self.value(x[..., None]) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, -1])[:, 0]


# https://github.com/zhouhaoyi/Informer2020/issues/251
@sick("inputs-not-normalised", "targets-not-normalised", where="the embedding of the value and the head, from step 0",
      cure="standardise the series")  # fmt: skip
def demand_for_gas(folder, ill):
    seeded(2628)
    middle, spread = 14000.0, 3000.0
    net = Encoder(24)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    shift, scale = (0.0, 1.0) if ill else (middle, spread)

    def draw(rows=32):
        hour = torch.randint(24, (rows, 1)) + torch.arange(25)
        cold = torch.rand(rows, 1) * 2 - 1
        shape = (hour * 6.2832 / 24).sin() * (1 + 0.5 * cold) + cold
        demand = middle + spread * (0.8 * shape + 0.1 * torch.randn(rows, 25))
        return demand[:, :-1], demand[:, -1]

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net((x - shift) / scale), (y - shift) / scale)

    def score():
        net.eval()
        with torch.no_grad():
            x, y = draw(512)
            wrong = (net((x - shift) / scale) * scale + shift - y) / spread
        net.train()
        return float(wrong.square().mean())

    return fit(folder, net, optimizer, loss_of, 300, score=score)


# https://github.com/mlelarge/graph_neural_net/pull/37
@sick("softmax-twice", "logits-bounded", where="the loss, which gets probabilities where it wants scores",
      cure="hand the raw scores to the cross-entropy")  # fmt: skip
def two_surveys_of_the_same_islands(folder, ill):
    seeded(2629)
    nodes, rows = 24, 8
    net = nn.ModuleDict({"first": nn.Linear(12, 32), "second": nn.Linear(64, 32), "third": nn.Linear(64, 32)})
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def spread(x, roads):
        return torch.cat([x, roads @ x / roads.sum(2, keepdim=True).clamp(min=1)], 2)

    def embedded(x, roads):
        x = net["first"](spread(x, roads)).relu()
        x = net["second"](spread(x, roads)).relu()
        return net["third"](spread(x, roads))

    def surveyed(traits, roads):
        lost = (torch.rand_like(roads) < 0.05).triu(1)
        lost = (lost | lost.transpose(1, 2)).float()
        return embedded(traits + 0.5 * torch.randn_like(traits), (roads - lost).abs())

    def scores_of():
        traits, roads = torch.randn(rows, nodes, 6), (torch.rand(rows, nodes, nodes) < 0.2).float().triu(1)
        roads = roads + roads.transpose(1, 2)
        return surveyed(traits, roads) @ surveyed(traits, roads).transpose(1, 2) / 32**0.5

    def loss_of(step):
        scores = scores_of()
        right = (scores.argmax(2) == torch.arange(nodes)).float().mean()
        given = scores.softmax(2) if ill else scores
        return F.cross_entropy(given.flatten(0, 1), torch.arange(nodes).repeat(rows)), {"accuracy": right}

    def score():
        with torch.no_grad():
            return mean([1 - float((scores_of().argmax(2) == torch.arange(nodes)).float().mean()) for _ in range(20)])

    return fit(folder, net, optimizer, loss_of, 400, score=score)


# https://github.com/higgsfield-ai/higgsfield/issues/14
@sick("weights-unchanged", "target-never-updated", where="every layer of the target net, which stays as it was made",
      cure="copy the model into the target every few steps")  # fmt: skip
def switches_to_be_set(folder, ill):
    seeded(2630)
    bits, rows = 5, 64
    net = nn.ModuleDict({"model": dense(2 * bits, 128, bits), "target": dense(2 * bits, 128, bits)})
    net["target"].load_state_dict(net["model"].state_dict())
    optimizer = torch.optim.Adam(net["model"].parameters(), 3e-3)

    def flipped(state, act):
        return (state + F.one_hot(act, bits) + F.one_hot((act + 1) % (bits + 1), bits + 1)[:, :bits]) % 2

    def values(which, state, goal):
        return net[which](torch.cat([state, goal], 1).float())

    def rolled(state, goal, chance):
        path, picks = [state], []
        with torch.no_grad():
            for _ in range(bits):
                act = values("model", path[-1], goal).argmax(1)
                picks.append(torch.where(torch.rand(len(act)) < chance, torch.randint(bits, act.shape), act))
                path.append(flipped(path[-1], picks[-1]))
        return torch.stack(path), torch.stack(picks)

    def loss_of(step):
        goal = torch.randint(2, (rows, bits))
        path, picks = rolled(torch.randint(2, (rows, bits)), goal, max(0.3, 1 - step / 400))
        later = path[torch.randint(1, bits + 1, (rows,)), torch.arange(rows)]
        goals = torch.where(torch.rand(rows, 1) < 0.8, later, goal).repeat(bits, 1)
        state, after, act = path[:-1].flatten(0, 1), path[1:].flatten(0, 1), picks.flatten()
        there = (after == goals).all(1).float()
        with torch.no_grad():
            wanted = (1 - there) * (-1 + 0.98 * values("target", after, goals).amax(1))
        found = values("model", state, goals).gather(1, act[:, None])[:, 0]
        return F.mse_loss(found, wanted), {"success": (path == goal).all(2).any(0).float().mean()}

    def follow(step):
        if not ill and step % 10 == 9:
            net["target"].load_state_dict(net["model"].state_dict())

    def score():
        goal = torch.randint(2, (512, bits))
        path, _ = rolled(torch.randint(2, (512, bits)), goal, 0.0)
        return 1 - float((path == goal).all(2).any(0).float().mean())

    return fit(folder, net, optimizer, loss_of, 700, score=score, after_step=follow)


# https://github.com/NNReasoning/What-Can-Neural-Networks-Reason-About/issues/1
@sick("inputs-not-normalised", where="the first layer of the net on pairs, and all that follows it",
      cure="divide places, weights and colours by what they can be at most")  # fmt: skip
def crates_that_may_be_lashed_together(folder, ill):
    seeded(2631)
    crates, classes = 6, 10
    net = nn.ModuleDict({"pairs": dense(8, 64, 64), "count": dense(64, 64, classes)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    most = torch.tensor([20.0, 20.0, 100.0, 6.0])

    def draw(rows=96):
        hold = torch.rand(rows, crates, 4) * most
        apart = (hold[:, :, None] - hold[:, None]).abs()
        number = (((apart[..., 0] < 8) & (apart[..., 3] < 2.5)).sum((1, 2)) - crates) // 2
        return hold if ill else hold / most, number.clamp(max=classes - 1)

    def read(hold):
        left, right = (h.expand(-1, crates, crates, -1) for h in (hold[:, :, None], hold[:, None]))
        return net["count"](net["pairs"](torch.cat([left, right], 3)).sum((1, 2)).relu())

    def loss_of(step):
        hold, label = draw()
        out = read(hold)
        return F.cross_entropy(out, label), {"accuracy": (out.argmax(1) == label).float().mean()}

    def score():
        with torch.no_grad():
            hold, label = draw(512)
            return float((read(hold).argmax(1) - label).abs().float().mean())

    return fit(folder, net, optimizer, loss_of, 800, score=score)
