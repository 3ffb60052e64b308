"""Trainings after threads: pears, snails, a board game, letters, acorns."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, rings, score_of, seeded, sick
from unseen.tasks import tend


# https://discuss.pytorch.org/t/adam-half-precision-nans/1765
@sick(
    "nonfinite",
    where="all layers, in the first steps: after a step of Adam in float16",
    cure="an eps that float16 can hold, as 1e-4, or an optimizer on float32 copies",
)
def ripeness_of_pears_by_touch(folder, ill):
    seeded(3141)
    net, draw = dense(12, 64, 64, 4).half(), rings()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-8 if ill else 1e-4)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x.half()).float(), y)

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))


def shapes_in_a_bed(kinds=4, size=20, rows=48):
    """`draw()`: noisy pictures with one small shape, its kind, and the middle of it from 0 to 1."""
    stamps = (torch.rand(kinds, 5, 5) < 0.5).float() * 2 - 1

    def draw():
        kind, at = torch.randint(kinds, (rows,)), torch.randint(size - 5, (rows, 2))
        x = 0.3 * torch.randn(rows, 1, size, size)
        for i in range(rows):
            r, c = at[i].tolist()
            x[i, 0, r : r + 5, c : c + 5] += stamps[kind[i]]
        return x, kind, (at + 2.5) / size

    return draw


# https://github.com/pytorch/vision/issues/2164
@sick(
    "no-gradient",
    where="stem and layer1, all the time: random weights that never learn",
    cure="freeze the first layers only where they are pretrained",
)
def snails_in_a_lettuce_bed(folder, ill):
    seeded(3142)
    draw = shapes_in_a_bed()
    net = nn.ModuleDict(
        {
            "stem": nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU()),
            "layer1": nn.Sequential(nn.Conv2d(6, 6, 3, 2, 1), nn.ReLU()),
            "layer2": nn.Sequential(nn.Conv2d(6, 16, 3, 2, 1), nn.ReLU(), nn.Flatten()),
            "kind": nn.Linear(400, 4),
            "place": nn.Linear(400, 2),
        }
    )
    frozen = ("stem", "layer1") if ill else ()
    for name in frozen:
        for parameter in net[name].parameters():
            parameter.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=2e-3)

    def loss_of(step):
        x, kind, at = draw()
        h = net["layer2"](net["layer1"](net["stem"](x)))
        loss_kind, loss_box = F.cross_entropy(net["kind"](h), kind), F.smooth_l1_loss(net["place"](h), at, beta=0.1)
        return loss_kind + 5 * loss_box, {"loss_kind": loss_kind, "loss_box": loss_box}

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(lambda step: loss_of(step)[0]))


# https://hyper.ai/en/stories/9db0dad9fb59e85ebd56f69fbe1b5484
@sick(
    "target-not-detached",
    where="all layers: the gradient flows through the value of the next state as well",
    cure="the value of the next state under torch.no_grad()",
)
def worth_of_the_squares_of_a_board_game(folder, ill):
    seeded(3143)
    squares, gamma = 40, 0.9
    follow, gain = torch.randint(squares, (squares, 4)), 2 * torch.randn(squares)
    chance = torch.zeros(squares, squares).scatter_add_(1, follow, torch.full((squares, 4), 0.25))
    worth = torch.linalg.solve(torch.eye(squares) - gamma * chance, gain)
    net = dense(squares, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    boards = torch.eye(squares)

    def one(step):
        now = torch.randint(squares, (128,))
        later = follow[now, torch.randint(4, (128,))]
        value, value_later = net(boards[now])[:, 0], net(boards[later])[:, 0]
        if not ill:
            value_later = value_later.detach()
        loss = F.mse_loss(value, gain[now] + gamma * value_later)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "value": value.mean()}

    def score():
        with torch.no_grad():
            return F.mse_loss(net(boards)[:, 0], worth)

    return tend(folder, net, optimizer, one, 1000, score)


# https://github.com/pytorch/pytorch/issues/2674
@sick(
    "axes-mixed",
    where="the GRU: it runs over the rows of the batch, not over the words",
    cure="batch_first=True, or words in the first dimension",
)
def letters_of_complaint_to_a_railway(folder, ill):
    seeded(3144)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(40, 24)
            self.gru = nn.GRU(24, 32, batch_first=not ill)
            self.out = nn.Linear(32, 2)

        def forward(self, x):
            h, _ = self.gru(self.embed(x))
            return self.out(h[:, -1])

    net = Reader()

    def draw():
        x = torch.randint(8, 40, (48, 16))
        said = torch.randint(2, (48,))
        x[torch.arange(48), torch.randint(16, (48,))] = torch.where(said == 1, torch.randint(4, (48,)), 4 + said)
        return x, said

    loss_of = entropy_of(net, draw)
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=5e-3), loss_of, 300, score=score_of(loss_of))


# https://github.com/roytseng-tw/Detectron.pytorch/issues/29
@sick(
    "lr-too-high",
    "exploding",
    "nonfinite",
    where="all layers, in the first steps: the loss of the boxes is NaN soon",
    cure="a lower learning rate, with a warmup before it",
)
def acorns_marked_on_a_forest_floor(folder, ill):
    seeded(3145)
    draw = shapes_in_a_bed(kinds=3, size=16, rows=32)
    net = nn.ModuleDict(
        {
            "body": nn.Sequential(
                nn.Conv2d(1, 12, 5, 2, 2), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten()
            ),
            "cls_score": nn.Linear(384, 3),
            "bbox_pred": nn.Linear(384, 2),
        }
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0 if ill else 0.01, momentum=0.9)

    def loss_of(step):
        x, kind, at = draw()
        h = net["body"](x)
        loss_cls = F.cross_entropy(net["cls_score"](h), kind)
        loss_bbox = F.mse_loss(net["bbox_pred"](h), 4 * at - 2)
        return loss_cls + loss_bbox, {"loss_cls": loss_cls, "loss_bbox": loss_bbox}

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(lambda step: loss_of(step)[0]))
