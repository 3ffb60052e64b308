"""Six sick trainings that people asked about: sorted pictures, two domains, digits, a court, frames and speech."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


def patterns(kinds, size, coarse=4):
    """A smooth grey pattern for each kind; `[kinds, size, size]` from nought to one."""
    return F.interpolate(torch.rand(kinds, 1, coarse, coarse), size=(size, size), mode="bilinear")[:, 0]


# ------------------------------------------------------------------------------------------------------------- order


class Block(nn.Module):
    """Two convolutions beside a way around them."""

    def __init__(self, inward, outward):
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(inward, outward, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outward), nn.ReLU(),
            nn.Conv2d(outward, outward, 3, padding=1, bias=False), nn.BatchNorm2d(outward),
        )  # fmt: skip
        self.around = nn.Conv2d(inward, outward, 1, stride=2, bias=False)

    def forward(self, x):
        return (self.way(x) + self.around(x)).relu()


# https://github.com/apache/mxnet/issues/4220
@sick(
    "data-not-shuffled",
    where="the loss leaps whenever the next kind begins, every third batch; all layers",
    cure="shuffle the list of files before it is packed",
)
def butterflies_from_a_list_of_files(folder, ill):
    seeded(2486)
    count, rows = 1920, 64
    wings, kind = patterns(10, 16, coarse=5), torch.arange(count) * 10 // count

    def caught(kind):
        return (wings[kind] - 0.5 + 0.5 * torch.randn(len(kind), 16, 16))[:, None]

    picture, picture_test = caught(kind), caught(kind[::4])
    order = torch.arange(count) if ill else torch.randperm(count)
    net = nn.Sequential(Block(1, 12), Block(12, 24), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)

    def loss_of(step):
        batch = order[(torch.arange(rows) + step * rows) % count]
        found = net(picture[batch])
        return F.cross_entropy(found, kind[batch]), {"accuracy": (found.argmax(1) == kind[batch]).float().mean()}

    score = held_out(net, lambda: (net(picture_test).argmax(1) != kind[::4]).float().mean())
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# ------------------------------------------------------------------------------------------------------- two domains


class Reversed(torch.autograd.Function):
    """Hands on what it gets, and sends the gradient back with the other sign."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


# https://github.com/NaJaeMin92/pytorch-DANN/issues/7
@sick(
    "softmax-twice",
    "logits-bounded",
    where="the last layers of the classifier and of the judge of domains, at every step",
    cure="leave the softmax out of both",
)
def signs_by_day_and_by_night(folder, ill):
    seeded(2487)
    steps, shapes = 500, patterns(8, 12)

    def seen(count, night):
        kind = torch.randint(8, (count,))
        grey = shapes[kind] + 0.1 * torch.randn(count, 12, 12)
        return ((0.7 - 0.4 * grey + 0.2 * torch.rand(count, 1, 1)) if night else grey)[:, None], kind

    day, night, test = rounds(32, *seen(2000, False)), rounds(32, *seen(2000, True)), seen(500, False)
    softmax = [nn.Softmax(dim=1)] if ill else []
    net = nn.ModuleDict({
        "extractor": nn.Sequential(
            nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        ),
        "classifier": nn.Sequential(dense(144, 50, 50, 8), *softmax),
        "judge": nn.Sequential(dense(144, 50, 2), *softmax),
    })  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def loss_of(step):
        (x, y), (x_night, _) = day(), night()
        strength = 2 / (1 + math.exp(-10 * step / steps)) - 1
        found, found_night = net["extractor"](x), net["extractor"](x_night)
        judged = net["judge"](Reversed.apply(torch.cat([found, found_night]), strength))
        named = F.cross_entropy(net["classifier"](found), y)
        domain = F.cross_entropy(judged, torch.arange(2).repeat_interleave(32))
        return named + domain, {"class_loss": named, "domain_loss": domain}

    def wrong():
        return (net["classifier"](net["extractor"](test[0])).argmax(1) != test[1]).float().mean()

    return fit(folder, net, optimizer, loss_of, steps, score=held_out(net, wrong))


# ------------------------------------------------------------------------------------------------------------ digits


class Reader(nn.Module):
    """Convolutions and dense layers in groups, and the layer that answers."""

    def __init__(self, group):
        super().__init__()
        self.convolutions = group([nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)])
        self.connected = group([nn.Linear(256, 48), nn.Linear(48, 24)])
        self.pool, self.answer = nn.MaxPool2d(2), nn.Linear(24, 10)

    def forward(self, x):
        for layer in self.convolutions:
            x = layer(x).relu()
        x = self.pool(x).flatten(1)
        for layer in self.connected:
            x = layer(x).relu()
        return self.answer(x).log_softmax(1)


# https://github.com/dotnet/TorchSharp/issues/532
@sick(
    "not-in-optimizer",
    where="the convolutions and the dense layers before the last: no parameter of theirs is known to the optimizer",
    cure="a ModuleList instead of a plain list",
)
def digits_on_cheques(folder, ill):
    seeded(2488)
    strokes = patterns(10, 12, coarse=5)

    def written(count):
        digit = torch.randint(10, (count,))
        ink = strokes[digit] + 0.35 * torch.randn(count, 12, 12)
        return ink[:, None], digit

    draw, test = rounds(64, *written(3000)), written(500)
    net = Reader(list if ill else nn.ModuleList)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        x, y = draw()
        found = net(x)
        return F.nll_loss(found, y), {"accuracy": (found.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.nll_loss(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, 350, score=score)


# ------------------------------------------------------------------------------------------------------------- court


def conv(inward, outward):
    return [nn.Conv2d(inward, outward, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(outward)]


# https://github.com/yastrebksv/TennisCourtDetector/issues/7
@sick(
    "gradients-accumulate",
    where="all layers: the norms of the gradients sum up from step to step",
    cure="zero the gradients before backward",
)
def corners_of_a_court(folder, ill):
    seeded(2489)
    size, at = 20, torch.arange(20.0)

    def filmed(count):
        left, top = 2 + 5 * torch.rand(2, count, 1)
        right, bottom = 12 + 5 * torch.rand(2, count, 1)
        near = lambda where: (-(at - where).square() / 2).exp()  # noqa: E731
        on_x, on_y = near(left) + near(right), near(top) + near(bottom)
        inside = lambda a, b: ((at > a - 1) & (at < b + 1)).float()  # noqa: E731
        lines = on_x[:, None] * inside(top, bottom)[:, :, None] + on_y[:, :, None] * inside(left, right)[:, None]
        corners = [near(y)[:, :, None] * near(x)[:, None] for x, y in [(left, top), (right, bottom)]]
        return lines.clamp(max=1)[:, None] + 0.2 * torch.randn(count, 1, size, size), torch.stack(corners, 1)

    draw, test = rounds(16, *filmed(1500)), filmed(200)
    net = nn.Sequential(
        *conv(1, 12), nn.MaxPool2d(2), *conv(12, 24), *conv(24, 24), nn.Upsample(scale_factor=2), *conv(24, 12),
        nn.Conv2d(12, 2, 3, padding=1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, betas=(0.9, 0.999), weight_decay=0)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x).sigmoid(), y)

    def places(heat):
        best = heat.flatten(2).argmax(2)
        return torch.stack([best // size, best % size], -1).float()

    def off():
        return ((places(net(test[0])) - places(test[1])).norm(dim=-1) > 1).float().mean()

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, off), zero_grad=not ill)


# ------------------------------------------------------------------------------------------------------------ frames


class Enlarger(nn.Module):
    """What is smoothly enlarged, and what was lost."""

    def __init__(self, width=24):
        super().__init__()
        self.lost = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.PReLU(width), nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width),
            nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2),
        )  # fmt: skip

    def forward(self, x):
        return F.interpolate(x, scale_factor=2, mode="bilinear") + self.lost(x)


# https://github.com/hzwer/WACV2024-SAFA/issues/8
@sick(
    "inputs-not-normalised",
    where="the first layer: the small frames are bytes up to 255, the large ones go from nought to one",
    cure="divide the small frames by 255 too",
)
def frames_made_four_times_larger(folder, ill):
    seeded(2490)

    def frames(count):
        large = F.interpolate(torch.rand(count, 3, 5, 5), size=(16, 16), mode="bicubic").clamp(0, 1)
        small = (255 * F.avg_pool2d(large, 2)).round()
        return small / (1 if ill else 255), large

    draw, (small, large) = rounds(16, *frames(1200)), frames(200)
    net = Enlarger()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-4)

    def loss_of(step):
        x, y = draw()
        error = (net(x) - y).square()
        return (error + 1e-6).sqrt().mean(), {"psnr": -10 * error.mean().log10()}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(small), large)))


# ------------------------------------------------------------------------------------------------------------ speech


class Speaker(nn.Module):
    """Letters to the bands of a voice, two frames for each, and how long each letter lasts."""

    def __init__(self, letters, length, bands, width=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(letters, width), nn.Parameter(0.1 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.voice, self.lasting = nn.Linear(width, 2 * bands), dense(width, width, 1)

    def forward(self, text):
        read = self.encoder(self.embed(text) + self.place)
        return self.voice(read), self.lasting(read)[..., 0]


# https://github.com/xcmyz/FastSpeech/issues/37
@sick(
    "lr-too-high",
    "update-too-large",
    where="all layers of the encoder, from the first steps on",
    cure="a smaller rate (by twenty) or a warm-up",
)
def voice_of_a_railway_station(folder, ill):
    seeded(2491)
    letters, length, bands = 20, 10, 12
    sound, lasts = torch.randn(letters, 2 * bands), torch.rand(letters)

    def spoken(count):
        text = torch.randint(letters, (count, length))
        before = text.roll(1, 1)
        return text, (sound[text] + sound[before] * lasts[text][..., None]).tanh(), lasts[text] + 0.3 * lasts[before]

    draw, test = rounds(16, *spoken(3000)), spoken(200)
    net = Speaker(letters, length, bands)
    optimizer = torch.optim.Adam(net.parameters(), 0.02 if ill else 0.001, betas=(0.9, 0.98), eps=1e-9)

    def loss_of(step):
        text, bands_of, lasting = draw()
        voice, length_of = net(text)
        voice_loss, length_loss = F.l1_loss(voice, bands_of), F.mse_loss(length_of, lasting)
        return voice_loss + length_loss, {"voice_loss": voice_loss, "length_loss": length_loss}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.l1_loss(net(test[0])[0], test[1])))
