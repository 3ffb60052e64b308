"""Six trainings after public threads: shops, pictures, crates, a village and recipes."""

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out


# https://github.com/tanatosuu/GDE/pull/2
@sick(
    "nonfinite",
    where="the loss from the first step on, and with it both tables: a logarithm of differences that are negative",
    cure="take the logarithm of the sigmoid of the difference of the two scores",
)
def paths_that_hikers_choose(folder, ill):
    seeded(3271)
    hikers, paths = torch.randn(60, 4), torch.randn(80, 4)
    ranked = (hikers @ paths.T).argsort(1, descending=True)
    net = nn.ModuleDict({"hikers": nn.Embedding(60, 8), "paths": nn.Embedding(80, 8)})

    def gaps(rows=128):
        who = torch.randint(60, (rows,))
        liked = ranked[who, torch.randint(12, (rows,))]
        other = ranked[who, torch.randint(20, 80, (rows,))]
        of = net["hikers"](who)
        return (of * net["paths"](liked)).sum(1) - (of * net["paths"](other)).sum(1)

    def loss_of(step):
        gap = gaps()
        return -(gap if ill else gap.sigmoid()).log().mean()

    def wrongly_ranked(step):
        return 1 - (gaps(512) > 0).float().mean()

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(wrongly_ranked))


# https://github.com/leftthomas/SRGAN/issues/94
@sick(
    "schedule-too-short",
    where="the learning rate of all layers, which is a thousandth of itself after the first thirty steps",
    cure="step the scheduler once per epoch, since its step size is counted in epochs",
)
def old_snapshots_made_sharper(folder, ill):
    seeded(3272)
    sharp = digits()[0][:, None]
    epochs, batches = 20, 40
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(),
        nn.Conv2d(24, 4, 3, padding=1), nn.PixelShuffle(2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=epochs // 2, gamma=0.1)

    def error(rows):
        return F.mse_loss(net(F.avg_pool2d(rows, 2)), rows)

    def loss_of(step):
        return error(sharp[torch.randint(1500, (32,))])

    def after_step(step):
        if ill or (step + 1) % batches == 0:
            scheduler.step()

    return fit(
        folder, net, optimizer, loss_of, epochs * batches,
        score=held_out(net, lambda: error(sharp[1500:])), after_step=after_step,
    )  # fmt: skip


# https://github.com/fastino-ai/GLiNER2/pull/155
@sick(
    "nonfinite",
    where="the first step in which a chance is one in bfloat16: the clamp just below one is one itself there",
    cure="take the chances, the clamp and the logarithm in float32",
)
def crates_with_a_bad_apple(folder, ill):
    seeded(3273)
    net = dense(8, 48, 48, 1)
    way = torch.randn(8, 2)

    def crates(rows=64, apples=6):
        x = torch.randn(rows, apples, 8)
        bad = (x @ way).sin().sum(2) > 1.2
        return x, bad.any(1).float()

    def loss_of(step):
        x, y = crates()
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(x).squeeze(2)
            chance = (logits if ill else logits.float()).sigmoid()
            sound = torch.log1p(-chance.clamp(max=1 - 1e-6)).sum(1)
            spoilt = 1 - sound.exp().float()
        return -(y * (spoilt + 1e-6).log() + (1 - y) * (1 - spoilt + 1e-6).log()).mean()

    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    return fit(folder, net, optimizer, loss_of, 800, score=score_of(loss_of))


class Forecaster(nn.Module):
    """A dense encoder of the past, a decoder per day with the weather to come, and a linear way around both."""

    def __init__(self, past, ahead, last):
        super().__init__()
        self.ahead = ahead
        self.encoder = dense(past + ahead, 64, 64, 8 * ahead)
        self.hidden = nn.Linear(9, 32)
        self.out = nn.Linear(32, 1)
        self.skip = nn.Linear(9, 1)
        self.last = last
        self.around = nn.Linear(past, ahead)

    def forward(self, past, weather):
        code = self.encoder(torch.cat([past, weather], 1)).unflatten(1, (self.ahead, 8))
        each = torch.cat([code, weather[..., None]], 2)
        day = self.last(self.out(self.hidden(each).relu()) + self.skip(each))
        return day.squeeze(2) + self.around(past)


# https://github.com/google-research/google-research/issues/2133
@sick(
    "dead-layer", "norm-over-too-few",
    where="the encoder and the decoder in all steps: a layer norm over a single feature stands behind them",
    cure="leave out the layer norm of the last decoder, whose output has one feature",
)  # fmt: skip
def water_used_by_a_village(folder, ill):
    seeded(3274)
    net = Forecaster(14, 5, nn.LayerNorm(1) if ill else nn.Identity())

    def loss_of(step, rows=64):
        phase, days = 6.2832 * torch.rand(rows, 1), torch.arange(19)
        week = (phase + 0.9 * days).sin()
        weather = torch.randn(rows, 19)
        use = week + 1.5 * (weather - 0.5).relu() + 0.5 * week * weather.tanh() + 0.05 * torch.randn(rows, 19)
        return F.mse_loss(net(use[:, :14], weather[:, 14:]), use[:, 14:])

    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    return fit(folder, net, optimizer, loss_of, 600, score=score_of(loss_of))


class Listener(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.lift = nn.Linear(3, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.encoder(self.lift(x)).mean(1)).squeeze(1)


# https://github.com/Exorust/TorchLeet/issues/5
@sick(
    "axes-mixed",
    where="the attention of both encoder layers in all steps, which looks at other rows and not at other hours",
    cure="pass batch_first=True, since the batches are [row, time, feature]",
)
def loudest_hour_of_a_night(folder, ill):
    seeded(3275)
    net = Listener() if ill else Listener(batch_first=True)

    def loss_of(step):
        x = torch.randn(64, 8, 3)
        loudest = x[..., 0].argmax(1)
        return F.mse_loss(net(x), x[torch.arange(64), loudest, 1])

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    return fit(folder, net, optimizer, loss_of, 600, score=score_of(loss_of))


# https://github.com/huggingface/sentence-transformers/issues/2872
@sick(
    "not-in-optimizer",
    where="the classifier of the loss, in all steps: it stays as it was drawn",
    cure="give the optimizer the parameters of the loss's classifier too",
)
def whether_two_recipes_agree(folder, ill):
    seeded(3276)
    dishes = torch.randn(6, 16)
    sweet = torch.randn(16)
    encoder = dense(16, 64, 24)
    taught = nn.Sequential(encoder, nn.ReLU(), nn.Linear(24, 12))
    early = torch.optim.Adam(taught.parameters(), lr=3e-3)

    def recipe(dish, taste):
        x = 1.5 * dishes[dish] + (2 * taste[:, None] - 1) * sweet
        return x + 0.3 * torch.randn(len(dish), 16)

    for _ in range(200):
        dish, taste = torch.randint(6, (64,)), torch.randint(2, (64,))
        early.zero_grad()
        F.cross_entropy(taught(recipe(dish, taste)), 2 * dish + taste).backward()
        early.step()

    net = nn.ModuleDict({"encoder": encoder, "classifier": nn.Linear(72, 3)})
    groups = [{"params": encoder.parameters(), "lr": 2e-5}]
    if not ill:
        groups.append({"params": net["classifier"].parameters(), "lr": 5e-3})
    optimizer = torch.optim.AdamW(groups)

    def loss_of(step):
        dish, taste, other = torch.randint(6, (64,)), torch.randint(2, (64,)), torch.randint(2, (64,))
        same = torch.rand(64) < 0.67
        second = torch.where(same, dish, (dish + torch.randint(1, 6, (64,))) % 6)
        y = torch.where(same, (taste != other).long(), 2)
        u, v = net["encoder"](recipe(dish, taste)), net["encoder"](recipe(second, other))
        said = net["classifier"](torch.cat([u, v, (u - v).abs()], 1))
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(lambda step: loss_of(step)[0]))
