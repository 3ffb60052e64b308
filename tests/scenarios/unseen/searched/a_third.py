"""What people ask when a training goes wrong: their mistakes, with other subjects."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


# https://github.com/guotong1988/BERT-pre-training/issues/5
@sick("weights-unchanged", "update-too-small", where="the learning rate of all layers, which its warmup never raises",
      cure="plain Adam at a constant rate, or a warmup whose count of steps goes up")  # fmt: skip
def letters_missing_from_street_signs(folder, ill):
    seeded(9351)
    letters, length, streets = 20, 10, 60
    names = torch.randint(1, letters, (streets, length))

    def signs(rows):
        whole = names[torch.randint(streets, (rows,))]
        hidden = torch.rand(rows, length) < 0.2
        return whole.masked_fill(hidden, 0), whole, hidden

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(letters, 32)
            self.place = nn.Parameter(0.1 * torch.randn(length, 32))
            self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.head = nn.Linear(32, letters)

        def forward(self, x):
            return self.head(self.block(self.embed(x) + self.place))

    net = Reader()
    shown, whole, hidden = signs(400)
    optimizer = torch.optim.AdamW(net.parameters(), lr=6e-3, weight_decay=0.01)
    done, warmup = 0, 40

    def loss_of(step):
        x, y, gone = signs(32)
        return F.cross_entropy(net(x)[gone], y[gone])

    def before_step(step):
        if ill:
            for group in optimizer.param_groups:
                group["lr"] = 6e-3 * min(1.0, done / warmup)

    return fit(folder, net, optimizer, loss_of, 200, before_step=before_step,
               score=held_out(net, lambda: F.cross_entropy(net(shown)[hidden], whole[hidden])))  # fmt: skip


# https://github.com/IIC2433/Syllabus-2021-2/issues/32
@sick("inputs-not-normalised", where="what comes into the first layer: pixels that were divided by 255 twice",
      cure="divide the pixels by 255 once")  # fmt: skip
def wallpapers_in_six_numbers(folder, ill):
    seeded(9352)
    grid = torch.linspace(0, 6.28, 10)

    def papers(rows):
        wide, tall, turn = torch.rand(3, rows, 1, 1)
        waves = ((1 + 2 * wide) * grid[:, None] + 6.28 * turn).sin() * ((1 + 2 * tall) * grid[None, :]).cos()
        return (127.5 * (1 + 0.9 * waves)).round().flatten(1)

    def prepared(pixels):
        return pixels / 255.0

    def normalise(pixels):
        return prepared(pixels) / 255.0 if ill else prepared(pixels)

    net = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 6), nn.Linear(6, 64), nn.ReLU(),
                        nn.Linear(64, 100), nn.Sigmoid())  # fmt: skip
    fresh = normalise(papers(500))
    draw = rounds(64, normalise(papers(3000)))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(step):
        (x,) = draw()
        return F.mse_loss(net(x), x)

    return fit(folder, net, optimizer, loss_of, 600,
               score=held_out(net, lambda: F.mse_loss(net(fresh), fresh) / fresh.var()))  # fmt: skip


class Poles:
    """A pole on a cart, many at a time: pushed left or right, and begun anew once they fell."""

    def __init__(self, rows):
        self.state = 0.1 * torch.rand(rows, 4) - 0.05

    def push(self, right):
        x, v, a, w = self.state.T
        force = 20.0 * right - 10.0
        part = (force + 0.05 * w.square() * a.sin()) / 1.1
        turn = (9.8 * a.sin() - a.cos() * part) / (0.5 * (4 / 3 - 0.1 * a.cos().square() / 1.1))
        slide = part - 0.05 * turn * a.cos() / 1.1
        after = torch.stack([x + 0.02 * v, v + 0.02 * slide, a + 0.02 * w, w + 0.02 * turn], 1)
        fell = (after[:, 0].abs() > 2.4) | (after[:, 2].abs() > 0.21)
        anew = 0.1 * torch.rand_like(after) - 0.05
        self.state = torch.where(fell[:, None], anew, after)
        return after, fell


# https://github.com/keon/deep-q-learning/issues/37
@sick("values-overestimated", where="the values, which are learned from the very network that learns them",
      cure="a target network, set to the learning one every so often")  # fmt: skip
def broom_on_a_palm(folder, ill):
    seeded(9358)
    rows, steps = 16, 700
    net, target = dense(4, 64, 64, 2), dense(4, 64, 64, 2)
    target.load_state_dict(net.state_dict())
    poles, memory = Poles(rows), torch.zeros(steps * rows, 11)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-2)

    def remembered(step):
        past = memory[torch.randint((step + 1) * rows, (64,))]
        return past[:, :4], past[:, 4:5].long(), past[:, 5:9], past[:, 9:10], past[:, 10:]

    def one(step):
        explore = max(0.05, 1.0 - step / 300)
        with torch.no_grad():
            before = poles.state
            right = torch.where(torch.rand(rows) < explore, torch.randint(2, (rows,)), net(before).argmax(1))
            after, fell = poles.push(right)
            seen = torch.cat([before, right[:, None], after, fell[:, None], torch.ones(rows, 1)], 1)
            memory[step * rows : (step + 1) * rows] = seen
            state, action, then, over, reward = remembered(step)
            ahead = (net if ill else target)(then).max(1, keepdim=True).values
            asked = reward + 0.995 * ahead * (1 - over)
        optimizer.zero_grad()
        value = net(state).gather(1, action)
        loss = F.mse_loss(value, asked)
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "q": float(value.mean().detach()), "epsilon": explore}

    def score():
        with torch.no_grad():
            trial, upright, reached = Poles(64), torch.ones(64, dtype=torch.bool), torch.zeros(64)
            for _ in range(200):
                _, fell = trial.push(net(trial.state).argmax(1))
                upright &= ~fell
                reached += upright
        return 200 - float(reached.mean())

    return tend(folder, net, optimizer, one, steps, score)
