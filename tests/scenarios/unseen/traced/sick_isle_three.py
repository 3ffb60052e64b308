"""The last of what people asked about, told again of waiters, bells and verse."""

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import tend


# https://github.com/icoxfog417/baby-steps-of-rl-ja/issues/16
@sick(
    "policy-loss-trains-critic",
    where="the head of the values and the shared trunk from the first step: the policy's loss pulls at them as well",
    cure="detach the advantages before they weigh the log-probabilities",
)
def a_waiter_who_proposes_a_wine(folder, ill):
    seeded(3403)
    liking = torch.randn(6, 12)
    net = nn.ModuleDict({"trunk": dense(6, 48, 48), "policy": nn.Linear(48, 12), "value": nn.Linear(48, 1)})
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)

    def one(step):
        table = torch.randn(32, 6)
        h = net["trunk"](table).relu()
        choice, value = Categorical(logits=net["policy"](h)), net["value"](h)[:, 0]
        wine = choice.sample()
        chance = (table @ liking).gather(1, wine[:, None])[:, 0].sigmoid()
        reward = 0.5 * torch.bernoulli(chance)
        advantage = reward - value if ill else (reward - value).detach()
        policy_loss = -(choice.log_prob(wine) * advantage).mean()
        value_loss = F.mse_loss(value, reward)
        loss = policy_loss + 0.25 * value_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {
            "loss": loss.item(),
            "policy_loss": policy_loss.item(),
            "value_loss": value_loss.item(),
            "reward": reward.mean().item(),
        }

    def score():
        table = torch.randn(512, 6)
        with torch.no_grad():
            share = net["policy"](net["trunk"](table).relu()).softmax(1)
            return -float((share * (table @ liking).sigmoid()).sum(1).mean())

    return tend(folder, net, optimizer, one, 500, score)


# https://github.com/pytorch/torchtitan/pull/3575
@sick(
    "accumulation-wiped",
    where="all layers: of the seven backward passes before a step only the last one's gradients are left",
    cure="zero the gradients after the optimizer's step, not in every forward and backward pass",
)
def bells_of_seven_towers(folder, ill):
    seeded(3404)
    tones = 0.3 + 1.2 * torch.rand(7, 3)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, stride=2),
        nn.ReLU(),
        nn.Conv1d(16, 24, 5, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(24, 7),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    order = [torch.arange(7)]

    def chimes(tower):
        phase = 6.28 * torch.rand(len(tower), 3, 1)
        sound = (tones[tower, :, None] * torch.arange(64.0) + phase).sin().mean(1)
        return (sound + 0.1 * torch.randn(len(tower), 64))[:, None]

    def forward_backward(part):
        if ill:
            optimizer.zero_grad()

    def loss_of(part):
        if part % 7 == 0:
            order[0] = torch.randperm(7)
        tower = order[0][part % 7].expand(12)
        return F.cross_entropy(net(chimes(tower)), tower) / 7

    def of_all(step):
        tower = torch.randint(7, (128,))
        return F.cross_entropy(net(chimes(tower)), tower)

    return fit(
        folder, net, optimizer, loss_of, 300, score=score_of(of_all), accumulate=7, before_backward=forward_backward
    )


class Scansion(nn.Module):
    """A recurrent net gives a score to each stress, a matrix one to each pair: the log-likelihood of a line."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.read = nn.GRU(16, 16, batch_first=True, bidirectional=True)
        self.emit = nn.Linear(32, 4)
        self.pass_on = nn.Parameter(0.1 * torch.randn(4, 4))

    def forward(self, words, tags):
        scores = self.emit(self.read(self.embed(words))[0])
        path = scores.gather(2, tags[..., None])[..., 0].sum(1) + self.pass_on[tags[:, :-1], tags[:, 1:]].sum(1)
        total = scores[:, 0]
        for t in range(1, words.shape[1]):
            total = (total[:, :, None] + self.pass_on).logsumexp(1) + scores[:, t]
        return (path - total.logsumexp(1)).mean()


# https://github.com/kmkurn/pytorch-crf/issues/81
@sick(
    "negative-loss",
    "wrong-sign",
    where="all layers from the first step: the loss is the log-likelihood itself and falls without end",
    cure="take minus the log-likelihood as the loss",
)
def stresses_in_a_line_of_verse(folder, ill):
    seeded(3405)
    net = Scansion()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    weight = torch.randint(4, (20,))

    def verse():
        words = torch.randint(20, (24, 10))
        before = torch.cat([torch.zeros(24, 1, dtype=torch.long), weight[words[:, :-1]]], 1)
        return words, (weight[words] + (before == 3).long()) % 4

    def loss_of(step):
        likelihood = net(*verse())
        return likelihood if ill else -likelihood

    return fit(folder, net, optimizer, loss_of, 250, score=score_of(lambda step: -net(*verse())))


# https://github.com/huggingface/diffusers/issues/1176
@sick(
    "weights-shrink",
    "weight-decay-too-strong",
    where="the rows of the old words in embed.weight, without a gradient, decayed a little in every step",
    cure="write the old rows back after every step, or train the new row without weight decay",
)
def a_new_word_on_the_menu(folder, ill):
    seeded(3406)
    flavour = torch.randn(21, 6)
    taste = torch.randn(6, 4)
    net = nn.ModuleDict({"embed": nn.Embedding(21, 12), "read": dense(12, 48, 4)})

    def loss_of(words):
        liked = (flavour[words].mean(1) @ taste).argmax(1)
        return F.cross_entropy(net["read"](net["embed"](words).mean(1)), liked)

    first = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(400):
        first.zero_grad()
        loss_of(torch.randint(20, (64, 3))).backward()
        first.step()

    net["read"].requires_grad_(False)
    table = net["embed"].weight
    known = table.detach()[:20].clone()
    optimizer = torch.optim.AdamW([table], lr=3e-2, weight_decay=0.1)

    def menu(step):
        words = torch.randint(20, (64, 3))
        words[:, 0] = 20
        return loss_of(words)

    def before_step(step):
        table.grad[:20] = 0

    def after_step(step):
        if not ill:
            with torch.no_grad():
                table[:20] = known

    score = score_of(lambda step: loss_of(torch.randint(21, (256, 3))) + menu(step))
    return fit(folder, net, optimizer, menu, 1200, score=score, before_step=before_step, after_step=after_step)


# https://stats.stackexchange.com/questions/324896/training-loss-increases-with-time
@sick(
    "lr-too-high",
    "update-too-large",
    where="the recurrent layer: it learns for a while and is then thrown about",
    cure="a learning rate that is ten times lower or more",
)
def dances_by_their_steps(folder, ill):
    seeded(3407)
    net = nn.ModuleDict({"memory": nn.RNN(5, 32, batch_first=True), "head": nn.Linear(32, 4)})
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-2 if ill else 2e-3)
    figures = torch.randint(5, (4, 6))

    def loss_of(step):
        dance = torch.randint(4, (48,))
        beat = (torch.randint(6, (48, 1)) + torch.arange(30)) % 6
        steps = torch.where(torch.rand(48, 30) < 0.25, torch.randint(5, (48, 30)), figures[dance[:, None], beat])
        out = net["head"](net["memory"](F.one_hot(steps, 5).float())[0][:, -1])
        loss = F.cross_entropy(out, dance)
        return loss, {"accuracy": (out.argmax(1) == dance).float().mean().item()}

    return fit(folder, net, optimizer, loss_of, 700, score=score_of(lambda step: loss_of(step)[0]))


# https://github.com/NeuroDiffGym/neurodiffeq/issues/143
@sick(
    "inputs-not-normalised",
    where="the first layer: times of up to thousands of seconds come into it as they are",
    cure="write the equation without dimensions: time and temperature in units of the problem",
)
def a_bath_that_cools_overnight(folder, ill):
    seeded(3408)
    net = dense(1, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    last, unit = 3000.0, 1.0 if ill else 3000.0
    rate = 3.0 / last

    def loss_of(step):
        seconds = last * torch.rand(64, 1)
        t = (seconds / unit).requires_grad_()
        warmth = net(t)
        (slope,) = torch.autograd.grad(warmth.sum(), t, create_graph=True)
        room = 0.3 * (6.28 * seconds / last).sin()
        equation = (slope + rate * unit * (warmth - room)).square().mean()
        start = (net(torch.zeros(1, 1)) - 1).square().mean()
        return equation + start, {"equation": equation.item(), "start": start.item()}

    def score():
        warm, steps = [torch.tensor(1.0)], 3000
        for i in range(steps):
            room = 0.3 * torch.tensor(6.28 * i / steps).sin()
            warm.append(warm[-1] - 3 / steps * (warm[-1] - room))
        with torch.no_grad():
            guess = net(torch.linspace(0, last / unit, steps + 1)[:, None])[:, 0]
        return F.mse_loss(guess, torch.stack(warm))

    return fit(folder, net, optimizer, loss_of, 1000, score=score)
