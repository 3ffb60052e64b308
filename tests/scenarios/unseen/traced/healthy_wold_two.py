"""Six everyday trainings: recipes, electricity, pallets, digits on the phone, photographs of meters, postcodes."""

import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, mean, seeded
from unseen.tasks import clipped, held_out, rounds, tend


def pick(words):
    return words[int(torch.randint(len(words), ()))]


def recipe():
    number = int(torch.randint(2, 10, ()))
    thing, way = pick(["eggs", "onions", "apples", "leeks", "lemons"]), pick(["stir", "fry", "bake", "boil"])
    fat = pick(["butter", "oil", "lard"])
    return f"take {number} {thing}, {way} them in {fat} for {number * 5} minutes. "


class Block(nn.Module):
    def __init__(self, width, heads, drop):
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(drop)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, 2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, length, width)
        x = x + self.drop(self.out(mixed))
        return x + self.drop(self.mlp(self.norm2(x)))


class Gpt(nn.Module):
    def __init__(self, letters, width=48, depth=2, context=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(letters, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, 4, 0.1) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)
        self.apply(self.start)
        for name, weight in self.named_parameters():
            if name.endswith(("out.weight", "mlp.2.weight")):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * depth))
        self.head.weight = self.embed.weight

    @staticmethod
    def start(part):
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)

    def forward(self, x):
        x = self.embed(x) + self.place(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@healthy()
def recipes_written_by_a_small_gpt(folder):
    seeded(3417)
    text = "".join(recipe() for _ in range(600))
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(c) for c in text])
    split = int(0.9 * len(codes))
    net = Gpt(len(letters))
    flat = [w for w in net.parameters() if w.dim() < 2]
    groups = [
        {"params": [w for w in net.parameters() if w.dim() >= 2], "weight_decay": 0.1},
        {"params": flat, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95))

    def share(step, rise=25, end=180):
        if step < rise:
            return (step + 1) / rise
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - rise) / (end - rise)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)

    def piece(source, rows=16, length=32):
        at = torch.randint(len(source) - length - 1, (rows, 1)) + torch.arange(length + 1)
        return source[at][:, :-1], source[at][:, 1:]

    def loss_on(source):
        x, y = piece(source)
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    def one(step):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(2):
            loss = loss_on(codes[:split]) / 2
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return {"loss": total}

    score = held_out(net, lambda: mean([float(loss_on(codes[split:])) for _ in range(6)]))
    return tend(folder, net, optimizer, one, 180, score)


class Ahead(nn.Module):
    def __init__(self, columns, hidden=32, ahead=6):
        super().__init__()
        self.gru, self.head = nn.GRU(columns, hidden, batch_first=True), nn.Linear(hidden, ahead)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


@healthy()
def electricity_of_an_office_building(folder):
    seeded(3418)
    hour = torch.arange(24 * 7 * 12)
    day, week = hour % 24, hour // 24 % 7
    at_work = ((day >= 8) & (day < 18) & (week < 5)).float()
    outside = 12 + 8 * (6.283 * (day - 9) / 24).sin() + 0.3 * torch.randn(len(hour)).cumsum(0).clamp(-20, 20)
    load = 40 + 90 * at_work + 2.5 * (outside - 15).abs() + 4 * torch.randn(len(hour))
    table = torch.stack([load, outside, (6.283 * day / 24).sin(), (6.283 * day / 24).cos(), (week < 5).float()], 1)
    split = 24 * 7 * 9
    table = (table - table[:split].mean(0)) / table[:split].std(0)
    x = table.unfold(0, 36, 1).transpose(1, 2)[:-6]
    y = table[36:, 0].unfold(0, 6, 1)[: len(x)]
    train = split - 42
    net, draw = Ahead(5), rounds(32, x[:train], y[:train])
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=120, gamma=0.5)

    def loss_of(step):
        a, b = draw()
        return F.mse_loss(net(a), b)

    score = held_out(net, lambda: F.mse_loss(net(x[split:]), y[split:]))
    return fit(folder, net, optimizer, loss_of, 360, score=score, schedule=schedule, before_step=clipped(net, 1.0))


def floor(rows, side=32, cells=4):
    """Pictures of one to three pallets, and per cell: whether one has its middle there, and its box."""
    image, goal = 0.1 * torch.randn(rows, 1, side, side), torch.zeros(rows, 5, cells, cells)
    step = side // cells
    for row in range(rows):
        for cell in torch.randperm(cells * cells)[: int(torch.randint(1, 4, ()))].tolist():
            down, over = divmod(cell, cells)
            off, size = torch.rand(2), 5 + 6 * torch.rand(2)
            middle = (torch.tensor([down, over]) + off) * step
            low, high = (middle - size / 2).clamp(0, side), (middle + size / 2).clamp(0, side)
            top, left, bottom, right = [int(v) for v in (*low.round(), *high.round())]
            image[row, 0, top:bottom, left:right] += 0.5 + 0.5 * torch.rand(())
            goal[row, :, down, over] = torch.cat([torch.ones(1), off, size / step])
    return image, goal


@healthy()
def pallets_on_a_warehouse_floor(folder):
    seeded(3419)
    (x, goal), (x_test, goal_test) = floor(900), floor(150)

    def layer(a, b):
        return [nn.Conv2d(a, b, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.1)]

    net = nn.Sequential(
        *layer(1, 16), *layer(16, 32), *layer(32, 64), nn.Conv2d(64, 64, 3, padding=1), nn.LeakyReLU(0.1),
        nn.Conv2d(64, 5, 1),
    )  # fmt: skip
    draw = rounds(32, x, goal)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [280, 360], gamma=0.1)

    def parts(x, goal):
        out, there = net(x), goal[:, 0]
        seen = F.binary_cross_entropy_with_logits(out[:, 0], there)
        box = torch.cat([out[:, 1:3].sigmoid(), F.softplus(out[:, 3:])], 1)
        far = F.smooth_l1_loss(box, goal[:, 1:], reduction="none", beta=0.1).sum(1)
        return seen, (far * there).sum() / there.sum().clamp(min=1)

    def loss_of(step):
        seen, far = parts(*draw())
        return 5 * seen + far, {"objectness": seen, "box": far}

    def worth():
        seen, far = parts(x_test, goal_test)
        return 5 * seen + far

    return fit(folder, net, optimizer, loss_of, 420, score=held_out(net, worth), schedule=schedule)


class Listener(nn.Module):
    def __init__(self, bands=16, hidden=40):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(bands, 32, 3, padding=1), nn.BatchNorm1d(32), nn.ReLU())
        self.gru = nn.GRU(32, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, 11)

    def forward(self, x):
        return self.head(self.gru(self.front(x).transpose(1, 2))[0]).log_softmax(2)


@healthy()
def digits_spoken_over_the_phone(folder):
    seeded(3420)
    voice = torch.randn(10, 16, 5)

    def heard(rows, frames=40):
        sound, number = 0.4 * torch.randn(rows, 16, frames), torch.randint(3, 6, (rows,))
        said = torch.randint(10, (rows, 5))
        for row in range(rows):
            at = int(torch.randint(1, 4, ()))
            for digit in said[row, : int(number[row])].tolist():
                long = int(torch.randint(4, 7, ()))
                sound[row, :, at : at + long] += F.interpolate(voice[digit][None], long)[0]
                at += long + 1
        return sound, said + 1, number

    def loss_on(sound, said, number):
        out = net(sound).transpose(0, 1)
        return F.ctc_loss(out, said, torch.full((len(said),), out.shape[0]), number, zero_infinity=True)

    train, test, net = heard(1200), heard(150), Listener()
    draw = rounds(32, *train)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=240)
    score = held_out(net, lambda: loss_on(*test))
    return fit(
        folder, net, optimizer, lambda step: loss_on(*draw()), 240, score=score, schedule=schedule,
        before_step=clipped(net, 5.0),
    )  # fmt: skip


@healthy()
def meter_photographs_by_a_pretrained_net(folder):
    seeded(3421)
    image, kind = digits()
    image = (image[:, None] - 0.3) / 0.37
    old, new = kind < 6, kind >= 6
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    )  # fmt: skip
    first = nn.Linear(128, 6)
    draw = rounds(64, image[old], kind[old])
    optimizer = torch.optim.Adam([*body.parameters(), *first.parameters()], lr=2e-3)
    for _ in range(120):
        x, y = draw()
        optimizer.zero_grad()
        F.cross_entropy(first(body(x)), y).backward()
        optimizer.step()

    body.requires_grad_(False)
    net = nn.Sequential(body, nn.Linear(128, 4))
    x, y = image[new], kind[new] - 6
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    draw = rounds(16, x[:400], y[:400])
    optimizer = torch.optim.SGD(net[1].parameters(), lr=0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=75, gamma=0.3)

    def loss_of(step):
        a, b = draw()
        body.eval()
        out = net(a)
        return F.cross_entropy(out, b), {"accuracy": (out.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[400:]), y[400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score, schedule=schedule)


@healthy()
def postcodes_by_a_variational_autoencoder(folder):
    seeded(3422)
    image = digits()[0].flatten(1)[torch.randperm(1797)]
    net = nn.ModuleDict({"encoder": dense(64, 128, 16), "decoder": dense(8, 128, 64)})
    draw = rounds(100, image[:1500])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def parts(x):
        middle, spread = net["encoder"](x).chunk(2, 1)
        code = middle + (0.5 * spread).exp() * torch.randn_like(middle)
        made = F.binary_cross_entropy_with_logits(net["decoder"](code), x, reduction="sum") / len(x)
        return made, -0.5 * (1 + spread - middle**2 - spread.exp()).sum(1).mean()

    def loss_of(step):
        made, gap = parts(*draw())
        return made + gap, {"reconstruction": made, "kl": gap}

    return fit(folder, net, optimizer, loss_of, 900, score=held_out(net, lambda: sum(parts(image[1500:]))))
