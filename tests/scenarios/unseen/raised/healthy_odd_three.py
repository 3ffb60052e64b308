"""Healthy trainings towards a return, a share or a bound: values, mutations, flows, duals, one row at a time."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, score_of, seeded
from unseen.tasks import held_out, tend

import gradwatch


@healthy()
def an_otter_and_the_fish_of_a_stream(folder):
    """Double Q-learning with a copy that follows slowly; what a fish is worth makes values and errors grow."""
    seeded(2888)
    size, moves = 7, torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def begin(rows):
        return torch.randint(size, (rows, 2)), torch.randint(size, (rows, 2))

    def act(otter, fish, move):
        otter = (otter + moves[move]).clamp(0, size - 1)
        caught = (otter == fish).all(1)
        reward = caught.float() - 0.02
        fish = torch.where(caught[:, None], torch.randint(size, fish.shape), fish)
        return otter, fish, reward

    def see(otter, fish):
        return torch.cat([F.one_hot(otter, size), F.one_hot(fish, size)], 2).flatten(1).float()

    net = dense(4 * size, 96, 96, 4)
    slow = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    memory, at = [], list(begin(16))

    def score():
        with torch.no_grad():
            otter, fish = begin(256)
            won = torch.zeros(256)
            for _ in range(30):
                otter, fish, reward = act(otter, fish, net(see(otter, fish)).argmax(1))
                won += reward
        return -float(won.mean())

    def one(step):
        for _ in range(2):
            share = max(0.05, 1 - step / 400)
            seen = see(*at)
            with torch.no_grad():
                move = torch.where(torch.rand(16) < share, torch.randint(4, (16,)), net(seen).argmax(1))
            otter, fish, reward = act(*at, move)
            memory.append((seen, move, reward, see(otter, fish)))
            fresh = begin(16)
            restart = torch.rand(16, 1) < 0.04
            at[:] = torch.where(restart, fresh[0], otter), torch.where(restart, fresh[1], fish)
        del memory[:-600]
        old = [memory[i] for i in torch.randint(len(memory), (6,)).tolist()]
        seen, move, reward, then = (torch.cat(part) for part in zip(*old, strict=True))
        with torch.no_grad():
            best = net(then).argmax(1, keepdim=True)
            goal = reward + 0.95 * slow(then).gather(1, best)[:, 0]
        value = net(seen).gather(1, move[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        with torch.no_grad():
            for p, followed in zip(slow.parameters(), net.parameters(), strict=True):
                p.lerp_(followed, 0.01)
        return {"loss": loss, "value": value.mean(), "reward": reward.mean(), "explored": share}

    return tend(folder, net, optimizer, one, 800, score)


@healthy()
def a_hopping_toy_tuned_by_mutations(folder):
    """Evolution strategies: mirrored mutations of all weights, ranked, make the gradient that Adam follows."""
    seeded(2889)
    net = dense(4, 16, 1, act=nn.Tanh)
    params = list(net.parameters())
    optimizer = torch.optim.Adam(params, 0.03)
    sizes = [p.numel() for p in params]

    def run(weights, starts):
        """Minus the mean distance of a cart from its mark, a swinging load on it; `weights` are `[K, all of them]`."""
        first, bias, second, last = weights.split(sizes, 1)
        first, second = first.view(-1, 16, 4), second.view(-1, 1, 16)
        x = starts.expand(len(weights), -1, -1).clone()
        cost = torch.zeros(len(weights))
        for _ in range(40):
            hidden = (x @ first.transpose(1, 2) + bias[:, None]).tanh()
            push = (hidden @ second.transpose(1, 2) + last[:, None])[..., 0].clamp(-1, 1)
            # The motor knows three speeds only.
            push = (push * 1.5).round() / 1.5
            place, speed, angle, turning = x.unbind(-1)
            speed = 0.98 * speed + 0.2 * push
            turning = 0.98 * turning - 0.2 * angle - 0.1 * push
            x = torch.stack([place + 0.2 * speed, speed, angle + 0.2 * turning, turning], -1)
            cost += (x[..., 0].abs() + 0.3 * x[..., 2].abs()).mean(1)
        return -cost / 40

    fresh = torch.randn(64, 4) * torch.tensor([1.0, 0.3, 0.5, 0.3])

    def flat():
        return nn.utils.parameters_to_vector(params).detach()

    def one(step):
        starts = torch.randn(8, 4) * torch.tensor([1.0, 0.3, 0.5, 0.3])
        shakes = torch.randn(32, sum(sizes))
        fitness = run(flat() + 0.1 * torch.cat([shakes, -shakes]), starts)
        ranks = fitness.argsort().argsort().float() / 63 - 0.5
        uphill = (ranks[:32] - ranks[32:]) @ shakes / (64 * 0.1)
        for p, way in zip(params, uphill.split(sizes), strict=True):
            p.grad = -way.view_as(p)
        optimizer.step()
        return {"loss": -fitness.mean(), "fitness": fitness.mean(), "best": fitness.max()}

    return tend(folder, net, optimizer, one, 250, lambda: -float(run(flat()[None], fresh)))


@healthy()
def mosaics_as_often_as_they_please(folder):
    """A flow network by trajectory balance (Malkin et al., 2022): the sum has a rate of its own."""
    seeded(2890)
    side = 7
    axis = (torch.arange(side) / (side - 1) - 0.5).abs()
    far = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)
    reward = 0.05 + 0.5 * (far > 0.25).all(-1) + 2.0 * ((far > 0.3) & (far < 0.4)).all(-1)
    net = nn.ModuleDict({"policy": dense(2 * side, 64, 64, 3, act=nn.LeakyReLU)})
    net.register_parameter("log_all", nn.Parameter(torch.zeros(())))
    groups = [{"params": net["policy"].parameters(), "lr": 1e-3}, {"params": [net.log_all], "lr": 0.1}]
    optimizer = torch.optim.Adam(groups)

    def choices(at):
        said = net["policy"](F.one_hot(at, side).flatten(-2).float())
        full = torch.cat([at == side - 1, torch.zeros(*at.shape[:-1], 1, dtype=torch.bool)], -1)
        return said.masked_fill(full, -torch.inf).log_softmax(-1)

    def loss_of(step):
        at, going = torch.zeros(32, 2, dtype=torch.long), torch.ones(32, dtype=torch.bool)
        forward, backward = torch.zeros(32), torch.zeros(32)
        while going.any():
            logs = choices(at)
            chance = 0.95 * logs.detach().exp() + 0.05 * (logs > -torch.inf) / (logs > -torch.inf).sum(1, keepdim=True)
            move = torch.multinomial(chance, 1)[:, 0]
            forward = forward + torch.where(going, logs.gather(1, move[:, None])[:, 0], 0)
            going = going & (move < 2)
            at = at + torch.where(going[:, None], F.one_hot(move, 3)[:, :2], 0)
            backward = backward - torch.where(going, (at > 0).sum(1).clamp(min=1).log(), 0)
        gap = net.log_all + forward - reward[at[:, 0], at[:, 1]].log() - backward
        return gap.square().mean(), {"log_all": net.log_all.detach()}

    def score():
        """Half the distance between how often each mosaic is laid, over all ways, and its share."""
        with torch.no_grad():
            every = torch.cartesian_prod(torch.arange(side), torch.arange(side)).view(side, side, 2)
            chance = choices(every).exp()
        reached = torch.zeros(side, side)
        reached[0, 0] = 1
        for i in range(side):
            for j in range(side):
                if i:
                    reached[i, j] += reached[i - 1, j] * chance[i - 1, j, 0]
                if j:
                    reached[i, j] += reached[i, j - 1] * chance[i, j - 1, 1]
        return float((reached * chance[..., 2] - reward / reward.sum()).abs().sum() / 2)

    return fit(folder, net, optimizer, loss_of, 700, score=score)


@healthy()
def loans_granted_alike_in_two_towns(folder):
    """The shares that are granted may differ by 0.05: a multiplier with an optimizer of its own sees to it."""
    seeded(2891)
    way = torch.randn(8)

    def apply(rows):
        town = torch.randint(2, (rows,))
        x = torch.randn(rows, 8)
        x[:, 0] = town * 2.0 - 1 + 0.3 * torch.randn(rows)
        y = (x @ way + 0.8 * x[:, 1] * x[:, 2] + 0.7 * (town * 2 - 1) > 0).float()
        return x, y, town

    def differ(said, town):
        chance = said.sigmoid()
        return chance[town == 1].mean() - chance[town == 0].mean()

    net = dense(8, 48, 48, 1)
    dual = nn.Module()
    dual.price = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    of_dual = torch.optim.SGD(dual.parameters(), lr=0.05, maximize=True)
    fresh = apply(2000)

    def worth():
        said = net(fresh[0])[:, 0]
        return F.binary_cross_entropy_with_logits(said, fresh[1]) + F.relu(differ(said, fresh[2]).abs() - 0.05)

    score = held_out(net, worth)
    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, optimizer)}
    watch = gradwatch.watch(net, optimizer, name="lender", **options)
    of_price = gradwatch.watch(dual, of_dual, name="price", run=watch, **options)
    with watch, of_price:
        for _ in range(600):
            x, y, town = apply(256)
            said = net(x)[:, 0]
            error = F.binary_cross_entropy_with_logits(said, y)
            over = differ(said, town).abs() - 0.05
            loss = error + dual.price * over
            optimizer.zero_grad()
            of_dual.zero_grad()
            loss.backward()
            optimizer.step()
            of_dual.step()
            with torch.no_grad():
                dual.price.clamp_(min=0)
            watch.log(loss=loss, error=error, over=over)
            of_price.log(price=dual.price.detach())
    return Outcome(gradwatch.open_history(watch.dir.parent), first, score())


@healthy()
def fares_asked_at_a_kiosk_one_by_one(folder):
    """Every traveller is seen once, one at a time: hashed marks, a linear model and Adagrad."""
    seeded(2892)
    of_route, of_hour, of_both = 2 * torch.randn(20), torch.randn(24), 0.5 * torch.randn(20, 24)

    def draw(rows):
        route, hour = torch.randint(20, (rows,)), torch.randint(24, (rows,))
        price = 0.7 * (of_route[route] + of_hour[hour] + of_both[route, hour]) + 0.1 * torch.randn(rows)
        return torch.stack([route, 20 + hour, 44 + (route * 31 + hour * 7) % 128], 1), price

    net = nn.EmbeddingBag(172, 1, mode="sum")
    nn.init.zeros_(net.weight)
    optimizer = torch.optim.Adagrad(net.parameters(), 0.3)
    seen = {"mean": 0.0}

    def loss_of(step):
        marks, price = draw(1)
        loss = 0.5 * (net(marks)[:, 0] - price).square().mean()
        seen["mean"] += 0.01 * (float(loss.detach()) - seen["mean"])
        return loss, {"progressive_loss": seen["mean"]}

    def error(step):
        marks, price = draw(512)
        return F.mse_loss(net(marks)[:, 0], price)

    return fit(folder, net, optimizer, loss_of, 1500, score=score_of(error))
