"""School and farm: copybooks, marks, eggs, harvests, fields from the air, dictation, herds, hay, barns, numerals."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.4)
def copybook_maxims_letter_after_letter(folder):
    seeded(14312)
    words = [
        "a",
        "stitch",
        "in",
        "time",
        "saves",
        "nine",
        "early",
        "birds",
        "catch",
        "worms",
        "haste",
        "makes",
        "waste",
        "look",
        "before",
        "you",
        "leap",
    ]
    letters = sorted(set("".join(words)) | {" "})

    def page(length):
        text = " ".join(words[i] for i in torch.randint(len(words), (length,)))
        return torch.tensor([letters.index(letter) for letter in text])

    train, held = page(3000), page(500)

    class Writer(nn.Module):
        def __init__(self):
            super().__init__()
            self.letters = nn.Embedding(len(letters), 24)
            self.memory = nn.GRU(24, 48, batch_first=True)
            self.head = nn.Linear(48, len(letters))

        def forward(self, text):
            return self.head(self.memory(self.letters(text))[0])

    net = Writer()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_on(text, rows=32, length=24):
        starts = torch.randint(len(text) - length - 1, (rows, 1))
        piece = text[starts + torch.arange(length + 1)]
        return F.cross_entropy(net(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())

    validate = now_and_then(net, 50, lambda: {"val_loss": loss_on(held)})

    def loss_of(step):
        loss = loss_on(train)
        return loss, {"perplexity": loss.exp().item(), **validate(step)}

    score = held_out(net, lambda: loss_on(held, 128))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 1.0))


@healthy(0.6)
def final_marks_from_a_terms_worth_of_homework(folder):
    seeded(14313)
    pull = torch.randn(16, 4) / 4

    def pupils(rows):
        x = torch.randn(rows, 16)
        seen = x @ pull
        return x, seen[:, :1] + seen[:, 1:2] * seen[:, 2:3] + seen[:, 3:].abs() + 0.15 * torch.randn(rows, 1)

    (x, y), (vx, vy) = pupils(6000), pupils(1000)
    middle, spread = y.mean(), y.std()
    y, vy = (y - middle) / spread, (vy - middle) / spread
    draw = rounds(64, x, y)
    net = dense(16, 64, 64, 1, act=nn.SiLU, norm=nn.LayerNorm)
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=400)

    def loss_of(step):
        homework, mark = draw()
        return F.smooth_l1_loss(net(homework), mark)

    score = held_out(net, lambda: F.mse_loss(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy(0.5)
def eggs_on_the_belt_by_size_and_cracks(folder):
    seeded(14314)
    line = torch.linspace(-1, 1, 16)

    def eggs(rows):
        """Small or large, whole or cracked: four kinds."""
        large, cracked = torch.randint(2, (rows,)), torch.randint(2, (rows,))
        x, y = 0.3 * torch.rand(2, rows, 1, 1) - 0.15
        size = (0.5 + 0.2 * large + 0.06 * torch.randn(rows))[:, None, None]
        far = ((line[None, None] - x).square() + 0.7 * (line[None, :, None] - y).square()).sqrt()
        egg = (8 * (size - far)).sigmoid()
        tilt = 2 * torch.rand(rows, 1, 1) - 1
        crack = (-60 * (line[None, None] - x - tilt * line[None, :, None]).square()).exp() * cracked[:, None, None]
        image = egg * (1 - 0.7 * crack) + 0.1 * torch.randn(rows, 16, 16)
        return (image[:, None] - 0.3) / 0.4, 2 * large + cracked

    (x, y), (vx, vy) = eggs(3000), eggs(600)
    draw = rounds(32, x, y)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 250)
    validate = now_and_then(net, 50, judged(net, vx, vy))

    def loss_of(step):
        image, kind = draw()
        said = net(image)
        right = (said.argmax(1) == kind).float().mean()
        return F.cross_entropy(said, kind), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 250, score=score, schedule=schedule)


@healthy(0.4)
def poor_usual_and_good_harvests_in_three_quantiles(folder):
    seeded(14315)
    quantiles = torch.tensor([0.1, 0.5, 0.9])
    pull = torch.randn(8, 2) / 8**0.5

    def fields(rows):
        x = torch.randn(rows, 8)
        seen = x @ pull
        yields = 1.5 * seen[:, 0] + (1.5 * seen[:, 1]).cos() + (0.2 + 0.2 * seen[:, 0].sigmoid()) * torch.randn(rows)
        return x, yields[:, None]

    (x, y), (vx, vy) = fields(5000), fields(1500)
    middle, spread = y.mean(), y.std()
    y, vy = (y - middle) / spread, (vy - middle) / spread
    draw = rounds(128, x, y)
    net = dense(8, 48, 48, 3)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def pinball(said, harvest):
        gap = harvest - said
        return torch.maximum(quantiles * gap, (quantiles - 1) * gap).mean()

    validate = now_and_then(net, 40, lambda: {"val_loss": pinball(net(vx), vy)})

    def loss_of(step):
        field, harvest = draw()
        return pinball(net(field), harvest), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: pinball(net(vx), vy)))


@healthy(0.5)
def ponds_among_the_fields_seen_from_the_air(folder):
    seeded(14316)
    line = torch.linspace(-1, 1, 16)

    def views(rows):
        """Two ponds a view, darker than the field and rippled; which pixels are water."""
        water = torch.zeros(rows, 16, 16)
        for _ in range(2):
            x, y = 1.4 * torch.rand(2, rows, 1, 1) - 0.7
            far = (line[None, None] - x).square() + (line[None, :, None] - y).square()
            water = torch.maximum(water, (far < (0.25 + 0.2 * torch.rand(rows, 1, 1)).square()).float())
        image = torch.stack([0.8 - water, 0.6 * water], 1) + 0.6 * torch.randn(rows, 2, 16, 16)
        return image, water[:, None]

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU())
            self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU())
            self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
            self.last = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

        def forward(self, image):
            fine = self.down(image)
            return self.last(torch.cat([fine, self.up(self.deep(fine))], 1))

    (x, y), (vx, vy) = views(1500), views(200)
    draw = rounds(16, x, y)
    net = UNet()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)

    def dice(said, water):
        chance = said.sigmoid()
        both = (chance * water).sum((1, 2, 3))
        return 1 - ((2 * both + 1) / (chance.sum((1, 2, 3)) + water.sum((1, 2, 3)) + 1)).mean()

    validate = now_and_then(net, 40, lambda: {"val_dice_loss": dice(net(vx), vy)})

    def loss_of(step):
        image, water = draw()
        said = net(image)
        cross, overlap = F.binary_cross_entropy_with_logits(said, water), dice(said, water)
        return cross + overlap, {"bce": cross.item(), "dice_loss": overlap.item(), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: dice(net(vx), vy)))


@healthy(0.5)
def nouns_verbs_and_names_in_dictations_of_any_length(folder):
    seeded(14317)
    vocabulary, kinds, longest = 40, 4, 14
    usual = torch.randint(1, kinds + 1, (vocabulary + 1,))

    def dictations(rows):
        """A word's kind is its usual one, moved on by one behind an article (words 1 to 4). 0 is padding."""
        lengths = torch.randint(5, longest + 1, (rows,))
        words = torch.randint(1, vocabulary + 1, (rows, longest))
        behind = F.pad(words <= 4, (1, 0))[:, :-1]
        tags = (usual[words] - 1 + behind.long()) % kinds
        beyond = torch.arange(longest)[None] >= lengths[:, None]
        return words.masked_fill(beyond, 0), tags.masked_fill(beyond, -100), lengths

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(vocabulary + 1, 24, padding_idx=0)
            self.memory = nn.LSTM(24, 24, batch_first=True, bidirectional=True)
            self.head = nn.Linear(48, kinds)

        def forward(self, words, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(self.words(words), lengths, True, enforce_sorted=False)
            return self.head(nn.utils.rnn.pad_packed_sequence(self.memory(packed)[0], True, total_length=longest)[0])

    draw, (vx, vy, vl) = rounds(32, *dictations(3000)), dictations(500)
    net = Tagger()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=-100)

    def loss_of(step):
        words, tags, lengths = draw()
        said = net(words, lengths)
        real = tags >= 0
        right = (said.argmax(2) == tags)[real].float().mean()
        return criterion(said.flatten(0, 1), tags.flatten()), {"token_accuracy": float(right)}

    score = held_out(net, lambda: criterion(net(vx, vl).flatten(0, 1), vy.flatten()))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 1.0))


@healthy(0.4)
def which_cow_is_it_by_triplets_of_muzzle_prints(folder):
    seeded(14318)
    herd = 60
    cows = torch.randn(herd, 6)
    lens = torch.randn(6, 32) / 6**0.5

    def prints(cow):
        return ((cows[cow] + 0.3 * torch.randn(len(cow), 6)) @ lens).tanh() + 0.2 * torch.randn(len(cow), 32)

    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 12))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def triplets(kinds):
        """Each print, another of the same cow and one of another cow out of the first `kinds`."""
        cow = kinds[torch.randint(len(kinds), (64,))]
        place = torch.randint(1, len(kinds), (64,))
        other = kinds[(cow - kinds[0] + place) % len(kinds)]
        made = (F.normalize(net(prints(who)), dim=1) for who in (cow, cow, other))
        return F.triplet_margin_loss(*made, margin=0.5)

    known, strange = torch.arange(45), torch.arange(45, herd)

    def strangers():
        return torch.stack([triplets(strange) for _ in range(10)]).mean()

    validate = now_and_then(net, 60, lambda: {"val_loss": strangers()})

    def loss_of(step):
        return triplets(known), validate(step)

    return fit(folder, net, optimizer, loss_of, 360, score=held_out(net, strangers))


@healthy(0.5)
def damp_in_the_hay_by_a_denoising_coder(folder):
    seeded(14319)
    place = torch.linspace(0, 1, 40)

    def stacks(rows):
        """Temperatures along a probe: a slope and two warm spots."""
        spot, heat = torch.rand(rows, 2, 1), 1 + torch.rand(rows, 2, 1)
        warm = (heat * (-((place - spot) / 0.1).square()).exp()).sum(1)
        return (warm + torch.randn(rows, 1) * (place - 0.5) - 0.5) / 0.75

    draw, held = rounds(64, stacks(4000)), stacks(600)
    noisy = held + 0.5 * torch.randn_like(held)
    net = dense(40, 96, 16, 96, 40, act=nn.ELU)
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 150, 0.4)

    def loss_of(step):
        (stack,) = draw()
        return F.mse_loss(net(stack + 0.5 * torch.randn_like(stack)), stack)

    score = held_out(net, lambda: F.mse_loss(net(noisy), held))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


@healthy(0.5)
def warmth_through_a_barn_wall_from_its_equation_alone(folder):
    seeded(14320)
    net = dense(1, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    grid = torch.linspace(0, 1, 101)[:, None]

    def truth(x):
        """It is 0 at the inside and 1 at the outside, and its second derivative is -pi² sin(pi x)."""
        return (torch.pi * x).sin() + x

    def one(step):
        x = torch.rand(64, 1, requires_grad=True)
        heat = net(x)
        slope = torch.autograd.grad(heat.sum(), x, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), x, create_graph=True)[0]
        equation = (bend + torch.pi**2 * (torch.pi * x).sin()).square().mean()
        border = (net(torch.tensor([[0.0], [1.0]])) - torch.tensor([[0.0], [1.0]])).square().mean()
        loss = 0.1 * equation + 10 * border
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item(), "residual": equation.item(), "boundary": border.item()}

    return tend(folder, net, optimizer, one, 500, held_out(net, lambda: F.mse_loss(net(grid), truth(grid))))


@healthy(0.3)
def numerals_redrawn_from_a_code_whose_price_rises_slowly(folder):
    seeded(14321)
    bunch = load_digits()
    x = torch.tensor(bunch.data).float()[torch.randperm(len(bunch.data))] / 16
    draw, held = rounds(64, x[:1400]), x[1400:]
    net = nn.ModuleDict({"encoder": dense(64, 128, 20), "decoder": dense(10, 128, 64)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        (page,) = draw()
        mean, log_variance = net["encoder"](page).chunk(2, dim=1)
        said = net["decoder"](mean + (0.5 * log_variance).exp() * torch.randn_like(mean))
        reconstruction = F.binary_cross_entropy_with_logits(said, page, reduction="none").sum(1).mean()
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        price = min(1.0, (step + 1) / 150)
        return reconstruction + price * divergence, {"reconstruction": reconstruction.item(), "kl": divergence.item()}

    def error():
        mean = net["encoder"](held)[:, :10]
        return F.mse_loss(net["decoder"](mean).sigmoid(), held)

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, error))
