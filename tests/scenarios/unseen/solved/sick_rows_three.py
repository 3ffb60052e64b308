"""A tank, sessions, ships, a kite, tides and lifts."""

from itertools import pairwise

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, mean, seeded, sick
from unseen.tasks import tend


# https://github.com/ray-project/ray/pull/65125
@sick("actor-loss-trains-critic", "policy-loss-trains-critic", "gradients-accumulate",
      where="every layer of the critic",
      cure="freeze the critic while the actor's loss is computed")  # fmt: skip
def the_valve_of_a_tank(folder, ill):
    seeded(2632)
    net = nn.ModuleDict({"actor": dense(3, 48, 48, 1), "critic": dense(4, 64, 64, 1)})
    target = dense(4, 64, 64, 1).requires_grad_(False)
    target.load_state_dict(net["critic"].state_dict())
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def opened(state):
        return net["actor"](state).tanh()

    def turn(state, act):
        level = 0.8 * state[:, :1] + 0.4 * state[:, 1:2] + 0.6 * act
        after = torch.cat([level, 0.8 * state[:, 1:2] + 0.3 * torch.randn_like(level), torch.randn_like(level)], 1)
        return after, -0.2 * (level - 0.5 * state[:, 2:].sin()).square()

    def one(step):
        state = torch.randn(64, 3)
        act = (opened(state).detach() + 0.3 * torch.randn(64, 1)).clamp(-1, 1)
        after, reward = turn(state, act)
        with torch.no_grad():
            wanted = reward + 0.95 * target(torch.cat([after, opened(after)], 1))
        value = net["critic"](torch.cat([state, act], 1))
        optimizer.zero_grad()
        critic_loss = F.mse_loss(value, wanted)
        critic_loss.backward()
        net["critic"].requires_grad_(ill)
        actor_loss = -net["critic"](torch.cat([state, opened(state)], 1)).mean()
        actor_loss.backward()
        net["critic"].requires_grad_(True)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net["critic"].parameters(), strict=True):
                slow.lerp_(fast, 0.02)
        return {"loss": critic_loss, "actor_loss": actor_loss, "q": value.mean(), "reward": reward.mean()}

    def score():
        state, total = torch.randn(512, 3), 0.0
        with torch.no_grad():
            for _ in range(10):
                state, reward = turn(state, opened(state))
                total -= float(reward.mean()) / 10
        return total

    return tend(folder, net, optimizer, one, 800, score)


# https://github.com/hungpthanh/GRU4REC-pytorch/issues/1
@sick("no-gradient", "weights-unchanged", "hidden-state-not-passed",
      where="the weights from hidden to hidden, whose gradient is zero at every step",
      cure="hand the hidden state on to the next item of the session")  # fmt: skip
def what_is_clicked_next(folder, ill):
    seeded(2633)
    items, width = 16, 48
    net = nn.ModuleDict({"look": nn.Embedding(items, 24), "gru": nn.GRU(24, width), "out": nn.Linear(width, items)})
    optimizer = torch.optim.Adagrad(net.parameters(), 0.05)
    habit = torch.randint(items, (items, 4))

    def sessions(rows=50, length=12):
        clicks = [torch.randint(items, (rows,)) for _ in range(2)]
        for _ in range(length):
            usual = habit[clicks[-2], clicks[-1] % 4]
            clicks.append(torch.where(torch.rand(rows) < 0.1, torch.randint(items, (rows,)), usual))
        return torch.stack(clicks)

    def step_of(click, hidden):
        out, after = net["gru"](net["look"](click)[None], hidden)
        return net["out"](out[0]), torch.zeros_like(after) if ill else after

    def loss_of(step):
        clicks, hidden, losses = sessions(), torch.zeros(1, 50, width), []
        for now, following in pairwise(clicks):
            scores, hidden = step_of(now, hidden)
            losses.append(F.cross_entropy(scores, following))
        return torch.stack(losses[1:]).mean()

    def score():
        with torch.no_grad():
            return mean([float(loss_of(0)) for _ in range(8)])

    return fit(folder, net, optimizer, loss_of, 300, score=score)


# https://github.com/nutonomy/nuscenes-devkit/issues/728
@sick("no-activation", where="between the two linear layers of the head",
      cure="a ReLU between the two linear layers")  # fmt: skip
def paths_of_ships_past_a_pilot(folder, ill):
    seeded(2634)
    modes, moments = 2, 6
    backbone = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.Flatten())
    between = nn.Identity() if ill else nn.ReLU()
    head = nn.Sequential(nn.Linear(35, 96), between, nn.Linear(96, modes * (2 * moments + 1)))
    net = nn.ModuleDict({"backbone": backbone, "head": head})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def draw(rows=64):
        speed, pull, turn = 0.5 + torch.rand(rows, 1), 0.4 * torch.randn(rows, 1), 1.5 * torch.randn(rows, 1)
        buoy = torch.rand(rows, 1, 1) * 12
        chart = (-((torch.arange(12.0) - buoy) / 2).square()).exp()[:, None].expand(rows, 1, 12, 12)
        time = torch.linspace(0.2, 1.2, moments)
        way, course = speed * time + 0.5 * pull * time**2, turn * time + 0.05 * (buoy[:, :, 0] - 6)
        path = torch.stack([way * course.cos(), way * course.sin()], 2)
        return chart, torch.cat([speed, pull, turn], 1), path + 0.02 * torch.randn_like(path)

    def foretold(chart, vessel):
        out = net["head"](torch.cat([net["backbone"](chart), vessel], 1))
        return out[:, :-modes].view(-1, modes, moments, 2), out[:, -modes:]

    def loss_of(step):
        chart, vessel, path = draw()
        paths, odds = foretold(chart, vessel)
        apart = (paths - path[:, None]).norm(dim=3).mean(2)
        closest = apart.argmin(1)
        off = F.smooth_l1_loss(paths[torch.arange(64), closest], path)
        return F.cross_entropy(odds, closest) + 10 * off, {"closest": apart.amin(1).mean()}

    def score():
        with torch.no_grad():
            chart, vessel, path = draw(512)
            paths, _ = foretold(chart, vessel)
            return float((paths - path[:, None]).norm(dim=3).mean(2).amin(1).mean())

    return fit(folder, net, optimizer, loss_of, 500, score=score)


# https://github.com/DeepReinforcementLearning/DeepReinforcementLearningInAction/issues/32
@sick("softmax-over-the-batch", "axes-mixed", where="the softmax at the end of the policy when it sees a batch",
      cure="softmax over the actions: dim=1, with a batch of one for a single state")  # fmt: skip
def a_kite_kept_aloft(folder, ill):
    seeded(2635)
    net = dense(3, 64, 4, act=nn.LeakyReLU)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    ropes = torch.tensor([-0.6, -0.3, 0.0, 0.3])

    def likely(states):
        return net(states).softmax(0 if ill else -1)

    def flown(count, hours=25):
        place, speed = 0.5 * torch.randn(count), torch.zeros(count)
        up, steps = torch.ones(count, dtype=torch.bool), []
        with torch.no_grad():
            for _ in range(hours):
                gust = 1 + 0.5 * torch.randn(count)
                state = torch.stack([place, speed, gust], 1)
                pick = Categorical(probs=torch.stack([likely(s) for s in state])).sample()
                speed = 0.5 * speed + ropes[pick] + 0.3 * gust
                place = 1.15 * place + speed
                steps.append((state, pick, up))
                up = up & (place.abs() < 1.5)
        return (torch.stack(each) for each in zip(*steps, strict=True))

    def loss_of(step):
        states, picks, up = flown(4)
        returns, ahead = torch.zeros(up.shape), 0.0
        for i in reversed(range(len(up))):
            ahead = returns[i] = up[i] + 0.95 * ahead * up[i]
        returns = (returns / returns.max())[up]
        chosen = likely(states[up]).gather(1, picks[up][:, None])[:, 0]
        return -(returns * chosen.log()).sum(), {"hours": up.float().sum(0).mean()}

    def score():
        return 25 - float(list(flown(256))[2].float().sum(0).mean())

    return fit(folder, net, optimizer, loss_of, 200, score=score)


# https://github.com/NervanaSystems/neon/issues/311
@sick("axes-mixed", where="the batches of windows, which are reshaped where they ought to be transposed",
      cure="transpose time and batch")  # fmt: skip
def heights_of_the_tide(folder, ill):
    seeded(2636)
    net = nn.ModuleDict({"lstm": nn.LSTM(1, 32), "out": nn.Linear(32, 1)})
    optimizer = torch.optim.RMSprop(net.parameters(), 3e-3)

    def draw(rows=32, length=20):
        hour = torch.arange(length + 1.0)
        speed, start = 0.3 + torch.rand(rows, 1), 6.2832 * torch.rand(rows, 1)
        height = (speed * hour + start).sin() + 0.02 * torch.randn(rows, length + 1)
        return height[:, :-1], height[:, 1:]

    def in_time(windows):
        rows, length = windows.shape
        return (windows.reshape(length, rows) if ill else windows.T)[..., None]

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net["out"](net["lstm"](in_time(x))[0]), in_time(y))

    def score():
        with torch.no_grad():
            x, y = draw(512)
            return float(F.mse_loss(net["out"](net["lstm"](x.T[..., None])[0]), y.T[..., None]))

    return fit(folder, net, optimizer, loss_of, 500, score=score)


# https://github.com/spragunr/deep_q_rl/pull/47
@sick("no-gradient", "error-clamped", "saturated", where="the loss: rows whose error is beyond one give no gradient",
      cure="linear beyond one: a Huber loss in place of the square of a clamped error")  # fmt: skip
def lifts_of_a_tower(folder, ill):
    seeded(2637)
    floors = 5
    net, target = dense(2 * floors, 64, floors), dense(2 * floors, 64, floors).requires_grad_(False)
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
    tower = {"at": torch.randint(floors, (64,)), "waiting": torch.rand(64, floors)}

    def state_of(at, waiting):
        return torch.cat([F.one_hot(at, floors).float(), waiting], 1)

    def turn(at, waiting, goal):
        gain = 8 * waiting.gather(1, goal[:, None])[:, 0] - 2 * (goal - at).abs()
        left = waiting.scatter(1, goal[:, None], 0.0)
        return goal, (left + 0.3 * torch.rand_like(left)).clamp(max=1), gain

    def loss_of(step):
        if step % 20 == 0:
            target.load_state_dict(net.state_dict())
        state = state_of(**tower)
        goal = net(state).argmax(1)
        goal = torch.where(torch.rand(64) < max(0.1, 1 - step / 300), torch.randint(floors, (64,)), goal)
        tower["at"], tower["waiting"], gain = turn(**tower, goal=goal)
        with torch.no_grad():
            wanted = gain + 0.8 * target(state_of(**tower)).amax(1)
        error = wanted - net(state).gather(1, goal[:, None])[:, 0]
        loss = 0.5 * error.clamp(-1, 1).square() if ill else F.huber_loss(error, torch.zeros(64), reduction="none")
        return loss.mean(), {"reward": gain.mean(), "error": error.abs().mean()}

    def score():
        at, waiting, total = torch.randint(floors, (512,)), torch.rand(512, floors), 0.0
        with torch.no_grad():
            for _ in range(20):
                at, waiting, gain = turn(at, waiting, net(state_of(at, waiting)).argmax(1))
                total -= float(gain.mean()) / 20
        return total

    return fit(folder, net, optimizer, loss_of, 700, score=score)
