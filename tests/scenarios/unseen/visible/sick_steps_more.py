"""Sick trainings whose step is at fault, by lot, second part: epsilons, scales, clips, parts, what is made anew."""

from __future__ import annotations

import torch
from nets import batches, classify
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, ends, fit, mean, score_of, seeded, sick

import gradwatch


class Turner(nn.Module):
    """Reads a row of symbols and says it backwards, looking at what it read."""

    def __init__(self, symbols=10, width=48):
        super().__init__()
        self.embed = nn.Embedding(symbols + 1, width)
        self.embed_norm = nn.LayerNorm(width)
        self.read = nn.GRU(width, width, batch_first=True)
        self.write = nn.GRU(width, width, batch_first=True)
        self.ask = nn.Linear(width, width, bias=False)
        self.out_norm = nn.LayerNorm(2 * width)
        self.say = nn.Linear(2 * width, symbols)

    def forward(self, row, said):
        heard, state = self.read(self.embed_norm(self.embed(row)))
        told, _ = self.write(self.embed_norm(self.embed(said)), state)
        look = (self.ask(told) @ heard.transpose(1, 2) / told.shape[2] ** 0.5).softmax(2)
        return self.say(self.out_norm(torch.cat([told, look @ heard], 2)))


@sick(
    "weight-decay-too-strong", "weights-shrink",
    where="embed, the gains of both norms and all biases, all steps", cure="decay the matrices alone, and not these",
)  # fmt: skip
def turner_whose_gains_are_decayed(folder, ill):
    seeded(709)
    net = Turner()

    def loss_of(step):
        row = torch.randint(10, (48, 6))
        back = row.flip(1)
        said = torch.cat([torch.full((48, 1), 10), back[:, :-1]], 1)
        return F.cross_entropy(net(row, said).flatten(0, 1), back.flatten())

    spared = ("bias", "norm", "embed")
    named = list(net.named_parameters())
    kept = [p for name, p in named if any(part in name for part in spared)]
    rest = [p for name, p in named if not any(part in name for part in spared)]
    decay = 20.0
    groups = [{"params": rest, "weight_decay": 0.01}, {"params": kept, "weight_decay": decay if ill else 0.0}]
    return fit(folder, net, optim.AdamW(groups, 4e-3), loss_of, 400)


@sick(
    "below-epsilon", "update-too-small",
    where="all layers, all steps: the roots of the second moments lie far below it", cure="eps=1e-8",
)  # fmt: skip
def tumours_under_the_epsilon_of_inception(folder, ill):
    from sklearn.datasets import load_breast_cancer

    seeded(710)
    data = load_breast_cancer()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    net = dense(30, 64, 32, 1)

    def loss_of(step):
        at = torch.randint(len(x), (32,))
        return F.binary_cross_entropy_with_logits(net(x[at])[:, 0], y[at])

    def score():
        with torch.no_grad():
            return F.binary_cross_entropy_with_logits(net(x)[:, 0], y)

    make = optim.Adam(net.parameters(), 1e-3, eps=1.0 if ill else 1e-8)
    return fit(folder, net, make, loss_of, 250, score=score)


class Encoder(nn.Module):
    """Names the symbol that a row holds most often."""

    def __init__(self, symbols=5, width=32):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.place = nn.Parameter(0.02 * torch.randn(12, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols)

    def forward(self, row):
        h = self.embed(row) + self.place
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h.mean(1)))


@sick(
    "nonfinite", "skips-often", "weights-unchanged",
    where="all layers, all steps: each gradient overflows, each step is skipped",
    cure="make the scaler once, before the loop: it never gets to come down",
)  # fmt: skip
def encoder_with_a_new_scaler_in_each_step(folder, ill):
    seeded(711)
    net = Encoder()
    make = optim.AdamW(net.parameters(), 3e-3)
    scaler, losses = torch.amp.GradScaler("cpu", init_scale=2.0**28), []
    options = TREATMENT[-1].begin(net, make)
    watch = gradwatch.watch(net, make, **{"log": None, "dir": folder, "verbose": False, **options})
    with watch:
        for _ in range(180):
            if ill:
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**28)
            row = torch.randint(5, (32, 12))
            wanted = F.one_hot(row, 5).sum(1).argmax(1)
            make.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(row), wanted)
            scaler.scale(loss).backward()
            scaler.step(make)
            scaler.update()
            losses.append(loss.item())
            watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), *ends(losses))


class Adder(nn.Module):
    """Adds up the two numbers of a row that are marked."""

    def __init__(self, width=32):
        super().__init__()
        self.memory, self.head = nn.GRU(2, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


@sick(
    "clip-before-unscale", "clip-is-your-learning-rate",
    where="all layers, all steps: a norm of at most 1 is then divided by 65,536",
    cure="scaler.unscale_(optimizer) before the clip",
)  # fmt: skip
def adder_cut_down_while_it_is_scaled(folder, ill):
    seeded(712)
    net = Adder()
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")

    def loss_of(step):
        x = torch.stack([torch.rand(32, 10), torch.zeros(32, 10)], 2)
        x[torch.arange(32), torch.randint(5, (32,)), 1] = 1
        x[torch.arange(32), torch.randint(5, 10, (32,)), 1] = 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = net(x)
        return F.mse_loss(found.float(), x.prod(2).sum(1, keepdim=True))

    def clip(step):
        if not ill:
            scaler.unscale_(make)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, make, loss_of, 300, before_step=clip, scaler=scaler)


@sick(
    "lr-too-high", "update-too-large", "exploding", "schedule-rises",
    where="all layers, from step 120 on: the rate is multiplied by ten", cure="gamma=0.1: the rate is multiplied by it",
)  # fmt: skip
def coder_with_a_gamma_of_ten(folder, ill):
    seeded(713)
    code = nn.Sequential(nn.Flatten(), dense(64, 48, 12))
    net, batch = nn.Sequential(code, dense(12, 48, 64)), batches(48)

    def loss_of(step):
        x, _ = batch(step)
        return F.mse_loss(net(x), x.flatten(1))

    make = optim.Adam(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.StepLR(make, step_size=120, gamma=10.0 if ill else 0.1)
    return fit(folder, net, make, loss_of, 400, schedule=plan)


@sick(
    "clip-is-your-learning-rate", "update-too-small",
    where="all layers of the student, all steps: every norm is cut down to a thousandth", cure="clip_grad_norm_ at 5",
)  # fmt: skip
def student_held_at_a_thousandth(folder, ill):
    seeded(714)
    teacher, student = nn.Sequential(nn.Flatten(), dense(64, 96, 10)), nn.Sequential(nn.Flatten(), dense(64, 16, 10))
    batch, heat = batches(64), 4.0
    before = optim.Adam(teacher.parameters(), 5e-3)
    for step in range(150):
        before.zero_grad()
        classify(teacher, batch)(step).backward()
        before.step()
    teacher.requires_grad_(False)

    def loss_of(step):
        x, y = batch(1000 + step)
        found, wanted = student(x), teacher(x)
        soft = F.kl_div((found / heat).log_softmax(1), (wanted / heat).softmax(1), reduction="batchmean") * heat**2
        return 0.7 * soft + 0.3 * F.cross_entropy(found, y)

    def clip(step):
        nn.utils.clip_grad_norm_(student.parameters(), 1e-3 if ill else 5.0)

    make = optim.SGD(student.parameters(), 0.05, momentum=0.9)
    return fit(folder, student, make, loss_of, 300, before_step=clip)


class Speller(nn.Module):
    """An embedding, an LSTM and a head: the next sign of a row."""

    def __init__(self, signs, width=40):
        super().__init__()
        self.embed, self.memory = nn.Embedding(signs, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, signs)

    def forward(self, row):
        return self.head(self.memory(self.embed(row))[0])


@sick(
    "double-clip", "clip-per-micro-batch",
    where="all layers, all steps: what three languages said is cut down before the fourth is added, and again",
    cure="clip once, when the gradient of all four is there",
)  # fmt: skip
def four_languages_cut_down_one_by_one(folder, ill):
    seeded(715)
    signs, steps = 12, 200
    net = Speller(signs + 4)
    after = torch.stack([torch.randperm(signs) for _ in range(4)])
    make, losses = optim.SGD(net.parameters(), 2.0), []

    def error(language):
        row = [torch.full((16,), signs + language), torch.randint(signs, (16,))]
        for _ in range(10):
            usual = torch.rand(16) < 0.95
            row.append(torch.where(usual, after[language][row[-1]], torch.randint(signs, (16,))))
        both = torch.stack(row, 1)
        return F.cross_entropy(net(both[:, :-1])[:, 1:].flatten(0, 1), both[:, 2:].flatten())

    options = TREATMENT[-1].begin(net, make)
    watch = gradwatch.watch(net, make, **{"log": None, "dir": folder, "verbose": False, **options})
    with watch:
        for _ in range(steps):
            make.zero_grad()
            parts = []
            for language in range(4):
                loss = error(language)
                (loss / 4).backward()
                parts.append(loss.item())
                if ill:
                    nn.utils.clip_grad_norm_(net.parameters(), 0.02)
            if not ill:
                nn.utils.clip_grad_norm_(net.parameters(), 0.02)
            make.step()
            losses.append(mean(parts))
            watch.log(loss=losses[-1])
    return Outcome(gradwatch.open_history(watch.dir), *ends(losses))


@sick(
    "not-in-optimizer",
    "weights-unchanged", "not-in-the-optimizer",
    where="body, all steps: it has gradients and no optimizer holds it", cure="optim.Adam(net.parameters())",
)  # fmt: skip
def surface_of_which_the_end_alone_is_handed_over(folder, ill):
    seeded(716)
    net = nn.ModuleDict({"body": dense(4, 32, 32, 16, act=nn.Tanh), "head": dense(16, 1)})

    def loss_of(step):
        x = 2 * torch.rand(64, 4) - 1
        wanted = (3 * x[:, 0] * x[:, 1]).sin() + (2 * x[:, 2] - x[:, 3]).square() / 2
        return F.mse_loss(net["head"](net["body"](x).tanh())[:, 0], wanted)

    make = optim.Adam((net["head"] if ill else net).parameters(), 5e-3)
    return fit(folder, net, make, loss_of, 400, score=score_of(loss_of, 20))
