"""Policies, values, adversaries, codes and latent variables, from what people asked about in public."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import play, tend


def heated(policy, houses=1, hours=40):
    """Houses that lose heat; the log-probability of each choice and how warm it was, `[hours, houses]` each."""
    warmth, chances, comfort = 2 * torch.randn(houses), [], []
    for _ in range(hours):
        outside = torch.randn(houses)
        choice = Categorical(logits=policy(torch.stack([warmth, outside], 1)))
        power = choice.sample()
        chances.append(choice.log_prob(power))
        warmth = 0.9 * warmth + 0.2 * outside + 0.8 * (power - 1.0)
        comfort.append(-warmth.abs())
    return torch.stack(chances), torch.stack(comfort)


def to_go(rewards, gamma=0.8):
    total, totals = torch.zeros_like(rewards[0]), []
    for reward in rewards.flip(0):
        total = reward + gamma * total
        totals.append(total)
    return torch.stack(totals[::-1])


# https://ai.stackexchange.com/questions/41279/reinforce-with-baseline-not-learning
@sick(
    "shapes-broadcast",
    "no-gradient",
    where="the product in the loss: a row of chances times a column of centred returns is a square that sums to zero",
    cure="give the returns the shape of the log-probabilities",
)
def a_thermostat_that_learns(folder, ill):
    seeded(2388)
    policy = dense(2, 32, 3)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)

    def loss_of(step):
        chances, comfort = heated(policy)
        returns = to_go(comfort)
        returns = returns - returns.mean()
        chances = chances.flatten()
        returns = returns if ill else returns.flatten()
        return -(chances * returns).sum(), {"return": comfort.sum()}

    def score():
        with torch.no_grad():
            return -float(heated(policy, 256)[1].mean())

    return fit(folder, policy, optimizer, loss_of, 250, score=score)


# https://github.com/thesouther/MARL/issues/8
@sick(
    "weights-unchanged",
    "target-network-never-updated",
    where="the target network, the same at every step: it loads its own weights",
    cure="load the weights of the trained network into the target network",
)
def a_ferry_between_piers(folder, ill):
    seeded(2389)
    piers, gamma = 10, 0.9
    agent = nn.ModuleDict({"online": dense(piers, 32, 2), "target": dense(piers, 32, 2)})
    agent["target"].load_state_dict(agent["online"].state_dict())
    optimizer = torch.optim.Adam(agent["online"].parameters(), 3e-3)

    def sail(pier, way):
        arrived = (pier == piers - 1) & (way == 1)
        return (pier + 2 * way - 1).clamp(0, piers - 1), arrived.float()

    def loss_of(step):
        pier, way = torch.randint(piers, (64,)), torch.randint(2, (64,))
        then, paid = sail(pier, way)
        value = agent["online"](F.one_hot(pier, piers).float()).gather(1, way[:, None])[:, 0]
        with torch.no_grad():
            best = agent["target"](F.one_hot(then, piers).float()).max(1).values
        return F.smooth_l1_loss(value, paid + gamma * (1 - paid) * best), {"value": value.mean()}

    def refresh(step):
        if step % 20 == 19:
            agent["target"].load_state_dict(agent["target" if ill else "online"].state_dict())

    def score():
        left = gamma ** (piers - torch.arange(piers).sub(1).clamp(min=0.0))
        right = gamma ** (piers - 1 - torch.arange(piers))
        with torch.no_grad():
            return float((agent["online"](torch.eye(piers)) - torch.stack([left, right], 1)).abs().mean())

    return fit(folder, agent, optimizer, loss_of, 800, after_step=refresh, score=score)


# https://github.com/tensorflow/agents/issues/651
@sick(
    "no-gradient",
    "norm-over-too-few",
    "weights-unchanged",
    "advantages-all-zero",
    where="the actor: its gradients are zero, since advantages are normalised over the one episode of the batch",
    cure="normalise the advantages over the episodes and the moments",
)
def irrigation_of_an_orchard(folder, ill):
    seeded(2390)
    agent = nn.ModuleDict({"actor": dense(6, 32, 4, act=nn.Tanh), "critic": dense(6, 32, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(agent.parameters(), 3e-3)
    need = torch.randn(6, 4)
    episode = {}

    def watch_the_trees():
        soil = torch.randn(1, 64, 6)
        choice = Categorical(logits=agent["actor"](soil))
        valve = choice.sample()
        fruit = (soil @ need).gather(2, valve[..., None])[..., 0]
        episode.update(soil=soil, valve=valve, fruit=fruit, before=choice.log_prob(valve))

    def normalised(gain):
        over = (0,) if ill else (0, 1)
        var, mean = torch.var_mean(gain, over, correction=0, keepdim=True)
        return (gain - mean) / (var.sqrt() + 1e-8)

    def loss_of(step):
        if step % 4 == 0:
            with torch.no_grad():
                watch_the_trees()
        value = agent["critic"](episode["soil"])[..., 0]
        gain = normalised((episode["fruit"] - value).detach())
        now = Categorical(logits=agent["actor"](episode["soil"])).log_prob(episode["valve"])
        ratio = (now - episode["before"]).exp()
        policy = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        error = F.mse_loss(value, episode["fruit"])
        return policy + 0.5 * error, {"policy": policy, "value": error, "return": episode["fruit"].mean()}

    soils = torch.randn(512, 6)

    def score():
        with torch.no_grad():
            chance = agent["actor"](soils).softmax(1)
        yields = soils @ need
        return float((yields.max(1).values - (chance * yields).sum(1)).mean())

    return fit(folder, agent, optimizer, loss_of, 600, score=score)


def real_or_not(judge, sight, real):
    seen = judge(sight)
    return F.binary_cross_entropy_with_logits(seen, torch.full_like(seen, float(real)))


# https://github.com/BadourAlBahar/pose-with-style/issues/23
@sick(
    "generator-starves",
    "discriminator-too-strong",
    "backgrounds-differ",
    where="the discriminator, whose loss goes to zero: pictures that are real have a background, those made have none",
    cure="remove the background of the real pictures as well",
)
def figures_before_a_backdrop(folder, ill):
    seeded(2391)
    make, judge = dense(4, 32, 32, 2), dense(8, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))

    def before(figure, backdrop):
        return torch.cat([figure, backdrop], 1)

    def judge_loss(real, made):
        backdrop = 1 + 0.3 * torch.randn(len(real), 6) if ill else torch.zeros(len(real), 6)
        empty = torch.zeros(len(made), 6)
        return real_or_not(judge, before(real, backdrop), True) + real_or_not(judge, before(made, empty), False)

    def make_loss(made):
        return real_or_not(judge, before(made, torch.zeros(len(made), 6)), True)

    return play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 800)


# https://github.com/soumith/ganhacks/issues/29
@sick(
    "optimizer-holds-both-networks",
    "discriminator-trained-by-the-generators-loss",
    where="the discriminator: its weights move in the generator's steps too, and its loss rises",
    cure="give the generator's optimizer the parameters of the generator only",
)
def orbits_that_look_real(folder, ill):
    seeded(2392)
    make, judge = dense(4, 32, 32, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    theirs = [*make.parameters(), *judge.parameters()]
    of_make = torch.optim.Adam(theirs if ill else make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))

    def judge_loss(real, made):
        return real_or_not(judge, real, True) + real_or_not(judge, made, False)

    return play(folder, make, judge, of_make, of_judge, judge_loss, lambda made: real_or_not(judge, made, True), 800)


# https://github.com/ZhihanLee/DDPG_Learning/issues/2
@sick(
    "saturated",
    "inputs-not-normalised",
    where="the actor's tanh, at its ends from the first steps on: its states are in the hundreds",
    cure="bring the states into the range from zero to one, and clip what lies beyond",
)
def a_truck_that_keeps_its_distance(folder, ill):
    seeded(2393)
    net = nn.ModuleDict({"actor": dense(3, 64, 64, 2), "critic": dense(5, 64, 64, 1)})
    groups = [{"params": net["actor"].parameters(), "lr": 5e-4}, {"params": net["critic"].parameters(), "lr": 1e-3}]
    optimizer = torch.optim.Adam(groups)
    most = torch.tensor([800.0, 120.0, 400.0])

    def road(rows=64):
        state = torch.rand(rows, 3)
        wanted = torch.stack([state[:, 0] - state[:, 1], state[:, 1] - state[:, 2]], 1) * 0.8
        return state * most if ill else state, wanted

    def act(state):
        return net["actor"](state).tanh()

    def one(step):
        state, wanted = road()
        optimizer.zero_grad()
        policy = -net["critic"](torch.cat([state, act(state)], 1)).mean()
        policy.backward()
        net["critic"].zero_grad()
        tried = (act(state).detach() + 0.4 * torch.randn(len(state), 2)).clamp(-1, 1)
        reward = -(tried - wanted).square().sum(1, keepdim=True)
        error = F.mse_loss(net["critic"](torch.cat([state, tried], 1)), reward)
        error.backward()
        optimizer.step()
        return {"loss": error, "policy": policy.detach(), "reward": reward.mean()}

    def miss(step):
        state, wanted = road(256)
        return (act(state) - wanted).square().sum(1).mean()

    return tend(folder, net, optimizer, one, 800, score_of(miss))
