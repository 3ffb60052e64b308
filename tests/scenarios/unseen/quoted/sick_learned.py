"""Labels, pairs, domains, rays and heat, after threads."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, score_of, seeded, sick
from unseen.tasks import rounds


# https://github.com/google/nerfactor/issues/32
@sick(
    "lr-too-high",
    "update-too-large",
    where="all layers, in the first steps, after which the scene is empty and stays so",
    cure="a learning rate a tenth of this or less",
)
def a_snowman_seen_from_all_sides(folder, ill):
    seeded(3483)
    net = dense(2, 64, 64, 2)
    optimizer = torch.optim.Adam(net.parameters(), 0.1 if ill else 2e-3)
    depths = torch.linspace(-1.2, 1.2, 24)

    def snowman(at):
        lower = (at - torch.tensor([0.0, -0.3])).norm(dim=-1) < 0.5
        upper = (at - torch.tensor([0.1, 0.45])).norm(dim=-1) < 0.3
        shade = torch.where(upper, 0.2, 0.6)
        return 8.0 * (lower | upper), shade

    def field(at):
        density, shade = net(at).unbind(-1)
        return 10 * F.relu(density), shade.sigmoid()

    def render(scene, origin, way):
        density, shade = scene(origin[:, None] + depths[:, None] * way[:, None])
        opaque = 1 - (-density * 0.1).exp()
        passed = torch.cumprod(torch.cat([torch.ones(len(way), 1), 1 - opaque], 1), 1)
        return (passed[:, :-1] * opaque * shade).sum(1) + passed[:, -1]

    def loss_of(step):
        angle, offset = 6.2832 * torch.rand(96), 2 * torch.rand(96, 1) - 1
        way = torch.stack([angle.cos(), angle.sin()], 1)
        origin = offset * torch.stack([-angle.sin(), angle.cos()], 1)
        return F.mse_loss(render(field, origin, way), render(snowman, origin, way))

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of))


# https://github.com/huggingface/transformers/issues/13430
@sick(
    "logits-bounded",
    where="the learnable scale of the cosines, which begins near 1, and with it the loss",
    cure="let the scale begin at log(1 / 0.07), as it is the logarithm of the scale that is learned",
)
def recipes_and_their_dishes(folder, ill):
    seeded(3484)
    net = nn.ModuleDict({"recipes": dense(20, 64, 16), "dishes": dense(30, 64, 16)})
    net.register_parameter("logit_scale", nn.Parameter(torch.tensor(1.0 if ill else math.log(1 / 0.07))))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    words, sights = torch.randn(5, 20), torch.randn(5, 30)

    def loss_of(step):
        meal = torch.randn(64, 5)
        recipe, dish = (meal @ words).tanh(), (meal @ sights).tanh() + 0.05 * torch.randn(64, 30)
        a, b = F.normalize(net["recipes"](recipe), dim=1), F.normalize(net["dishes"](dish), dim=1)
        logits = net.logit_scale.exp() * a @ b.T
        return (F.cross_entropy(logits, torch.arange(64)) + F.cross_entropy(logits.T, torch.arange(64))) / 2

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


# https://github.com/tensorflow/swift-models/pull/232
@sick(
    "softmax-twice",
    where="the last operation of the model, before a loss that applies its own softmax",
    cure="leave the softmax at the end of the model out",
)
def tiles_of_a_bathhouse(folder, ill):
    seeded(3485)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), dense(216, 48, 12),
        *([nn.Softmax(1)] if ill else []),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    patterns = torch.rand(12, 1, 12, 12).round()

    def draw():
        kind = torch.randint(12, (64,))
        worn = (torch.rand(64, 1, 12, 12) > 0.3).float()
        return patterns[kind] * worn + 0.3 * torch.randn(64, 1, 12, 12), kind

    def wrong(step):
        tiles, kind = draw()
        return (net(tiles).argmax(1) != kind).float().mean()

    return fit(folder, net, optimizer, entropy_of(net, draw), 300, score=score_of(wrong))


class Reversal(torch.autograd.Function):
    """Hands its input on, and takes the gradient back with the other sign."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.neg() * ctx.strength, None


# https://github.com/CuthbertCai/pytorch_DANN/issues/10
@sick(
    "wrong-sign",
    where="the gradient that comes from the domain head back into the features, from the beginning",
    cure="a positive strength of the reversal: gamma is 10, not -10, since the layer negates already",
)
def apples_of_two_orchards(folder, ill):
    seeded(3486)
    net = nn.ModuleDict({"features": dense(12, 48, 16), "kind": dense(16, 24, 3), "orchard": dense(16, 24, 2)})
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    gamma, steps = -10 if ill else 10, 600
    lift, soil = torch.randn(3, 12), torch.randn(12)

    def draw(orchard):
        kind = torch.randint(3, (48,))
        apples = F.one_hot(kind, 3).float() @ lift + 0.9 * torch.randn(48, 12)
        return apples + orchard * soil, kind

    def loss_of(step):
        strength = 2 / (1 + torch.tensor(-gamma * step / steps).exp()) - 1
        (here, kind), (there, _) = draw(0), draw(1)
        features = net["features"](torch.cat([here, there]))
        of_kind = F.cross_entropy(net["kind"](features[:48]), kind)
        of_orchard = F.cross_entropy(
            net["orchard"](Reversal.apply(features, strength)), torch.arange(2).repeat_interleave(48)
        )
        return of_kind + of_orchard, {"kind_loss": of_kind, "orchard_loss": of_orchard}

    def error(step):
        apples, kind = draw(1)
        return F.cross_entropy(net["kind"](net["features"](apples)), kind)

    return fit(folder, net, optimizer, loss_of, steps, score=score_of(error))


# https://github.com/Project-MONAI/tutorials/issues/122
@sick(
    "class-imbalance",
    "data-not-shuffled",
    "labels-all-one-class",
    where="the targets of all batches, which are of one class, since the rows were split in the order of their class",
    cure="shuffle the rows before they are split into those for training and those for validation",
)
def moths_and_butterflies_in_a_drawer(folder, ill):
    seeded(3487)
    net = dense(10, 48, 48, 2)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    kind = torch.arange(2).repeat_interleave(400)
    wings = torch.randn(800, 10)
    wings[:, :4] *= (1.0 + 1.5 * kind)[:, None]
    order = torch.arange(800) if ill else torch.randperm(800)
    training, validation = order[:400], order[400:]
    draw = rounds(32, wings[training], kind[training])

    def error(step):
        return F.cross_entropy(net(wings[validation]), kind[validation])

    return fit(folder, net, optimizer, entropy_of(net, draw), 300, score=score_of(error, 1))


# https://github.com/lululxvi/deepxde/issues/141
@sick(
    "loss-term-outweighed",
    "loss-terms-unbalanced",
    "no-progress",
    where="the term of the edges, which the term of the equation outweighs",
    cure="give the term of the edges a weight that brings it to the size of the other, a million or so",
)
def a_griddle_between_two_flames(folder, ill):
    seeded(3488)
    net = dense(2, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    conductivity, weight = 50, 1 if ill else 1e6

    def exact(at):
        above = (6.2832 * at[:, :1]).sin() * (6.2832 * at[:, 1:]).sinh() / 267.7
        return above + 2 * (3.1416 * at[:, :1]).sin() * (3.1416 * (1 - at[:, 1:])).sinh() / 11.55

    def terms():
        inside = torch.rand(64, 2, requires_grad=True)
        (slope,) = torch.autograd.grad(net(inside).sum(), inside, create_graph=True)
        bend = sum(torch.autograd.grad(slope[:, i].sum(), inside, create_graph=True)[0][:, i] for i in range(2))
        edge = torch.rand(64, 2)
        edge[torch.arange(64), torch.randint(2, (64,))] = torch.randint(2, (64,)).float()
        return (conductivity * bend).square().mean(), F.mse_loss(net(edge), exact(edge))

    def loss_of(step):
        equation, edges = terms()
        return equation + weight * edges, {"equation": equation, "edges": edges}

    def error(step):
        at = torch.rand(256, 2)
        return F.mse_loss(net(at), exact(at))

    return fit(folder, net, optimizer, loss_of, 800, score=score_of(error))
