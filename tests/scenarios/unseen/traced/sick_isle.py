"""Trainings that were asked about in public, told again of birds, guests and casks."""

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick, waves
from unseen.tasks import tend


# https://github.com/ikostrikov/pytorch-ddpg-naf/issues/16
@sick(
    "values-overestimated",
    where="the net of values from the first steps: targets that rise with every copy into the late net",
    cure="multiply the next state's value by discount and mask: reward + 0.95 * mask * value, in place of a sum",
)
def a_swallow_on_the_way_to_its_nest(folder, ill):
    seeded(3391)
    net, late = dense(2, 48, 48, 4), dense(2, 48, 48, 4)
    late.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    ways = 0.4 * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])

    def fly(at, way):
        after = (at + ways[way] + 0.1 * torch.randn_like(at)).clamp(-2, 2)
        home = after.norm(dim=1) < 0.5
        return after, torch.where(home, 2.0, -0.3), home

    def one(step):
        at, way = 4 * torch.rand(128, 2) - 2, torch.randint(4, (128,))
        after, reward, home = fly(at, way)
        mask = 1 - home.float()
        with torch.no_grad():
            value = late(after).max(1).values
        target = reward + 0.95 * mask + value if ill else reward + 0.95 * mask * value
        loss = F.mse_loss(net(at).gather(1, way[:, None])[:, 0], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, quick in zip(late.parameters(), net.parameters(), strict=True):
                slow.lerp_(quick, 0.05)
        return {"loss": loss.item(), "value": value.mean().item()}

    def score():
        at, flying, total = 4 * torch.rand(512, 2) - 2, torch.ones(512), torch.zeros(512)
        with torch.no_grad():
            promised = net(at).max(1).values
            for hop in range(40):
                at, reward, home = fly(at, net(at).argmax(1))
                total += 0.95**hop * flying * reward
                flying *= 1 - home.float()
        return float((promised - total).abs().mean())

    return tend(folder, net, optimizer, one, 600, score)


# https://github.com/nebuly-ai/optimate/pull/250
@sick(
    "wrong-sign",
    "entropy-collapses",
    where="the term of the entropy in the loss of the policy, from the first step",
    cure="subtract the entropy from the loss: it is a bonus, and the policy closes on one choice when it is a cost",
)
def a_tea_for_every_guest(folder, ill):
    seeded(3392)
    taste = torch.randn(8, 20)
    policy = dense(8, 48, 20)
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)

    def one(step):
        guest = torch.randn(64, 8)
        choice = Categorical(logits=policy(guest))
        tea = choice.sample()
        reward = (tea == (guest @ taste).argmax(1)).float()
        policy_loss = -(choice.log_prob(tea) * (reward - reward.mean())).mean()
        entropy = choice.entropy().mean()
        loss = policy_loss + 0.1 * entropy if ill else policy_loss - 0.1 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {
            "loss": loss.item(),
            "policy_loss": policy_loss.item(),
            "entropy": entropy.item(),
            "reward": reward.mean().item(),
        }

    def score():
        guest = torch.randn(512, 8)
        with torch.no_grad():
            favourite = (guest @ taste).argmax(1, keepdim=True)
            return -float(policy(guest).softmax(1).gather(1, favourite).mean())

    return tend(folder, policy, optimizer, one, 500, score)


# https://github.com/DLR-RM/stable-baselines3/pull/1028
@sick(
    "nonfinite",
    where="all layers from the first minibatch of a single row on: the deviation of one advantage is not a number",
    cure="normalise advantages only in minibatches of more than one row, or before they are split",
)
def a_cook_who_salts_a_soup(folder, ill):
    seeded(3393)
    wish = dense(6, 24, 1, act=nn.Tanh)
    for weight in wish.parameters():
        weight.requires_grad_(False).mul_(3)
    net = nn.ModuleDict({"policy": dense(6, 32, 1, act=nn.Tanh), "value": dense(6, 32, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def log_chance(soup, salt):
        return -(salt - net["policy"](soup)[:, 0]).square() / (2 * 0.3**2)

    def minibatches():
        while True:
            soup = torch.randn(int(torch.randint(40, 90, ())), 6)
            with torch.no_grad():
                salt = net["policy"](soup)[:, 0] + 0.3 * torch.randn(len(soup))
                reward = -(salt - wish(soup)[:, 0]).square()
                before = log_chance(soup, salt)
            for rows in torch.randperm(len(soup)).split(16):
                yield soup[rows], salt[rows], reward[rows], before[rows]

    stream = minibatches()

    def one(step):
        soup, salt, reward, before = next(stream)
        value = net["value"](soup)[:, 0]
        advantage = reward - value.detach()
        if ill or len(advantage) > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (log_chance(soup, salt) - before).exp()
        policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        value_loss = F.mse_loss(value, reward)
        loss = policy_loss + 0.5 * value_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss.item(), "policy_loss": policy_loss.item(), "value_loss": value_loss.item()}

    def score():
        soup = torch.randn(512, 6)
        with torch.no_grad():
            return F.mse_loss(net["policy"](soup), wish(soup))

    return tend(folder, net, optimizer, one, 800, score)


# https://github.com/afiaka87/glide-finetune/issues/5
@sick(
    "nonfinite",
    "epsilon-underflows",
    where="the half-precision weights after the first steps of Adam: its eps of 1e-8 is zero in float16",
    cure="give Adam an eps of 1e-4, or keep the weights in float32",
)
def softness_of_risen_dough(folder, ill):
    seeded(3394)
    net, draw = dense(6, 48, 48, 1).half(), waves(64)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1e-8 if ill else 1e-4)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x.half()).float(), y)

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))


# https://github.com/ivadomed/ivadomed/pull/55
@sick(
    "schedule-too-short",
    where="the rate of all parameters, which falls with every batch and is gone within the second epoch",
    cure="step the scheduler once an epoch, outside of the loop over batches",
)
def knocks_on_full_and_empty_casks(folder, ill):
    seeded(3395)
    net = nn.ModuleDict({"ear": nn.GRU(1, 24, batch_first=True), "head": nn.Linear(24, 4)})
    pitch, fade = torch.tensor([0.6, 0.6, 0.9, 0.9]), torch.tensor([0.05, 0.12, 0.05, 0.12])
    time = torch.arange(40.0)

    def loss_of(step):
        y = torch.randint(4, (32,))
        sound = (pitch[y, None] * time + 6.28 * torch.rand(32, 1)).sin() * (-fade[y, None] * time).exp()
        x = sound + 0.05 * torch.randn(32, 40)
        out = net["head"](net["ear"](x[..., None])[0].mean(1))
        loss = F.cross_entropy(out, y)
        return loss, {"accuracy": (out.argmax(1) == y).float().mean().item()}

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.85)

    def after_step(step):
        if ill or step % 30 == 29:
            scheduler.step()

    score = score_of(lambda step: loss_of(step)[0])
    return fit(folder, net, optimizer, loss_of, 360, score=score, after_step=after_step)


# https://github.com/ace-step/ACE-Step/pull/198
@sick(
    "warmup-too-long",
    where="the rate of all parameters, which rises until the last step and comes to a small share of what was meant",
    cure="step the scheduler after every batch, with a warmup of a few steps: it counts epochs as if they were steps",
)
def a_skipping_rhyme_by_its_letters(folder, ill):
    seeded(3396)
    letters = 14
    follows = torch.stack([torch.randperm(letters) for _ in range(letters)])
    net = nn.ModuleDict(
        {"embed": nn.Embedding(letters, 24), "memory": nn.GRU(24, 48, batch_first=True), "head": nn.Linear(48, letters)}
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    warmup = 400 if ill else 10
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / warmup))

    def rhyme():
        line = [torch.randint(letters, (24,)), torch.randint(letters, (24,))]
        for _ in range(18):
            slip = torch.rand(24) < 0.1
            line.append(torch.where(slip, torch.randint(letters, (24,)), follows[line[-2], line[-1]]))
        return torch.stack(line, 1)

    def loss_of(step):
        line = rhyme()
        out = net["head"](net["memory"](net["embed"](line[:, :-1]))[0])
        return F.cross_entropy(out.flatten(0, 1), line[:, 1:].flatten())

    def after_step(step):
        if not ill or step % 20 == 19:
            scheduler.step()

    return fit(folder, net, optimizer, loss_of, 600, score=score_of(loss_of), after_step=after_step)
