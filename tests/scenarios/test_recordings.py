"""The recordings are what the code makes: some are made again, one for each thing that is recorded."""

import diseases
import numpy as np
import pytest
import step_diseases
import target_diseases
from healthy import RECIPES
from recordings import FOLDER, Recorded, recorded

READ = {module: Recorded(module) for module in (diseases, step_diseases, target_diseases)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "options"),
    [
        (diseases, "adding_rnn", {"gain": 1.5}),  # up to NaN
        (diseases, "half", {}),
        (diseases, "scaled_by_a_scaler", {}),
        (diseases, "two_heads", {"both": True, "forgotten": True}),
        (diseases, "unscaled_inputs", {}),  # a policy
        (step_diseases, "group_rate_zero", {}),
        (step_diseases, "zeroed_before_step", {"to_none": True}),
        (step_diseases, "strangers", {}),
        (step_diseases, "odd_batch", {"clip": "SkipSpike()"}),
        (step_diseases, "throttled", {"own": True}),
        (step_diseases, "tight_norm", {}),  # a constraint
        (step_diseases, "frozen_body", {}),
        (target_diseases, "shuffled_apart", {}),
        (target_diseases, "behind_a_sigmoid", {}),
        (target_diseases, "squashed_twice", {}),
        (target_diseases, "read_ahead", {}),
        (target_diseases, "far_codes", {}),
        (target_diseases, "summed_divergence", {}),
        (target_diseases, "paid_in_hundreds", {}),
        (target_diseases, "never_updated", {}),
        (RECIPES, "rnn-clipped-sgd", {}),
        (RECIPES, "mlp-accumulation", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_training_is_recorded_as_it_was(module, name, options, tmp_path):
    if module is RECIPES:
        then, now = recorded(f"healthy-{name}", None, tmp_path), RECIPES[name](tmp_path)
    else:
        then, now = getattr(READ[module], name)(tmp_path, **options), getattr(module, name)(tmp_path, **options)
    for field in ("layers", "clip", "renorm", "every", "unheld", "status"):
        assert getattr(now.run, field) == getattr(then.run, field)
    # A later version may say and record more of the same. Settings in which the groups differ are theirs now.
    for ours, theirs in zip(now.run.optimizers, then.run.optimizers, strict=True):
        assert (ours["name"], ours["class"]) == (theirs["name"], theirs["class"])
        assert ours["settings"] == {key: theirs["settings"][key] for key in ours["settings"]}
    np.testing.assert_array_equal(now.step, then.step)
    begins = {key: values[:3] for key, values in (then.per_layer | then.per_step).items() if key != "time"}
    for key, values in begins.items():  # on another processor one that explodes is elsewhere by the fourth step
        np.testing.assert_allclose((now.per_layer | now.per_step)[key][:3], values, rtol=1e-2, atol=1e-6, err_msg=key)


def test_the_recordings_are_small_and_tell_nothing_of_where_they_were_made():
    files = [file for file in FOLDER.rglob("*") if file.is_file()]  # of a folder the file system says what it likes
    manifests = [*FOLDER.rglob("run.json")]
    assert sum(file.stat().st_size for file in files) < 36e3 * len(manifests)
    assert {file.suffix for file in files} == {".json", ".parquet"}
    for manifest in manifests:
        assert '"host": null' in manifest.read_text()
