"""compose.yaml and the Dockerfile as the tests read them."""

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def filled(text, values=None):
    """A value as compose puts it in: that of the environment, else the default; `x` for those that must be set."""

    def value(match):
        return (values or {}).get(match[1], "x" if match[2] is None else match[2])

    return re.sub(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)\}", value, text)


def read_stages():
    """The Dockerfile's stages: name -> its instructions, those of the stage that it stands on first."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found = {}
    for line in filter(None, text.splitlines()):
        instruction, value = line.split(maxsplit=1)
        if instruction == "FROM":
            image, _, name = value.split()
            found[name] = list(found.get(image, [("FROM", image)]))
        else:
            found[name].append((instruction, " ".join(value.split())))
    return found


STAGES = read_stages()


def instructions(stage, instruction):
    """The values of one kind of instruction, in their order."""
    return [value for found, value in STAGES[stage] if found == instruction]
