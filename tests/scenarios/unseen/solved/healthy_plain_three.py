"""Locks, crystals, beer and blood: agents that learn by value, by policy and by both."""

import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F
from unseen import dense, healthy, seeded
from unseen.tasks import in_turn, tend

# ---------------------------------------------------------------------------------------------------------- canal locks


class Locks:
    """`count` locks: boats that wait below and above, and the gate that is open. Actions: wait, turn, turn half full.

    A turn takes up to four boats of the open side and costs water; with the basin it costs less and takes two boats.
    """

    def __init__(self, count):
        self.boats, self.side, self.count = torch.zeros(count, 2), torch.zeros(count, dtype=torch.long), count

    def state(self):
        return torch.cat([self.boats / 8, F.one_hot(self.side, 2).float()], 1)

    def step(self, action):
        room = torch.tensor([0.0, 4.0, 2.0])[action]
        every = torch.arange(self.count)
        self.boats[every, self.side] = (self.boats[every, self.side] - room).clamp(min=0)
        self.side = torch.where(action > 0, 1 - self.side, self.side)
        self.boats = (self.boats + torch.poisson(torch.tensor([0.5, 0.3]).expand(self.count, 2))).clamp(max=16)
        return -self.boats.sum(1) / 8 - torch.tensor([0.0, 0.6, 0.3])[action]


class Replay:
    def __init__(self, size):
        self.rows, self.size = [], size

    def add(self, *columns):
        self.rows = (self.rows + list(zip(*columns, strict=True)))[-self.size :]

    def draw(self, batch):
        picked = torch.randint(len(self.rows), (batch,)).tolist()
        return [torch.stack(column) for column in zip(*(self.rows[i] for i in picked), strict=True)]


@healthy()
def lock_keeper_on_a_canal(folder):
    seeded(2697)
    net, target = dense(4, 64, 64, 3), dense(4, 64, 64, 3)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    locks, replay, steps, discount = Locks(8), Replay(4000), 900, 0.95

    def act(state, greed):
        best = net(state).argmax(1)
        return torch.where(torch.rand(len(state)) < greed, best, torch.randint(3, (len(state),)))

    @torch.no_grad()
    def watch_boats(greed):
        state = locks.state()
        action = act(state, greed)
        reward = locks.step(action)
        replay.add(state, action, reward, locks.state())
        return float(reward.mean())

    for _ in range(50):
        watch_boats(0.0)

    def one(step):
        reward = watch_boats(min(0.95, step / 300))
        state, action, gain, after = replay.draw(64)
        with torch.no_grad():
            best = net(after).argmax(1, keepdim=True)
            goal = gain + discount * target(after).gather(1, best)[:, 0]
        loss = F.smooth_l1_loss(net(state).gather(1, action[:, None])[:, 0], goal)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
        return {"loss": loss, "reward": reward}

    @torch.no_grad()
    def cost():
        trial = Locks(64)
        return -sum(float(trial.step(act(trial.state(), 1.0)).mean()) for _ in range(60)) / 60

    return tend(folder, net, optimizer, one, steps, cost)


# ------------------------------------------------------------------------------------------------------------- crystals


class Cooler:
    """`count` flasks of a hot solution. Actions: warm, hold, cool. Growth pays; what is too steep seeds fine grains."""

    def __init__(self, count):
        self.warmth, self.size = torch.full((count,), 0.9), 0.1 + 0.1 * torch.rand(count)
        self.solved = 0.9 + 0.1 * torch.rand(count)

    def state(self):
        return torch.stack([self.warmth, self.solved - self.warmth, self.size], 1) * 2

    def step(self, action):
        self.warmth = (self.warmth + 0.06 * (1 - action)).clamp(0.1, 1.0)
        excess = self.solved - self.warmth
        growth = 0.35 * excess.clamp(min=0)
        grains = (excess - 0.3).clamp(min=0)
        self.size, self.solved = self.size + growth, self.solved - growth - 0.5 * grains
        return 4 * (growth - 2 * grains)


@healthy()
def cooling_a_solution_that_crystallises(folder):
    seeded(2698)
    policy, length, flasks = dense(3, 32, 32, 3, act=nn.Tanh), 20, 32
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    baseline = torch.zeros(length)

    def episode():
        cooler, told, pay = Cooler(flasks), [], []
        for _ in range(length):
            choice = Categorical(logits=policy(cooler.state()))
            action = choice.sample()
            told.append((choice.log_prob(action), choice.entropy()))
            pay.append(cooler.step(action))
        likely, spread = (torch.stack(part) for part in zip(*told, strict=True))
        return likely, spread, torch.stack(pay).flip(0).cumsum(0).flip(0)

    def one(step):
        likely, spread, to_go = episode()
        advantage = to_go - baseline[:, None]
        baseline.lerp_(to_go.mean(1), 0.1 if step else 1.0)
        loss = -(likely * advantage).mean() - 0.01 * spread.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": float(to_go[0].mean()), "entropy": float(spread.mean().detach())}

    @torch.no_grad()
    def unused():
        cooler = Cooler(256)
        paid = [cooler.step(Categorical(logits=policy(cooler.state())).sample()) for _ in range(length)]
        return 4 - float(torch.stack(paid).sum(0).mean())

    return tend(folder, policy, optimizer, one, 220, unused)


# ----------------------------------------------------------------------------------------------------------------- beer


class Vats:
    """`count` vats of wort that heats itself as the yeast works; the cooler keeps each at the recipe's temperature."""

    def __init__(self, count):
        self.warmth, self.sugar = 16 + 8 * torch.rand(count), 0.8 + 0.2 * torch.rand(count)
        self.yeast, self.cellar = 0.1 + 0.1 * torch.rand(count), 10 + 10 * torch.rand(count)

    def state(self):
        return torch.stack([(self.warmth - 20) / 4, self.sugar, self.yeast, (self.cellar - 15) / 5], 1)

    def step(self, action):
        power = action.clamp(-1, 1)
        work = 0.15 * self.yeast * self.sugar
        self.yeast, self.sugar = self.yeast + work, self.sugar - work
        self.warmth = self.warmth + 2 * power + 12 * work + 0.05 * (self.cellar - self.warmth)
        miss = (self.warmth - (22 - 4 * self.sugar)) / 4
        return -miss.square() - 0.05 * power.square()


class Brewer(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = (dense(4, 32, 32, 1, act=nn.Tanh) for _ in range(2))
        self.log_std = nn.Parameter(torch.full((1,), -0.5))

    def act(self, state):
        return Normal(self.actor(state)[..., 0], self.log_std.exp())


def roll_out(brewer, vats, length=40, discount=0.95, trace=0.95):
    """States, actions, their log-probabilities, advantages (GAE) and returns of a brew, flat."""
    rows = []
    with torch.no_grad():
        for _ in range(length):
            state, choice = vats.state(), brewer.act(vats.state())
            action = choice.sample()
            rows.append((state, action, choice.log_prob(action), vats.step(action), brewer.critic(state)[:, 0]))
        state, action, likely, pay, worth = (torch.stack(part) for part in zip(*rows, strict=True))
        after = torch.cat([worth[1:], brewer.critic(vats.state()).T])
        gain, advantage = torch.zeros(worth.shape[1]), torch.zeros_like(worth)
        for t in reversed(range(length)):
            gain = pay[t] + discount * after[t] - worth[t] + discount * trace * gain
            advantage[t] = gain
    flat = [part.flatten(0, 1) for part in (state, action, likely, advantage, advantage + worth)]
    return flat, float(pay.mean())


@healthy()
def brewer_who_tends_the_vats(folder):
    seeded(2699)
    brewer = Brewer()
    optimizer = torch.optim.Adam(brewer.parameters(), lr=1e-3, eps=1e-5)

    def batches():
        while True:
            brew, pay = roll_out(brewer, Vats(16))
            for _ in range(4):
                for rows in torch.randperm(len(brew[0])).chunk(4):
                    yield [part[rows] for part in brew], pay

    draw = batches()

    def one(step):
        (state, action, was_likely, advantage, returns), pay = next(draw)
        choice = brewer.act(state)
        ratio = (choice.log_prob(action) - was_likely).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        value_loss = F.mse_loss(brewer.critic(state)[:, 0], returns)
        loss = policy_loss + 0.5 * value_loss - 0.001 * choice.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(brewer.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "reward": pay}

    @torch.no_grad()
    def cost():
        vats = Vats(256)
        return -sum(float(vats.step(brewer.actor(vats.state())[:, 0]).mean()) for _ in range(40)) / 40

    return tend(folder, brewer, optimizer, one, 640, cost)


# ---------------------------------------------------------------------------------------------------------------- blood


class Ward:
    """`count` patients whose white cells a growth factor lifts with a delay, while the treatment pulls them down."""

    def __init__(self, count):
        self.cells, self.marrow, self.harm = (torch.rand(count) for _ in range(3))

    def state(self):
        return torch.stack([self.cells - 1, self.marrow - 0.5, self.harm - 0.5], 1)

    def step(self, dose):
        self.marrow = 0.6 * self.marrow + 0.4 * dose
        self.cells = 0.7 * self.cells + 0.8 * self.marrow - 0.25 * self.harm + 0.02 * torch.randn(len(dose))
        self.harm = (self.harm + 0.1 * torch.randn(len(dose))).clamp(0, 1)
        return -(self.cells - 1).square() - 0.02 * dose


@healthy()
def doses_that_keep_white_cells_up(folder):
    seeded(2700)
    actor, critic = dense(3, 48, 48, 1), dense(4, 64, 64, 1)
    slow_actor, slow_critic = dense(3, 48, 48, 1), dense(4, 64, 64, 1)
    pairs = ((slow_actor, actor), (slow_critic, critic))
    for slow, fast in pairs:
        slow.load_state_dict(fast.state_dict())
    of_actor, of_critic = torch.optim.Adam(actor.parameters(), lr=3e-4), torch.optim.Adam(critic.parameters(), lr=1e-3)
    ward, replay = Ward(16), Replay(4000)

    def dose_of(policy, state):
        return policy(state)[:, 0].sigmoid()

    def worth(judge, state, dose):
        return judge(torch.cat([state, dose[:, None]], 1))[:, 0]

    @torch.no_grad()
    def treat(noise=0.1):
        state = ward.state()
        dose = (dose_of(actor, state) + noise * torch.randn(len(state))).clamp(0, 1)
        replay.add(state, dose, ward.step(dose), ward.state())

    for _ in range(30):
        treat(0.3)

    def critic_loss():
        treat()
        state, dose, reward, after = replay.draw(64)
        with torch.no_grad():
            goal = reward + 0.9 * worth(slow_critic, after, dose_of(slow_actor, after))
        return F.mse_loss(worth(critic, state, dose), goal)

    def actor_loss():
        state = replay.draw(64)[0]
        return -worth(critic, state, dose_of(actor, state)).mean()

    @torch.no_grad()
    def follow():
        for slow, fast in pairs:
            for old, new in zip(slow.parameters(), fast.parameters(), strict=True):
                old.lerp_(new, 0.01)

    @torch.no_grad()
    def cost():
        trial = Ward(128)
        return -sum(float(trial.step(dose_of(actor, trial.state())).mean()) for _ in range(50)) / 50

    return in_turn(folder, actor, critic, of_actor, of_critic, critic_loss, actor_loss, 700, cost,
                   after_judge=follow, names=("critic", "actor"))  # fmt: skip
