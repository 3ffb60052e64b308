"""`gradwatch sweep --search N`: what its options ask for, ranges such as `0.1..10` among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradwatch.errors import RunError
from gradwatch.launcher.search_space import Space, Template

if TYPE_CHECKING:
    from gradwatch.launcher.search import Search
    from gradwatch.launcher.sweep import Sweep


def space_of(options: dict[str, Any]) -> Space:
    """What the options leave open.

    Raises:
        RunError: something is to be searched, and it is not said for how long; or nothing is.
    """
    space = Space(
        tuple(Template.read(text, "clip") for text in options["clips"] or ("none",)),
        tuple(Template.read(text, "renorm") for text in options["renorms"] or ("none",)),
        options["lr_scales"] or (1.0,),
        options["warmups"] or (0,),
        options["skip"],
    )
    if not options["search"] and space.has_ranges:
        raise RunError(
            "a range of numbers is drawn from by a search: pass --search N, the number of its trials, as well"
        )
    if options["search"] and not (space.has_ranges or space.has_choices):
        raise RunError(
            "--search has nothing to search: give a range, such as --clip 'ClipByGlobalNorm(0.1..10)' or --lr-scale "
            "0.1..10, or one of these options several times"
        )
    return space


def begin_search(asked: Sweep, options: dict[str, Any]) -> Search:
    """The search that the options ask for; one that was interrupted goes on.

    Raises:
        RunError: what decides is not known, or Optuna is not installed.
    """
    from gradwatch.analysis.groups import higher_is_better
    from gradwatch.launcher.search import Search

    metric, rises = options["metric"], options["rises"]
    if metric is None:
        raise RunError("--search wants the logged value that decides: pass --metric NAME, a held-out loss or accuracy")
    rises = higher_is_better(metric) if rises is None else rises
    if rises is None:
        raise RunError(
            f"whether {metric} is meant to rise or to fall is not known: pass --higher-is-better or --lower-is-better"
        )
    return Search(asked, space_of(options), options["search"], metric, rises)
