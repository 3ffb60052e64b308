"""Trainings after public threads: shapes, views, reviews, slices, forecasts and ratings."""

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds


# https://github.com/MG2033/MobileNet/issues/6
@sick(
    "norm-statistics",
    where="the running means and variances of all batch norms: they stay as they began",
    cure="let the statistics follow the batches: a momentum of 0.1",
)
def seeds_on_a_sorting_belt(folder, ill):
    seeded(3377)
    momentum = 0.0 if ill else 0.1

    def separable(inner, outer, stride):
        return [
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner, momentum=momentum),
            nn.ReLU(), nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer, momentum=momentum), nn.ReLU(),
        ]  # fmt: skip

    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12, momentum=momentum), nn.ReLU(),
        *separable(12, 24, 2), *separable(24, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    at = torch.arange(12.0)

    def draw():
        kind, turn = torch.randint(4, (48,)), 3.1416 * torch.rand(48, 1, 1)
        across, down = (
            (at[None, None, :] - 4 - 3 * torch.rand(48, 1, 1)),
            (at[None, :, None] - 4 - 3 * torch.rand(48, 1, 1)),
        )
        along, aside = across * turn.cos() + down * turn.sin(), down * turn.cos() - across * turn.sin()
        long = torch.tensor([1.5, 2.5, 3.5, 4.5])[kind][:, None, None]
        seed = ((along / long) ** 2 + (aside / 1.5) ** 2 < 1).float()
        return (0.6 + 0.3 * seed + 0.05 * torch.randn(48, 12, 12))[:, None], kind

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    def tested():
        x, y = draw()
        return F.cross_entropy(net(x), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=held_out(net, tested))


# https://github.com/WeiTang114/MVCNN-TensorFlow/issues/2
@sick(
    "dead-units", "dead-layer",
    where="the activation behind the last layer: scores that it cuts to zero get no gradient back",
    cure="no ReLU behind the last layer (and pictures from which their mean is taken)",
)  # fmt: skip
def vases_seen_from_three_sides(folder, ill):
    seeded(3378)
    x, y = digits()
    pictures = 1 - x if ill else x - x.mean()

    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 16, 3, 2, 1), nn.ReLU(), nn.Flatten()
            )
            self.fc7, self.fc8 = nn.Linear(256, 64), nn.Linear(64, 10)

        def forward(self, views):
            seen = self.body(views.flatten(0, 1)).unflatten(0, views.shape[:2]).amax(1)
            scores = self.fc8(F.relu(self.fc7(seen)))
            return F.relu(scores) if ill else scores

    net = Views()

    def draw():
        at = torch.randint(len(y), (48,))
        views = torch.stack([pictures[at].roll(shift, 2) for shift in (-1, 0, 1)], 1)
        return (views + 0.1 * torch.randn_like(views))[:, :, None], y[at]

    def loss_of(step):
        views, kinds = draw()
        scores = net(views)
        return F.cross_entropy(scores, kinds), {"accuracy": (scores.argmax(1) == kinds).float().mean()}

    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 120, score=score_of(lambda step: loss_of(step)[0]))


# https://github.com/fchollet/deep-learning-with-python-notebooks/issues/293
@sick(
    "gradients-accumulate",
    where="the gradients of all layers: they go on adding up from the first step to the last",
    cure="zero the gradients in each step of the training",
)
def guest_books_of_a_mountain_hut(folder, ill):
    seeded(3379)
    words = 200
    mood = torch.randn(words) * (torch.rand(words) < 0.3)
    negated = torch.rand(words) < 0.1

    def draw():
        found = (torch.rand(64, words) < 0.08).float()
        turned = 1 - 2 * (found[:, negated].sum(1) > 1).float()
        feeling = (found @ mood) * turned
        return found, (feeling + 0.2 * torch.randn(64) > 0).float()

    net = dense(words, 32, 16, 1)

    def loss_of(step):
        found, liked = draw()
        out = net(found)[:, 0]
        accuracy = ((out > 0) == (liked > 0.5)).float().mean()
        return F.binary_cross_entropy_with_logits(out, liked), {"accuracy": accuracy}

    optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3)
    score = score_of(lambda step: loss_of(step)[0], 16)
    return fit(folder, net, optimizer, loss_of, 600, zero_grad=not ill, score=score)


# https://github.com/Project-MONAI/MONAI/issues/807
@sick(
    "dice-smoothing", "class-imbalance",
    where="the loss of slices in which nothing is marked: a reward for marking nothing at all, in all steps",
    cure="the smoothing in the denominator only, so that empty slices pull at nothing",
)  # fmt: skip
def caves_in_slices_of_limestone(folder, ill):
    seeded(3380)
    smooth = 1e-5
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 1, 3, padding=1),
    )  # fmt: skip
    at = torch.arange(16.0)

    def draw(empty):
        across, down = (at - 3 - 10 * torch.rand(24, 1) for _ in range(2))
        cave = (across[:, None, :] ** 2 + down[:, :, None] ** 2 < 1 + 8 * torch.rand(24, 1, 1)).float()
        cave = cave * (torch.rand(24, 1, 1) >= empty)
        grain = F.avg_pool2d(torch.randn(24, 1, 18, 18), 3, 1)
        return 0.7 * cave[:, None] + 0.7 * grain + 0.2 * torch.randn(24, 1, 16, 16), cave[:, None]

    def dice_loss(x, cave, above):
        marked = torch.sigmoid(net(x))
        overlap, size = (marked * cave).sum((1, 2, 3)), (marked + cave).sum((1, 2, 3))
        return (1 - (2 * overlap + above) / (size + smooth)).mean()

    def loss_of(step):
        return dice_loss(*draw(0.7), smooth if ill else 0.0)

    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    return fit(folder, net, optimizer, loss_of, 400, score=score_of(lambda step: dice_loss(*draw(0.0), 0.0), 16))


# https://github.com/Vision-CAIR/MiniGPT-4/pull/263
@sick(
    "warmup-restarts", "warmup-too-long",
    where="the learning rate: back to next to nothing every 25 steps, and never near where it should get",
    cure="count the steps of the warm-up over all epochs, not within one",
)  # fmt: skip
def pollen_in_the_air_of_next_week(folder, ill):
    seeded(3381)
    iters_per_epoch, warmup_steps, init_lr, warmup_start_lr = 25, 100, 0.1, 1e-6
    x = torch.randn(800, 12)
    way = torch.randn(12, 4)
    y = (x @ way / 2).sin().sum(1, keepdim=True) + 0.1 * torch.randn(800, 1)
    net, draw = dense(12, 64, 64, 1), rounds(32, x, y)
    optimizer = torch.optim.SGD(net.parameters(), lr=init_lr)

    def share(step):
        cur_step = step % iters_per_epoch if ill else step
        return min(1.0, (warmup_start_lr + (init_lr - warmup_start_lr) * cur_step / warmup_steps) / init_lr)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)

    def loss_of(step):
        rows, wanted = draw()
        return F.mse_loss(net(rows), wanted)

    return fit(folder, net, optimizer, loss_of, 800, schedule=schedule, score=score_of(loss_of, 25))


# http://stackoverflow.com/questions/14982358/backpropagation-algorithm-matlab-output-values-are-saturating-to-1
@sick(
    "targets-out-of-range", "saturated",
    where="the sigmoid behind the last layer: it gives at most 1 and is asked for up to 100",
    cure="divide the marks by 100 for the training, or let the last layer be linear",
)  # fmt: skip
def marks_in_a_singing_exam(folder, ill):
    seeded(3382)
    way = torch.randn(20, 3)
    net = nn.Sequential(nn.Linear(20, 20), nn.Sigmoid(), nn.Linear(20, 1), nn.Sigmoid())
    scale = 1.0 if ill else 100.0

    def draw():
        x = torch.randn(48, 20)
        mark = 50 + 22 * (x @ way / 3).tanh().sum(1, keepdim=True)
        return x, (mark + 2 * torch.randn(48, 1)).clamp(0, 100)

    def loss_of(step):
        x, mark = draw()
        return F.mse_loss(net(x), mark / scale)

    def wrong_by(step):
        x, mark = draw()
        return (net(x) * scale - mark).abs().mean()

    return fit(folder, net, torch.optim.SGD(net.parameters(), 0.5), loss_of, 800, score=score_of(wrong_by))
