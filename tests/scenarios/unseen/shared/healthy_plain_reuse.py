"""Knowledge handed on or shared: students, fine-tuning, adapters, several tasks at once, neighbours in a graph."""

import copy

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


def pretrained(net, loss_of, steps, lr=2e-3):
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()
    return net


def leaves(rows, classes, centres, lift):
    y = torch.randint(classes, (rows,))
    return (centres[y] + 0.6 * torch.randn(rows, centres.shape[1])) @ lift, y


@healthy()
def a_small_reader_taught_by_a_large_one(folder):
    seeded(3632)
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order].flatten(1), y[order]
    draw = rounds(64, x[:1500], y[:1500])

    def taught():
        a, b = draw()
        return F.cross_entropy(teacher(a), b)

    teacher = dense(64, 256, 256, 10)
    pretrained(teacher, taught, 300)
    teacher.eval().requires_grad_(False)
    student = dense(64, 24, 10)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    heat = 3.0

    def loss_of(step):
        a, b = draw()
        out = student(a)
        soft = F.kl_div((out / heat).log_softmax(1), (teacher(a) / heat).softmax(1), reduction="batchmean") * heat**2
        hard = F.cross_entropy(out, b)
        return 0.7 * soft + 0.3 * hard, {"soft": soft, "hard": hard}

    score = held_out(student, lambda: F.cross_entropy(student(x[1500:]), y[1500:]))
    return fit(folder, student, optimizer, loss_of, 400, score=score)


@healthy()
def leaves_of_shrubs_after_those_of_trees(folder):
    seeded(3633)
    lift = torch.randn(8, 40) / 8**0.5
    trees, shrubs = torch.randn(12, 8), torch.randn(5, 8)
    body = nn.Sequential(nn.Linear(40, 96), nn.LayerNorm(96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU())
    old = nn.Sequential(body, nn.Linear(48, 12))

    def before():
        x, y = leaves(128, 12, trees, lift)
        return F.cross_entropy(old(x), y)

    pretrained(old, before, 300)
    net = nn.Sequential(body, nn.Dropout(0.1), nn.Linear(48, 5))
    x, y = leaves(400, 5, shrubs, lift)
    test_x, test_y = leaves(1000, 5, shrubs, lift)
    draw = rounds(40, x, y)
    groups = [{"params": body.parameters(), "lr": 1e-4}, {"params": net[2].parameters(), "lr": 2e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)

    def loss_of(step):
        a, b = draw()
        out = net(a)
        return F.cross_entropy(out, b), {"accuracy": (out.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Adapted(nn.Module):
    def __init__(self, linear, rank=4, alpha=8):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, linear.in_features))
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)
        self.scale = alpha / rank

    def forward(self, x):
        return self.linear(x) + self.scale * F.linear(F.linear(x, self.down), self.up)


@healthy()
def a_valve_model_moved_to_another_plant(folder):
    seeded(3634)
    way = torch.randn(6, 4)

    def flow(x, turn):
        return ((x @ way + turn).sin().sum(1, keepdim=True) + x[:, :1] * x[:, 1:2]) / 2

    net = dense(6, 96, 96, 1, act=nn.SiLU)

    def before():
        x = torch.randn(128, 6)
        return F.mse_loss(net(x), flow(x, 0))

    pretrained(net, before, 500)
    net.requires_grad_(False)
    for at in (0, 2, 4):
        net[at] = Adapted(net[at])
    turn = torch.tensor([0.8, -0.6, 0.4, 0.9])
    x, test = torch.randn(2000, 6), torch.randn(1000, 6)
    y, wanted = flow(x, turn), flow(test, turn)
    draw = rounds(64, x, y)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=5e-3, weight_decay=0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def loss_of(step):
        a, b = draw()
        return F.mse_loss(net(a), b)

    score = held_out(net, lambda: F.mse_loss(net(test), wanted))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


class Checkup(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU())
        self.group, self.pressure, self.smoker = nn.Linear(48, 4), nn.Linear(48, 1), nn.Linear(48, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.group(h), self.pressure(h)[:, 0], self.smoker(h)[:, 0]


@healthy()
def three_findings_of_one_checkup(folder):
    seeded(3635)
    rows = 4000
    hidden = torch.randn(rows, 5)
    x = (hidden @ torch.randn(5, 16)).tanh() + 0.1 * torch.randn(rows, 16)
    group = (hidden @ torch.randn(5, 4) + 0.1 * torch.randn(rows, 4)).argmax(1)
    pressure = (hidden[:, 0] + hidden[:, 1] * hidden[:, 2]) / 2**0.5 + 0.1 * torch.randn(rows)
    smoker = torch.bernoulli((3 * hidden[:, 3] - 2 * hidden[:, 4].abs()).sigmoid())
    draw = rounds(32, x[:3500], group[:3500], pressure[:3500], smoker[:3500])
    net = Checkup()
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    clip = clipped(net, 2.0)

    def terms(model, a, g, p, s):
        kind, level, smokes = model(a)
        return {
            "group": F.cross_entropy(kind, g),
            "pressure": F.mse_loss(level, p),
            "smoker": F.binary_cross_entropy_with_logits(smokes, s),
        }

    def one(step):
        optimizer.zero_grad()
        parts = []
        for _ in range(2):
            part = terms(net, *draw())
            (sum(part.values()) / 2).backward()
            parts.append({name: value.detach() for name, value in part.items()})
        clip(step)
        optimizer.step()
        average.update_parameters(net)
        logged = {name: sum(part[name] for part in parts) / 2 for name in parts[0]}
        return {"loss": sum(logged.values()), **logged}

    def total():
        return sum(terms(average, x[3500:], group[3500:], pressure[3500:], smoker[3500:]).values())

    return tend(folder, net, optimizer, one, 350, held_out(net, total))


@healthy()
def subjects_of_papers_from_their_references(folder):
    seeded(3636)
    nodes, classes = 500, 5
    y = torch.randint(classes, (nodes,))
    same = y[:, None] == y
    edges = (torch.rand(nodes, nodes) < torch.where(same, 0.03, 0.002)).triu(1).float()
    edges = edges + edges.T + torch.eye(nodes)
    degree = edges.sum(1).rsqrt()
    spread = degree[:, None] * edges * degree
    topic = (torch.rand(classes, 100) < 0.15).float()
    x = torch.bernoulli((0.04 + 0.12 * topic)[y])
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    order = torch.randperm(nodes)
    known, valid, test = order[:100], order[100:250], order[250:]

    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(100, 16), nn.Linear(16, classes)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            h = F.relu(spread @ self.one(self.drop(x)))
            return spread @ self.two(self.drop(h))

    net = Graph()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
    best = {"loss": float("inf")}
    on_valid = held_out(net, lambda: F.cross_entropy(net(x)[valid], y[valid]))

    def one(step):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x)[known], y[known])
        loss.backward()
        optimizer.step()
        if step % 10:
            return {"loss": loss}
        value = on_valid()
        if value < best["loss"]:
            best.update(loss=value, state=copy.deepcopy(net.state_dict()))
        return {"loss": loss, "valid_loss": value}

    def error():
        if "state" in best:
            net.load_state_dict(best["state"])
        return (net(x)[test].argmax(1) != y[test]).float().mean()

    return tend(folder, net, optimizer, one, 200, held_out(net, error))
