"""More trainings whose mistakes people asked about in public, each on another subject."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds, tend


# https://forums.fast.ai/t/cross-entropy-error-log-1-1-inf/1441
@sick(
    "inputs-not-normalised",
    "nonfinite",
    where="the inputs of the first layer, and the logarithm of one minus a guess of one in the first steps",
    cure="take the mean off the inputs and divide by their standard deviation",
)
def paints_told_by_their_pigments(folder, ill):
    seeded(9207)
    usual = 255 * torch.rand(5, 12)
    paint = torch.randint(5, (1200,))
    pigments = (usual[paint] + 45 * torch.randn(1200, 12)).clamp(0, 255)
    if not ill:
        pigments = (pigments - pigments.mean(0)) / pigments.std(0)
    net, draw = dense(12, 32, 5), rounds(50, pigments[:1000], paint[:1000])

    def cross_entropy(x, y):
        guess, wanted = net(x).softmax(1), F.one_hot(y, 5)
        return torch.where(wanted > 0, -guess.log(), -(1 - guess).log()).mean()

    score = held_out(net, lambda: F.cross_entropy(net(pigments[1000:]), paint[1000:]))
    return fit(
        folder, net, torch.optim.SGD(net.parameters(), lr=0.1), lambda step: cross_entropy(*draw()), 400, score=score
    )


# https://github.com/maciejkula/triplet_recommendations_keras/issues/1
@sick(
    "nonfinite",
    where="both tables, at the first pair whose difference is too large for the exponential",
    cure="torch.sigmoid instead of one written out with exponentials",
)
def records_that_collectors_swap(folder, ill):
    seeded(9208)
    taste, style = torch.randn(80, 3), torch.randn(120, 3)
    net = nn.ModuleDict({"collector": nn.Embedding(80, 32), "record": nn.Embedding(120, 32)})
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)

    def difference(rows=128):
        who, a, b = torch.randint(80, (rows,)), torch.randint(120, (rows,)), torch.randint(120, (rows,))
        a_first = (taste[who] * (style[a] - style[b])).sum(1) > 0
        liked, other = torch.where(a_first, a, b), torch.where(a_first, b, a)
        return (net["collector"](who) * (net["record"](liked) - net["record"](other))).sum(1)

    def loss_of(step):
        x = difference()
        likely = x.exp() / (1 + x.exp()) if ill else x.sigmoid()
        return (1 - likely).mean()

    def score():
        with torch.no_grad():
            return 1 - float((difference(4000) > 0).float().mean())

    return fit(folder, net, optimizer, loss_of, 500, score=score)


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()


# https://github.com/RLinf/RLinf/pull/1565
@sick(
    "shapes-broadcast",
    where="the entropy term: one value per row against a mask of rows by one",
    cure="give the entropy the shape of the mask before the masked mean",
)
def a_squirrel_and_its_seven_caches(folder, ill):
    seeded(9209)
    signs = torch.randn(10, 7)
    actor, critic = dense(10, 48, 7, act=nn.Tanh), dense(10, 48, 1, act=nn.Tanh)
    net = nn.ModuleDict({"actor": actor, "critic": critic})
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def nuts(seen, cache):
        return (seen @ signs).tanh().gather(1, cache)

    def one(step):
        seen = torch.randn(64, 10)
        alive = (torch.rand(64, 1) < 0.9).float()
        policy = torch.distributions.Categorical(logits=actor(seen))
        cache = policy.sample()
        reward, value = nuts(seen, cache[:, None]), critic(seen)
        gain = (reward - value).detach()
        entropy = policy.entropy() if ill else policy.entropy()[:, None]
        of_policy = -masked_mean(gain * policy.log_prob(cache)[:, None], alive)
        of_value = masked_mean((value - reward).square(), alive)
        of_entropy = masked_mean(entropy, alive)
        loss = of_policy + 0.5 * of_value - 0.01 * of_entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        terms = {"policy_loss": of_policy, "value_loss": of_value, "entropy": of_entropy}
        return {"loss": loss, **terms, "reward": reward.mean()}

    def score():
        with torch.no_grad():
            seen = torch.randn(2000, 10)
            return 1 - float((actor(seen).softmax(1) * (seen @ signs).tanh()).sum(1).mean())

    return tend(folder, net, optimizer, one, 700, score)


# https://github.com/endernewton/tf-faster-rcnn/issues/458
@sick(
    "lr-too-high",
    "exploding",
    where="all layers, in the first tens of steps",
    cure="a learning rate a hundred times lower",
)
def mushrooms_boxed_on_a_tray(folder, ill):
    seeded(9210)
    trunk = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 64), nn.ReLU(),
    )  # fmt: skip
    net = nn.ModuleDict({"trunk": trunk, "kind": nn.Linear(64, 3), "box": nn.Linear(64, 4)})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5 if ill else 0.005, momentum=0.9)
    line = torch.arange(12).float()

    def trays(rows=32):
        kind, middle, half = torch.randint(3, (rows,)), 3 + 6 * torch.rand(rows, 2), 1 + 2 * torch.rand(rows, 2)
        down = (line[None] - middle[:, :1]).abs() / half[:, :1]
        right = (line[None] - middle[:, 1:]).abs() / half[:, 1:]
        far = torch.maximum(down[:, :, None], right[:, None])
        shade = torch.stack([torch.ones_like(far), far, 1 - far]).gather(
            0, kind[None, :, None, None].expand(1, -1, 12, 12)
        )[0]
        return (shade * (far <= 1))[:, None] + 0.1 * torch.randn(rows, 1, 12, 12), kind, torch.cat([middle, half], 1)

    def loss_of(step):
        tray, kind, box = trays()
        found = trunk(tray)
        of_kind = F.cross_entropy(net["kind"](found), kind)
        of_box = F.smooth_l1_loss(net["box"](found), box)
        return of_kind + of_box, {"loss_cls": of_kind, "loss_box": of_box}

    return fit(folder, net, optimizer, loss_of, 350, score=score_of(lambda step: loss_of(step)[0]))


# https://github.com/tsinghua-rll/VoxelNet-tensorflow/issues/10
@sick(
    "targets-out-of-range",
    where="the ReLU after the last layer, against offsets of which half are negative",
    cure="no ReLU after the layer that regresses the offsets",
)
def boats_measured_against_a_standard_hull(folder, ill):
    seeded(9211)
    shape = torch.randn(14, 5)

    def block(before, after):
        return [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]

    last = block(48, 5) if ill else [nn.Linear(48, 5)]
    net = nn.Sequential(*block(14, 48), *block(48, 48), *last)

    def boats(rows=64):
        echoes = torch.randn(rows, 14)
        return echoes, (echoes @ shape / 2).sin() + 0.05 * torch.randn(rows, 5)

    def loss_of(step):
        echoes, offsets = boats()
        return F.smooth_l1_loss(net(echoes), offsets)

    score = held_out(net, lambda: sum(loss_of(0) for _ in range(8)) / 8)
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=3e-3), loss_of, 500, score=score)


class Signed(nn.Linear):
    """A layer whose weights count by their signs alone."""

    def __init__(self, before, after, through):
        super().__init__(before, after)
        self.through = through

    def forward(self, x):
        sign = self.weight.sign()
        if self.through:
            sign = self.weight + (sign - self.weight).detach()
        return F.linear(x, sign / self.in_features**0.5, self.bias)


# https://github.com/layog/Accurate-Binary-Convolution-Network/issues/6
@sick(
    "dead-layer",
    where="the weights of the layers with signs: sign() has no slope",
    cure="pass the gradient of the signs straight through to the weights",
)
def stamps_sorted_by_a_pocket_device(folder, ill):
    seeded(9212)
    net = nn.Sequential(
        Signed(24, 32, not ill), nn.BatchNorm1d(32), nn.ReLU(), Signed(32, 32, not ill), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Linear(32, 6),
    )  # fmt: skip
    ink = torch.randn(6, 2, 24)

    def loss_of(step):
        stamp, printing = torch.randint(6, (64,)), torch.randint(2, (64,))
        seen = ink[stamp, printing] * (torch.randint(2, (64, 1)) * 2 - 1) + 0.9 * torch.randn(64, 24)
        return F.cross_entropy(net(seen), stamp)

    score = held_out(net, lambda: sum(loss_of(0) for _ in range(10)) / 10)
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=4e-3), loss_of, 500, score=score)
