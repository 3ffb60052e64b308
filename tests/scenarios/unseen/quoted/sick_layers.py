"""Mistakes in layers and their settings, after threads in public."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick, waves


# https://thecodeforge.io/ml-ai/pytorch-neural-network/
@sick(
    "not-in-optimizer",
    "layers-made-in-forward",
    where="the middle layer: forward() makes it anew each time, so nothing holds or trains it",
    cure="make the layer in __init__",
)
def loaves_by_the_ovens_dials(folder, ill):
    seeded(3502)

    class Oven(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 48), nn.Linear(48, 1)
            if not ill:
                self.middle = nn.Linear(48, 48)

        def forward(self, x):
            middle = nn.Linear(48, 48) if ill else self.middle
            return self.last(F.relu(middle(F.relu(self.first(x)))))

    net, draw = Oven(), waves()

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


# https://openillumi.com/en/en-pytorch-transformer-multidim-output-same-fix
@sick(
    "decoder-input-constant",
    where="the decoder's input: zeros at all positions instead of the target shifted by one",
    cure="give the decoder the target, shifted by one step",
)
def a_lighthouse_answered_by_a_bell(folder, ill):
    seeded(3503)

    class Answer(nn.Module):
        def __init__(self):
            super().__init__()
            self.ask, self.tell = nn.Linear(3, 32), nn.Linear(3, 32)
            self.body = nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True)
            self.head = nn.Linear(32, 3)

        def forward(self, x, y):
            mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
            return self.head(self.body(self.ask(x), self.tell(y), tgt_mask=mask))

    net = Answer()

    def draw():
        phase, pace = 6.2832 * torch.rand(32, 1, 3), 0.5 + 0.5 * torch.rand(32, 1, 1)
        wave = (phase + pace * torch.arange(24.0)[None, :, None]).sin()
        return wave[:, :12], wave[:, 12:]

    def loss_of(step):
        x, y = draw()
        before = torch.zeros_like(y) if ill else torch.cat([x[:, -1:], y[:, :-1]], 1)
        return F.mse_loss(net(x, before), y)

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, loss_of, 250, score=score_of(loss_of))


# https://github.com/ixxi-dante/an2vec/issues/53
@sick(
    "update-too-small",
    "lr-too-low",
    where="all layers, at all steps: a tenth of the learning rate that the task is known to want",
    cure="0.01 for Adam, not its default of 0.001",
)
def who_dances_with_whom(folder, ill):
    seeded(3504)
    people, circle = 120, torch.arange(120) % 6
    chance = torch.where(circle[:, None] == circle, 0.5, 0.02)
    meets = torch.triu((torch.rand(people, people) < chance).float(), 1)
    meets = meets + meets.T
    own = meets + torch.eye(people)
    rate = own.sum(1).rsqrt()
    spread = rate[:, None] * own * rate

    class Links(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(people, 32, bias=False), nn.Linear(32, 16, bias=False)

        def forward(self):
            z = spread @ self.second(F.relu(spread @ self.first.weight.T))
            return z @ z.T

    net = Links()
    optimizer = torch.optim.Adam(net.parameters(), **({} if ill else {"lr": 0.01}))
    many = (people * people - meets.sum()) / meets.sum()
    weight = torch.tensor(float(many))

    def loss_of(step):
        return F.binary_cross_entropy_with_logits(net(), own, pos_weight=weight)

    return fit(folder, net, optimizer, loss_of, 100, score=score_of(loss_of, 1))


# https://github.com/huggingface/transformers/pull/28256
@sick(
    "expert-starved",
    "balance-loss-constant",
    where="the router: its balance is the same number whatever it chooses, and one expert takes nearly all rows",
    cure="average the router's shares over the rows, expert by expert, times the share of rows that each expert took",
)
def parcels_by_six_sorters(folder, ill):
    seeded(3505)
    experts = 6
    way, centre = torch.randn(experts, 5), 2.5 * torch.randn(experts, 5)
    net = nn.ModuleDict({"router": nn.Linear(5, experts), "experts": nn.ModuleList(dense(5, 10, 1) for _ in range(6))})

    def balance(share, chosen):
        took = F.one_hot(chosen, experts).float().mean(0)
        mean = share.mean(-1, keepdim=True) if ill else share.mean(0)
        return experts * (took * mean).sum(-1).mean()

    def loss_of(step):
        kind = torch.randint(experts, (96,))
        x = 3 + centre[kind] + 0.7 * torch.randn(96, 5)
        y = 2 * ((x - 3 - centre[kind]) * way[kind]).sum(1) + kind
        share = net["router"](x).softmax(1)
        best, chosen = share.max(1)
        out = torch.stack([expert(x)[:, 0] for expert in net["experts"]], 1)
        error = F.mse_loss(best * out.gather(1, chosen[:, None])[:, 0], y)
        level = balance(share, chosen)
        return error + level, {"error": error, "balance": level, "busiest": chosen.bincount().max() / 96}

    def score(step):
        return loss_of(step)[1]["error"]

    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(score))


# https://github.com/facebookresearch/fairseq/issues/47
@sick(
    "bad-initialisation",
    where="embed: multiplied by the root of the width after it was drawn; a loss far above chance at the first step",
    cure="leave the embedding at a deviation of 0.1",
)
def syllables_of_a_counting_rhyme(folder, ill):
    seeded(3506)
    width, follows = 128, torch.randperm(40)

    class Rhyme(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(40, width)
            nn.init.normal_(self.embed.weight, 0, 0.1)
            if ill:
                self.embed.weight.data.mul_(math.sqrt(width))
            self.convs = nn.ModuleList(nn.Conv1d(width, 2 * width, 3) for _ in range(4))
            self.head = nn.Linear(width, 40)
            for conv in self.convs:
                nn.init.normal_(conv.weight, 0, math.sqrt(4 / (3 * width)))

        def forward(self, x):
            h = self.embed(x).transpose(1, 2)
            for conv in self.convs:
                h = h + F.glu(conv(F.pad(h, (2, 0))), 1)
            return self.head(h.transpose(1, 2))

    net = Rhyme()

    def loss_of(step):
        song = [torch.randint(40, (8,))]
        for _ in range(12):
            song.append(torch.where(torch.rand(8) < 0.8, follows[song[-1]], torch.randint(40, (8,))))
        song = torch.stack(song, 1)
        return F.cross_entropy(net(song[:, :-1]).flatten(0, 1), song[:, 1:].flatten())

    def before_step(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)

    optimizer = torch.optim.SGD(net.parameters(), 0.25, momentum=0.9, nesterov=True)
    return fit(folder, net, optimizer, loss_of, 80, score=score_of(loss_of), before_step=before_step)
