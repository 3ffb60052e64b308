"""After public threads: sounds, two networks at play, a gradient of one's own."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, in_turn, tend


# https://e-com-net.com/article/1596492408617467904.htm
@sick("nonfinite", "sqrt-at-zero", where="the gradient of the learned filter in the first step with silent frames",
      cure="a small number under the square root of the spectrogram, or its power without a root")  # fmt: skip
def frogs_by_a_pond_at_night(folder, ill):
    seeded(3571)
    size, kinds = 64, 5
    pitches = torch.tensor([4.0, 7.0, 11.0, 16.0, 22.0])
    time = torch.arange(256) / size

    class Listener(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Conv1d(1, 1, 5, padding=2, bias=False)
            self.head = dense(size // 2 + 1, 48, kinds)

        def magnitudes(self, sound):
            wave = self.gain(sound[:, None])[:, 0]
            spectrum = torch.stft(wave, size, 32, window=torch.hann_window(size), center=False, return_complex=True)
            power = spectrum.real.square() + spectrum.imag.square()
            return power.sqrt() if ill else (power + 1e-10).sqrt()

        def forward(self, sound):
            return self.head(self.magnitudes(sound).mean(2))

    def draw(rows=32):
        y = torch.randint(kinds, (rows,))
        pitch = pitches[y] + 0.4 * torch.randn(rows)
        sound = (6.2832 * pitch[:, None] * time).sin() * (0.5 + torch.rand(rows, 1)) + 0.4 * torch.randn(rows, 256)
        begins = torch.randint(0, 120, (rows, 1))
        calling = (torch.arange(256) >= begins) & (torch.arange(256) < begins + 130)
        return sound * calling, y

    net = Listener()

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, loss_of, 180, score=score_of(loss_of))


# https://github.com/line/open-universe/issues/5
@sick("not-in-optimizer", where="the whole of the second judge, from the first step to the last",
      cure="give the optimizer of the judges the parameters of both, not those of the first one twice")  # fmt: skip
def a_cuckoo_clock_imitated(folder, ill):
    seeded(3572)
    make = dense(6, 64, 64, 32)
    judges = nn.ModuleDict({"shape": dense(16, 48, 1), "pitch": dense(32, 64, 1)})
    time = torch.linspace(0, 1, 32)

    def real(rows=96):
        phase = 6.2832 * torch.rand(rows, 1)
        return (6.2832 * 2 * time + phase).sin() * (1.2 - time)

    def views(sound):
        halves = sound[:, ::2] + sound[:, 1::2]
        return {"shape": halves.abs(), "pitch": sound}

    def said(sound):
        seen = views(sound)
        return [judges[name](seen[name]) for name in judges]

    second = judges["shape"] if ill else judges["pitch"]
    of_judge = torch.optim.Adam([*judges["shape"].parameters(), *second.parameters()], 1e-3, betas=(0.5, 0.9))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.9))

    def judged():
        true, false = said(real()), said(make(torch.randn(96, 6)).detach())
        return sum((1 - t).square().mean() + f.square().mean() for t, f in zip(true, false, strict=True))

    def made():
        return sum((1 - f).square().mean() for f in said(make(torch.randn(96, 6))))

    def score():
        with torch.no_grad():
            fake, true = make(torch.randn(512, 6)), real(512)
            return float((fake.T @ fake / 512 - true.T @ true / 512).square().mean())

    return in_turn(folder, make, judges, of_make, of_judge, judged, made, 600, score)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, amount):
        ctx.amount = amount
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.amount * grad, None


# https://github.com/CuthbertCai/pytorch_DANN/issues/10
@sick("wrong-sign", where="what the features get from the domain's head: it helps that head from early on",
      cure="a strength of the reversal that is positive: gamma 10, not -10")  # fmt: skip
def birdsong_in_another_valley(folder, ill):
    seeded(3573)
    steps, gamma = 500, -10 if ill else 10
    lift = torch.randn(2, 4, 20)
    net = nn.ModuleDict(
        {"body": nn.Sequential(*dense(20, 64, 16), nn.Tanh()), "kind": dense(16, 32, 2), "valley": dense(16, 32, 2)}
    )

    def draw(valley, rows=64):
        y = torch.randint(2, (rows,))
        sign = 2.0 * y[:, None] - 1
        song = sign + 0.8 * torch.randn(rows, 4)
        echo = 1.5 * sign + 2.0 * valley + 0.6 * torch.randn(rows, 4)
        return 0.5 * (song @ lift[0] + echo @ lift[1]), y

    optimizer = torch.optim.Adam(net.parameters(), 1e-3, betas=(0.5, 0.99))

    def one(step):
        progress = step / steps
        strength = 2 / (1 + float(torch.exp(torch.tensor(-gamma * progress)))) - 1
        here, y = draw(0)
        there, _ = draw(1)
        features = net["body"](torch.cat([here, there]))
        of_kind = F.cross_entropy(net["kind"](features[:64]), y)
        valleys = torch.arange(2).repeat_interleave(64)
        of_valley = F.cross_entropy(net["valley"](Reverse.apply(features, strength)), valleys)
        loss = of_kind + 0.3 * of_valley
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "kind": of_kind, "valley": of_valley}

    def wrong():
        x, y = draw(1, 1024)
        return (net["kind"](net["body"](x)).argmax(1) != y).float().mean()

    return tend(folder, net, optimizer, one, steps, held_out(net, wrong))
