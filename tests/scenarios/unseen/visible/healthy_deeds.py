"""Healthy trainings on tables, tastes, graphs, curves and words, and of those that act and are paid."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import lr_scheduler as plans
from unseen import dense, fit, healthy, mean, score_of, seeded
from unseen.visible.healthy import judged, rounds

# --------------------------------------------------------------------------------------------- tables, tastes, curves


@healthy(0.5)
def friedmans_table_by_squared_sums(folder):
    """Ten columns of which five matter, a target of unit variance; Adagrad under autocast in bfloat16."""
    seeded(808)

    def table(rows):
        x = torch.rand(rows, 10)
        y = 10 * (3.1416 * x[:, 0] * x[:, 1]).sin() + 20 * (x[:, 2] - 0.5).square() + 10 * x[:, 3] + 5 * x[:, 4]
        return (x - 0.5) * 12**0.5, (y + torch.randn(rows) - 14.4) / 5

    net, loader, (x, y) = dense(10, 48, 48, 1), rounds(*table(2000)), table(500)
    make = optim.Adagrad(net.parameters(), 0.03)

    def loss_of(step):
        x, y = next(loader)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = net(x)[:, 0]
        return F.mse_loss(found.float(), y)

    score = judged(net, x, y, of=lambda found, y: F.mse_loss(found[:, 0], y))
    return fit(folder, net, make, loss_of, 500, score=score)


class Tastes(nn.Module):
    def __init__(self, people, films, size=8):
        super().__init__()
        self.person, self.film = nn.Embedding(people, size), nn.Embedding(films, size)
        self.kind, self.good = nn.Embedding(people, 1), nn.Embedding(films, 1)
        self.middle = nn.Parameter(torch.tensor(3.5))
        for table in (self.person, self.film, self.kind, self.good):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, person, film):
        offsets = self.middle + self.kind(person)[:, 0] + self.good(film)[:, 0]
        return offsets + (self.person(person) * self.film(film)).sum(1)


@healthy(0.4)
def films_rated_by_factors_and_offsets(folder):
    """A third of all ratings of 200 people and 120 films are known; a noise of 0.3 is left."""
    seeded(815)
    ratings = 3.5 + 0.5 * (torch.randn(200, 1) + torch.randn(120)) + 0.5 * torch.randn(200, 3) @ torch.randn(3, 120)
    ratings += 0.3 * torch.randn(200, 120)
    at = torch.randperm(24_000)
    known, apart = at[:8000], at[8000:10_000]
    net, loader = Tastes(200, 120), rounds(known, batch=256)
    make = optim.Adagrad(net.parameters(), 0.2)

    def error(at):
        return F.mse_loss(net(at // 120, at % 120), ratings.flatten()[at])

    def loss_of(step):
        (at,) = next(loader)
        return error(at) + 0.01 * (net.person(at // 120).square().sum(1) + net.film(at % 120).square().sum(1)).mean()

    return fit(folder, net, make, loss_of, 600, score=score_of(lambda step: error(apart), 1))


class Neighbours(nn.Module):
    """GraphSAGE: a node beside the mean of some of its neighbours, twice."""

    def __init__(self, size, width, kinds):
        super().__init__()
        self.one, self.two = nn.Linear(2 * size, width), nn.Linear(2 * width, kinds)

    def forward(self, own, near, far):
        """Features of nodes `[B, F]`, of their neighbours `[B, S, F]`, of the neighbours of these `[B, S, S, F]`."""
        h = F.relu(self.one(torch.cat([own, near.mean(1)], 1)))
        h_near = F.relu(self.one(torch.cat([near, far.mean(2)], 2)))
        h, h_near = F.dropout(h, 0.3, self.training), F.dropout(h_near, 0.3, self.training)
        return self.two(torch.cat([h, h_near.mean(1)], 1))


@healthy(0.4)
def kinds_by_sampled_neighbours(folder):
    """Four communities whose own features say little; six neighbours are drawn for each node, six for each of these."""
    seeded(816)
    kind = torch.randint(4, (800,))
    likely = torch.where(kind[:, None] == kind, 0.05, 0.006)
    edges = torch.bernoulli(likely).triu(1)
    edges = edges + edges.T + torch.eye(800)
    features = 0.7 * torch.randn(4, 16)[kind] + 1.5 * torch.randn(800, 16)
    net, loader = Neighbours(16, 32, 4), rounds(torch.arange(500))
    make = optim.AdamW(net.parameters(), 5e-3, weight_decay=0.01)

    def loss_on(nodes):
        near = torch.multinomial(edges[nodes], 6, replacement=True)
        far = torch.multinomial(edges[near.flatten()], 6, replacement=True).view(*near.shape, 6)
        return F.cross_entropy(net(features[nodes], features[near], features[far]), kind[nodes])

    def score():
        net.eval()
        worth = score_of(lambda step: loss_on(torch.arange(500, 800)), 4)()
        net.train()
        return worth

    return fit(folder, net, make, lambda step: loss_on(*next(loader)), 200, score=score)


@healthy(0.9)
def curve_through_noisy_points_in_whole_steps(folder):
    """L-BFGS on all of 80 points, with a little decay in the loss."""
    seeded(825)
    net = dense(1, 16, 16, 1, act=nn.Tanh)
    x = torch.linspace(-2, 2, 80)[:, None]
    y = (3 * x).sin() * (-0.4 * x.square()).exp() + 0.05 * torch.randn(80, 1)
    make = optim.LBFGS(net.parameters(), max_iter=10, line_search_fn="strong_wolfe")

    def loss_of(step):
        return F.mse_loss(net(x), y) + 1e-5 * sum(p.square().sum() for p in net.parameters())

    return fit(folder, net, make, loss_of, 40, closure=True)


@healthy(0.15)
def neighbours_of_words_against_drawn_ones(folder):
    """word2vec: most words are in no batch, so most rows of the sparse gradients are absent; a rate that falls to 0."""
    seeded(833)
    often = 1 / torch.arange(5, 505.0)
    about, noise = torch.randint(10, (500,)), often**0.75
    net = nn.ModuleDict({side: nn.Embedding(500, 16, sparse=True) for side in ("word", "context")})
    nn.init.uniform_(net["word"].weight, -1 / 32, 1 / 32)
    nn.init.zeros_(net["context"].weight)
    make = optim.SGD(net.parameters(), 0.1)
    of_topic = torch.stack([often * (about == topic) for topic in range(10)])

    def loss_of(step):
        word = torch.multinomial(often, 128, replacement=True)
        met = torch.multinomial(of_topic[about[word]], 1)
        drawn = torch.multinomial(noise, 128 * 5, replacement=True).view(128, 5)
        alike = (net["word"](word)[:, None] * net["context"](torch.cat([met, drawn], 1))).sum(2)
        return -(F.logsigmoid(alike[:, 0]).sum() + F.logsigmoid(-alike[:, 1:]).sum())

    plan = plans.LinearLR(make, 1.0, 0.0, 1000)
    return fit(folder, net, make, loss_of, 1000, schedule=plan, score=score_of(loss_of, 20))


# ------------------------------------------------------------------------------------------------ what acts and is paid


@healthy(0.5)
def cliff_walked_with_a_memory(folder):
    """DQN on a grid of 4 x 7 with a cliff along its lower edge; walks begin above it, and the score is their cost."""
    seeded(813)
    net, slow = dense(28, 48, 4), dense(28, 48, 4)
    slow.load_state_dict(net.state_dict())
    moves, cells = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]]), torch.eye(28)
    limit = torch.tensor([3, 6])

    def anywhere():
        return torch.stack([torch.randint(3, (16,)), torch.randint(7, (16,))], 1)

    place, age, memory = anywhere(), torch.zeros(16), []

    def seen(place):
        return cells[7 * place[:, 0] + place[:, 1]]

    def move(place, action):
        """Where one comes to, what is paid, and whether it is over."""
        to = torch.minimum((place + moves[action]).clamp_min(0), limit)
        fallen, home = (to[:, 0] == 3) & (to[:, 1] > 0) & (to[:, 1] < 6), (to == limit).all(1)
        return to, torch.where(fallen, -5.0, -0.5), fallen | home

    def loss_of(step):
        with torch.no_grad():
            chance = torch.rand(16) < max(0.1, 1 - step / 250)
            action = torch.where(chance, torch.randint(4, (16,)), net(seen(place)).argmax(1))
            to, paid, over = move(place, action)
            memory.append((seen(place), action, paid, seen(to), over))
            age.add_(1)
            fresh = over | (age > 40)
            age[fresh] = 0
            place.copy_(torch.where(fresh[:, None], anywhere(), to))
            if step % 50 == 0:
                slow.load_state_dict(net.state_dict())
            old = [memory[at] for at in torch.randint(max(0, step - 300), step + 1, (4,))]
            state, action, paid, after, over = (torch.cat(part) for part in zip(*old, strict=True))
            target = paid + 0.95 * slow(after).max(1).values * ~over
        return F.smooth_l1_loss(net(state).gather(1, action[:, None])[:, 0], target)

    @torch.no_grad()
    def score():
        place, cost, walking = torch.cartesian_prod(torch.arange(3), torch.arange(7)), 0.0, torch.ones(21)
        for _ in range(30):
            place, paid, over = move(place, net(seen(place)).argmax(1))
            cost -= float((walking * paid).mean())
            walking = walking * ~over
        return cost

    return fit(folder, net, optim.RMSprop(net.parameters(), 3e-3, alpha=0.95, eps=1e-4), loss_of, 600, score=score)


@healthy(0.4)
def spring_brought_home_by_parts_of_a_rollout(folder):
    """PPO: a mass on a spring without friction is brought to rest; 16 x 32 moves, four times in four parts."""
    seeded(814)
    net = nn.ModuleDict({"actor": dense(2, 32, 32, 1, act=nn.Tanh), "critic": dense(2, 32, 32, 1, act=nn.Tanh)})
    net["spread"] = nn.ParameterList([torch.tensor([-0.5])])
    nn.init.normal_(net["actor"][-1].weight, std=0.01)
    kept = {}

    def pushed(state, force):
        place, speed = state.unbind(1)
        speed = speed + 0.2 * (force.clamp(-2, 2) - place)
        return torch.stack([place + 0.2 * speed, speed], 1), -(place.square() + 0.2 * speed.square())

    def policy(state):
        return torch.distributions.Normal(net["actor"](state)[..., 0], net["spread"][0].exp())

    @torch.no_grad()
    def rollout():
        state, rows = torch.randn(16, 2), []
        for _ in range(32):
            force = policy(state).sample()
            after, paid = pushed(state, force)
            rows.append((state, force, policy(state).log_prob(force), 0.2 * paid))
            state = after
        state, force, before, paid = (torch.stack(part) for part in zip(*rows, strict=True))
        value = torch.cat([net["critic"](state)[..., 0], net["critic"](after)[None, :, 0]])
        gain, gains = torch.zeros(16), []
        for at in range(31, -1, -1):
            gain = paid[at] + 0.95 * value[at + 1] - value[at] + 0.95 * 0.95 * gain
            gains.insert(0, gain)
        gain = torch.stack(gains)
        rows = (state, force, before, gain, gain + value[:-1])
        kept.update(rows=[part.flatten(0, 1) for part in rows], paid=paid.mean())

    def loss_of(step):
        if step % 16 == 0:
            rollout()
        if step % 4 == 0:
            kept["parts"] = torch.randperm(512).chunk(4)
        state, force, before, gain, worth = (part[kept["parts"][step % 4]] for part in kept["rows"])
        gain, ratio = (gain - gain.mean()) / gain.std(), (policy(state).log_prob(force) - before).exp()
        better = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        missed = (net["critic"](state)[:, 0] - worth).square().mean()
        return 0.5 * missed - better, {"reward": kept["paid"], "value_loss": missed}

    @torch.no_grad()
    def score():
        state, costs = starts, []
        for _ in range(50):
            state, paid = pushed(state, net["actor"](state)[:, 0])
            costs.append(-float(paid.mean()))
        return mean(costs)

    starts = torch.randn(128, 2)
    make = optim.Adam(net.parameters(), 2e-3, eps=1e-5)
    return fit(
        folder, net, make, loss_of, 480, score=score, schedule=plans.LinearLR(make, 1.0, 0.0, 480),
        before_step=lambda step: clip_grad_norm_(net.parameters(), 0.5),
    )  # fmt: skip


@healthy(0.1)
def stock_ordered_by_an_actor_and_a_critic(folder):
    """A2C: goods are ordered, kept and sold by the day; returns in the tens, and a loss that follows them."""
    seeded(836)
    net = nn.ModuleDict({"actor": dense(2, 32, 6, act=nn.Tanh), "critic": dense(2, 32, 1, act=nn.Tanh)})
    make = optim.RMSprop(net.parameters(), 3e-3, alpha=0.99, eps=1e-5)
    now = {"stock": torch.full((16,), 5.0)}

    def seen(stock):
        return torch.stack([stock / 10, (stock / 20).square()], 1)

    @torch.no_grad()
    def day(stock, order):
        """What is left tomorrow, and what was earned: 2 for each sold, 0.3 for each kept, 1 for each order at all."""
        ready = (stock + order).clamp_max(20)
        sold = torch.minimum(ready, torch.poisson(torch.full_like(stock, 2.5)))
        return ready - sold, 2 * sold - 0.3 * (ready - sold) - (order > 0).float() - 0.5 * order

    def loss_of(step):
        stock, rows = now["stock"], []
        for _ in range(8):
            policy = torch.distributions.Categorical(logits=net["actor"](seen(stock)))
            order = policy.sample()
            value, said, unsure = net["critic"](seen(stock))[:, 0], policy.log_prob(order), policy.entropy()
            stock, earned = day(stock, order)
            rows.append((value, said, unsure, earned))
        now["stock"] = stock
        value, said, unsure, earned = (torch.stack(part) for part in zip(*rows, strict=True))
        worth, worths = net["critic"](seen(stock))[:, 0].detach(), []
        for one in earned.flip(0):
            worth = one + 0.95 * worth
            worths.insert(0, worth)
        gain = torch.stack(worths) - value
        loss = 0.5 * gain.square().mean() - (gain.detach() * said).mean() - 0.02 * unsure.mean()
        return loss, {"earned": earned.mean(), "entropy": unsure.mean()}

    @torch.no_grad()
    def score():
        stock, took = torch.full((64,), 5.0), []
        for _ in range(60):
            order = torch.distributions.Categorical(logits=net["actor"](seen(stock))).sample()
            stock, earned = day(stock, order)
            took.append(float(earned.mean()))
        return -mean(took)

    clip = {"before_step": lambda step: clip_grad_norm_(net.parameters(), 0.5)}
    return fit(folder, net, make, loss_of, 500, score=score, **clip)
