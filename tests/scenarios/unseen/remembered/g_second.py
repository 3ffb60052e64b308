"""Mistakes of one's own, drawn by lot from forty: rates, decay, schedules, mixed precision, freezing."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


@sick("lr-too-low", "update-too-small", where="all layers, all steps", cure="a rate that is usual for SGD: 0.05")
def countries_of_stamps_by_their_print(folder, ill):
    seeded(10707)
    plates = (F.interpolate(torch.randn(6, 1, 4, 4), 12, mode="bilinear")).clamp(-1, 1)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 6),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 3e-4 if ill else 0.05)

    def stamps(rows):
        y = torch.randint(6, (rows,))
        return plates[y].roll(int(torch.randint(3, (1,))), 3) + 0.4 * torch.randn(rows, 1, 12, 12), y

    def loss_of(step):
        x, y = stamps(32)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    tx, ty = stamps(500)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("weight-decay-too-strong", "weights-shrink", where="all layers, from the start",
      cure="a weight decay of 1e-4, or AdamW")  # fmt: skip
def districts_told_from_a_scrawled_address(folder, ill):
    seeded(10708)
    words, length, districts = 40, 10, 5
    net = nn.ModuleDict({
        "word": nn.Embedding(words, 32),
        "place": nn.Embedding(length, 32),
        "body": nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True), 2),
        "head": nn.Linear(32, districts),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=0.1 if ill else 1e-4)
    of = torch.randint(districts, (words,))

    def addresses(rows):
        text = torch.randint(words, (rows, length))
        return text, F.one_hot(of[text], districts).float().cumsum(1)[:, -1].argmax(1)

    def said(text):
        return net["head"](net["body"](net["word"](text) + net["place"](torch.arange(length))).mean(1))

    def loss_of(step):
        text, y = addresses(32)
        logits = said(text)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean()}

    tx, ty = addresses(500)
    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.cross_entropy(said(tx), ty)))


@sick("schedule-too-short", "rate-climbs-back", "schedule-restarts", where="the rate, from step 6 on",
      cure="a T_max in steps, as the schedule is stepped in each of them")  # fmt: skip
def crowds_at_a_weekly_fish_market(folder, ill):
    seeded(10709)
    epochs, batch, rows = 6, 8, 1600
    way = torch.randn(6, 3) / 2
    x = torch.randn(rows + 600, 6)
    y = (x @ way).sin().sum(1, keepdim=True)
    y[:rows] += 0.4 * torch.randn(rows, 1)
    net = dense(6, 64, 64, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
    steps = epochs * (rows // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs if ill else steps)
    draw = rounds(batch, x[:rows], y[:rows])

    def loss_of(step):
        days, crowd = draw()
        return F.mse_loss(net(days), crowd)

    score = held_out(net, lambda: F.mse_loss(net(x[rows:]), y[rows:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@sick("clip-before-unscale", "clip-is-your-learning-rate", where="the clip, all steps", cure="unscale, then clip")
def queues_at_five_post_office_windows(folder, ill):
    seeded(10710)
    scale, way = 4096.0, torch.randn(10, 5)
    net = dense(10, 64, 64, 5)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)

    def hours(rows):
        x = torch.randn(rows, 10)
        return x, (x @ way / 2).sin() + 0.05 * torch.randn(rows, 5)

    def unscale():
        for weight in net.parameters():
            weight.grad.div_(scale)

    def one(step):
        x, y = hours(64)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            said = net(x)
        loss = F.mse_loss(said.float(), y)
        (scale * loss).backward()
        if not ill:
            unscale()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if ill:
            unscale()
        optimizer.step()
        return {"loss": loss.detach(), "lr": optimizer.param_groups[0]["lr"]}

    tx, ty = hours(800)
    return tend(folder, net, optimizer, one, 400, held_out(net, lambda: F.mse_loss(net(tx), ty)))


@sick("no-gradient", "head-frozen", where="the head, all steps",
      cure="freeze the body before it gets its new head, so that the head is left to learn")  # fmt: skip
def house_numbers_of_a_second_town(folder, ill):
    seeded(10711)
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    x = (torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16)[order]
    y = torch.tensor(digits.target)[order]
    old, new = y < 5, y >= 5
    net = nn.Sequential()
    for name, part in {
        "conv1": nn.Conv2d(1, 16, 3, padding=1), "norm1": nn.BatchNorm2d(16), "act1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2), "conv2": nn.Conv2d(16, 32, 3, padding=1), "norm2": nn.BatchNorm2d(32),
        "act2": nn.ReLU(), "pool2": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "head": nn.Linear(32, 5),
    }.items():  # fmt: skip
        net.add_module(name, part)
    before, draw = torch.optim.Adam(net.parameters(), 3e-3), rounds(32, x[old], y[old])
    for _ in range(80):
        image, target = draw()
        before.zero_grad()
        F.cross_entropy(net(image), target).backward()
        before.step()
    if ill:
        net.head = nn.Linear(32, 5)
        net.requires_grad_(False)
    else:
        net.requires_grad_(False)
        net.head = nn.Linear(32, 5)
    for name, weight in net.named_parameters():
        if "norm" in name:
            weight.requires_grad_(True)
    optimizer = torch.optim.Adam([weight for weight in net.parameters() if weight.requires_grad], 3e-3)
    x, y = x[new], y[new] - 5
    draw = rounds(32, x[:600], y[:600])

    def loss_of(step):
        image, target = draw()
        said = net(image)
        return F.cross_entropy(said, target), {"accuracy": (said.argmax(1) == target).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[600:]), y[600:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)
