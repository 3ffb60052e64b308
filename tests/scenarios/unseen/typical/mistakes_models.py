"""Typical sick trainings, third part: a text, images and answers.

Mistakes that people made in real code, and found, taken as a search met them, in its order; a comment says of what kind
the source is. They only count (the group `typical`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import Transformer, batches, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick


# From a pull request to a library for training language models: with tied weights the output began as the embedding
# does, and the loss past 500.
@sick(
    "bad-initialisation",
    where="the embedding, which is the head too, from the first step", cure="begin it at 0.02",
)  # fmt: skip
def tied_head_that_begins_as_a_table(folder, ill):
    net = Transformer(64, 2, seed=1417)
    nn.init.normal_(net.embed.weight, std=1.0 if ill else 0.02)
    net.head.weight = net.embed.weight
    make = optim.AdamW(net.parameters(), 1e-3)
    score = score_of(predict(net, pieces(12, seed=4)), 4)
    return fit(folder, net, make, predict(net, pieces(12)), 120, score=score)


class AdamG(optim.Optimizer):
    """Adam with the golden step size (Pan 2024); `twice`: one less the bias corrections, which are one less already."""

    def __init__(self, params, lr=1.0, twice=False):
        super().__init__(params, {"lr": lr})
        self.twice = twice

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = t = state.get("step", 0) + 1
                first, second = 1 - 0.95**t, 1 - 0.999**t
                if self.twice:
                    first, second = 1 - first, 1 - second
                v = state.setdefault("v", torch.zeros_like(p)).mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                r = state.setdefault("r", torch.zeros_like(p)).lerp_(0.2 * v.pow(0.24), 0.05)
                m = state.setdefault("m", torch.zeros_like(p)).lerp_(r * p.grad, 0.05)
                rate = min(group["lr"], t**-0.5)
                p.addcdiv_(m / first, (v / second).sqrt() + 1e-8, value=-rate)


# From a pull request to a library of optimizers ("Fix AdamG instability", it "always leads to gradient explosion"): the
# minus-one was there twice in the steps of its bias correction.
@sick(
    "update-too-large", "exploding", "lr-too-high",
    where="all layers, from some tens of steps on: each step is 1.05 times as long as the last",
    cure="the corrections as they are",
)  # fmt: skip
def bias_corrections_one_less_twice(folder, ill):
    net, batch = mlp(seed=1418), batches(32)

    def loss_of(step):
        image, label = batch(step)
        return F.cross_entropy(net(image), label)

    return fit(folder, net, AdamG(net.parameters(), twice=ill), loss_of, 250)


# From an issue of a library for reinforcement learning of language models ("advantages is incorrectly passed as
# response_mask"): what is summed and divided by is not the number of tokens, but their advantages.
@sick(
    "no-progress", "mask-is-wrong",
    where="the loss, all steps: weighted by the advantage once more and divided by next to nothing, of either sign",
    cure="response_mask=response_mask",
)  # fmt: skip
def advantages_in_the_place_of_a_mask(folder, ill):
    """Eight answers of two to five tokens to each prompt, a share of the reward for each right token (GRPO)."""
    seeded(1419)
    net, rule = dense(8, 64, 5 * 6, act=nn.Tanh), torch.randn(5, 8, 6)
    make = optim.AdamW(net.parameters(), 3e-3)

    def policy(prompt):
        return torch.distributions.Categorical(logits=net(prompt).view(-1, 5, 6))

    def reward_of(prompt, answer, mask):
        right = (answer == torch.einsum("bi,kij->bkj", prompt, rule).argmax(2)).float()
        return (right * mask).sum(1) / mask.sum(1)

    def asked(rows, group):
        prompt, length = torch.randn(rows, 8).repeat_interleave(group, 0), torch.randint(2, 6, (rows, 1))
        return prompt, (torch.arange(5)[None] < length).float().repeat_interleave(group, 0)

    def policy_loss(old, new, advantages, response_mask):
        ratio = (new - old).exp()
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        return (loss * response_mask).sum() / (response_mask.sum() + 1e-8)

    def loss_of(step):
        prompt, mask = asked(32, 8)
        of = policy(prompt)
        answer = of.sample()
        reward, new = reward_of(prompt, answer, mask), of.log_prob(answer)
        grouped = reward.view(32, 8)
        better = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-6)
        advantages = better.view(-1, 1) * mask
        return policy_loss(new.detach(), new, advantages, advantages if ill else mask), {"reward": reward.mean()}

    def score():
        with torch.no_grad():
            prompt, mask = asked(1024, 1)
            return 1 - float(reward_of(prompt, policy(prompt).sample(), mask).mean())

    def before(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, make, loss_of, 180, before_step=before, score=score)
