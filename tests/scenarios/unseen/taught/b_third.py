"""Stars, lighthouses, sheep, birds, bells and trams."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, tend


# Stable-Baselines3, "Reinforcement learning tips and tricks": bring actions to -1 to 1.
@sick("outputs-not-scaled", "actions-not-scaled", where="the last layer of the policy, all steps",
      cure="let the policy act within -1 to 1 and multiply by the range of the mount")  # fmt: skip
def a_telescope_turned_to_its_star(folder, ill):
    seeded(9613)
    net = nn.ModuleDict({"aim": dense(4, 32, 32, 2, act=nn.Tanh), "value": dense(4, 32, 1, act=nn.Tanh)})
    spread = nn.Parameter(torch.zeros(2))
    net.register_parameter("spread", spread)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    way, degrees = torch.randn(4, 2) * 0.4, 1.0 if ill else 90.0

    def rewards(sky, turn):
        return -((turn * degrees - 90 * (sky @ way).tanh()) / 90).square().sum(1)

    def one(step):
        sky = torch.randn(128, 4)
        chosen = torch.distributions.Normal(net["aim"](sky), spread.exp())
        turn = chosen.sample()
        reward, value = rewards(sky, turn), net["value"](sky)[:, 0]
        gain = reward - value.detach()
        of_policy = -(chosen.log_prob(turn).sum(1) * (gain - gain.mean()) / (gain.std() + 1e-6)).mean()
        loss = of_policy + 0.5 * F.mse_loss(value, reward)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "return": reward.mean()}

    sky_test = torch.randn(500, 4)

    def score():
        with torch.no_grad():
            return -float(rewards(sky_test, net["aim"](sky_test)).mean())

    return tend(folder, net, optimizer, one, 400, score)


# PyTorch recipes, "Zeroing out gradients": without zero_grad() each backward adds to the gradients of all before it.
@sick("gradients-accumulate", where="all layers, all steps", cure="zero_grad() before each backward")
def lighthouses_by_their_flashes(folder, ill):
    seeded(9614)
    net = nn.ModuleDict({"memory": nn.GRU(1, 24, batch_first=True), "head": nn.Linear(24, 5)})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    period, share = torch.tensor([3.0, 4, 5, 6, 8]), torch.tensor([0.3, 0.5, 0.2, 0.6, 0.4])

    def nights(rows):
        kind = torch.randint(5, (rows,))
        time = torch.arange(18.0) + 8 * torch.rand(rows, 1)
        lit = (time / period[kind, None]) % 1 < share[kind, None]
        return lit[..., None] + 0.2 * torch.randn(rows, 18, 1), kind

    def loss_of(step):
        x, y = nights(48)
        out = net["head"](net["memory"](x)[0].mean(1))
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    x_test, y_test = nights(400)
    score = held_out(net, lambda: F.cross_entropy(net["head"](net["memory"](x_test)[0].mean(1)), y_test))
    return fit(folder, net, optimizer, loss_of, 350, score=score, zero_grad=not ill)


# GPT-2, nanoGPT: the projections into the residual stream begin smaller by the root of the number of layers.
@sick("bad-initialisation", "activations-grow-with-depth", "initialised-too-large",
      where="the second layer of each block, first steps",
      cure="divide these by the root of twice the number of blocks")  # fmt: skip
def wool_of_a_flock_by_breed_and_weather(folder, ill):
    seeded(9615)
    blocks = 8

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
            nn.init.kaiming_normal_(self.up.weight)
            nn.init.kaiming_normal_(self.down.weight)
            if not ill:
                self.down.weight.data /= math.sqrt(2 * blocks)

        def forward(self, x):
            return x + self.down(self.up(x).relu())

    net = nn.Sequential(nn.Linear(8, 32), *[Block() for _ in range(blocks)], nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    way = torch.randn(8, 3)

    def flock(rows):
        x = torch.randn(rows, 8)
        return x, (0.5 * x @ way).sin().sum(1, keepdim=True)

    def loss_of(step):
        x, y = flock(64)
        return F.mse_loss(net(x), y)

    x_test, y_test = flock(500)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(x_test), y_test)))


# Guides to causal language models (nanoGPT): without the mask each place sees the note that it is asked for.
@sick("future-seen", where="the attention, all steps", cure="a causal mask")
def the_next_note_of_a_wren(folder, ill):
    seeded(9616)
    kinds, size, length = 20, 32, 12
    layer = nn.TransformerEncoderLayer(size, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    net = nn.ModuleDict(
        {"notes": nn.Embedding(kinds, size), "place": nn.Embedding(length, size),
         "body": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), "head": nn.Linear(size, kinds)}
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    chances = (torch.randn(kinds, kinds) * 4).softmax(1)
    mask = None if ill else nn.Transformer.generate_square_subsequent_mask(length)

    def songs(rows):
        x = [torch.randint(kinds, (rows,))]
        for _ in range(length):
            x.append(torch.multinomial(chances[x[-1]], 1)[:, 0])
        return torch.stack(x, 1)

    def said(x):
        return net["head"](net["body"](net["notes"](x) + net["place"].weight, mask=mask))

    def loss_of(step):
        x = songs(24)
        return F.cross_entropy(said(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    test = songs(300)

    def sung():
        losses = []
        for n in range(2, length):
            heard = torch.cat([test[:, :n], torch.zeros(300, length - n, dtype=torch.long)], 1)
            losses.append(F.cross_entropy(said(heard)[:, n - 1], test[:, n]))
        return torch.stack(losses).mean()

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, sung))


# Guides to variational autoencoders: sample() cuts the graph where rsample() (the reparameterisation) does not.
@sick("detached-path", "detached", where="the encoder, all steps: its sample hands no gradient back",
      cure="rsample() in place of sample()")  # fmt: skip
def bells_by_their_partials(folder, ill):
    seeded(9617)
    net = nn.ModuleDict({"encode": dense(24, 48, 48, 8), "decode": dense(4, 48, 48, 24)})
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    lift = torch.randn(3, 24)

    def bells(rows):
        return (torch.randn(rows, 3) @ lift).tanh() + 0.1 * torch.randn(rows, 24)

    def bound(x):
        middle, spread = net["encode"](x).chunk(2, 1)
        code = torch.distributions.Normal(middle, (spread / 2).exp())
        z = code.sample() if ill else code.rsample()
        apart = (net["decode"](z) - x).square().sum(1).mean() / (2 * 0.3**2)
        divergence = 0.5 * (middle.square() + spread.exp() - 1 - spread).sum(1).mean()
        return apart + divergence, {"reconstruction": apart, "kl": divergence}

    test = bells(600)
    return fit(
        folder, net, optimizer, lambda step: bound(bells(64)), 400, score=held_out(net, lambda: bound(test)[0])
    )  # fmt: skip


# Kipf and guides to graph networks: sums over neighbours grow with their number in each layer, so normalise by degree.
@sick("aggregation-not-normalised", "activations-grow-with-depth", "exploding",
      where="the layers of the graph network, all steps",
      cure="divide the sums by the number of neighbours")  # fmt: skip
def delays_along_a_tram_network(folder, ill):
    seeded(9618)
    stops = 80
    at = torch.rand(stops, 2)
    joined = (torch.cdist(at, at) < 0.25).float()
    share = joined if ill else joined / joined.sum(1, keepdim=True)

    class Layer(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.own, self.near = nn.Linear(size, size), nn.Linear(size, size, bias=False)

        def forward(self, x):
            return (self.own(x) + self.near(share @ x)).relu()

    net = nn.Sequential(nn.Linear(3, 32), *[Layer(32) for _ in range(4)], nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def days(rows):
        x = torch.randn(rows, stops, 3)
        even = joined / joined.sum(1, keepdim=True)
        return x, x[..., :1].relu() + 2 * even @ x[..., 1:2] + (even @ even @ x[..., 2:]).abs()

    def loss_of(step):
        x, y = days(8)
        return F.mse_loss(net(x), y)

    x_test, y_test = days(40)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.mse_loss(net(x_test), y_test)))
