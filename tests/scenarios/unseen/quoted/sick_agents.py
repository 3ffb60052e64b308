"""Mistakes with agents, after threads in public."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, seeded, sick
from unseen.tasks import tend


class Poles:
    """Many rods that are to be kept upright; one that leans too far is put up again."""

    def __init__(self, rows):
        self.rows, self.state = rows, torch.zeros(rows, 2)
        self.reset(torch.ones(rows, dtype=torch.bool))

    def reset(self, where):
        self.state = torch.where(where[:, None], 0.1 * (torch.rand(self.rows, 2) - 0.5), self.state)

    def step(self, push):
        lean, speed = self.state.unbind(1)
        speed = speed + 0.3 * lean.sin() + 0.06 * (push.float() - 1) + 0.02 * torch.randn(self.rows)
        lean = lean + 0.3 * speed
        self.state = torch.stack([lean, speed], 1)
        return self.state.clone(), lean.abs() > 0.25


def upright(choose, rows=64, most=100):
    """For how many steps the rods stay up."""
    poles = Poles(rows)
    up, total = torch.ones(rows, dtype=torch.bool), 0
    for _ in range(most):
        with torch.no_grad():
            _, fell = poles.step(choose(poles.state))
        up &= ~fell
        total += int(up.sum())
    return total / rows


# https://github.com/cyoon1729/deep-Q-networks/issues/3
@sick(
    "values-overestimated",
    "terminal-states-bootstrapped",
    where="the target of the last step of an episode, from the first step on",
    cure="reward + gamma * (1 - done) * value of the next state",
)
def a_broomstick_on_a_fingertip(folder, ill):
    seeded(3493)
    net = dense(2, 48, 48, 3)
    other, poles, memory = copy.deepcopy(net), Poles(16), []
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def one(step):
        state, chance = poles.state.clone(), max(0.1, 1 - step / 200)
        with torch.no_grad():
            push = torch.where(torch.rand(16) < chance, torch.randint(3, (16,)), net(state * 5).argmax(1))
        after, done = poles.step(push)
        memory.append((state, push, after, done))
        poles.reset(done)
        if step % 50 == 0:
            other.load_state_dict(net.state_dict())
        s, a, n, d = (
            torch.cat(part) for part in zip(*[memory[int(i)] for i in torch.randint(len(memory), (8,))], strict=True)
        )
        with torch.no_grad():
            best = other(n * 5).max(1).values
            target = 1 + 0.97 * (best if ill else best * ~d)
        value = net(s * 5).gather(1, a[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "q": value.mean(), "epsilon": chance}

    return tend(folder, net, optimizer, one, 600, lambda: 100 - upright(lambda s: net(s * 5).argmax(1)))


# https://github.com/thu-ml/tianshou/issues/309
@sick(
    "values-overestimated",
    "illegal-actions-in-the-maximum",
    where="the target: the maximum over the next state's actions, those among them that are not allowed there",
    cure="mask the next state's illegal actions before the maximum",
)
def a_hedgehog_between_gardens(folder, ill):
    seeded(3494)
    gardens, goal = 36, 35
    places = torch.stack(torch.meshgrid(torch.arange(6.0), torch.arange(6.0), indexing="ij"), -1).view(-1, 2)
    legal = torch.cdist(places, places).sub(1).abs() < 0.1
    net = dense(gardens, 64, gardens)
    seen, other = torch.eye(gardens), copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def one(step):
        if step % 25 == 0:
            other.load_state_dict(net.state_dict())
        s = torch.randint(goal, (64,))
        n = (torch.rand(64, gardens) * legal[s]).argmax(1)
        with torch.no_grad():
            best = other(seen[n])
            best = best if ill else best.masked_fill(~legal[n], -1e9)
            target = -1 + 0.95 * best.max(1).values * (n != goal)
        value = net(seen[s]).gather(1, n[:, None])[:, 0]
        loss = F.mse_loss(value, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "q": value.mean()}

    def steps_home():
        at, total = torch.arange(goal), 0
        with torch.no_grad():
            best = net(seen).masked_fill(~legal, -1e9).argmax(1)
        for _ in range(30):
            at = torch.where(at == goal, goal, best[at])
            total += int((at != goal).sum())
        return total / goal

    return tend(folder, net, optimizer, one, 900, steps_home)


# https://github.com/tensorflow/agents/issues/622
@sick(
    "inputs-not-normalised",
    "nonfinite",
    where="the actor: observations in the hundreds, and the exponential of what it makes of them as a deviation",
    cure="normalise the observations before they reach actor and critic",
)
def a_kiln_for_stoneware(folder, ill):
    seeded(3495)
    net = nn.ModuleDict({"actor": dense(2, 48, 48, 2), "critic": dense(3, 48, 48, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    kiln = {"state": torch.tensor([[500.0, 900.0]]).repeat(32, 1)}

    def seen(state):
        return state if ill else (state - 700) / 250

    def act(state):
        mean, spread = net["actor"](seen(state)).unbind(1)
        choice = torch.distributions.Normal(mean, spread.exp(), validate_args=False).rsample()
        flame = choice.tanh()
        chance = -0.5 * ((choice - mean) / spread.exp()).square() - spread - torch.log(1 - flame.square() + 1e-6)
        return flame, chance

    def burn(state, flame):
        heat = state[:, 0] + 60 * flame - 0.02 * (state[:, 0] - 600) + 3 * torch.randn(len(state))
        return torch.stack([heat.clamp(200, 1300), state[:, 1]], 1), -(heat - state[:, 1]).abs() / 100

    def value(state, flame):
        return net["critic"](torch.cat([seen(state), flame[:, None]], 1))[:, 0]

    def one(step):
        state = kiln["state"]
        with torch.no_grad():
            flame, _ = act(state)
            after, reward = burn(state, flame)
            coming, chance = act(after)
            target = reward + 0.8 * (value(after, coming) - 0.02 * chance)
        critic = F.mse_loss(value(state, flame), target)
        net["critic"].requires_grad_(False)
        flame, chance = act(state)
        actor = (0.02 * chance - value(state, flame)).mean()
        net["critic"].requires_grad_(True)
        optimizer.zero_grad()
        (actor + critic).backward()
        optimizer.step()
        fresh = torch.stack([400 + 600 * torch.rand(32), 500 + 400 * torch.rand(32)], 1)
        kiln["state"] = fresh if step % 20 == 19 else after
        return {"actor": actor, "critic": critic, "reward": reward.mean()}

    def away():
        state = torch.stack([400 + 600 * torch.rand(128), 500 + 400 * torch.rand(128)], 1)
        with torch.no_grad():
            for _ in range(15):
                state, reward = burn(state, net["actor"](seen(state))[:, 0].tanh())
        return -reward.mean()

    return tend(folder, net, optimizer, one, 500, away)


# https://github.com/udacity/deep-reinforcement-learning/issues/42
@sick(
    "returns-of-the-whole-episode",
    where="the loss of the policy: one return for all actions of an episode, those after the rewards among them",
    cure="weigh each action by the discounted rewards that came after it",
)
def a_waiter_who_guesses_orders(folder, ill):
    seeded(3496)
    likes = torch.randn(6, 4)
    net = dense(6, 32, 4)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    discounts = 0.8 ** torch.arange(40.0)

    def one(step):
        guests = torch.randn(40, 8, 6)
        policy = torch.distributions.Categorical(logits=net(guests))
        dish = policy.sample()
        rewards = (guests @ likes).gather(2, dish[..., None])[..., 0] / 2 + 0.3 * torch.randn(40, 8)
        if ill:
            returns = (discounts[:, None] * rewards).sum(0)
        else:
            returns = torch.stack([(discounts[: 40 - t, None] * rewards[t:]).sum(0) for t in range(40)])
        loss = -(policy.log_prob(dish) * returns).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "mean_return": rewards.sum(0).mean()}

    def missed():
        guests = torch.randn(2000, 6)
        with torch.no_grad():
            wanted = guests @ likes
            return wanted.max(1).values.mean() - (net(guests).softmax(1) * wanted).sum(1).mean()

    return tend(folder, net, optimizer, one, 300, missed)
