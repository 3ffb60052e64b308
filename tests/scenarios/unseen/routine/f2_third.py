"""Ten healthy trainings of the ordinary kind by rivers and lakes: licences, otters, stages, warblers, ratings."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds


class LicenceSorter(nn.Module):
    """Numbers and the water's code in, the kind of licence out."""

    def __init__(self, waters, numbers, kinds):
        super().__init__()
        self.water = nn.Embedding(waters, 8)
        self.layers = nn.Sequential(
            nn.Linear(8 + numbers, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, kinds)
        )

    def forward(self, water, numbers):
        return self.layers(torch.cat([self.water(water), numbers], 1))


@healthy(0.4)
def water_bailiff_sorting_licences(folder):
    seeded(13250)
    waters, numbers, kinds = 20, 6, 3
    of_water, way = torch.randn(waters, kinds), torch.randn(numbers, kinds)

    def licences(n):
        water, x = torch.randint(waters, (n,)), torch.randn(n, numbers)
        said = of_water[water] + x @ way + (x[:, :1] * x[:, 1:2]) * torch.tensor([1.0, -1.0, 0.0])
        return water, x, said.argmax(1)

    net = LicenceSorter(waters, numbers, kinds)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    draw = rounds(64, *licences(5000))
    *val, y_val = licences(600)

    def measure():
        logits = net(*val)
        accuracy = (logits.argmax(1) == y_val).float().mean()
        return {"val_loss": F.cross_entropy(logits, y_val), "val_accuracy": accuracy}

    validate = now_and_then(net, 25, measure)

    def loss_of(step):
        *x, y = draw()
        return F.cross_entropy(net(*x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: F.cross_entropy(net(*val), y_val)))


class HoltCamera(nn.Module):
    """Otter, mink or heron on a small grey picture."""

    def __init__(self, kinds=3):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(24, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(24, kinds)

    def forward(self, image):
        return self.head(self.features(image).flatten(1))


@healthy(0.5)
def camera_at_the_otter_holt(folder):
    seeded(13251)

    def pictures(n, size=20):
        """Long and low, short and low, or high and narrow; anywhere on the bank."""
        y = torch.randint(3, (n,))
        wide, high = torch.tensor([6.0, 3.0, 1.3])[y], torch.tensor([1.8, 1.8, 6.0])[y]
        wide, high = (side * (0.85 + 0.3 * torch.rand(n)) for side in (wide, high))
        at = 6 + 8 * torch.rand(n, 2)
        axis = torch.arange(size).float()
        across = ((axis[None, None, :] - at[:, 0, None, None]) / wide[:, None, None]) ** 2
        along = ((axis[None, :, None] - at[:, 1, None, None]) / high[:, None, None]) ** 2
        image = ((across + along) < 1).float() + 0.5 * torch.randn(n, size, size)
        return ((image - image.mean()) / image.std())[:, None], y

    net = HoltCamera()
    steps = 160
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    draw = rounds(48, *pictures(2400))
    x_val, y_val = pictures(300)
    validate = now_and_then(net, 20, judged(net, x_val, y_val))

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        accuracy = float((logits.argmax(1) == y).float().mean())
        return F.cross_entropy(logits, y), {"accuracy": accuracy, **validate(step)}

    return fit(
        folder, net, optimizer, loss_of, steps, schedule=schedule,
        score=held_out(net, lambda: F.cross_entropy(net(x_val), y_val)),
    )  # fmt: skip


class StageForecast(nn.Module):
    """Tomorrow's stage by the rain and the stage of the last days."""

    def __init__(self, columns=2, width=40):
        super().__init__()
        self.lstm = nn.LSTM(columns, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


@healthy(0.5)
def stage_of_the_river_tomorrow(folder):
    seeded(13252)

    def record(days, window=20):
        """A stage that rises with the rain and falls by itself, cut into windows and what came after each."""
        rain = torch.randn(days).clamp(min=0) * (torch.rand(days) < 0.5)
        fast, slow, stages = 0.0, 0.0, []
        for fallen in rain.tolist():
            stages.append(fast + slow)
            fast, slow = 0.5 * fast + fallen, 0.9 * slow + 0.3 * fallen
        stage = torch.tensor(stages) + 0.03 * torch.randn(days)
        both = torch.stack([(rain - 0.2) / 0.4, (stage - 1.0) / 0.6], 1)
        both = (both - both.mean(0)) / both.std(0)
        windows = both.unfold(0, window, 1).transpose(1, 2)[:-1]
        return windows.contiguous(), both[window:, 1:]

    net = StageForecast()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    draw = rounds(64, *record(3000))
    x_val, y_val = record(500)
    validate = now_and_then(net, 25, lambda: {"val_loss": F.mse_loss(net(x_val), y_val)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    return fit(
        folder, net, optimizer, loss_of, 350, before_step=clipped(net, 1.0),
        score=held_out(net, lambda: F.mse_loss(net(x_val), y_val)),
    )  # fmt: skip


class SongNet(nn.Module):
    """A convolution over the spectrogram of a song, and a recurrence both ways."""

    def __init__(self, bands=12, kinds=4, width=24):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(bands, 32, 3, padding=1), nn.ReLU())
        self.gru = nn.GRU(32, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, kinds)

    def forward(self, song):
        states, _ = self.gru(self.conv(song).transpose(1, 2))
        return self.head(states.mean(1))


@healthy(0.5)
def warblers_in_the_reeds(folder):
    seeded(13253)

    def songs(n, frames=28, bands=12):
        """Rising, falling, rattling, or a churr upon one note."""
        y, t = torch.randint(4, (n,)), torch.linspace(0, 1, frames)
        low, quick = 2 + 3 * torch.rand(n, 1), 0.8 + 0.4 * torch.rand(n, 1)
        up, down = low + 5 * t * quick, low + 5 - 5 * t * quick
        rattle, churr = low + 2.5 + 2.5 * (25 * quick * t).sin(), (low + 2.5).expand(n, frames)
        note = torch.stack([up, down, rattle, churr], 1)[torch.arange(n), y]
        power = (-((torch.arange(bands)[None, :, None] - note[:, None]) ** 2) / 1.5).exp()
        song = power + 0.35 * torch.randn(n, bands, frames)
        return (song - song.mean()) / song.std(), y

    net = SongNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(48, *songs(2400))
    x_val, y_val = songs(300)
    validate = now_and_then(net, 25, judged(net, x_val, y_val))

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.cross_entropy(net(x_val), y_val)))


class OrderTagger(nn.Module):
    """Tags each word of a lock keeper's order: nothing, gate, hour or vessel."""

    def __init__(self, words, tags, longest, width=48):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.places = nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.out = nn.Linear(width, tags)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        return self.out(self.encoder(x, src_key_padding_mask=ids == 0))


@healthy(0.5)
def orders_to_the_lock_keeper(folder):
    seeded(13254)
    words, longest, tags = 31, 16, 4

    def orders(n):
        """Words 1 to 3 announce a gate, an hour, a vessel: the word behind is tagged so, any other is not."""
        lengths = torch.randint(8, longest + 1, (n, 1))
        ids = torch.randint(4, words, (n, longest))
        announced = torch.rand(n, longest) < 0.3
        ids = torch.where(announced, torch.randint(1, 4, (n, longest)), ids)
        before = F.pad(ids[:, :-1], (1, 0))
        y = torch.where((before >= 1) & (before <= 3) & (ids > 3), before, 0)
        blank = torch.arange(longest) >= lengths
        return ids.masked_fill(blank, 0), y.masked_fill(blank, -100)

    net = OrderTagger(words, tags, longest)
    steps, warm = 250, 20
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * max(0, step - warm) / (steps - warm)))),
    )
    draw = rounds(48, *orders(4000))
    ids_val, y_val = orders(300)

    def loss_on(ids, y):
        return F.cross_entropy(net(ids).flatten(0, 1), y.flatten(), ignore_index=-100)

    validate = now_and_then(net, 25, lambda: {"val_loss": loss_on(ids_val, y_val)})
    return fit(
        folder, net, optimizer, lambda step: (loss_on(*draw()), validate(step)), steps, schedule=schedule,
        score=held_out(net, lambda: loss_on(ids_val, y_val)),
    )  # fmt: skip


class BedCoder(nn.Module):
    """Squeezes the depths across a river bed into six numbers, and draws them again."""

    def __init__(self, points=48, code=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(points, 64), nn.GELU(), nn.Linear(64, code))
        self.decoder = nn.Sequential(nn.Linear(code, 64), nn.GELU(), nn.Linear(64, points))

    def forward(self, depths):
        return self.decoder(self.encoder(depths))


@healthy(0.5)
def depths_across_a_river_bed(folder):
    seeded(13255)

    def beds(n, points=48):
        """A channel somewhere, so wide and so deep, and a bar in it."""
        s = torch.linspace(-1, 1, points)
        middle, width, deep = torch.rand(n, 1) - 0.5, 0.3 + 0.3 * torch.rand(n, 1), 1 + torch.rand(n, 1)
        bar = 0.6 * torch.rand(n, 1) * (-(((s - middle - 0.15) / 0.1) ** 2)).exp()
        depth = deep * (-(((s - middle) / width) ** 2)).exp() - bar + 0.03 * torch.randn(n, points)
        return (depth - depth.mean()) / depth.std()

    net = BedCoder()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(64, beds(4000))
    kept_back = beds(400)
    validate = now_and_then(net, 30, lambda: {"val_loss": F.mse_loss(net(kept_back), kept_back)})

    def loss_of(step):
        (depths,) = draw()
        return F.mse_loss(net(depths), depths), validate(step)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(kept_back), kept_back)))


def block(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
        nn.Conv2d(outside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
    )  # fmt: skip


class MeadowNet(nn.Module):
    """A small U-Net: which points of an aerial photograph are under water."""

    def __init__(self, bands=2):
        super().__init__()
        self.down, self.pool, self.deep = block(bands, 8), nn.MaxPool2d(2), block(8, 16)
        self.up, self.join, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), block(16, 8), nn.Conv2d(8, 1, 1)

    def forward(self, image):
        fine = self.down(image)
        coarse = self.up(self.deep(self.pool(fine)))
        return self.out(self.join(torch.cat([fine, coarse], 1)))


@healthy(0.5)
def flooded_meadows_from_above(folder):
    seeded(13256)

    def aerials(n, size=24):
        """Smooth country, wet where it lies low; water is dark in one band and bright in the other."""
        land = F.interpolate(torch.randn(n, 1, 5, 5), size=(size, size), mode="bicubic", align_corners=True)
        wet = (land < -0.15).float()
        image = torch.cat([1 - wet, 0.7 * wet], 1) + 0.6 * torch.randn(n, 2, size, size)
        return (image - image.mean((0, 2, 3), keepdim=True)) / image.std((0, 2, 3), keepdim=True), wet

    net = MeadowNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    draw = rounds(16, *aerials(480))
    x_val, wet_val = aerials(64)

    def loss_on(image, wet):
        logits = net(image)
        share = logits.sigmoid()
        dice = 1 - (2 * (share * wet).sum() + 1) / (share.sum() + wet.sum() + 1)
        return F.binary_cross_entropy_with_logits(logits, wet) + 0.5 * dice

    validate = now_and_then(net, 20, lambda: {"val_loss": loss_on(x_val, wet_val)})
    return fit(
        folder, net, optimizer, lambda step: (loss_on(*draw()), validate(step)), 150,
        score=held_out(net, lambda: loss_on(x_val, wet_val)),
    )  # fmt: skip


class Letters(nn.Module):
    """The next letter of an angling paper."""

    def __init__(self, letters, width=64):
        super().__init__()
        self.embed = nn.Embedding(letters, 24)
        self.lstm = nn.LSTM(24, width, batch_first=True)
        self.out = nn.Linear(width, letters)

    def forward(self, ids):
        return self.out(self.lstm(self.embed(ids))[0])


@healthy(0.5)
def angling_paper_letter_by_letter(folder):
    seeded(13257)
    who = ["the otter", "a heron", "the old angler", "one pike", "the ferryman", "a tench", "the miller"]
    does = ["waits", "turns", "rests", "is seen", "went down", "comes up"]
    where = ["by the weir", "under the bridge", "in the reeds", "at the sluice", "on the lake", "near the mill"]

    def paper(sentences):
        pick = (torch.rand(sentences, 3) * torch.tensor([len(who), len(does), len(where)])).long().tolist()
        return "".join(f"{who[a]} {does[b]} {where[c]}. " for a, b, c in pick)

    train, other = paper(1200), paper(150)
    alphabet = {letter: i for i, letter in enumerate(sorted(set(train)))}

    def windows(text, length=41, every=13):
        ids = torch.tensor([alphabet[letter] for letter in text])
        return ids.unfold(0, length, every)

    net = Letters(len(alphabet))
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    draw, kept_back = rounds(32, windows(train)), windows(other)

    def loss_on(ids):
        return F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    validate = now_and_then(net, 25, lambda: {"val_loss": loss_on(kept_back)})
    return fit(
        folder, net, optimizer, lambda step: (loss_on(*draw()), validate(step)), 250,
        score=held_out(net, lambda: loss_on(kept_back)),
    )  # fmt: skip


@healthy(0.5)
def digits_on_the_gauge_boards(folder):
    seeded(13258)
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None]
    x, y = (x - x.mean()) / x.std(), torch.tensor(data.target)
    order = torch.randperm(len(x))
    train, val = order[:1400], order[1400:]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    draw = rounds(50, x[train], y[train])
    validate = now_and_then(net, 28, judged(net, x[val], y[val]))

    def loss_of(step):
        images, digits = draw()
        logits = net(images)
        accuracy = float((logits.argmax(1) == digits).float().mean())
        return F.cross_entropy(logits, digits), {"accuracy": accuracy, **validate(step)}

    return fit(folder, net, optimizer, loss_of, 280, score=held_out(net, lambda: F.cross_entropy(net(x[val]), y[val])))


class Ratings(nn.Module):
    """What an angler thinks of a water: tastes against qualities, and how strict and how good each is."""

    def __init__(self, anglers, waters, width=8):
        super().__init__()
        self.taste, self.quality = nn.Embedding(anglers, width), nn.Embedding(waters, width)
        self.strict, self.good = nn.Embedding(anglers, 1), nn.Embedding(waters, 1)
        for table in (self.taste, self.quality):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.strict, self.good):
            nn.init.zeros_(table.weight)
        self.middle = nn.Parameter(torch.zeros(()))

    def forward(self, angler, water):
        fits = (self.taste(angler) * self.quality(water)).sum(1)
        return self.middle + self.strict(angler)[:, 0] + self.good(water)[:, 0] + fits


@healthy(0.5)
def waters_rated_by_anglers(folder):
    seeded(13259)
    anglers, waters = 120, 80
    taste, quality = torch.randn(anglers, 3), torch.randn(waters, 3)
    table = taste @ quality.T / 2 + 0.5 * torch.randn(anglers, 1) + 0.7 * torch.randn(1, waters)
    table = (table + 0.1 * torch.randn_like(table)) / table.std()
    pairs = torch.randperm(anglers * waters)
    angler, water, stars = pairs // waters, pairs % waters, table.flatten()[pairs]
    net = Ratings(anglers, waters)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    draw = rounds(128, angler[:8000], water[:8000], stars[:8000])

    def loss_on(angler, water, stars):
        return F.mse_loss(net(angler, water), stars)

    def kept_back():
        return loss_on(angler[8000:], water[8000:], stars[8000:])

    validate = now_and_then(net, 30, lambda: {"val_loss": kept_back()})
    return fit(
        folder, net, optimizer, lambda step: (loss_on(*draw()), validate(step)), 500, score=held_out(net, kept_back)
    )
