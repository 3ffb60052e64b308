"""After public threads: a penalty on slopes, pairs of views, statistics of batches."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, play


# https://github.com/mlpack/mlpack/issues/2891
@sick("term-without-gradient", "penalty-without-gradient",
      where="the critic: its penalty is in the loss, yet nothing of it comes back, and the slopes grow",
      cure="create_graph=True where the slopes are computed, so that the penalty has a gradient")  # fmt: skip
def pebbles_around_a_campfire(folder, ill):
    seeded(3586)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1)
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 2e-3, betas=(0.5, 0.9))

    def penalty(real, fake):
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        slopes = torch.autograd.grad(judge(between).sum(), between, create_graph=not ill)[0]
        return (slopes.norm(dim=1) - 1).square().mean()

    def judge_loss(real, fake):
        return judge(fake).mean() - judge(real).mean() + 10 * penalty(real, fake)

    def make_loss(fake):
        return -judge(fake).mean()

    return play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 250, rounds=3)


# https://github.com/huggingface/transformers/issues/13430
@sick("logits-bounded", where="the logits of all pairs: cosines times 2.7, which a learned scale only slowly leaves",
      cure="begin the scale of the logits at log(1 / 0.07)")  # fmt: skip
def recipes_and_their_photographs(folder, ill):
    seeded(3587)
    rows = 96
    lifts = {"photo": torch.randn(5, 24), "recipe": torch.randn(5, 16)}
    net = nn.ModuleDict({"photo": dense(24, 64, 16), "recipe": dense(16, 64, 16)})
    scale = nn.Parameter(torch.ones([]) if ill else torch.ones([]) * math.log(1 / 0.07))
    net.register_parameter("logit_scale", scale)

    def logits():
        dish = torch.randn(rows, 5)
        photo = (dish @ lifts["photo"]).tanh() + 0.2 * torch.randn(rows, 24)
        recipe = (dish @ lifts["recipe"]).sin() + 0.2 * torch.randn(rows, 16)
        a, b = F.normalize(net["photo"](photo), dim=1), F.normalize(net["recipe"](recipe), dim=1)
        return scale.exp() * a @ b.T

    def loss_of(step):
        both, own = logits(), torch.arange(rows)
        return (F.cross_entropy(both, own) + F.cross_entropy(both.T, own)) / 2

    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


# https://github.com/eriklindernoren/PyTorch-YOLOv3/issues/230
@sick("norm-statistics", where="all batch norms: what they keep for evaluation is the last small batch",
      cure="a momentum of 0.1 for the batch norms: PyTorch's is the share of the new batch")  # fmt: skip
def buds_and_blossoms(folder, ill):
    seeded(3588)
    momentum = 0.9 if ill else 0.1

    def block(ins, outs):
        return [nn.Conv2d(ins, outs, 3, padding=1, bias=False), nn.BatchNorm2d(outs, momentum=momentum, eps=1e-5),
                nn.LeakyReLU(0.1), nn.MaxPool2d(2)]  # fmt: skip

    net = nn.Sequential(*block(3, 12), *block(12, 24), *block(24, 24), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                        nn.Linear(24, 5))  # fmt: skip
    patches = torch.randn(5, 3, 5, 5)

    def draw(rows=8):
        y = torch.randint(5, (rows,))
        x = 0.8 * torch.randn(rows, 3, 16, 16)
        for i in range(rows):
            top, left = (int(v) for v in torch.randint(11, (2,)))
            x[i, :, top : top + 5, left : left + 5] += 2 * patches[y[i]]
        return torch.exp(0.25 * torch.randn(1)) * (x + 0.3 * torch.randn(1, 3, 1, 1)), y

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    def loss():
        return sum(loss_of(step) for step in range(40)) / 40

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, loss))
