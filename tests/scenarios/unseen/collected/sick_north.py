"""Trainings after what people reported in public: letters, signals, pictures, words."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds


# https://github.com/huggingface/transformers/pull/218
@sick(
    "warmup-too-long",
    where="the learning rate, which rises from the first step to the last",
    cure="plan the schedule in steps of the optimizer: batches / accumulation",
)
def offices_that_letters_go_to(folder, ill):
    seeded(3004)
    words, offices, length, rows, accumulate, batches = 40, 5, 12, 4, 24, 1920
    leaning = torch.randn(words, offices)

    def write(rows):
        text = torch.randint(words, (rows, length))
        return text, leaning[text].sum(1).argmax(1)

    net = nn.Sequential(nn.EmbeddingBag(words, 32, mode="mean"), *dense(32, 64, offices))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    total = batches if ill else batches // accumulate
    warmup = 0.1 * total

    def rate(step):
        return (step + 1) / warmup if step < warmup else max(0.0, (total - step) / (total - warmup))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    tests, answers = write(1024)

    def loss_of(part):
        text, office = write(rows)
        return F.cross_entropy(net(text), office) / accumulate

    score = held_out(net, lambda: F.cross_entropy(net(tests), answers))
    steps = batches // accumulate
    return fit(folder, net, optimizer, loss_of, steps, score=score, accumulate=accumulate, schedule=schedule)


# https://github.com/keras-team/keras/issues/11832
@sick(
    "nonfinite",
    "epsilon-underflows",
    where="all layers, whose weights are of 16 bits, from the first steps on",
    cure="an eps that 16 bits can hold: 1e-4",
)
def heartbeats_without_the_hum(folder, ill):
    seeded(3005)
    time = torch.linspace(0, 4, 64)

    def draw(rows=64):
        rate, phase = 1 + torch.rand(rows, 1), torch.rand(rows, 1)
        beat = torch.exp(-60 * ((time * rate + phase) % 1 - 0.5).square())
        hum = 0.4 * torch.sin(40 * time + 6.2832 * torch.rand(rows, 1))
        return (beat + hum).half(), beat.half()

    net = dense(64, 96, 96, 64).half()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-7 if ill else 1e-4)

    def error(step):
        noisy, clean = draw()
        return F.mse_loss(net(noisy).float(), clean.float())

    return fit(folder, net, optimizer, error, 400, score=score_of(error))


class Extractor(nn.Module):
    """A backbone of which the features are kept, whatever it makes of them."""

    def __init__(self, backbone, layer, keep):
        super().__init__()
        self.backbone, self.keep, self.kept = backbone, keep, None
        layer.register_forward_hook(self.note)

    def note(self, layer, given, made):
        self.kept = self.keep(made)

    def forward(self, x):
        self.backbone(x)
        return self.kept


# https://github.com/lucidrains/CoCa-pytorch/issues/6
@sick(
    "no-gradient",
    where="the convolutions of the encoder, all steps",
    cure="do not detach the features that the extractor hands on",
)
def calls_of_birds_and_their_names(folder, ill):
    seeded(3006)
    kinds, time = 12, torch.linspace(0, 1, 96)
    pitch, bend = 8 + 30 * torch.rand(kinds), 12 * torch.randn(kinds)

    def draw(rows=48):
        kind = torch.randint(kinds, (rows,))
        f = (pitch[kind] * (1 + 0.03 * torch.randn(rows)))[:, None]
        call = torch.sin(f * time + bend[kind, None] * time.square() + 6.2832 * torch.rand(rows, 1))
        return (call + 0.2 * torch.randn(rows, 96))[:, None], kind

    backbone = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=2),
        nn.ReLU(),
        nn.Conv1d(16, 32, 5, stride=2),
        nn.ReLU(),
        nn.Conv1d(32, 6, 5, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
    )
    extractor = Extractor(backbone, backbone[-1], lambda made: made.clone().detach() if ill else made.clone())
    net = nn.ModuleDict({"calls": extractor, "project": nn.Linear(6, 16), "names": nn.Embedding(kinds, 16)})
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)

    def loss_of(step):
        call, kind = draw()
        heard = F.normalize(net["project"](net["calls"](call)), dim=1)
        names = F.normalize(net["names"].weight, dim=1)
        scores = 10 * heard @ names.T
        return F.cross_entropy(scores, kind), {"accuracy": (scores.argmax(1) == kind).float().mean()}

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(lambda step: loss_of(step)[0]))


def cloths(rows, kinds=5, size=16):
    """Woven stripes of several directions, as bytes of a camera."""
    kind = torch.randint(kinds, (rows,))
    angle = 3.1416 * kind / kinds
    y, x = torch.meshgrid(torch.arange(float(size)), torch.arange(float(size)), indexing="ij")
    across = x * angle.cos()[:, None, None] + y * angle.sin()[:, None, None]
    stripes = torch.sin(1.2 * across + 6.2832 * torch.rand(rows, 1, 1))
    return (127 + 60 * stripes + 30 * torch.randn(rows, size, size)).clamp(0, 255)[:, None], kind


# https://github.com/yandexdataschool/Practical_RL/issues/304
@sick(
    "inputs-not-normalised",
    where="what comes into the first convolution, in all steps",
    cure="divide by 255 in one place only",
)
def directions_of_woven_cloth(folder, ill):
    seeded(3007)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 5),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def camera(rows=32):
        picture, kind = cloths(rows)
        return (picture / 255 if ill else picture), kind

    def loss_of(step):
        picture, kind = camera()
        return F.cross_entropy(net(picture / 255), kind)

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))


def distortion(made, wanted, eps, guard):
    """Minus the scale-invariant ratio of signal to distortion, in dB."""
    scale = (made * wanted).sum(-1, keepdim=True) / (wanted.square().sum(-1, keepdim=True) + guard)
    signal = scale * wanted
    rest = made - signal
    return -10 * torch.log10(signal.square().sum(-1) / (rest.square().sum(-1) + eps) + eps)


# https://github.com/csteinmetz1/auraloss/issues/25
@sick(
    "nonfinite",
    where="the loss of a batch with a silent target, and every layer after that step",
    cure="an epsilon in the division by the energy of the target",
)
def tremors_below_the_noise_of_a_street(folder, ill):
    seeded(3008)
    time = torch.linspace(0, 1, 80)

    def draw(rows=16, quiet=1 / 500):
        pitch, start = 10 + 30 * torch.rand(rows, 1), torch.rand(rows, 1)
        tremor = torch.exp(-8 * (time - start).clamp(0)) * (time > start) * torch.sin(pitch * (time - start))
        tremor = tremor * (torch.rand(rows, 1) >= quiet)
        street = 0.5 * torch.sin(90 * time + 6.2832 * torch.rand(rows, 1)) + 0.1 * torch.randn(rows, 80)
        return tremor + street, tremor

    net = dense(80, 128, 128, 80, act=nn.GELU)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(step):
        mixed, tremor = draw()
        return distortion(net(mixed), tremor, 1e-8, 0.0 if ill else 1e-8).mean()

    def score():
        mixed, tremor = draw(256, quiet=0.0)
        heard = tremor.square().sum(1) > 0.1
        return 40 + distortion(net(mixed), tremor, 1e-8, 1e-8)[heard].mean()

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, score))


# https://forums.fast.ai/t/broken-default-cnn-behaviour/48936
@sick(
    "vanishing",
    "bad-initialisation",
    where="the first convolutions of a deep stack without norms",
    cure="Kaiming weights with the gain of a ReLU",
)
def ripeness_of_small_fruit(folder, ill):
    seeded(3009)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()]
    for _ in range(13):
        layers += [nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4))
    for layer in net:
        if isinstance(layer, nn.Conv2d) and not ill:
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)
    colours = torch.tensor([[0.2, 0.8, 0.2], [0.7, 0.7, 0.2], [0.9, 0.5, 0.1], [0.8, 0.1, 0.2]])
    y, x = torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij")

    def draw(rows=32):
        kind = torch.randint(4, (rows,))
        middle, size = 0.4 * torch.randn(2, rows, 1, 1), 0.3 + 0.4 * torch.rand(rows, 1, 1)
        inside = ((x - middle[0]).square() + (y - middle[1]).square() < size).float()[:, None]
        fruit = inside * colours[kind][:, :, None, None] + (1 - inside) * torch.rand(rows, 3, 1, 1)
        return (fruit + 0.1 * torch.randn(rows, 3, 8, 8) - 0.45) / 0.3, kind

    def loss_of(step):
        fruit, kind = draw()
        return F.cross_entropy(net(fruit), kind)

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of))


# https://github.com/wkentaro/pytorch-fcn/pull/56
@sick(
    "left-in-eval",
    where="the batch norms, from the first validation to the end of the epoch",
    cure="set the model back to train mode after each validation",
)
def moods_of_short_messages(folder, ill):
    seeded(3010)
    words, length = 60, 10
    feeling = torch.randn(words)

    def write(rows):
        text = torch.randint(words, (rows, length))
        turned = (text == 0).any(1)
        score = feeling[text].sum(1)
        return text, (torch.where(turned, -score, score) > 0).long()

    layers = [nn.EmbeddingBag(words, 32, mode="mean")]
    for _ in range(8):
        layers += [nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(32, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    draw, (tests, answers) = rounds(32, *write(16_000)), write(512)

    def validate():
        net.eval()
        with torch.no_grad():
            loss = F.cross_entropy(net(tests), answers)
        if not ill:
            net.train()
        return loss

    def loss_of(step):
        if step % 500 == 0:
            net.train()
        found = {"validation": validate()} if step % 100 == 0 else {}
        text, mood = draw()
        return F.cross_entropy(net(text), mood), found

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(tests), answers)))
