"""More of what people asked about, told again of water mains, letters and quilts."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, rings, score_of, seeded, sick
from unseen.tasks import in_turn, tend


class Mains(nn.Module):
    """Two rounds of messages between neighbours, and a word on every junction."""

    def __init__(self, pipes, ill):
        super().__init__()
        self.pipes = pipes
        rounds = {f"round{i}": nn.Linear(4 if i == 0 else 12, 12) for i in range(2)}
        self.rounds = rounds if ill else nn.ModuleDict(rounds)
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        for i in range(2):
            x = self.rounds[f"round{i}"](self.pipes @ x).relu()
        return self.head(x)


# https://github.com/xiaxin1998/COTREC/issues/15
@sick(
    "not-in-optimizer",
    where="the linear layers of both rounds, which no optimizer holds: only the head learns",
    cure="hold the layers in an nn.ModuleDict in place of a plain dict, so that parameters() finds them",
)
def leaks_along_the_water_mains(folder, ill):
    seeded(3397)
    joined = ((torch.rand(20, 20) < 0.1).float() + torch.eye(20)).clamp(max=1)
    joined = torch.maximum(joined, joined.T)
    net = Mains(joined / joined.sum(1, keepdim=True), ill)

    def loss_of(step):
        x = torch.randn(32, 20, 4)
        near = net.pipes @ x
        leaky = (near[..., 0] * near[..., 1] > 0).long()
        out = net(x)
        loss = F.cross_entropy(out.flatten(0, 1), leaky.flatten())
        return loss, {"accuracy": (out.argmax(2) == leaky).float().mean().item()}

    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(lambda step: loss_of(step)[0]))


# https://gitlab.cern.ch:8443/gnn4itkteam/acorn/-/merge_requests/80
@sick(
    "representation-collapse",
    "hinge-flat-at-zero",
    where="the last layer, within the first tens of steps: pairs at a distance of zero are pushed apart by nothing",
    cure="square the hinge of the distance, relu(1 - d) ** 2, in place of a hinge of squares, relu(1 - d ** 2)",
)
def slices_of_the_same_log(folder, ill):
    seeded(3398)
    draw = rings(128)
    net = dense(12, 64, 64, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)

    def pairs():
        x, y = draw()
        distance = ((net(x[:64]) - net(x[64:])).square().sum(1) + 1e-12).sqrt()
        return distance, y[:64] == y[64:]

    def loss_of(step):
        distance, same = pairs()
        attract = distance[same].square().mean()
        apart = distance[~same]
        repel = F.relu(1 - apart.square()).mean() if ill else F.relu(1 - apart).square().mean()
        return 2 * attract + repel, {"attract": attract.item(), "repel": repel.item()}

    def wrong(step):
        distance, same = pairs()
        far = distance > 0.5
        return (far[same].float().mean() + (~far[~same]).float().mean()) / 2

    return fit(folder, net, optimizer, loss_of, 800, score=score_of(wrong, 16))


class Columnist(nn.Module):
    """A query for each subject looks at the words of a letter."""

    def __init__(self, ill):
        super().__init__()
        self.ill = ill
        self.embed = nn.Embedding(40, 24, padding_idx=0)
        self.subjects = nn.Parameter(torch.randn(3, 24))
        self.key, self.value = nn.Linear(24, 24), nn.Linear(24, 24)
        self.head = nn.Linear(24, 1)

    def forward(self, words):
        h = self.embed(words)
        mask = (words == 0) if self.ill else (words != 0)
        query = self.subjects.expand(len(words), -1, -1)
        seen = F.scaled_dot_product_attention(query, self.key(h), self.value(h), attn_mask=mask[:, None])
        return self.head(seen)[..., 0]


# https://github.com/InseeFrLab/torchTextClassifiers/pull/92
@sick(
    "mask-inverted",
    "dead-layer",
    where="the attention over the words: it sees only padding, so that the embedding's gradient is exactly zero",
    cure="invert the mask: scaled_dot_product_attention takes True for what may be looked at",
)
def letters_to_a_gardening_column(folder, ill):
    seeded(3399)
    net = Columnist(ill)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    places = torch.arange(16)

    def loss_of(step):
        y = torch.randint(3, (48,))
        plain, telling = torch.randint(13, 40, (48, 16)), 1 + 4 * y[:, None] + torch.randint(4, (48, 16))
        words = torch.where(torch.rand(48, 16) < 0.25, telling, plain)
        words = torch.where(places < torch.randint(5, 15, (48, 1)), words, 0)
        out = net(words)
        loss = F.cross_entropy(out, y)
        return loss, {"accuracy": (out.argmax(1) == y).float().mean().item()}

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(lambda step: loss_of(step)[0]))


# https://github.com/pytorch/examples/issues/846
@sick(
    "clip-is-your-learning-rate",
    "lr-too-high",
    "update-too-large",
    where="all layers from the first steps: every gradient is cut to 0.25 and then taken twentyfold",
    cure="leave the clip out, which was meant for a recurrent net, and set the rate to 0.1",
)
def the_wind_of_the_coming_hours(folder, ill):
    seeded(3400)
    turns = torch.randperm(12)
    block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    net = nn.ModuleDict({"embed": nn.Embedding(12, 32), "block": block, "head": nn.Linear(32, 12)})
    place, mask = 0.1 * torch.randn(20, 32), nn.Transformer.generate_square_subsequent_mask(20)
    optimizer = torch.optim.SGD(net.parameters(), lr=20.0 if ill else 0.1)

    def hours():
        wind = [torch.randint(12, (24,))]
        for _ in range(20):
            wind.append(torch.where(torch.rand(24) < 0.15, torch.randint(12, (24,)), turns[wind[-1]]))
        return torch.stack(wind, 1)

    def loss_of(step):
        wind = hours()
        out = net["head"](block(net["embed"](wind[:, :-1]) + place, src_mask=mask, is_causal=True))
        return F.cross_entropy(out.flatten(0, 1), wind[:, 1:].flatten())

    def before_step(step):
        if ill:
            nn.utils.clip_grad_norm_(net.parameters(), 0.25)

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of), before_step=before_step)


# https://github.com/Zeleni9/pytorch-wgan/issues/40
@sick(
    "penalty-over-the-wrong-axis",
    "axes-mixed",
    where="the penalty of the critic from the first step: each single pixel's slope is drawn to one, not their norm",
    cure="flatten the gradients of each row before their norm is taken: gradients.flatten(1).norm(2, dim=1)",
)
def squares_of_a_quilt(folder, ill):
    seeded(3401)
    make = nn.Sequential(*dense(8, 64, 64, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8)))
    judge = nn.Sequential(nn.Flatten(), *dense(64, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2)))
    of_make, of_judge = (torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.5, 0.9)) for net in (make, judge))
    across, down = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")

    def quilts(rows=64):
        stripes = torch.where(torch.rand(rows, 1, 1) < 0.5, across, down)
        return (0.8 * (0.8 * stripes + 6.28 * torch.rand(rows, 1, 1)).sin())[:, None]

    def penalty(real, fake):
        share = torch.rand(len(real), 1, 1, 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (gradients,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        norm = gradients.norm(2, dim=1) if ill else gradients.flatten(1).norm(2, dim=1)
        return (norm - 1).square().mean()

    def judge_loss():
        real, fake = quilts(), make(torch.randn(64, 8)).detach()
        return judge(fake).mean() - judge(real).mean() + 10 * penalty(real, fake)

    def make_loss():
        return -judge(make(torch.randn(64, 8))).mean()

    def score():
        with torch.no_grad():
            a, b = quilts(512).flatten(1), make(torch.randn(512, 8)).flatten(1)
            return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 300, score, rounds=3)


# https://github.com/Farama-Foundation/Gymnasium/issues/1494
@sick(
    "target-not-detached",
    where="the critic from the first step: its loss goes through the values of later hours as well",
    cure="detach the advantages' sum in the recursion, or hold (advantage + value).detach() as the target of the value",
)
def takings_still_to_come_at_a_kiosk(folder, ill):
    seeded(3402)
    critic = dense(2, 48, 1)
    optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3)
    hour = [torch.randn(32, 2)]

    def passes(at):
        return 0.85 * at + 0.7 * torch.randn_like(at), at[:, 0].exp() - 0.5 * at[:, 1].abs()

    def one(step):
        states, rewards = [hour[0]], []
        for _ in range(5):
            after, reward = passes(states[-1])
            states.append(after)
            rewards.append(reward)
        hour[0] = states[-1]
        values = critic(torch.stack(states))[..., 0]
        gae, advantages = torch.zeros(32), []
        for t in reversed(range(5)):
            error = rewards[t] + 0.95 * values[t + 1] - values[t]
            gae = error + 0.95 * 0.9 * gae
            advantages.append(gae)
        advantages = torch.stack(advantages[::-1])
        target = (advantages + values[:5]).detach()
        critic_loss = advantages.square().mean() if ill else F.mse_loss(values[:5], target)
        optimizer.zero_grad()
        critic_loss.backward()
        optimizer.step()
        return {"critic_loss": critic_loss.item(), "value": values.mean().item()}

    def score():
        start = 1.3 * torch.randn(64, 2)
        at, total = start.repeat(100, 1), torch.zeros(6400)
        for t in range(90):
            at, reward = passes(at)
            total += 0.95**t * reward
        with torch.no_grad():
            return F.mse_loss(critic(start)[:, 0], total.view(100, 64).mean(0))

    return tend(folder, critic, optimizer, one, 800, score)
