"""The documentation is true: its Python runs, its commands parse, its links lead somewhere, and nothing is left out."""

import inspect
import re
import shlex
import sys
from pathlib import Path

import click
import pytest
from test_architecture import FLOORS

import gradwatch
from gradwatch.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
TEXT = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = {name: main.get_command(click.Context(main), name) for name in main.list_commands(click.Context(main))}


def blocks(page, language):
    return [match[2] for match in BLOCK.finditer(TEXT[page]) if match[1] == language]


def prose(page):
    """The page without its code blocks."""
    return BLOCK.sub("", TEXT[page])


def console(page):
    """The commands of a page, without their prompt."""
    lines = "".join(blocks(page, "console")).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


# ------------------------------------------------------------------------------------------------------------- Python


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """Where a reader sits: an own working directory. The couriers stay at home: they have tests of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setattr("gradwatch.recording.courier_process.start_courier", lambda folder: None)
    yield
    if "mlflow" in sys.modules:  # what a page told it must not reach the next test
        sys.modules["mlflow"].end_run()
        sys.modules["mlflow"].set_tracking_uri(None)


@pytest.mark.parametrize("page", [page for page in TEXT if blocks(page, "python")])
def test_the_python_of_a_page_runs_from_top_to_bottom(page, desk, request):
    code = "".join(blocks(page, "python"))
    for extra in re.findall(r"^(?:import|from) (lightning|transformers|accelerate)\b", code, re.MULTILINE):
        pytest.importorskip(extra)
        if extra != "lightning":
            request.getfixturevalue("own_accelerator")
    if "mlflow" in code:
        request.getfixturevalue("store")
    names = {}
    for block in blocks(page, "python"):
        line = TEXT[page][: TEXT[page].index(block)].count("\n")
        exec(compile("\n" * line + block, ROOT / page, "exec"), names)


# ------------------------------------------------------------------------------------------------------- command line


@pytest.mark.parametrize(
    "line", sorted({line for page in TEXT for line in console(page) if line.startswith("gradwatch")})
)
def test_a_command_in_the_docs_parses(line):
    words = shlex.split(line, comments=True)[1:]
    if words == ["--version"]:
        return
    command = COMMANDS[words[0]]
    command.make_context(words[0], words[1:])  # raises on an unknown option or a missing argument


def test_a_line_that_does_not_parse_would_be_found():
    with pytest.raises(click.UsageError):
        COMMANDS["report"].make_context("report", ["latest", "--fromat", "md"])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_described_with_an_example(name):
    start = TEXT["docs/cli.md"].index(f"## `gradwatch {name}")
    section = TEXT["docs/cli.md"][start:].split("\n## ")[0]
    for parameter in COMMANDS[name].params:
        shown = parameter.opts if isinstance(parameter, click.Option) else [parameter.make_metavar(click.Context(main))]
        assert all(text.strip("[].") in section for text in shown), f"{name}: {shown} is not described"
    assert f"$ gradwatch {name}" in section
    described = set(re.findall(r"^\| `(--?[\w-]+)", section, re.MULTILINE))
    known = {opt for parameter in COMMANDS[name].params for opt in parameter.opts}
    assert described <= known, f"{name} has no {described - known}"


# ------------------------------------------------------------------------------------------------------- completeness


@pytest.mark.parametrize("name", [name for name in gradwatch.__all__ if name != "__version__"])
def test_every_public_name_is_mentioned(name):
    assert re.search(rf"\b{name}\b", "".join(TEXT.values())), f"no page mentions gradwatch.{name}"


def test_the_signatures_of_watch_and_the_policies_are_those_of_the_code():
    for name in inspect.signature(gradwatch.watch).parameters:
        assert f"`{name}`" in TEXT["docs/recording.md"], f"docs/recording.md does not describe watch(..., {name}=)"
    for title, arguments in re.findall(r"^### `(\w+)\((.*)\)`$", TEXT["docs/policies.md"], re.MULTILINE):
        shown = [argument.split("=")[0] for argument in arguments.split(", ") if argument]
        assert shown == list(inspect.signature(getattr(gradwatch, title)).parameters), title


def test_the_floors_are_those_of_the_code():
    assert inspect.cleandoc(FLOORS) in TEXT["docs/architecture.md"]


def test_every_tests_name_is_that_of_a_test():
    known = set(re.findall(r"def (test_\w+)", "".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))))
    named = {name for text in TEXT.values() for name in re.findall(r"`(test_\w+)`", text)}
    assert named
    assert named <= known, f"there are no tests {named - known}"


# --------------------------------------------------------------------------------------------------------- the pages


def slug(title):
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", TEXT)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", file.read_text(encoding="utf-8")), re.MULTILINE)
            assert anchor in map(slug, titles), f"{page} links to {target}"


@pytest.mark.parametrize("page", TEXT)
def test_a_page_shows_no_path_of_the_machine_it_was_written_on(page):
    assert not re.search(r"(?<![\w.-])/(work|root|home|tmp|usr)/", TEXT[page])


def test_the_index_leads_to_every_page():
    assert {f"docs/{target}" for target in re.findall(r"\]\((\w+\.md)\)", TEXT["docs/index.md"])} == {
        page for page in TEXT if re.fullmatch(r"docs/\w+\.md", page) and page != "docs/index.md"
    }
