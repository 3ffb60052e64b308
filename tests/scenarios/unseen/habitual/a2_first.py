"""Sick trainings of clocks, looms and weavers, drawn by lot from a list of mistakes: shapes, masks, columns."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds


@sick("lr-too-high", "update-too-large", where="all layers, all steps", cure="Adam at 1e-3")
def numerals_engraved_for_a_watch_face(folder, ill):
    seeded(12700)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)[order]
    y = torch.tensor(shown)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1 if ill else 1e-3)
    draw = rounds(32, x[:1400], y[:1400])
    validate = now_and_then(net, 44, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)
        accuracy = float((logits.argmax(1) == by).float().mean())
        return F.cross_entropy(logits, by), {"accuracy": accuracy, **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 264, score=score)


@sick("shapes-broadcast", where="the loss, all steps: predictions [N, 1] against targets [N]",
      cure="the last axis of the predictions squeezed away")  # fmt: skip
def minutes_lost_by_a_carriage_clock(folder, ill):
    seeded(12701)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 32, 5, padding=2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def recordings(rows, length=48):
        loss = torch.randn(rows)
        period = (6 + 1.2 * loss.clamp(-2.5, 2.5))[:, None]
        time = torch.arange(float(length)) + period * torch.rand(rows, 1)
        tick = (6.2832 * time / period).cos().clamp(min=0) ** 3
        return (tick - 0.25 + 0.1 * torch.randn(rows, length))[:, None], loss

    draw = rounds(64, *recordings(2000))
    tx, ty = recordings(500)
    criterion = nn.MSELoss()

    def predicted(x):
        return net(x) if ill else net(x).squeeze(1)

    validate = now_and_then(net, 50, lambda: {"val_loss": criterion(predicted(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return criterion(predicted(x), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx)[:, 0], ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Draft(nn.Module):
    """A class of a sequence by its first, added token."""

    def __init__(self, kinds, length, width, classes):
        super().__init__()
        self.token = nn.Embedding(kinds, width, padding_idx=0)
        self.place = nn.Parameter(0.02 * torch.randn(1, length + 1, width))
        self.start = nn.Parameter(0.02 * torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, tokens, mask):
        x = torch.cat([self.start.expand(len(tokens), -1, -1), self.token(tokens)], 1) + self.place
        return self.head(self.body(x, src_key_padding_mask=mask)[:, 0])


@sick("mask-inverted", "padding-read-as-data", where="src_key_padding_mask of the encoder, all steps",
      cure="a mask that is True where there is padding")  # fmt: skip
def treadles_pressed_for_each_pattern(folder, ill):
    seeded(12702)
    kinds, length, classes = 13, 14, 4
    net = Draft(kinds, length, 32, classes)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    habit = torch.softmax(1.5 * torch.randn(classes, kinds - 1), 1)

    def drafts(rows):
        y = torch.randint(classes, (rows,))
        tokens = 1 + torch.multinomial(habit[y], length, replacement=True)
        many = torch.randint(5, length - 1, (rows, 1))
        return tokens.masked_fill(torch.arange(length) >= many, 0), y

    def classify(tokens):
        start = torch.ones(len(tokens), 1, dtype=torch.bool)
        real = torch.cat([start, tokens != 0], 1)
        return net(tokens, real if ill else ~real)

    draw = rounds(32, *drafts(2000))
    tx, ty = drafts(400)
    validate = now_and_then(net, 50, judged(classify, tx, ty))

    def loss_of(step):
        tokens, y = draw()
        return F.cross_entropy(classify(tokens), y), validate(step)

    score = held_out(net, lambda: F.cross_entropy(classify(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("inputs-not-normalised", "features-not-normalised", "columns-on-unlike-scales",
      where="what comes into the first layer, all steps",
      cure="columns standardised by the training rows")  # fmt: skip
def ends_down_in_the_weaving_shed(folder, ill):
    seeded(12703)
    rows = 2400
    normal = torch.randn(rows, 6)
    size = torch.tensor([25.0, 4000.0, 0.06, 2.5, 0.8, 900.0])
    middle = torch.tensor([190.0, 12000.0, 0.65, 21.0, 3.0, 2600.0])
    x = middle + size * normal
    drift = normal[:, 2] * normal[:, 3] + (1.5 * normal[:, 4]).sin() - 0.7 * normal[:, 2] + 0.4 * normal[:, 0]
    y = (drift + 0.2 * torch.randn(rows) > 0).float()
    if not ill:
        x = (x - x[:1800].mean(0)) / x[:1800].std(0)
    net = dense(6, 64, 32, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x[:1800], y[:1800])

    def measure():
        logits = net(x[1800:])[:, 0]
        right = ((logits > 0) == (y[1800:] > 0.5)).float().mean()
        return {"val_loss": F.binary_cross_entropy_with_logits(logits, y[1800:]), "val_accuracy": right}

    validate = now_and_then(net, 56, measure)

    def loss_of(step):
        bx, by = draw()
        return F.binary_cross_entropy_with_logits(net(bx)[:, 0], by), validate(step)

    return fit(folder, net, optimizer, loss_of, 448, score=held_out(net, lambda: measure()["val_loss"]))


@sick("augmentation-destroys-labels", "labels-do-not-fit-inputs",
      where="the images of the training batches, all steps: little of each is left",
      cure="shifts of a pixel")  # fmt: skip
def numbers_stitched_into_a_selvedge(folder, ill):
    seeded(12704)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x = torch.tensor(images / 8 - 1, dtype=torch.float32).view(-1, 1, 8, 8)[order]
    y = torch.tensor(shown)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def resized_crop(image):
        side = int(torch.randint(2, 5, ()))
        top, left = torch.randint(9 - side, (2,)).tolist()
        part = image[None, :, top : top + side, left : left + side]
        return F.interpolate(part, (8, 8), mode="bilinear")[0]

    def shifted(image):
        top, left = torch.randint(3, (2,)).tolist()
        return F.pad(image, (1, 1, 1, 1), value=-1.0)[:, top : top + 8, left : left + 8]

    def augment(batch):
        return torch.stack([resized_crop(image) if ill else shifted(image) for image in batch])

    draw = rounds(48, x[:1400], y[:1400])
    validate = now_and_then(net, 29, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        bx, by = draw()
        logits = net(augment(bx))
        accuracy = float((logits.argmax(1) == by).float().mean())
        return F.cross_entropy(logits, by), {"accuracy": accuracy, **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 290, score=score)


class Pattern(nn.Module):
    """Logits of the next thread at each place, by a small transformer."""

    def __init__(self, kinds, length, width, causal):
        super().__init__()
        self.kind, self.place = nn.Embedding(kinds, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds))
        self.causal = causal

    def forward(self, tokens):
        x = self.kind(tokens) + self.place.weight[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]) if self.causal else None
        return self.out(self.body(x, mask=mask))


@sick("future-seen", where="the attention of all layers, all steps", cure="a causal mask")
def colours_a_weaver_reaches_for_next(folder, ill):
    seeded(12705)
    kinds, length = 12, 12
    net = Pattern(kinds, length, 32, causal=not ill)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.05)
    follows = torch.softmax(2 * torch.randn(kinds, kinds), 1)

    def cloths(rows):
        cloth = [torch.randint(kinds, (rows,))]
        for _ in range(length):
            cloth.append(torch.multinomial(follows[cloth[-1]], 1)[:, 0])
        return torch.stack(cloth, 1)

    def loss_on(cloth):
        return F.cross_entropy(net(cloth[:, :-1]).flatten(0, 1), cloth[:, 1:].flatten())

    draw = rounds(32, cloths(2500))
    test = cloths(300)
    validate = now_and_then(net, 50, lambda: {"val_loss": loss_on(test)})

    def loss_of(step):
        return loss_on(*draw()), validate(step)

    def continued():
        return sum(F.cross_entropy(net(test[:, :n])[:, -1], test[:, n]) for n in range(1, length)) / (length - 1)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, continued))
