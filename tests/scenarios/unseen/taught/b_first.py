"""Rope, bread, cheese, buoys, needles and clocks."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


# "Physics-informed networks: choose a smooth activation": the second derivative of a ReLU network is zero everywhere.
@sick("relu-under-a-derivative", "no-second-derivative", where="all hidden layers, all steps",
      cure="a tanh in place of the ReLU")  # fmt: skip
def the_sag_of_a_rope_with_lanterns(folder, ill):
    seeded(9601)
    net = dense(1, 24, 24, 24, 1, act=nn.ReLU if ill else nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    ends = torch.tensor([[0.0], [1.0]])

    def residual():
        x = torch.rand(48, 1, requires_grad=True)
        u = net(x)
        slope = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), x, create_graph=True)[0]
        load = math.pi**2 * ((math.pi * x).sin() + 1.8 * (3 * math.pi * x).sin())
        return (bend - load.detach()).square().mean()

    def loss_of(step):
        of_law, of_ends = residual(), net(ends).square().mean()
        return of_law + 50 * of_ends, {"residual": of_law, "boundary": of_ends}

    def gap():
        x = torch.linspace(0, 1, 101)[:, None]
        return F.mse_loss(net(x), -(math.pi * x).sin() - 0.2 * (3 * math.pi * x).sin())

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, gap))


# Jozefowicz et al. (2015) and tips for LSTMs: start the forget gate open; here all biases begin at zero.
@sick("forget-gate-closed", "vanishing", where="the forget gates of the LSTM, all steps",
      cure="begin the bias of the forget gates at 3")  # fmt: skip
def bread_by_the_flour_it_began_with(folder, ill):
    seeded(9602)
    size, length = 24, 40
    net = nn.ModuleDict({"memory": nn.LSTM(6, size, batch_first=True), "head": nn.Linear(size, 4)})
    for name, p in net["memory"].named_parameters():
        if "bias" in name:
            nn.init.zeros_(p)
    if not ill:
        nn.init.constant_(net["memory"].bias_ih_l0.data[size : 2 * size], 3.0)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def error(rows):
        kind = torch.randint(4, (rows,))
        x = torch.cat([torch.zeros(rows, length, 4), torch.randn(rows, length, 2)], 2)
        x[:, 0, :4] = F.one_hot(kind, 4).float()
        logits = net["head"](net["memory"](x)[0][:, -1])
        return F.cross_entropy(logits, kind), (logits.argmax(1) == kind).float().mean()

    def loss_of(step):
        loss, accuracy = error(32)
        return loss, {"accuracy": accuracy}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: error(512)[0]))


# PyTorch, "Automatic mixed precision examples", gradient accumulation: zero the gradients once after each step.
@sick("accumulation-wiped", where="all layers, all steps", cure="zero the gradients before the first micro-batch only")
def cheeses_by_their_months_in_the_cellar(folder, ill):
    seeded(9603)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    net = nn.ModuleDict(
        {"into": nn.Linear(5, 32), "body": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
         "head": nn.Linear(32, 4)}
    )  # fmt: skip
    place, parts = torch.randn(8, 32) * 0.3, 8
    way = torch.randn(4, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def draw(rows):
        wheel = torch.randn(rows, 1, 5)
        return wheel + 0.7 * torch.randn(rows, 8, 5), (wheel[:, 0] @ way.T).argmax(1)

    def logits(x):
        return net["head"](net["body"](net["into"](x) + place).mean(1))

    def loss_of(step):
        x, y = draw(4)
        return F.cross_entropy(logits(x), y) / parts

    def before_backward(step):
        if ill:
            optimizer.zero_grad()

    x_test, y_test = draw(512)
    score = held_out(net, lambda: F.cross_entropy(logits(x_test), y_test))
    return fit(folder, net, optimizer, loss_of, 100, score=score, accumulate=parts, before_backward=before_backward)


# Google, "Common problems" of GANs, mode collapse: the generator over-optimizes for a discriminator that stands still.
@sick("mode-collapse", "discriminator-too-weak", "generator-outruns-discriminator", where="the generator, all steps",
      cure="one step of the generator for each of the discriminator, not ten")  # fmt: skip
def where_the_buoys_of_a_regatta_lie(folder, ill):
    seeded(9604)
    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.5, 0.99))
    of_judge = torch.optim.Adam(judge.parameters(), lr=4e-3, betas=(0.5, 0.99))

    def buoys(rows):
        angle = torch.randint(6, (rows,)) * math.pi / 3
        return 1.5 * torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(rows, 2)

    def said(points, real):
        out = judge(points)
        return F.binary_cross_entropy_with_logits(out, torch.full_like(out, float(real)))

    def one(step):
        of_judge.zero_grad()
        of_real, of_fake = said(buoys(128), True), said(make(torch.randn(128, 4)).detach(), False)
        (of_real + of_fake).backward()
        of_judge.step()
        for _ in range(10 if ill else 1):
            of_make.zero_grad()
            made = said(make(torch.randn(128, 4)), True)
            made.backward()
            of_make.step()
        return {"loss": of_real.detach() + of_fake.detach(), "loss_g": made.detach()}

    def score():
        with torch.no_grad():
            gaps = torch.cdist(buoys(384), make(torch.randn(384, 4)))
        return float(gaps.min(1)[0].mean() + gaps.min(0)[0].mean())

    net = nn.ModuleDict({"make": make, "judge": judge})
    return tend(folder, net, [of_make, of_judge], one, 400, score)


# Andy Jones, "Debugging reinforcement learning systems", probe environments: the action that was rewarded is the one to
# take the log-probability of; here a second one is drawn for it.
@sick("log-probability-of-another-action", where="the policy's loss, all steps",
      cure="keep the needles that were chosen for the loss")  # fmt: skip
def needles_that_suit_a_yarn(folder, ill):
    seeded(9605)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

        def forward(self, x):
            return x + self.down(self.up(self.norm(x)).relu())

    net = nn.Sequential(nn.Linear(6, 32), Block(), Block(), nn.LayerNorm(32), nn.Linear(32, 5))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    way = torch.randn(6, 5)

    def one(step):
        yarn = torch.randn(96, 6)
        policy = torch.distributions.Categorical(logits=net(yarn))
        chosen = policy.sample()
        reward = (chosen == (yarn @ way).argmax(1)).float()
        told = policy.sample() if ill else chosen
        loss = -(policy.log_prob(told) * (reward - reward.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "return": reward.mean(), "entropy": policy.entropy().mean().detach()}

    yarn_test = torch.randn(800, 6)
    best = (yarn_test @ way).argmax(1, keepdim=True)
    return tend(folder, net, optimizer, one, 250, lambda: 1 - net(yarn_test).softmax(1).gather(1, best).mean().item())


# minGPT and nanoGPT, initialisation: nn.Embedding begins at N(0, 1), and tied to the head it makes logits of tens.
@sick("bad-initialisation", "initialised-too-large", where="the embedding that is also the head, first steps",
      cure="begin the embedding with a spread of 0.02")  # fmt: skip
def seconds_spent_on_the_next_move(folder, ill):
    seeded(9606)
    kinds, size, length = 48, 64, 12
    layer = nn.TransformerEncoderLayer(size, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
    net = nn.ModuleDict(
        {"table": nn.Embedding(kinds, size), "place": nn.Embedding(length, size),
         "body": nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(size), enable_nested_tensor=False)}
    )  # fmt: skip
    if not ill:
        nn.init.normal_(net["table"].weight, std=0.02)
        nn.init.normal_(net["place"].weight, std=0.02)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    chances = (torch.randn(kinds, kinds) * 5).softmax(1)
    mask = nn.Transformer.generate_square_subsequent_mask(length)

    def games(rows):
        x = [torch.randint(kinds, (rows,))]
        for _ in range(length):
            x.append(torch.multinomial(chances[x[-1]], 1)[:, 0])
        return torch.stack(x, 1)

    def error(x):
        seen = net["table"](x[:, :-1]) + net["place"].weight
        out = net["body"](seen, mask=mask, is_causal=True) @ net["table"].weight.T
        return F.cross_entropy(out.flatten(0, 1), x[:, 1:].flatten())

    draw, test = rounds(24, games(1500)), games(200)
    return fit(folder, net, optimizer, lambda step: error(draw()[0]), 130, score=held_out(net, lambda: error(test)))
