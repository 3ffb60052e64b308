"""The documentation is true: its Python runs, its commands parse, its links lead somewhere, and nothing is left out."""

import ast
import inspect
import json
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
    monkeypatch.setattr("gradwatch.recording.courier_process.start_courier", lambda *_: None)
    yield
    if "mlflow" in sys.modules:  # what a page told it must not reach the next test
        sys.modules["mlflow"].end_run()
        sys.modules["mlflow"].set_tracking_uri(None)


TUTORIALS = sorted(page for page in TEXT if page.startswith("docs/tutorials/"))
FRAMEWORKS = {f"docs/{name}.md" for name in ("accelerate", "lightning", "mlflow", "transformers")}  # slow to import


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page in FRAMEWORKS else [])
        for page in TEXT
        if blocks(page, "python") and page not in TUTORIALS
    ],
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, desk, request):
    code = "".join(blocks(page, "python"))
    for extra in re.findall(r"^(?:import|from) (lightning|transformers|accelerate|optuna)\b", code, re.MULTILINE):
        pytest.importorskip(extra)
        if extra in ("transformers", "accelerate"):
            request.getfixturevalue("own_accelerator")
    if "mlflow" in code:
        request.getfixturevalue("store")
    names = {}
    for block in blocks(page, "python"):
        line = TEXT[page][: TEXT[page].index(block)].count("\n")
        exec(compile("\n" * line + block, ROOT / page, "exec"), names)


STEP = re.compile(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)


def without_numbers(text):
    """Another processor rounds otherwise."""
    return re.sub(r"[-+]?\d[\d.,e+-]*", "#", " ".join(text.split()))


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_prints_what_it_shows(page, desk, capsys):
    if "transformers" in TEXT[page]:
        pytest.importorskip("transformers")
    names = {}
    for step in STEP.finditer(TEXT[page]):
        exec(compile("\n" * TEXT[page][: step.start()].count("\n") + step[1], ROOT / page, "exec"), names)
        assert without_numbers(capsys.readouterr().out) == without_numbers(step[2] or ""), step[1]


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom_and_its_cells_have_something_to_show(desk):
    notebook = json.loads((ROOT / "docs" / "examples" / "diverging_rnn.ipynb").read_text(encoding="utf-8"))
    names, shown = {}, []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "a cell", "exec"), names)
            shown += [eval(compile(last, "a cell", "eval"), names)] if last else []
    assert [type(value).__name__ for value in shown] == ["Watch", "History", "Plots", "Report", "Report"]
    assert all("<" in value._repr_html_() for value in shown)
    assert gradwatch.open_history(names["watch"].dir).nonfinite.any()  # it ends as its first cell says


# ------------------------------------------------------------------------------------------------------- command line


def refused(line):
    """What `gradwatch` says of a line that does not parse; nothing of one that does."""
    words = shlex.split(line, comments=True)[1:]
    if words == ["--version"]:
        return ""
    try:
        COMMANDS[words[0]].make_context(words[0], words[1:])
    except (KeyError, click.ClickException) as error:
        return f"{line}: {error}"
    return ""


def test_every_command_in_the_docs_parses():
    lines = {line for page in TEXT for line in console(page) if line.startswith("gradwatch")}
    assert lines
    assert [said for line in sorted(lines) if (said := refused(line))] == []


def test_a_line_that_does_not_parse_would_be_found():
    assert "--fromat" in refused("gradwatch report latest --fromat md")
    assert "rapport" in refused("gradwatch rapport latest")


def undescribed(name, command):
    """What docs/cli.md does not say of a command, and what it says of nothing."""
    section = TEXT["docs/cli.md"].partition(f"## `gradwatch {name}")[2].split("\n## ")[0]
    known = {opt for parameter in command.params for opt in parameter.opts}
    for parameter in command.params:
        shown = parameter.opts if isinstance(parameter, click.Option) else [parameter.make_metavar(click.Context(main))]
        if not all(text.strip("[].") in section for text in shown):
            yield f"{name}: {shown} is not described"
    if f"$ gradwatch {name}" not in section:
        yield f"{name} has no example"
    for option in sorted(set(re.findall(r"^\| `(--?[\w-]+)", section, re.MULTILINE)) - known):
        yield f"{name} has no {option}"


def test_every_command_and_option_is_described_with_an_example():
    assert [fault for name, command in COMMANDS.items() for fault in undescribed(name, command)] == []
    assert list(undescribed("rapport", COMMANDS["report"]))


# ------------------------------------------------------------------------------------------------------- completeness


def test_every_public_name_is_mentioned():
    words = set(re.findall(r"\w+", "".join(TEXT.values())))
    assert set(gradwatch.__all__) - {"__version__"} - words == set()


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


def leads_somewhere(page, target):
    path, _, anchor = target.partition("#")
    file = (ROOT / page).parent / path if path else ROOT / page
    if not file.exists() or not anchor:
        return file.exists()
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", file.read_text(encoding="utf-8")), re.MULTILINE)
    return anchor in map(slug, titles)


def test_every_link_leads_somewhere():
    links = [(page, target) for page in TEXT for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))]
    inner = [(page, target) for page, target in links if not re.match(r"https?:", target)]
    assert inner
    assert [link for link in inner if not leads_somewhere(*link)] == []
    assert not leads_somewhere("README.md", "docs/nowhere.md")
    assert not leads_somewhere("README.md", "docs/cli.md#nothing")


def test_no_page_shows_a_path_of_the_machine_it_was_written_on():
    path = re.compile(r"(?<![\w.-])/(work|root|home|tmp|usr)/\S*")
    assert [(page, found[0]) for page, text in TEXT.items() if (found := path.search(text))] == []


def test_the_index_leads_to_every_page():
    assert {f"docs/{target}" for target in re.findall(r"\]\((\w+\.md)\)", TEXT["docs/index.md"])} == {
        page for page in TEXT if re.fullmatch(r"docs/\w+\.md", page) and page != "docs/index.md"
    }
