"""Trainings after public threads: fish, promoters, flats, weaves, proverbs and diagnoses."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, entropy_of, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds


# https://github.com/ultralytics/yolov5/issues/2582
@sick(
    "data-not-shuffled",
    where="the batches: folder after folder, so each holds one kind of fish only",
    cure="shuffle the loader of the training",
)
def fish_on_a_trawlers_deck(folder, ill):
    seeded(3383)
    kinds, per_kind = 6, 160
    outlines = torch.randn(kinds, 4, 32)

    def photos(y):
        mix = torch.randn(len(y), 4)
        return (mix[:, :, None] * outlines[y]).sum(1) + outlines[y, 0] + 0.3 * torch.randn(len(y), 32)

    path = torch.arange(kinds).repeat_interleave(per_kind)
    loader = DataLoader(TensorDataset(photos(path), path), batch_size=32, shuffle=not ill)

    def epochs():
        while True:
            yield from loader

    batches = epochs()
    net = dense(32, 64, 64, kinds)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def fresh(step):
        y = torch.randint(kinds, (128,))
        return F.cross_entropy(net(photos(y)), y)

    return fit(folder, net, optimizer, entropy_of(net, lambda: next(batches)), 600, score=score_of(fresh))


# https://github.com/FunctionLab/selene/issues/115
@sick(
    "schedule-too-short",
    where="the learning rate: halved at every other validation, however well it goes",
    cure='a scheduler that watches a loss needs mode="min"',
)
def promoters_in_strands_of_yeast(folder, ill):
    seeded(3384)
    motif = torch.tensor([3, 0, 3, 0, 0, 3])

    def draw(rows=48):
        strand = torch.randint(4, (rows, 40))
        marked = torch.rand(rows) < 0.5
        at = torch.randint(34, (rows, 1)) + torch.arange(6)
        box = torch.where(torch.rand(rows, 6) < 0.9, motif, torch.randint(4, (rows, 6)))
        strand = torch.where(marked[:, None], strand.scatter(1, at, box), strand)
        return F.one_hot(strand, 4).float().transpose(1, 2), marked.float()

    net = nn.Sequential(
        nn.Conv1d(4, 16, 6), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 16), nn.ReLU(),
        nn.Linear(16, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max" if ill else "min", patience=3, factor=0.5
    )
    kept = draw(512)

    def loss_of(step):
        x, marked = draw()
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], marked)

    def validation():
        return F.binary_cross_entropy_with_logits(net(kept[0])[:, 0], kept[1])

    validate = held_out(net, validation)

    def after_step(step):
        if step % 10 == 9:
            scheduler.step(validate())

    return fit(folder, net, optimizer, loss_of, 800, after_step=after_step, score=score_of(loss_of, 16))


# https://theflyingbirds.in/blog/pytorch-mysteries-lets-understand-nnmodule-nnparameter-modulelist-sequential-and-the-classic-layers-linear-activations-dropout
@sick(
    "not-in-optimizer",
    where="the hidden layers, which stand in a plain list: the model does not know them, so no optimizer holds them",
    cure="keep the layers in an nn.ModuleList",
)
def rents_of_flats_by_their_fittings(folder, ill):
    seeded(3385)
    table = torch.randn(600, 10)
    way = torch.randn(10, 4)
    rent = (table @ way / 2).sin().sum(1, keepdim=True) + 0.05 * torch.randn(600, 1)

    class Rents(nn.Module):
        def __init__(self):
            super().__init__()
            layers = [nn.Linear(10, 48), nn.Linear(48, 48), nn.Linear(48, 24)]
            self.layers = layers if ill else nn.ModuleList(layers)
            self.head = nn.Linear(24, 1)

        def forward(self, x):
            for layer in self.layers:
                x = F.relu(layer(x))
            return self.head(x)

    net, draw = Rents(), rounds(40, table, rent)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 600, score=score_of(loss_of, 15))


class FrozenNorm(nn.Module):
    """A batch norm whose statistics and affine numbers are fixed, for bodies that were trained before."""

    def __init__(self, channels):
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("mean", 0.0), ("var", 1.0)):
            self.register_buffer(name, torch.full((channels, 1, 1), value))

    def forward(self, x):
        return (x - self.mean) * (self.var + 1e-5).rsqrt() * self.weight + self.bias


# https://github.com/pytorch/vision/pull/3396
@sick(
    "norm-frozen", "norm-statistics", "vanishing",
    where="the norms of the body: frozen at the numbers they began with, though nothing was trained before",
    cure="freeze norms only with weights that were trained before; else an ordinary batch norm",
)  # fmt: skip
def weaves_of_a_willow_basket(folder, ill):
    seeded(3386)
    norm = FrozenNorm if ill else nn.BatchNorm2d
    parts, inner = [], 1
    for outer, stride in ((12, 1), (12, 1), (12, 1), (16, 2), (16, 1), (16, 1), (24, 2), (24, 1), (24, 1)):
        parts += [nn.Conv2d(inner, outer, 3, stride, 1, bias=False), norm(outer), nn.ReLU()]
        inner = outer
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 4))
    at = torch.arange(12.0)

    def draw():
        y, shift = torch.randint(4, (32,)), 6.28 * torch.rand(32, 1, 1)
        pitch, turn = torch.where(y < 2, 1.2, 1.9)[:, None, None], torch.where(y % 2 == 0, 1.0, -1.0)[:, None, None]
        weave = (pitch * (at[None, :, None] + turn * at[None, None, :]) + shift).sin()
        return (weave + 0.4 * torch.randn(32, 12, 12))[:, None], y

    def tested():
        x, y = draw()
        return F.cross_entropy(net(x), y)

    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    return fit(folder, net, optimizer, entropy_of(net, draw), 200, score=held_out(net, tested))


# https://github.com/hyunwoongko/transformer/pull/40
@sick(
    "nonfinite",
    where="the softmax of the attention, in the first batch with a padded sentence: whole rows are masked",
    cure="mask the keys, not the queries: unsqueeze(1).unsqueeze(2)",
)
def proverbs_of_three_islands(folder, ill):
    seeded(3387)
    words, longest, width, heads = 30, 12, 32, 4
    follows = torch.softmax(3 * torch.randn(words, words), 1)

    class Islands(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.place = nn.Embedding(words + 1, width, padding_idx=0), nn.Embedding(longest, width)
            self.split, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.norm, self.mlp = nn.LayerNorm(width), dense(width, 64, width)
            self.head = nn.Linear(width, words + 1)

        def forward(self, ids):
            h = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
            q, k, v = self.split(h).unflatten(2, (3, heads, width // heads)).permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(2, 3) / (width // heads) ** 0.5
            seen = ids != 0
            pad_mask = seen.unsqueeze(1).unsqueeze(3) if ill else seen.unsqueeze(1).unsqueeze(2)
            mask = pad_mask & torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
            share = scores.masked_fill(~mask, float("-inf")).softmax(3)
            h = h + self.join((share @ v).transpose(1, 2).flatten(2))
            return self.head(h + self.mlp(self.norm(h)))

    net = Islands()

    def loss_of(step):
        ids = [torch.randint(words, (32,))]
        for _ in range(longest):
            ids.append(torch.multinomial(follows[ids[-1]], 1)[:, 0])
        short = torch.where(torch.rand(32, 1) < 0.001, 7, longest + 1)
        ids = (torch.stack(ids, 1) + 1) * (torch.arange(longest + 1) < short)
        return F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=score_of(loss_of))


# https://github.com/ThilinaRajapakse/simpletransformers/issues/941
@sick(
    "left-in-eval",
    where="all steps from the first evaluation on: without dropout from then to the end",
    cure="model.train() after each evaluation, or at the head of each epoch",
)
def diagnoses_from_a_few_letters(folder, ill):
    seeded(3388)
    signs, way = 20, 1.5 * torch.randn(20)

    def draw(rows):
        x = (torch.rand(rows, signs) < 0.2).float()
        return x, (x @ way - way.sum() / 5 + torch.randn(rows) > 0).long()

    train, kept = draw(300), draw(1000)
    model = nn.Sequential(
        nn.Linear(signs, 96), nn.ReLU(), nn.Dropout(0.6), nn.Linear(96, 96), nn.ReLU(), nn.Dropout(0.6),
        nn.Linear(96, 2),
    )  # fmt: skip
    next_batch = rounds(16, *train)

    def evaluate():
        model.eval()
        with torch.no_grad():
            return F.cross_entropy(model(kept[0]), kept[1])

    def loss_of(step):
        loss = entropy_of(model, next_batch)(step)
        return (loss, {"eval_loss": last[0]}) if last else loss

    last = []

    def after_step(step):
        if step % 10 == 9:
            last[:] = [evaluate()]
            if not ill:
                model.train()

    def score():
        value = float(evaluate())
        model.train()
        return value

    return fit(
        folder, model, torch.optim.Adam(model.parameters(), 2e-3), loss_of, 600, after_step=after_step, score=score
    )
