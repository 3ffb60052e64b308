"""Layers with nothing between them that bends: together they are one linear layer."""

from __future__ import annotations

from gradwatch.analysis.rules.finding import Finding, whole_run
from gradwatch.analysis.rules.layer_facts import shapes_of
from gradwatch.analysis.rules.loss_graph import graph_rows
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.history import History


def no_activation(history: History, gained: float = 0.9) -> list[Finding]:
    """Layers follow one another, and nothing between them bends. A warning, unless the training succeeds.

    Alarm: all that the layers of the model are given, but for the first, is made by other layers and operations that
    are linear, as the graph of the first losses shows it; and no layer between is narrower than what comes in and what
    goes out, as those of a factorisation or a linear autoencoder are: a narrow one keeps the product's rank down, which
    a single layer does not. Or that is so of two layers that follow one another, and what is between them is wider than
    both ends: nothing is gained by that. Not said where the share `gained` of the loss is gone, nor where gradients
    stopped being finite: how much a straight line learns is not seen there.
    Source: Goodfellow et al., Deep Learning, section 6.1 (a linear function of a linear function is linear).
    """
    if (history.total("nonfinite")[-3:] > 0).any():
        return []
    shapes = shapes_of(history)
    for row in graph_rows(history, "linear"):
        names = str(row["layers"]).split()  # from the loss down
        known = [shapes[name] for name in names if len(shapes.get(name, ())) > 1]
        if len(known) < 2 or len(known) < len(names) or succeeds(history, gained):
            continue
        narrowest, ends = min(shape[0] for shape in known[1:]), (known[0][0], known[-1][1])
        is_whole = len(names) == sum(len(layer.shape) > 1 for layer in history.run.layers)
        is_factor = narrowest < min(ends) if is_whole else narrowest <= max(ends)
        if is_factor:
            continue
        which = f"The {len(names)} layers of this model" if is_whole else f"`{names[-1]}` and `{names[0]}`"
        return [
            whole_run(
                history,
                "no-activation",
                names[0],
                {"layers": len(names)},
                f"{which} follow one another with nothing between them that bends: together they are one linear "
                "function of what comes in, and learn no more than a single layer could.",
                "Put an activation behind each layer but the last (nn.ReLU, nn.GELU, nn.Tanh), and look whether the "
                "one that was meant is called in forward.",
            )
        ]
    return []
