"""A research vessel at sea, six sick ones: the bridge log, chlorophyll, radio, side-scan sonar, flags, failures."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, seeded, sick
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


class Log(nn.Module):
    """The next word of a line in the log."""

    def __init__(self, words, width):
        super().__init__()
        self.word = nn.Embedding(words, width, padding_idx=0)
        self.memory = nn.GRU(width, 64, batch_first=True)
        self.out = nn.Linear(64, words)

    def forward(self, x):
        return self.out(self.memory(self.word(x))[0])


# 24 of the list
@sick("padding-in-loss", where="the loss, all steps: five in six of the words asked for are padding",
      cure="ignore_index at the padding")  # fmt: skip
def lines_of_the_bridge_log_word_by_word(folder, ill):
    seeded(13806)
    likely = 3.0 * torch.randn(40, 40)
    likely[:, 0] = -1e9

    def lines(rows):
        words = [torch.randint(1, 40, (rows,))]
        for _ in range(47):
            words.append(torch.multinomial(likely[words[-1]].softmax(1), 1)[:, 0])
        length = torch.where(torch.rand(rows) < 0.1, torch.randint(20, 49, (rows,)), torch.randint(4, 9, (rows,)))
        return torch.stack(words, 1) * (torch.arange(48) < length[:, None])

    draw = rounds(24, lines(1500))
    net = Log(40, 32)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss() if ill else nn.CrossEntropyLoss(ignore_index=0)
    test = lines(300)

    def loss_on(text, criterion):
        return criterion(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    validate = now_and_then(net, 40, lambda: {"val_loss": loss_on(test, criterion)})

    def loss_of(step):
        (text,) = draw()
        loss = loss_on(text, criterion)
        return loss, {"perplexity": float(loss.detach().exp()), **validate(step)}

    score = held_out(net, lambda: loss_on(test, nn.CrossEntropyLoss(ignore_index=0)))
    return fit(folder, net, optimizer, loss_of, 200, score=score, before_step=clipped(net, 5.0))


# 23 of the list
@sick("norm-over-too-few", "norm-statistics-noisy", where="all batch norms, all steps: two rows in a batch",
      cure="batches of 32 rows")  # fmt: skip
def chlorophyll_from_a_flow_through_sensor(folder, ill):
    seeded(13807)
    way = torch.randn(8, 4)

    def minutes(rows):
        x = torch.randn(rows, 8)
        return x, ((x @ way / 2.8 * 1.5).sin().sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)) / 1.4

    draw = rounds(2 if ill else 32, *minutes(4000))
    net = nn.Sequential(
        nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    tx, ty = minutes(600)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


class Radio(nn.Module):
    """How urgent a message is, told from a first token that looks at all words."""

    def __init__(self, words, width, kinds, length, ill):
        super().__init__()
        self.word = nn.Embedding(words, width, padding_idx=0)
        self.place = nn.Parameter(0.02 * torch.randn(length + 1, width))
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds))
        self.ill = ill

    def forward(self, x):
        h = torch.cat([self.cls.expand(len(x), -1, -1), self.word(x)], 1) + self.place
        words = torch.cat([torch.ones(len(x), 1, dtype=torch.bool), x != 0], 1)
        return self.head(self.encoder(h, src_key_padding_mask=words if self.ill else ~words)[:, 0])


# 26 of the list
@sick("mask-inverted", "mask-is-wrong", where="the attention of both layers, all steps",
      cure="True where padding is")  # fmt: skip
def radio_messages_sorted_by_their_urgency(folder, ill):
    seeded(13808)
    habit = 1.3 * torch.randn(6, 60)

    def messages(rows):
        y, length = torch.randint(6, (rows,)), torch.randint(8, 20, (rows,))
        words = torch.multinomial(habit[y].softmax(1), 20, replacement=True) + 1
        return words * (torch.arange(20) < length[:, None]), y

    draw = rounds(48, *messages(3000))
    net = Radio(61, 32, 6, 20, ill)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    tx, ty = messages(400)
    validate = now_and_then(net, 40, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


def strip(ins, outs, stride=1):
    conv = nn.Conv2d(ins, outs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outs), nn.ReLU())


# 3 of the list
@sick("left-in-eval", "norm-left-in-eval", where="the whole model, from the first validation on",
      cure="model.train() at the beginning of each epoch")  # fmt: skip
def sediments_on_a_side_scan_sonar(folder, ill):
    seeded(13809)
    grain = F.interpolate(torch.randn(8, 1, 12, 12), size=(20, 20), mode="bilinear")

    def swaths(rows):
        y = torch.randint(8, (rows,))
        shift = torch.randint(-4, 5, (rows, 2)).tolist()
        image = torch.stack([grain[kind].roll(by, (1, 2)) for kind, by in zip(y.tolist(), shift, strict=True)])
        return image + 0.6 * torch.randn(rows, 1, 20, 20), y

    x, y = swaths(1280)
    draw, epoch = rounds(32, x, y), 40
    net = nn.Sequential(
        strip(1, 16), strip(16, 16), strip(16, 32, 2), strip(32, 32), strip(32, 32, 2), strip(32, 32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(32, 8),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=5e-4)
    tx, ty = swaths(400)

    def validate():
        net.eval()
        with torch.no_grad():
            said = net(tx)
        right = (said.argmax(1) == ty).float().mean()
        return {"val_loss": float(F.cross_entropy(said, ty)), "val_accuracy": float(right)}

    def one(step):
        if step % epoch == 0 and not ill:
            net.train()
        image, kind = draw()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(image), kind)
        loss.backward()
        optimizer.step()
        found = validate() if step == 0 or step % epoch == epoch - 1 else {}
        if step == 0 and not ill:
            net.train()
        return {"loss": loss, **found}

    return tend(folder, net, optimizer, one, 240, held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Flags(nn.Module):
    """Which signal flag is hoisted, from a small coloured picture."""

    def __init__(self, kinds, last):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(288, 96), nn.Linear(96, kinds)
        self.last = last

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.fc2(F.relu(self.fc1(x.flatten(1))))
        return F.softmax(x, dim=1) if self.last else x


# 2 of the list
@sick("softmax-twice", where="the end of forward and the loss, all steps", cure="hand logits to the loss")  # fmt: skip
def signal_flags_hoisted_on_the_yardarm(folder, ill):
    seeded(13810)
    cloth = F.interpolate(torch.rand(36, 3, 3, 3).round(), size=(12, 12)) - 0.5

    def hoists(rows):
        y = torch.randint(36, (rows,))
        light = 0.5 + torch.rand(rows, 1, 1, 1)
        return 2 * cloth[y] * light + 0.7 * torch.randn(rows, 3, 12, 12), y

    draw = rounds(64, *hoists(4000))
    net = Flags(36, ill)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    tx, ty = hoists(700)
    validate = now_and_then(net, 40, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    score = held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean())
    return fit(folder, net, optimizer, loss_of, 240, score=score)


class Failures(nn.Module):
    """Which of ten instruments will fail, by the readings of the last day."""

    def __init__(self, ins, width, outs, ill):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(ins, width), nn.LayerNorm(width), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU(),
        )  # fmt: skip
        self.out = nn.Linear(width, outs)
        self.ill = ill

    def forward(self, x):
        x = self.out(self.body(x))
        return torch.sigmoid(x) if self.ill else x


# 40 of the list
@sick("sigmoid-twice", "activation-on-logits", where="the end of forward and the loss, all steps",
      cure="no sigmoid before BCEWithLogitsLoss")  # fmt: skip
def instruments_that_fail_before_the_next_cast(folder, ill):
    seeded(13811)
    wear = torch.randn(20, 10) / 20**0.5

    def days(rows):
        x = torch.randn(rows, 20)
        strain = x @ wear + 0.5 * (x[:, :10] * x[:, 10:])
        return x, (strain + 0.1 * torch.randn(rows, 10) > 1.0).float()

    draw = rounds(64, *days(5000))
    net = Failures(20, 96, 10, ill)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    criterion = nn.BCEWithLogitsLoss()
    tx, ty = days(800)
    validate = now_and_then(net, 50, lambda: {"val_loss": criterion(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return criterion(net(x), y), validate(step)

    def missed():
        fails = net(tx) > (0.5 if ill else 0.0)
        hit = (fails * ty).sum()
        return 1 - 2 * hit / (fails.sum() + ty.sum())

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, missed))
