"""Trainings in which nothing is wrong, ordinary and not: ships, trains and roads."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


@healthy(0.5)
def repairs_booked_by_model_and_depot(folder):
    seeded(10957)
    models, depots = torch.randn(30), torch.randn(12)

    def repairs(rows):
        model, depot = torch.randint(30, (rows,)), torch.randint(12, (rows,))
        numbers = torch.randn(rows, 4)
        cost = models[model] + 0.7 * depots[depot] + numbers[:, 0] * (1 + 0.5 * models[model])
        heavy = (torch.rand(rows) < 0.02) * 4 * torch.randn(rows)
        return model, depot, numbers, cost + heavy + 0.1 * torch.randn(rows)

    class Costs(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.depot = nn.Embedding(30, 8), nn.Embedding(12, 4)
            self.body = nn.Sequential(
                nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU(),
                nn.Linear(32, 1),
            )  # fmt: skip

        def forward(self, model, depot, numbers):
            return self.body(torch.cat([self.model(model), self.depot(depot), numbers], 1))[:, 0]

    net = Costs()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    *test, cost = repairs(1000)
    draw = rounds(64, *repairs(4000))
    score = held_out(net, lambda: F.huber_loss(net(*test), cost))

    def one(step):
        *row, paid = draw()
        optimizer.zero_grad()
        loss = F.huber_loss(net(*row), paid)
        loss.backward()
        optimizer.step()
        if step % 40 == 39:
            validation = score()
            plateau.step(validation)
            return {"loss": loss, "val_loss": validation}
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 480, score)


@healthy(0.4)
def rails_of_another_gauge_by_a_known_reader(folder):
    """Fine-tuning: the head alone first, then the body at a tenth of its rate."""
    seeded(10958)
    way = torch.randn(16, 4)

    def rails(rows, bend):
        x = torch.randn(rows, 16)
        return x, ((x @ way / 4).tanh() + bend * (x[:, :4] * x[:, 4:8])).argmax(1)

    body, old = dense(16, 96, 96, 48), nn.Linear(48, 4)
    before = torch.optim.Adam([*body.parameters(), *old.parameters()], 2e-3)
    for _ in range(300):
        x, y = rails(128, 0.0)
        before.zero_grad()
        F.cross_entropy(old(body(x).relu()), y).backward()
        before.step()
    net = nn.Sequential(body, nn.ReLU(), nn.Linear(48, 4))
    groups = [{"params": body.parameters(), "lr": 5e-4}, {"params": net[2].parameters(), "lr": 5e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    body.requires_grad_(False)

    def loss_of(step):
        if step == 60:
            body.requires_grad_(True)
        x, y = rails(64, 0.3)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    tx, ty = rails(1024, 0.3)
    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.4)
def classes_of_roads_by_what_they_meet(folder):
    """A graph convolution over the whole map; a tenth of the roads are labelled."""
    seeded(10959)
    roads, classes = 300, 4
    kind = torch.randint(classes, (roads,))
    same = (kind[:, None] == kind[None, :]).float()
    link = (torch.rand(roads, roads) < 0.04 * same + 0.004).float().triu(1)
    link = link + link.T + torch.eye(roads)
    degree = link.sum(1).rsqrt()
    spread = degree[:, None] * link * degree[None, :]
    features = torch.randn(classes, 20)[kind] * 0.5 + torch.randn(roads, 20)
    known = torch.arange(roads) < 60

    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.drop = nn.Linear(20, 32), nn.Linear(32, classes), nn.Dropout(0.5)

        def forward(self, x):
            return spread @ self.second(self.drop((spread @ self.first(self.drop(x))).relu()))

    net = Graph()
    optimizer = torch.optim.Adam(net.parameters(), 0.01, weight_decay=5e-4)

    def loss_of(step):
        return F.cross_entropy(net(features)[known], kind[known])

    test = held_out(net, lambda: F.cross_entropy(net(features)[~known], kind[~known]))
    return fit(folder, net, optimizer, loss_of, 200, score=test)


@healthy(0.4)
def the_same_lighthouse_in_two_exposures(folder):
    """SimCLR: two views, NT-Xent over 2N."""
    seeded(10960)
    towers = torch.randn(200, 24)
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(nn.Linear(24, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 48)))
    net.add_module("projection", nn.Sequential(nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 16)))
    optimizer = torch.optim.SGD(net.parameters(), 0.2, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)

    def exposed(seen):
        light = 0.7 + 0.6 * torch.rand(len(seen), 1)
        return seen * light * (torch.rand_like(seen) > 0.15) + 0.2 * torch.randn_like(seen)

    def loss_on(seen):
        n = len(seen)
        z = F.normalize(net(torch.cat([exposed(seen), exposed(seen)])), dim=1)
        alike = (z @ z.T / 0.2).masked_fill(torch.eye(2 * n).bool(), -1e9)
        return F.cross_entropy(alike, torch.arange(2 * n).roll(n))

    def loss_of(step):
        return loss_on(towers[torch.randperm(200)[:64]])

    score = held_out(net, lambda: loss_on(towers[:128]))
    return fit(folder, net, optimizer, loss_of, 300, schedule=schedule, score=score)


@healthy(0.3)
def a_barge_poled_to_the_far_lock(folder):
    """DQN: one reward at the end of a canal, a replay memory, a target network that is copied every 50 steps."""
    seeded(10961)
    reaches, most = 8, 24
    net, target = dense(reaches, 48, 2), dense(reaches, 48, 2)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    memory, state = [], {"at": 0, "age": 0}
    side = (1, 0, 0, 1, 0, 1, 1, 0)

    def pole(at, act):
        """On each reach one side of the barge takes it on, the other back."""
        moved = min(reaches - 1, at + 1) if act == side[at] else max(0, at - 1)
        return moved, float(moved == reaches - 1)

    def act_in(at, chance):
        if float(torch.rand(())) < chance:
            return int(torch.randint(2, ()))
        with torch.no_grad():
            return int(net(F.one_hot(torch.tensor(at), reaches).float()).argmax())

    def explore(chance):
        act = act_in(state["at"], chance)
        moved, reward = pole(state["at"], act)
        memory.append((state["at"], act, reward, moved))
        state["age"] += 1
        done = reward > 0 or state["age"] >= most
        if done:
            state.update(at=0, age=0)
        else:
            state.update(at=moved)

    for _ in range(300):
        explore(1.0)

    def one(step):
        chance = max(0.1, 1 - step / 400)
        for _ in range(2):
            explore(chance)
        at, act, reward, moved = (torch.tensor(part) for part in zip(
            *(memory[int(i)] for i in torch.randint(len(memory), (32,))), strict=True))  # fmt: skip
        with torch.no_grad():
            wanted = reward + 0.95 * (1 - reward) * target(F.one_hot(moved, reaches).float()).max(1).values
        value = net(F.one_hot(at, reaches).float()).gather(1, act[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "q": value.mean(), "epsilon": chance}

    def score():
        """Steps to the lock from each reach, at most `most`."""
        total = 0
        for begin in range(reaches - 1):
            at = begin
            for _ in range(most):
                total += 1
                at, reward = pole(at, act_in(at, 0.05))
                if reward:
                    break
        return total

    return tend(folder, net, optimizer, one, 700, score)


@healthy(0.4)
def axle_bearings_about_to_run_hot(folder):
    """Three in a hundred are ill; they are weighed up, and what is scored is weighed alike."""
    seeded(10962)
    way = torch.randn(12)

    def bearings(rows):
        x = torch.randn(rows, 12)
        heat = x @ way / way.norm() + 0.3 * x[:, 0] * x[:, 1]
        return x, (heat > 1.95).float()

    x, y = bearings(6000)
    rare = (1 - y.mean()) / y.mean()
    net = dense(12, 64, 32, 1)
    nn.init.zeros_(net[-1].bias)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    draw = rounds(128, x, y)

    def loss_on(x, y):
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], y, pos_weight=rare)

    def loss_of(step):
        rows, hot = draw()
        return loss_on(rows, hot), {"share_of_hot": hot.mean()}

    tx, ty = bearings(4000)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: loss_on(tx, ty)))


@healthy(0.9)
def a_braking_curve_that_obeys_its_equation(folder):
    """Physics-informed, by L-BFGS: v' = -a - b v^2, from v(0) = 1; no data but the equation."""
    seeded(10963)
    net = dense(1, 24, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), 0.5, max_iter=8, history_size=20, line_search_fn="strong_wolfe")
    times = torch.linspace(0, 1, 60)[:, None].requires_grad_(True)

    def loss_of(step):
        speed = net(times)
        (slope,) = torch.autograd.grad(speed.sum(), times, create_graph=True)
        return (slope + 0.4 + 0.8 * speed.square()).square().mean() + (speed[0] - 1).square().mean()

    return fit(folder, net, optimizer, loss_of, 50, closure=True)
