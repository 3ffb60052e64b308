"""Novel healthy trainings, second part: games, odd losses and optimizers. An expert has nothing to say of any of them.

They only count (the group `novel`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import batches, cnn
from torch import nn, optim
from torch.func import functional_call
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, score_of, seeded, waves
from unseen.tasks import circle, play

import gradwatch


@healthy(0.3)
def evidence_whose_second_term_comes_in(folder):
    """A variational autoencoder: the divergence comes in over 200 steps, the loss rises; the score is at its full."""
    seeded(270)
    net = nn.ModuleDict({"encode": dense(64, 96, 16), "decode": dense(8, 96, 64)})
    draw = batches(64)

    def bound(step, share):
        x = draw(step)[0].flatten(1)
        middle, log_var = net["encode"](x).chunk(2, 1)
        code = middle + (0.5 * log_var).exp() * torch.randn_like(middle)
        error = F.binary_cross_entropy_with_logits(net["decode"](code), x, reduction="none").sum(1)
        apart = 0.5 * (middle.square() + log_var.exp() - 1 - log_var).sum(1)
        return (error + share * apart).mean()

    score = score_of(lambda step: bound(step, 1.0))
    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, lambda step: bound(step, min(1.0, step / 200)), 400, score=score)


@healthy(0.3)
def adversaries_with_smoothed_labels(folder):
    """The loss that does not saturate, what is real called real to nine tenths, the judge at twice the rate."""
    seeded(271)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=nn.LeakyReLU)
    of_make = optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = optim.Adam(judge.parameters(), 2e-3, betas=(0.5, 0.999))

    def judge_loss(real, made):
        said = judge(real)
        right = F.binary_cross_entropy_with_logits(said, torch.full_like(said, 0.9))
        return right + F.softplus(judge(made)).mean()

    return play(folder, make, judge, of_make, of_judge, judge_loss, lambda x: F.softplus(-judge(x)).mean(), 400)


@healthy(0.3)
def values_against_a_copy_of_forty_steps_ago(folder):
    """Q-learning on a board of 5 x 5: the loss leaps whenever the copy moves; the score is the error of the values."""
    seeded(272)
    net = dense(25, 48, 4)
    slow = copy.deepcopy(net)
    ways = torch.tensor([[1, 0], [0, 1], [-1, 0], [0, -1]])
    board = torch.eye(25)
    true = 0.9 ** (7 - torch.arange(25) // 5 - torch.arange(25) % 5).clamp(min=0).float()[:24]

    def loss_of(step):
        if step % 40 == 0:
            slow.load_state_dict(net.state_dict())
        at, action = torch.randint(24, (64,)), torch.randint(4, (64,))
        there = (torch.stack([at // 5, at % 5], 1) + ways[action]).clamp(0, 4)
        there = there[:, 0] * 5 + there[:, 1]
        won = (there == 24).float()
        with torch.no_grad():
            target = won + 0.9 * (1 - won) * slow(board[there]).max(1).values
        return F.smooth_l1_loss(net(board[at]).gather(1, action[:, None])[:, 0], target)

    def score():
        with torch.no_grad():
            return float((net(board[:24]).max(1).values - true).abs().mean())

    return fit(folder, net, optim.RMSprop(net.parameters(), 1e-3), loss_of, 900, score=score)


def pushed(at, push):
    """A cart that keeps most of its speed, and what a step with it costs."""
    speed = 0.9 * at[:, 1] + 0.3 * push
    there = torch.stack([at[:, 0] + 0.3 * speed, speed], 1)
    return there, there[:, 0].square() + 0.1 * push.square()


@healthy(0.3)
def actor_that_climbs_its_critic(folder):
    """Deterministic policy gradients (Lillicrap et al. 2016) on a cart; the actor's loss is what its critic says."""
    seeded(273)
    actor, critic = nn.Sequential(*dense(2, 32, 1), nn.Tanh()), dense(3, 48, 48, 1)
    slow = copy.deepcopy(nn.ModuleList([actor, critic]))

    def worth(of, at, push):
        return of(torch.cat([at, push], 1))[:, 0]

    def score():
        at, cost = 2 * torch.rand(256, 2) - 1, 0.0
        with torch.no_grad():
            for _ in range(20):
                at, paid = pushed(at, actor(at)[:, 0])
                cost += float(paid.mean())
        return cost

    first = score()
    of_actor, of_critic = optim.Adam(actor.parameters(), 1e-3), optim.Adam(critic.parameters(), 3e-3)
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(actor, of_actor)}
    w_critic = gradwatch.watch(critic, of_critic, name="critic", **options)
    w_actor = gradwatch.watch(actor, of_actor, name="actor", run=w_critic, **options)
    with w_critic, w_actor:
        for _ in range(400):
            at, push = 3 * torch.rand(64, 2) - 1.5, 2 * torch.rand(64, 1) - 1
            there, cost = pushed(at, push[:, 0])
            with torch.no_grad():
                target = -cost + 0.9 * worth(slow[1], there, slow[0](there))
            of_critic.zero_grad()
            loss = F.mse_loss(worth(critic, at, push), target)
            loss.backward()
            of_critic.step()
            w_critic.log(loss=loss)
            of_actor.zero_grad()
            loss = -worth(critic, at, actor(at)).mean()
            loss.backward()
            of_actor.step()
            w_actor.log(loss=loss)
            with torch.no_grad():
                for mine, theirs in zip(slow.parameters(), [*actor.parameters(), *critic.parameters()], strict=True):
                    mine.lerp_(theirs, 0.02)
    return Outcome(gradwatch.open_history(w_critic.dir.parent), first, score())


@healthy(0.3)
def two_optimizers_for_a_table_and_a_head(folder):
    """A bag of words: a fifth of all words to each subject. The table moves by SparseAdam, the rest by AdamW."""
    seeded(274)
    net = nn.ModuleDict({"words": nn.EmbeddingBag(800, 12, sparse=True), "head": nn.Linear(12, 5)})
    table, head = optim.SparseAdam(net["words"].parameters(), 5e-3), optim.AdamW(net["head"].parameters(), 5e-3)
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, table)}

    def loss_of(step=0):
        y = torch.randint(5, (48,))
        common, own = torch.randint(800, (48, 10)), torch.randint(160, (48, 6)) * 5 + y[:, None]
        return F.cross_entropy(net["head"](net["words"](torch.cat([common, own], 1))), y)

    first = score_of(loss_of)()
    watch = gradwatch.watch(net, [table, head], **options)
    with watch:
        for _ in range(400):
            net.zero_grad()
            loss = loss_of()
            loss.backward()
            table.step()
            head.step()
            watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), first, score_of(loss_of)())


@healthy(0.3)
def uphill_first_in_a_recurrent_net(folder):
    """SAM (Foret et al. 2021) around AdamW: how often a sign came, modulo three."""
    seeded(275)
    net = nn.ModuleDict({"memory": nn.GRU(2, 24, batch_first=True), "head": nn.Linear(24, 3)})
    drawn = {}

    def error():
        return F.cross_entropy(net["head"](net["memory"](F.one_hot(drawn["x"], 2).float())[0][:, -1]), drawn["y"])

    def loss_of(step):
        drawn["x"] = torch.randint(2, (64, 6))
        drawn["y"] = drawn["x"].sum(1) % 3
        return error()

    def uphill(step):
        params = list(net.parameters())
        scale = 0.02 / (torch.stack([p.grad.norm() for p in params]).norm() + 1e-12)
        ways = [scale * p.grad for p in params]
        with torch.no_grad():
            for p, way in zip(params, ways, strict=True):
                p.add_(way)
        net.zero_grad()
        error().backward()
        with torch.no_grad():
            for p, way in zip(params, ways, strict=True):
                p.sub_(way)

    make = optim.AdamW(net.parameters(), 1e-2)
    return fit(folder, net, make, loss_of, 450, before_step=uphill)


@healthy(0.9)
def image_found_from_its_features(folder):
    """What is trained is an image: its features under a frozen net are to be those of another (Gatys et al. 2015)."""
    sees = cnn(seed=276)[:-2].requires_grad_(False)
    wanted = sees(batches(1)(0)[0])
    net = nn.ParameterDict({"image": 0.5 + 0.1 * torch.randn(1, 8, 8)})

    def loss_of(step):
        image = net["image"]
        rough = image.diff(dim=1).square().mean() + image.diff(dim=2).square().mean()
        return 100 * F.mse_loss(sees(image), wanted) + 1e-3 * rough

    make = optim.LBFGS(net.parameters(), max_iter=8, history_size=10, line_search_fn="strong_wolfe")
    return fit(folder, net, make, loss_of, 36, closure=True, score=score_of(loss_of, 1))


@healthy(0.3)
def energy_of_what_is_and_what_is_not(folder):
    """Contrastive divergence with chains that go on: a loss about 0; the score is where chains come to rest."""
    seeded(277)
    net = dense(2, 64, 64, 1, act=nn.SiLU)
    chains = [4 * torch.rand(128, 2) - 2]

    def walk(x, times, shake=0.1):
        for _ in range(times):
            x = x.detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(net(x).sum(), x)
            x = (x - 0.1 * slope.clamp(-3, 3) + shake * torch.randn_like(x)).clamp(-4, 4)
        return x.detach()

    def loss_of(step):
        fresh = torch.rand(128, 1) < 0.05
        chains[0] = walk(torch.where(fresh, 4 * torch.rand(128, 2) - 2, chains[0]), 10)
        real, made = net(circle(128)), net(chains[0])
        return real.mean() - made.mean() + 0.1 * (real.square().mean() + made.square().mean())

    def score():
        return float((walk(4 * torch.rand(256, 2) - 2, 150, 0.03).norm(dim=1) - 2).abs().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3, betas=(0.0, 0.999)), loss_of, 350, score=score)


@healthy(0.3)
def slopes_of_a_density_by_slices(folder):
    """Sliced score matching (Song et al. 2019): a loss below zero; the score is the error of the slopes."""
    seeded(278)
    net, mix = dense(3, 64, 64, 3, act=nn.Softplus), torch.eye(3) + 0.3 * torch.randn(3, 3)
    inverse = torch.linalg.inv(mix @ mix.T)

    def loss_of(step):
        x = (torch.randn(128, 3) @ mix.T).requires_grad_(True)
        slice_ = torch.randn_like(x)
        along = (net(x) * slice_).sum(1)
        (bend,) = torch.autograd.grad(along.sum(), x, create_graph=True)
        return ((bend * slice_).sum(1) + 0.5 * along.square()).mean()

    def error(step):
        x = torch.randn(256, 3) @ mix.T
        return F.mse_loss(net(x), -x @ inverse)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=score_of(error))


@healthy(0.3)
def who_outlives_whom(folder):
    """Cox's partial likelihood with a third of the times cut off; the score is the share of pairs in a wrong order."""
    seeded(279)
    net, draw = dense(6, 32, 1, act=nn.Tanh), waves(128)

    def drawn():
        x, risk = draw()
        time = torch.distributions.Exponential((1.5 * risk[:, 0]).exp()).sample()
        return x, time, torch.rand(128) < 0.67

    def loss_of(step):
        x, time, seen = drawn()
        order = time.argsort(descending=True)
        risk = net(x)[order, 0]
        return -(risk - risk.logcumsumexp(0))[seen[order]].mean()

    def wrong(step):
        x, time, seen = drawn()
        risk = net(x)[:, 0]
        pairs = (time[:, None] < time) & seen[:, None]
        return (risk[:, None] < risk)[pairs].float().mean()

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 700, score=score_of(wrong, 16))


@healthy(0.3)
def many_tasks_in_turn_by_their_ends(folder):
    """Reptile (Nichol et al. 2018): the gradient is the way back from where eight steps on a task have led."""
    seeded(280)
    net, drawn = dense(1, 40, 40, 1, act=nn.Tanh), {}

    def task():
        height, phase = 1 + torch.rand(1), torch.rand(1)
        x = 6 * torch.rand(20, 1) - 3
        return x, height * (x + phase).sin()

    def adapted(x, y):
        fast = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
        for _ in range(8):
            ways = torch.autograd.grad(F.mse_loss(functional_call(net, fast, x), y), list(fast.values()))
            moved = [(p - 0.05 * way).detach().requires_grad_() for p, way in zip(fast.values(), ways, strict=True)]
            fast = dict(zip(fast, moved, strict=True))
        return fast

    def loss_of(step):
        drawn["task"] = x, y = task()
        return F.mse_loss(net(x), y)

    def back(step):
        """The error before is only shown."""
        for p, end in zip(net.parameters(), adapted(*drawn["task"]).values(), strict=True):
            p.grad.copy_(p.detach() - end)

    def after(step):
        x, y = task()
        return F.mse_loss(functional_call(net, adapted(x[:10], y[:10]), x[10:]), y[10:])

    def score():
        return sum(float(after(step)) for step in range(16)) / 16

    return fit(folder, net, optim.SGD(net.parameters(), 0.5), loss_of, 250, before_step=back, score=score)
