"""The configuration that Hydra composed for this program, as params of its run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradwatch.sanitize import HIDDEN, MAX_PARAM, is_secret, public_text

MAX_PARAMS = 1_000


def hydra_params() -> dict[str, str]:
    """Each value as `args.<dotted name>`, as `gradwatch run` calls a script's arguments; secrets are left out.

    Empty where Hydra does not run the program. Hydra holds no configuration of the program's own: it writes it to
    `.hydra/config.yaml` before the program begins, and that is read. Never raises.
    """
    core, omegaconf = sys.modules.get("hydra.core.hydra_config"), sys.modules.get("omegaconf")
    try:
        if core is None or omegaconf is None or not core.HydraConfig.initialized():
            return {}
        own = core.HydraConfig.get()
        config = omegaconf.OmegaConf.load(Path(own.runtime.output_dir, own.output_subdir, "config.yaml"))
        try:
            values = omegaconf.OmegaConf.to_container(config, resolve=True)
        except Exception:  # a resolver that the program registers later
            values = omegaconf.OmegaConf.to_container(config, resolve=False)
        found = dict(_flat(values, "args"))
    except Exception:  # none is written (output_subdir=null), another version, a namesake
        return {}
    return dict(list(found.items())[:MAX_PARAMS])


def _flat(values: Any, name: str) -> Iterator[tuple[str, str]]:
    if is_secret(name.rpartition(".")[2]):
        yield name, HIDDEN
    elif isinstance(values, Mapping) and values:
        for key, value in values.items():
            yield from _flat(value, f"{name}.{key}")
    else:
        yield name, public_text(str(values))[:MAX_PARAM]
