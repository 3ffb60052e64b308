"""Real trainings for the rules: one loop under a Watch that hands back what was recorded."""

import torch

import gradwatch


def fit(folder, model, optimizer, loss_of, steps, before_step=None, zero_grad=True, read=True, **options):
    """Train `steps` steps and return their History.

    `loss_of(step)` gives the loss; `before_step(step)` stands between backward and the optimizer's step; `options` are
    those of `gradwatch.watch` (`every=1` here unless told). With `read` False nothing is returned (ranks that record
    nothing).
    """
    watch = gradwatch.watch(model, optimizer, **{"log": None, "dir": folder, "verbose": False, "every": 1, **options})
    with watch:
        for step in range(steps):
            if zero_grad:
                optimizer.zero_grad()
            loss = loss_of(step)
            loss.backward()
            if before_step:
                before_step(step)
            optimizer.step()
            watch.log(loss=loss)
    return gradwatch.open_history(watch.dir) if read else None


def blobs(classes=4, size=16, batch=32, seed=0, spread=1.0):
    """`batch_of(step)` of a classification that can be learned: noisy points around one centre per class."""
    centres = torch.randn(classes, size, generator=torch.Generator().manual_seed(seed)) * 2

    def batch_of(step):
        g = torch.Generator().manual_seed(1000 * (seed + 1) + step)
        y = torch.randint(classes, (batch,), generator=g)
        return centres[y] + spread * torch.randn(batch, size, generator=g), y

    return batch_of


def serious(findings):
    """The errors and warnings among findings, by rule."""
    return [finding.rule for finding in findings if finding.severity != "note"]


def one(findings, rule):
    """The finding of `rule`, wherever it stands: a root or a consequence."""
    flat = [f for root in findings for f in (root, *root.consequences)]
    (found,) = [f for f in flat if f.rule == rule]
    return found
