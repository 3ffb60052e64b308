"""What is put together wrongly is known from the first step on, by name and layer; its healthy twin is left alone."""

import graph_diseases as g
import pytest
from recordings import Recorded
from trainings import serious

from gradwatch.analysis.rules import diagnose


@pytest.mark.parametrize(
    ("train", "rule", "layer", "words"),
    [
        (g.broadcast, "shapes-broadcast", "2.weight", "over all 64 x 64 pairs"),
        (g.without_activations, "no-activation", "4.weight", "The 3 layers of this model follow one another"),
        (g.gated_over_the_batch, "softmax-over-the-batch", "router.weight", "dim 0 of [64, 4]"),
        (g.normed_over_two, "norm-over-too-few", "5.weight", "on batches of 2"),
        (g.nine_in_ten_dropped, "dropout-too-strong", None, "drops 0.9 of what it is given"),
        (g.viewed_for_transposed, "axes-mixed", "into.weight", "takes [16, 24, 32] for [16, 4, 24, 8]"),
    ],
)
@pytest.mark.parametrize("steps", [3, 120])
def test_it_is_the_root_from_the_first_steps_on_and_the_twin_is_healthy(train, rule, layer, words, steps, tmp_path):
    found = diagnose(train(tmp_path / "sick", steps=steps))
    assert serious(found) == [rule]
    assert (found[0].layers, found[0].first_step) == ((layer,) if layer else (), 0)
    assert words in found[0].cause
    well = getattr(Recorded(g), train.__name__)
    assert serious(diagnose(well(tmp_path / "well", sick=False, steps=steps))) == []
