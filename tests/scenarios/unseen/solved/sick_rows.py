"""Policies and values: jobs, grain, strings, blades, writers and a greenhouse."""

import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick


# https://github.com/zcaicaros/L2D/issues/5
@sick("shapes-broadcast", where="the advantages of the policy's loss, at every step",
      cure="squeeze the values before they are taken from the returns")  # fmt: skip
def dispatching_of_jobs(folder, ill):
    seeded(2620)
    net = nn.ModuleDict({"actor": dense(4, 32, 1, act=nn.Tanh), "critic": dense(5, 32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    taste, kept = torch.randn(4), {}
    held = torch.randn(512, 6, 4)

    def law_of(jobs):
        return Categorical(logits=net["actor"](jobs)[..., 0])

    def cost_of(jobs):
        return (jobs @ taste).sin()

    def gather():
        jobs, load = torch.randn(36, 6, 4), torch.randn(36, 1)
        with torch.no_grad():
            law = law_of(jobs)
            pick = law.sample()
            gain = 6 * load[:, 0] - cost_of(jobs).gather(1, pick[:, None])[:, 0]
            kept.update(jobs=jobs, load=load, pick=pick, gain=gain, old=law.log_prob(pick))

    def loss_of(step):
        if step % 4 == 0:
            gather()
        law = law_of(kept["jobs"])
        value = net["critic"](torch.cat([kept["jobs"].mean(1), kept["load"]], 1))
        advantage = kept["gain"] - (value if ill else value.squeeze(1)).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-5)
        ratio = (law.log_prob(kept["pick"]) - kept["old"]).exp()
        gained = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        value_loss = F.mse_loss(value.squeeze(1), kept["gain"])
        loss = value_loss - gained - 0.01 * law.entropy().mean()
        return loss, {"value_loss": value_loss, "gain": kept["gain"].mean()}

    def score():
        with torch.no_grad():
            return 1 + float((law_of(held).probs * cost_of(held)).sum(1).mean())

    return fit(folder, net, optimizer, loss_of, 800, score=score)


# https://github.com/Albert-Z-Guo/Deep-Reinforcement-Stock-Trading/issues/5
@sick("lr-too-high", "update-too-large", where="every layer of the value net, from the first steps on",
      cure="a learning rate a hundred times smaller")  # fmt: skip
def a_merchant_of_grain(folder, ill):
    seeded(2621)
    goods = 4
    net = dense(2 * goods, 64, 32, 8, goods)
    optimizer = torch.optim.Adam(net.parameters(), 0.1 if ill else 1e-3)
    yard = {"prices": torch.randn(64, goods), "held": torch.randint(goods, (64,))}

    def state_of(prices, held):
        return torch.cat([prices, F.one_hot(held, goods).float()], 1)

    def turn(prices, held, act):
        after = 0.7 * prices + 0.6 * torch.randn_like(prices)
        gain = (after - prices).gather(1, act[:, None])[:, 0]
        return after, act, 10 * gain - 0.5 * (act != held).float()

    def loss_of(step):
        state = state_of(yard["prices"], yard["held"])
        act = net(state).argmax(1)
        act = torch.where(torch.rand(64) < max(0.1, 1 - step / 300), torch.randint(goods, (64,)), act)
        yard["prices"], yard["held"], gain = turn(yard["prices"], yard["held"], act)
        with torch.no_grad():
            target = gain + 0.9 * net(state_of(yard["prices"], yard["held"])).amax(1)
        value = net(state).gather(1, act[:, None])[:, 0]
        return F.mse_loss(value, target), {"reward": gain.mean(), "q": value.mean()}

    def score():
        total, prices, held = 0.0, torch.randn(512, goods), torch.randint(goods, (512,))
        with torch.no_grad():
            for _ in range(30):
                prices, held, gain = turn(prices, held, net(state_of(prices, held)).argmax(1))
                total -= float(gain.mean()) / 30
        return total

    return fit(folder, net, optimizer, loss_of, 600, score=score)


# https://github.com/alexhernandezgarcia/gflownet/pull/251
@sick("no-gradient", "weights-unchanged", where="all layers of the policy; only log Z learns",
      cure="take the log-probabilities from logits that are not detached")  # fmt: skip
def strings_in_proportion_to_their_worth(folder, ill):
    seeded(2622)
    letters, length = 3, 5
    net = nn.ModuleDict({"policy": dense(length * (letters + 1), 48, letters), "total": nn.Linear(1, 1, bias=False)})
    groups = [{"params": net["policy"].parameters()}, {"params": net["total"].parameters(), "lr": 0.05}]
    optimizer = torch.optim.Adam(groups, 3e-3)
    pairs = 1.5 * torch.randn(length - 1, letters, letters)
    every = torch.cartesian_prod(*[torch.arange(letters)] * length)

    def worth(strings):
        return sum(pairs[i, strings[:, i], strings[:, i + 1]] for i in range(length - 1))

    def logits_of(strings, known):
        seen = torch.where(torch.arange(length) < known, strings, letters)
        return net["policy"](F.one_hot(seen, letters + 1).float().flatten(1))

    def log_prob(strings):
        clones = [logits_of(strings, i) for i in range(length)]
        clones = [c.detach() for c in clones] if ill else clones
        return sum(c.log_softmax(1).gather(1, strings[:, i : i + 1])[:, 0] for i, c in enumerate(clones))

    def drawn(count):
        strings = torch.zeros(count, length, dtype=torch.long)
        with torch.no_grad():
            for i in range(length):
                strings[:, i] = Categorical(logits=logits_of(strings, i)).sample()
        return strings

    def loss_of(step):
        strings = drawn(32)
        total = net["total"](torch.ones(1))
        loss = (total + log_prob(strings) - worth(strings)).square().mean()
        return loss, {"log_z": total.squeeze(), "worth": worth(strings).mean()}

    def score():
        with torch.no_grad():
            wanted = worth(every).log_softmax(0)
            return float((wanted.exp() * (wanted - log_prob(every))).sum())

    return fit(folder, net, optimizer, loss_of, 600, score=score)


# https://github.com/pytorch/pytorch/issues/10943
@sick("no-gradient", "sample-not-detached", where="the head of the mean, whose gradient is zero at every step",
      cure="sample() in place of rsample(): the action of a score-function loss is a constant")  # fmt: skip
def pitch_of_the_blades(folder, ill):
    seeded(2623)
    net = nn.ModuleDict({"trunk": dense(4, 32, 32), "mean_head": nn.Linear(32, 1), "logvar_head": nn.Linear(32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    way, held = torch.randn(4), torch.randn(512, 4)

    def best(wind):
        return 1.5 * (wind @ way).sin()[:, None]

    def law_of(wind):
        seen = net["trunk"](wind).relu()
        return Normal(net["mean_head"](seen), (0.5 * net["logvar_head"](seen).clamp(-6, 2)).exp())

    def loss_of(step):
        wind = torch.randn(128, 4)
        law = law_of(wind)
        act = law.rsample() if ill else law.sample()
        power = -(act - best(wind)).square().detach()
        advantage = (power - power.mean()) / power.std()
        return -(law.log_prob(act) * advantage).mean(), {"power": power.mean(), "std": law.stddev.mean()}

    def score():
        with torch.no_grad():
            return float((law_of(held).mean - best(held)).square().mean())

    return fit(folder, net, optimizer, loss_of, 600, score=score)


# https://github.com/deepspeedai/DeepSpeedExamples/issues/556
@sick("returns-not-normalised", "targets-not-normalised", where="the critic, whose loss is far above one all along",
      cure="rewards scaled by their running mean and deviation, and a discount below one")  # fmt: skip
def writers_of_slogans(folder, ill):
    seeded(2624)
    words, length, rows = 8, 20, 8
    net = nn.ModuleDict({"actor": dense(words + 1, 48, words), "critic": dense(words + 1, 48, 1)})
    groups = [{"params": net["actor"].parameters()}, {"params": net["critic"].parameters(), "lr": 3e-4}]
    optimizer = torch.optim.Adam(groups, 2e-3)
    liking, running = torch.randn(words, words), {"mean": 0.0, "std": 1.0}
    discount = 1.0 if ill else 0.9

    def written(count):
        word, states, picks, rewards = torch.zeros(count, dtype=torch.long), [], [], []
        with torch.no_grad():
            for i in range(length):
                states.append(torch.cat([F.one_hot(word, words).float(), torch.full((count, 1), i / length)], 1))
                picks.append(Categorical(logits=net["actor"](states[-1])).sample())
                rewards.append(8 + liking[word, picks[-1]])
                word = picks[-1]
        return torch.stack(states), torch.stack(picks), torch.stack(rewards)

    def scaled(rewards):
        running["mean"] = 0.9 * running["mean"] + 0.1 * float(rewards.mean())
        running["std"] = 0.9 * running["std"] + 0.1 * float(rewards.std())
        return (rewards - running["mean"]) / running["std"]

    def loss_of(step):
        states, picks, rewards = written(rows)
        given, returns, ahead = rewards if ill else scaled(rewards), torch.zeros(length, rows), torch.zeros(rows)
        for i in reversed(range(length)):
            ahead = returns[i] = given[i] + discount * ahead
        value = net["critic"](states)[..., 0]
        log_prob = Categorical(logits=net["actor"](states)).log_prob(picks)
        actor_loss = -(log_prob * (returns - value).detach()).mean()
        critic_loss = F.mse_loss(value, returns)
        logged = {"critic_loss": critic_loss, "actor_loss": actor_loss, "reward": rewards.mean()}
        return actor_loss + critic_loss, logged

    return fit(folder, net, optimizer, loss_of, 300, score=lambda: -float(written(256)[2].mean() - 8))


# https://github.com/tensorflow/models/pull/5058
@sick("wrong-sign", "entropy-wrong-sign", "entropy-collapsed", where="the entropy term of the policy's loss",
      cure="take the weighted entropy from the loss: what was taken is the sum of p log p")  # fmt: skip
def heating_of_a_greenhouse(folder, ill):
    seeded(2625)
    levels = torch.linspace(-2, 2, 9)
    net = nn.ModuleDict({"trunk": dense(2, 64, 64), "policy": nn.Linear(64, 9), "value": nn.Linear(64, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    house = {"state": torch.randn(32, 2)}

    def law_of(state):
        return Categorical(logits=net["policy"](net["trunk"](state).relu()))

    def turn(state, act):
        warm, sun = state[:, 0], state[:, 1]
        after = 0.3 * warm + 0.8 * sun + levels[act]
        return torch.stack([after, torch.randn_like(sun)], 1), -0.02 * (after - 0.5).square()

    def loss_of(step):
        state = house["state"]
        law = law_of(state)
        act = law.sample()
        house["state"], reward = turn(state, act)
        value, after = (net["value"](net["trunk"](at).relu())[:, 0] for at in (state, house["state"]))
        advantage = reward + 0.5 * after.detach() - value
        surprise = (law.probs * law.logits).sum(1)
        policy_loss = -law.log_prob(act) * advantage.detach() + 0.05 * (-surprise if ill else surprise)
        loss = (policy_loss + 0.5 * advantage.square()).mean()
        return loss, {"reward": reward.mean(), "entropy": law.entropy().mean()}

    def score():
        state, total = torch.randn(512, 2), 0.0
        with torch.no_grad():
            for _ in range(10):
                state, reward = turn(state, law_of(state).probs.argmax(1))
                total -= float(reward.mean()) / 10
        return total

    return fit(folder, net, optimizer, loss_of, 600, score=score)
