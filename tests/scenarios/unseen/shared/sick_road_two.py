"""Sick trainings after public threads: values, links, prices, a language model and a resumed run."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import rounds, tend


# https://github.com/RLinf/RLinf/pull/661
@sick(
    "values-overestimated",
    where="the critic, in all steps: the value of the state after an end is added as if the episode went on",
    cure="no value of the next state where the episode has ended: multiply it by 1 - done",
)
def a_raft_carried_to_the_weir(folder, ill):
    seeded(3593)
    critic = dense(3, 48, 48, 1)
    optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3)
    gamma = 0.999

    def drift(rows):
        x = torch.rand(rows) * 4
        wind = torch.randn(rows)
        then = x + 0.5 + 0.2 * wind
        done = (then >= 4).float()
        reward = 0.1 * wind + torch.where(then >= 4, 1.0, 0.2)
        calm = torch.randn(rows)
        return seen(x, wind), reward, seen(then.clamp(max=4.0), calm), done

    def seen(x, wind):
        return torch.stack([x / 2 - 1, wind, torch.sin(3 * x)], 1)

    def worth(x, wind):
        total = torch.zeros_like(x)
        alive = torch.ones_like(x)
        for step in range(16):
            x = x + 0.5 + 0.2 * wind
            total = total + alive * gamma**step * (0.1 * wind + torch.where(x >= 4, 1.0, 0.2))
            alive = alive * (x < 4).float()
            wind = torch.randn_like(x)
        return total

    def one(step):
        state, reward, then, done = drift(128)
        with torch.no_grad():
            after = critic(then)[:, 0]
            wanted = reward + gamma * (after if ill else after * (1 - done))
        value = critic(state)[:, 0]
        loss = F.mse_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"critic_loss": loss, "value": value.mean(), "reward": reward.mean()}

    x, wind = torch.rand(512) * 4, torch.randn(512)
    truth = torch.stack([worth(x, wind) for _ in range(40)]).mean(0)

    def score():
        with torch.no_grad():
            return float((critic(seen(x, wind))[:, 0] - truth).square().mean())

    return tend(folder, critic, optimizer, one, 700, score)


# https://github.com/tgm-team/tgm/pull/274
@sick(
    "softmax-twice",
    "activation-on-logits",
    where="the decoder's last operation and the loss, in all steps: the sigmoid is taken twice",
    cure="let the decoder return logits: no sigmoid before binary_cross_entropy_with_logits",
)
def who_borrows_a_ladder_from_whom(folder, ill):
    seeded(3594)
    people, size = 120, 6
    taste, needs = torch.randn(people, size), torch.randn(people, size)
    ties = (taste @ needs.T) > 1.2 * size**0.5
    given, taken = ties.nonzero().unbind(1)

    net = nn.ModuleDict({"people": nn.Embedding(people, 16), "things": nn.Embedding(people, 16)})
    net["decoder"] = dense(48, 64, 1)

    def likely(src, dst):
        a, b = net["people"](src), net["things"](dst)
        out = net["decoder"](torch.cat([a, b, a * b], 1))[:, 0]
        return out.sigmoid() if ill else out

    def loss_of(step):
        at = torch.randint(len(given), (128,))
        yes = likely(given[at], taken[at])
        src, dst = torch.randint(people, (128,)), torch.randint(people, (128,))
        no = likely(src, dst)
        loss = F.binary_cross_entropy_with_logits(yes, torch.ones_like(yes))
        return loss + F.binary_cross_entropy_with_logits(no, ties[src, dst].float())

    def score():
        with torch.no_grad():
            src, dst = torch.cartesian_prod(torch.arange(people), torch.arange(people)).unbind(1)
            out = likely(src, dst)
            chance = out if ill else out.sigmoid()
            return float(F.binary_cross_entropy(chance.clamp(1e-6, 1 - 1e-6), ties[src, dst].float()))

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=3e-3), loss_of, 600, score=score)


# https://github.com/deepset-ai/FARM/issues/229
@sick(
    "shapes-broadcast",
    where="the loss, in all steps: predictions [B] against labels [B, 1]",
    cure="give both the same shape: squeeze the labels too",
)
def how_long_a_letter_takes(folder, ill):
    seeded(3595)
    words, signs = torch.randint(40, (2048, 8)), torch.randn(40)
    days = (signs[words] * torch.linspace(1, 0.3, 8)).sum(1).tanh() * 3 + 0.1 * torch.randn(2048) + 4
    net = nn.ModuleDict({"embed": nn.EmbeddingBag(40 * 8, 24), "head": dense(24, 48, 1)})
    place = 40 * torch.arange(8)
    draw = rounds(64, words[:1536], days[:1536, None])

    def logits(text):
        return net["head"](net["embed"](text + place)).squeeze(-1)

    def loss_of(step):
        text, label = draw()
        return F.mse_loss(logits(text), label if ill else label.squeeze(-1))

    def score():
        with torch.no_grad():
            return float(F.mse_loss(logits(words[1536:]), days[1536:]))

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=5e-3), loss_of, 400, score=score)


class Pupil(nn.Module):
    def __init__(self, kinds, width, length):
        super().__init__()
        self.embed, self.place = nn.Embedding(kinds, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x):
        h = self.embed(x) + self.place.weight[: x.shape[1]]
        return self.head(self.norm(self.blocks(h, mask=self.mask, is_causal=True)))


# https://github.com/young-geng/EasyLM/issues/114
@sick(
    "bad-initialisation",
    where="all matrices before the first step: drawn with a standard deviation of 1",
    cure="an initializer range of 0.02, or one that shrinks with the width",
)
def verses_of_a_counting_rhyme(folder, ill):
    seeded(3596)
    turn = torch.randint(16, (16, 16))

    def draw(rows=24, length=14):
        out = [torch.randint(16, (rows,)), torch.randint(16, (rows,))]
        for _ in range(length - 1):
            out.append(turn[out[-1], out[-2]])
        return torch.stack(out, 1)

    net = Pupil(16, 48, 14)
    initializer_range = 1.0 if ill else 0.02
    for weight in net.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=initializer_range)

    def loss_of(step):
        x = draw()
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    def score():
        with torch.no_grad():
            x = draw(256)
            return float(F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()))

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=3e-3), loss_of, 250, score=score)
