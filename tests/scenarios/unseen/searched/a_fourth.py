"""What people ask when a training goes wrong: their mistakes, with other subjects."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


class Tanks:
    """Levels of tanks that leak and are drained at whim, with a valve that is closed, held or opened each second."""

    def __init__(self, rows):
        self.level, self.valve = torch.rand(2, rows)
        self.wanted = 0.2 + 0.6 * torch.rand(rows)
        self.drain = 0.5 * torch.rand(rows)

    def seen(self):
        return torch.stack([self.level - self.wanted, self.valve - 0.5, self.drain - 0.25, self.level - 0.5], 1) * 3

    def turn(self, way):
        self.valve = (self.valve + 0.15 * (way - 1)).clamp(0, 1)
        self.level = (self.level + 0.15 * (self.valve - self.drain - 0.3 * self.level)).clamp(0, 1)
        anew = torch.rand_like(self.level) < 0.02
        self.wanted = torch.where(anew, 0.2 + 0.6 * torch.rand_like(self.level), self.wanted)
        self.drain = torch.where(anew, 0.5 * torch.rand_like(self.level), self.drain)
        return 0.5 - 2 * (self.level - self.wanted).abs()


# https://github.com/seungeunrho/minimalRL/issues/42
@sick("noise-dominated", where="each update, which sees twenty neighbouring seconds of a single tank",
      cure="updates from the pieces of many tanks together")  # fmt: skip
def valves_of_water_tanks(folder, ill):
    seeded(9354)
    actor, critic = dense(4, 48, 3, act=nn.Tanh), dense(4, 48, 1, act=nn.Tanh)
    net = nn.ModuleDict({"actor": actor, "critic": critic})
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    tanks = Tanks(1 if ill else 16)
    piece = {}

    def played():
        states, ways, rewards = [], [], []
        with torch.no_grad():
            for _ in range(20):
                states.append(tanks.seen())
                ways.append(torch.multinomial(actor(states[-1]).softmax(1), 1)[:, 0])
                rewards.append(tanks.turn(ways[-1]))
            states.append(tanks.seen())
            values = torch.stack([critic(s)[:, 0] for s in states])
            gained, gains = torch.zeros_like(rewards[0]), []
            for t in reversed(range(20)):
                gained = rewards[t] + 0.95 * values[t + 1] - values[t] + 0.95 * 0.95 * gained
                gains.append(gained)
            gains = torch.stack(gains[::-1])
            state, way = torch.cat(states[:-1]), torch.cat(ways)
            said = actor(state).log_softmax(1).gather(1, way[:, None])[:, 0]
        worth = (gains + values[:-1]).flatten()
        return {"state": state, "way": way, "gain": gains.flatten(), "worth": worth, "said": said,
                "reward": float(torch.stack(rewards).mean())}  # fmt: skip

    def one(step):
        if step % 3 == 0:
            piece.update(played())
        now = actor(piece["state"]).log_softmax(1).gather(1, piece["way"][:, None])[:, 0]
        ratio = (now - piece["said"]).exp()
        kept = torch.minimum(ratio * piece["gain"], ratio.clamp(0.9, 1.1) * piece["gain"])
        value_loss = F.smooth_l1_loss(critic(piece["state"])[:, 0], piece["worth"])
        loss = value_loss - kept.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "value_loss": value_loss, "reward": piece["reward"]}

    def score():
        test, total = Tanks(200), 0.0
        with torch.no_grad():
            for _ in range(100):
                total += float(test.turn(torch.multinomial(actor(test.seen()).softmax(1), 1)[:, 0]).mean())
        return 0.5 - total / 100

    return tend(folder, net, optimizer, one, 300, score)


# https://github.com/huggingface/accelerate/issues/101
@sick("nonfinite", where="the loss, whose exponentials pass what a float16 can hold",
      cure="turn what autocast hands out to float32 before the loss")  # fmt: skip
def songs_hummed_and_played(folder, ill):
    seeded(9355)
    lifts = torch.randn(2, 5, 30)
    net = nn.ModuleDict({"hummed": dense(30, 64, 16), "played": dense(30, 64, 16)})

    def pairs(rows=64):
        song = torch.randn(rows, 5)
        return (song @ lifts[0]).tanh() + 0.1 * torch.randn(rows, 30), (song @ lifts[1]).sin()

    def likeness(hummed, played):
        with torch.autocast("cpu", dtype=torch.float16):
            a, b = net["hummed"](hummed), net["played"](played)
        if not ill:
            a, b = a.float(), b.float()
        a, b = a / a.norm(dim=1, keepdim=True), b / b.norm(dim=1, keepdim=True)
        return (a @ b.T / 0.07).exp()

    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(step):
        like = likeness(*pairs())
        return -(like.diagonal() / like.sum(1)).log().mean()

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: loss_of(0).float()))


# https://github.com/leftthomas/SRGAN/issues/94
@sick("schedule-too-short", where="the learning rate, which is gone after some dozen steps",
      cure="step the schedule once an epoch, not after each batch")  # fmt: skip
def sharper_photographs_of_leaves(folder, ill):
    seeded(9356)
    epochs, batches = 20, 15
    grid = torch.linspace(-1, 1, 16)

    def leaves(rows):
        turn, wide = 6.28 * torch.rand(rows, 1, 1), 0.3 + 0.4 * torch.rand(rows, 1, 1)
        x = grid[None, :, None] * turn.cos() + grid[None, None, :] * turn.sin()
        y = grid[None, None, :] * turn.cos() - grid[None, :, None] * turn.sin()
        sharp = (((x / 0.8).square() + (y / wide).square()) < 1).float() * (0.6 + 0.4 * (9 * x).sin())
        return F.avg_pool2d(sharp[:, None], 2), sharp[:, None]

    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                        nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2))  # fmt: skip
    small, large = leaves(200)
    draw = rounds(16, *leaves(16 * batches))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, epochs // 2, gamma=0.1)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    def after_step(step):
        if ill or step % batches == batches - 1:
            schedule.step()

    return fit(folder, net, optimizer, loss_of, epochs * batches, after_step=after_step,
               score=held_out(net, lambda: F.mse_loss(net(small), large)))  # fmt: skip


# https://taourl.com/read-2021313.html
@sick("bad-initialisation", "vanishing", where="both layers of the LSTM, whose weights begin next to zero",
      cure="leave the weights of the LSTM as PyTorch begins them")  # fmt: skip
def load_of_a_ski_lift(folder, ill):
    seeded(9357)

    def days(rows, length=24):
        phase, pace = 6.28 * torch.rand(rows, 1), 0.3 + 0.4 * torch.rand(rows, 1)
        t = torch.arange(length + 1)
        load = (pace * t + phase).sin() + 0.3 * (2 * pace * t).cos() + 0.05 * torch.randn(rows, length + 1)
        return load[:, :-1, None], load[:, -1:]

    class Lift(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.LSTM(1, 32, num_layers=2, batch_first=True)
            self.head = nn.Linear(32, 1)
            if ill:
                for weight in self.memory.parameters():
                    nn.init.normal_(weight, std=1e-4)

        def forward(self, x):
            return self.head(self.memory(x)[0][:, -1])

    net = Lift()
    fresh = days(500)
    draw = rounds(32, *days(3000))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(fresh[0]), fresh[1])))
