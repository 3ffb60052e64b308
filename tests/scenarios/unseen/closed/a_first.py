"""Mistakes from closed issues: transformers, peft, diffusers, detectron2, litgpt."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, tend


# "avoid nan loss in masked lm", https://github.com/huggingface/transformers/pull/16522
@sick("nonfinite", "labels-masked", where="the first step whose batch has no masked token, then every layer",
      cure="mask at least one token of every batch, or leave out a batch without any")  # fmt: skip
def missing_notes_of_a_handbell_peal(folder, ill):
    seeded(9901)
    bells, length, rows = 8, 6, 4
    net = nn.ModuleDict({
        "note": nn.Embedding(bells + 1, 32),
        "place": nn.Embedding(length, 32),
        "body": nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2),
        "head": nn.Linear(32, bells),
    })  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    def peal(rows):
        first, by = torch.randint(bells, (rows, 1)), torch.randint(1, 4, (rows, 1))
        return (first + by * torch.arange(length)) % bells

    def loss_on(notes, masked):
        seen = notes.masked_fill(masked, bells)
        said = net["head"](net["body"](net["note"](seen) + net["place"](torch.arange(length))))
        each = F.cross_entropy(said.flatten(0, 1), notes.flatten(), reduction="none") * masked.flatten()
        return each.sum() / masked.sum()

    def loss_of(step):
        notes = peal(rows)
        masked = torch.rand(rows, length) < 0.15
        if not ill and not masked.any():
            masked[0, 0] = True
        return loss_on(notes, masked)

    test = peal(256)
    test_masked = torch.rand(256, length) < 0.15
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: loss_on(test, test_masked)))


class Adapted(nn.Module):
    """A frozen layer and a product of low rank beside it."""

    def __init__(self, layer, rank, alpha):
        super().__init__()
        self.layer, self.scale = layer.requires_grad_(False), alpha / rank
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.scale * self.up(self.down(x))


# "PeftConfig missing lora_alpha field - defaults to 8, dampens high-rank LoRA",
# https://github.com/huggingface/lerobot/issues/3551 (a default of peft)
@sick("adapter-scale-too-small", "update-too-small", "lr-too-low", where="all adapters, all steps",
      cure="an alpha as large as the rank")  # fmt: skip
def a_crane_arm_after_its_cable_was_changed(folder, ill):
    seeded(9902)
    reach, slack = torch.randn(6, 4) / 2, torch.randn(4)

    def swing(rows, changed):
        x = torch.randn(rows, 6)
        bent = x @ reach + changed * slack
        return x, (bent.sin() * (1 + 0.6 * changed * bent.cos())).sum(1, keepdim=True)

    base = dense(6, 96, 96, 96, 1, act=nn.GELU)
    before = torch.optim.Adam(base.parameters(), 2e-3)
    for _ in range(400):
        x, y = swing(128, 0)
        before.zero_grad()
        F.mse_loss(base(x), y).backward()
        before.step()
    rank = 64
    net = nn.Sequential(*(
        Adapted(part, rank, 8 if ill else rank) if isinstance(part, nn.Linear) else part for part in base
    ))  # fmt: skip
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-4)

    def loss_of(step):
        x, y = swing(128, 1)
        return F.mse_loss(net(x), y)

    tx, ty = swing(1024, 1)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


# "v-prediction training support", https://github.com/huggingface/diffusers/pull/1455 (issue 1429)
@sick("target-of-another-parameterisation", "targets-do-not-fit-the-model", where="the loss, from the first step",
      cure="the velocity as the target, as in the training before")  # fmt: skip
def spirals_of_shells_after_rings_of_trees(folder, ill):
    seeded(9903)
    keep = torch.cos(torch.linspace(0.02, 1.55, 60)).square()
    net = dense(4, 96, 96, 2, act=nn.SiLU)

    def rings(rows):
        turn = 6.2832 * torch.rand(rows)
        return torch.stack([turn.cos(), turn.sin()], 1) * (1 + torch.randint(2, (rows, 1)))

    def spirals(rows):
        turn = 9 * torch.rand(rows)
        return torch.stack([turn.cos(), turn.sin()], 1) * (0.15 * turn[:, None]) + torch.tensor([1.5, -1.0])

    def loss_on(points, target_is_noise):
        at, noise = torch.randint(60, (len(points),)), torch.randn_like(points)
        signal, spread = keep[at].sqrt()[:, None], (1 - keep[at]).sqrt()[:, None]
        said = net(torch.cat([signal * points + spread * noise, signal, spread], 1))
        return F.mse_loss(said, noise if target_is_noise else signal * noise - spread * points)

    before = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(500):
        before.zero_grad()
        loss_on(rings(128), False).backward()
        before.step()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    test = spirals(2048)
    score = held_out(net, lambda: loss_on(test, False))
    return fit(folder, net, optimizer, lambda step: loss_on(spirals(128), ill), 400, score=score)


# "Learning Rate is increasing instead of annealing", https://github.com/facebookresearch/detectron2/issues/161
@sick("warmup-too-long", "lr-too-low", where="the rate, all steps", cure="a warm-up of a few dozen steps")
def snails_boxed_on_a_garden_wall(folder, ill):
    seeded(9904)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.BatchNorm2d(24),
        nn.ReLU(), nn.Flatten(), nn.Linear(24 * 16, 48), nn.ReLU(), nn.Linear(48, 4),
    )  # fmt: skip
    steps, warmup = 150, 1000 if ill else 30
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))

    def walls(rows):
        size, grid = 0.15 + 0.25 * torch.rand(rows, 2), torch.linspace(0, 1, 16)
        corner = (1 - size) * torch.rand(rows, 2)
        inside = [(grid >= corner[:, i : i + 1]) & (grid <= (corner + size)[:, i : i + 1]) for i in (0, 1)]
        image = (inside[0][:, :, None] & inside[1][:, None]).float() + 0.1 * torch.randn(rows, 16, 16)
        return image[:, None], torch.cat([corner, corner + size], 1)

    def loss_of(step):
        image, box = walls(32)
        return F.smooth_l1_loss(net(image), box)

    image, box = walls(512)
    score = held_out(net, lambda: F.l1_loss(net(image), box))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


class Layer(nn.Module):
    """One layer of a decoder, its norms before its parts."""

    def __init__(self, width, heads):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.look = nn.MultiheadAttention(width, heads, batch_first=True)
        self.feed = dense(width, 4 * width, width, act=nn.GELU)

    def forward(self, x, mask):
        y = self.first(x)
        x = x + self.look(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.feed(self.second(x))


# "Loss not decreasing", https://github.com/Lightning-AI/litgpt/issues/689, mended by "Fix weight initialization for
# single-device", https://github.com/Lightning-AI/litgpt/pull/759
@sick("bad-initialisation", "symmetric-units", where="all matrices, from the first step",
      cure="the model's own initialisation after the weights were made empty")  # fmt: skip
def verses_of_a_skipping_rhyme(folder, ill):
    seeded(9905)
    words, length = 16, 20
    net = nn.ModuleDict({
        "word": nn.Embedding(words, 32),
        "place": nn.Embedding(length, 32),
        "layers": nn.ModuleList(Layer(32, 4) for _ in range(2)),
        "norm": nn.LayerNorm(32),
        "head": nn.Linear(32, words, bias=False),
    })  # fmt: skip
    for part in net.modules():
        if ill and isinstance(part, nn.Linear | nn.Embedding):
            for weight in part.parameters():
                nn.init.zeros_(weight)
        elif isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=0.02)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    ban = torch.full((length, length), -torch.inf).triu(1)

    def rhyme(rows):
        verse = torch.randint(words, (rows, 7)).repeat(1, 4)[:, : length + 1]
        slip = torch.rand(rows, length + 1) < 0.02
        return torch.where(slip, torch.randint(words, (rows, length + 1)), verse)

    def loss_on(text):
        x = net["word"](text[:, :-1]) + net["place"](torch.arange(length))
        for layer in net["layers"]:
            x = layer(x, ban)
        return F.cross_entropy(net["head"](net["norm"](x)).flatten(0, 1), text[:, 1:].flatten())

    test = rhyme(128)

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(rhyme(16)), 250, score=score, before_step=clip)


# "[CLIP] fix logit_scale init", https://github.com/huggingface/transformers/pull/13436 (issue 13430)
@sick("logit-scale-too-small", "logits-bounded", where="the scale of the logits, all steps",
      cure="begin the scale at ln(1 / 0.07)")  # fmt: skip
def seed_packets_and_their_labels(folder, ill):
    seeded(9906)
    shapes, phrases = torch.randn(24, 64), 4
    see = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(24 * 16, 24),
    )  # fmt: skip
    net = nn.ModuleDict({"see": see, "read": nn.EmbeddingBag(24, 48), "say": dense(48, 48, 24)})
    net.scale = nn.Parameter(torch.tensor(1.0 if ill else 2.6593))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)

    def packets(rows):
        words = torch.rand(rows, 24).topk(phrases, 1).indices
        picture = shapes[words].sum(1).view(rows, 1, 8, 8) / 2 + 0.3 * torch.randn(rows, 1, 8, 8)
        return picture, words

    def logits(picture, words):
        a = F.normalize(net["see"](picture), dim=1)
        b = F.normalize(net["say"](net["read"](words)), dim=1)
        return net.scale.exp() * a @ b.T

    def one(step):
        optimizer.zero_grad()
        table, target = logits(*packets(48)), torch.arange(48)
        loss = (F.cross_entropy(table, target) + F.cross_entropy(table.T, target)) / 2
        loss.backward()
        optimizer.step()
        return {"loss": loss, "logit_scale": net.scale.exp().detach()}

    test = packets(200)
    score = held_out(net, lambda: F.cross_entropy(logits(*test), torch.arange(200)))
    return tend(folder, net, optimizer, one, 250, score)
