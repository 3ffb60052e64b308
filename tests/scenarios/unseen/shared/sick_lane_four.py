"""After public threads: a scaled loss, a schedule, small things found in a row."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import rounds, tend


# https://github.com/Lightning-AI/pytorch-lightning/issues/9694
@sick("clip-before-unscale", where="every step: gradients still multiplied by 65536 are clipped to a norm of 1",
      cure="scaler.unscale_(optimizer) before the gradients are clipped")  # fmt: skip
def letters_of_a_typewriter(folder, ill):
    seeded(3580)
    kinds, length = 12, 16
    follows = torch.softmax(2.5 * torch.randn(kinds, kinds, kinds), 2)

    class Writer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(kinds, 24)
            self.memory = nn.GRU(24, 48, batch_first=True)
            self.head = nn.Linear(48, kinds)

        def forward(self, x):
            return self.head(self.memory(self.embed(x))[0])

    def text(rows=32):
        letters = [torch.randint(kinds, (rows,)), torch.randint(kinds, (rows,))]
        while len(letters) < length + 1:
            letters.append(torch.multinomial(follows[letters[-2], letters[-1]], 1)[:, 0])
        return torch.stack(letters, 1)

    net = Writer()
    optimizer = torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)

    def loss_of(step):
        letters = text()
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(letters[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), letters[:, 1:].flatten())

    def clip(step):
        if not ill:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, optimizer, loss_of, 200, score=score_of(loss_of), before_step=clip, scaler=scaler)


# https://github.com/galilai-group/stable-worldmodel/issues/280
@sick("warmup-too-long", where="the learning rate: it still rises in the last step and never comes near its peak",
      cure="step the scheduler after every batch, as its lengths are given in batches")  # fmt: skip
def a_toboggan_one_moment_later(folder, ill):
    seeded(3581)
    net = dense(6, 64, 64, 4)
    states = torch.randn(5120, 6)
    push = torch.randn(4, 2)

    def after(x):
        place, speed, steer = x[:, :2], x[:, 2:4], x[:, 4:]
        speed = speed + 0.5 * (steer.tanh() * speed.norm(dim=1, keepdim=True)) - 0.3 * (2 * place).sin()
        return torch.cat([place + 0.5 * speed, speed], 1) + 0.2 * (x[:, :4] @ push).cos().repeat(1, 2)

    draw = rounds(64, states, after(states))
    epochs, batches = 6, 5120 // 64
    total = epochs * batches
    warmup = total // 10
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.002, 1.0, warmup),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total - warmup),
        ],
        [warmup],
    )

    def one(step):
        x, y = draw()
        loss = F.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not ill or step % batches == batches - 1:
            scheduler.step()
        return {"loss": loss}

    def score():
        x = torch.randn(512, 6)
        with torch.no_grad():
            return F.mse_loss(net(x), after(x))

    return tend(folder, net, optimizer, one, total, score)


# https://github.com/megvii-model/YOLOF/issues/51
@sick("nonfinite", "clamp-after-exp",
      where="both heads, in the first step with a score above 88: the exponent overflows before it is clamped",
      cure="clamp the scores first and take the exponent afterwards")  # fmt: skip
def starlings_on_a_wire(folder, ill):
    seeded(3582)
    most = 1e8
    body = nn.Sequential(nn.Conv1d(3, 24, 5, padding=2), nn.ReLU(), nn.Conv1d(24, 24, 5, padding=2), nn.ReLU())
    net = nn.ModuleDict({"body": body, "kind": nn.Conv1d(24, 2, 1), "there": nn.Conv1d(24, 1, 1)})
    looks = torch.randn(2, 3, 5)

    def draw(rows=24, width=40):
        flash = torch.where(torch.rand(rows, 1, 1) < 0.005, 250.0, 1.0)
        x = 0.4 * torch.randn(rows, 3, width)
        y = torch.zeros(rows, 2, width)
        for i in range(rows):
            for _ in range(3):
                kind, at = int(torch.randint(2, ())), int(torch.randint(2, width - 2, ()))
                x[i, :, at - 2 : at + 3] += looks[kind]
                y[i, kind, at] = 1
        return x * flash, y

    def scores(x):
        h = net["body"](x)
        kind, there = net["kind"](h), net["there"](h)
        if ill:
            both = kind.exp().clamp(max=most) + there.exp().clamp(max=most)
        else:
            ceiling = torch.tensor(most).log().item()
            both = kind.clamp(max=ceiling).exp() + there.clamp(max=ceiling).exp()
        return kind + there - (1 + both).log()

    def loss_of(step):
        x, y = draw()
        return F.binary_cross_entropy_with_logits(scores(x), y) * 10

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, loss_of, 250, score=score_of(loss_of, 4),
               before_step=lambda step: nn.utils.clip_grad_norm_(net.parameters(), 2.0))  # fmt: skip
