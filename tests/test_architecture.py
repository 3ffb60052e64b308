"""The floors: a file imports only from floors below, and the two halves stay apart."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gradwatch"
FLOORS = [
    {"errors", "ring", "uri", "sharding", "same", "running", "seeding", "processes", "untrusted"},
    {"history", "formulas", "layout", "ranknorms", "hooks", "program", "ending"},
    {"grads", "fused", "torch_calls", "losses"},
    {
        "layers",
        "policies",
        "weights",
        "scaling",
        "backward",
        "stores",
        "rules",
        "compare",
        "whatif",
        "recorder",
        "delivery",
        "ownership",
        "metrics",
    },
    {"stepping", "plan", "sharing", "report", "config", "oneshot", "live", "advance", "resuming", "keeping", "health"},
    {"session", "diagnosis", "cursor", "notify"},
    {"watching", "conclusion", "sending", "unheld"},
    {"courier", "autowatch", "monitor", "adapters"},
    {"dispatch", "launch", "sweep"},
    {"workloads"},
    {"cli"},
]
FLOOR = {name: number for number, names in enumerate(FLOORS, start=1) for name in names}
READ_SIDE = {
    "history",
    "formulas",
    "rules",
    "compare",
    "whatif",
    "report",
    "stores",
    "cli",
    "uri",
    "untrusted",
    "errors",
}
TRAIN_SIDE = {
    "ring", "sharding", "layout", "grads", "weights", "fused", "layers", "policies", "recorder", "stepping", "oneshot",
    "ranknorms", "delivery", "sharing", "session", "watching", "hooks", "torch_calls", "scaling",
    "backward", "adapters", "same", "plan", "live", "running", "losses", "ownership", "metrics", "advance", "autowatch",
    "launch", "seeding", "program", "ending", "resuming", "keeping", "unheld",
}  # fmt: skip
MAY_IMPORT_MLFLOW = {"stores/mlflow.py", "stores/remote.py"}

FILES = {str(p.relative_to(PACKAGE)): ast.parse(p.read_text()) for p in sorted(PACKAGE.rglob("*.py"))}
INSIDE = {name: tree for name, tree in FILES.items() if name not in ("__init__.py", "__main__.py")}


def room(path):
    """The module or folder under gradwatch that a file belongs to."""
    return path.split("/")[0].removesuffix(".py")


def imports(tree):
    """Every module a file imports, wherever the import stands; what is only for type checkers is left out."""
    typing_only = {
        id(n)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for child in block.body
        for n in ast.walk(child)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the floor"
            yield from (
                [f"gradwatch.{alias.name}" for alias in node.names] if node.module == "gradwatch" else [node.module]
            )


@pytest.mark.parametrize("path", INSIDE)
def test_a_file_imports_only_from_floors_below(path):
    own = room(path)
    assert own in FLOOR, f"{path} has no floor: give it one in FLOORS"
    for module in imports(INSIDE[path]):
        parts = module.split(".")
        if parts[0] == "gradwatch" and len(parts) > 1 and parts[1] in FLOOR and parts[1] != own:
            assert FLOOR[parts[1]] < FLOOR[own], f"{path} imports {module}: not from a floor below"


@pytest.mark.parametrize("path", [p for p in INSIDE if room(p) in READ_SIDE and p != "cli/demo.py"])
def test_the_read_side_never_imports_torch(path):
    assert not [m for m in imports(INSIDE[path]) if m.split(".")[0] == "torch"]


@pytest.mark.parametrize("path", [p for p in INSIDE if room(p) in READ_SIDE])
def test_the_read_side_knows_no_adapter(path):
    assert not [m for m in imports(INSIDE[path]) if m.startswith("gradwatch.adapters")]


@pytest.mark.parametrize("path", [p for p in INSIDE if p not in MAY_IMPORT_MLFLOW])
def test_mlflow_is_imported_in_one_place(path):
    assert not [m for m in imports(INSIDE[path]) if m.split(".")[0] == "mlflow"]


@pytest.mark.parametrize("path", [p for p in INSIDE if room(p) in TRAIN_SIDE])
def test_the_train_side_shares_only_the_waist(path):
    shared = {"history", "formulas", "rules", "stores", "errors", "uri", "processes", "untrusted"}
    for module in imports(INSIDE[path]):
        parts = module.split(".")
        if parts[0] == "gradwatch" and len(parts) > 1:
            assert parts[1] in TRAIN_SIDE | shared, f"{path} imports {module} of the read side"


# What turns data into code, or a string into a command line.
DANGEROUS_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "xml", "jsonpickle"}
DANGEROUS_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput",
    "subprocess.getstatusoutput", "pd.read_pickle", "torch.load",
}  # fmt: skip
# The script that the user asks to run is code: `program` compiles it, `launch` executes it. `launch` also adds an entry
# to what multiprocessing itself pickles for a process that this script spawns: the train side, and no data of others.
ALLOWED_CALLS = {("launch.py", "exec"), ("program.py", "compile")}


def called(tree):
    """Each call in a file with its name as written: `os.system`, `open`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def code_of_data(path, tree):
    """What in a file would run data as code, or a string in a shell."""
    found = [f"imports {m}" for m in imports(tree) if m.split(".")[0] in DANGEROUS_MODULES]
    for name, call in called(tree):
        words = {word.arg: ast.unparse(word.value) for word in call.keywords}
        if name == "torch.load" and words.get("weights_only") == "True":
            continue
        if name in DANGEROUS_CALLS and (path, name) not in ALLOWED_CALLS:
            found.append(f"calls {name}")
        if words.get("shell", "False") != "False" or words.get("allow_pickle", "False") != "False":
            found.append(f"calls {name} with a shell or a pickle")
    return found


@pytest.mark.parametrize("path", FILES)
def test_data_is_never_run(path):
    assert code_of_data(path, FILES[path]) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from yaml import load", "eval('1')", "exec(text)", "os.system(name)", "torch.load(path)",
        "torch.load(path, weights_only=False)", "subprocess.run(text, shell=True)", "np.load(f, allow_pickle=True)",
        "def f():\n    import marshal", "subprocess.Popen(text, shell=flag)",
    ],
)  # fmt: skip
def test_what_would_run_data_is_seen(code):
    assert code_of_data("history.py", ast.parse(code))


@pytest.mark.parametrize(("path", "name"), sorted(ALLOWED_CALLS))
def test_the_exceptions_are_needed(path, name):
    assert [n for n, _ in called(FILES[path])].count(name) == 1


@pytest.mark.parametrize(
    "name",
    [
        "gradwatch", "gradwatch.cli", "gradwatch.stores", "gradwatch.report", "gradwatch.compare", "gradwatch.rules",
        "gradwatch.adapters",
    ],
)  # fmt: skip
def test_reading_starts_without_torch_and_mlflow(name):
    """`gradwatch.adapters` too: it is only the place of its modules, and none of the frameworks needs the others."""
    heavy = {"torch", "mlflow", "lightning", "transformers", "accelerate"}
    code = f"import {name}, sys; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_files_and_functions_stay_small_enough_to_read_in_one_go():
    for path, tree in FILES.items():
        lines = len((PACKAGE / path).read_text().splitlines())
        assert lines <= 330, f"{path} has {lines} lines"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                doc = ast.get_docstring(node, clean=False) or ""
                body = node.end_lineno - node.lineno - doc.count("\n")
                assert body <= 60, f"{path}: {node.name} has {body} lines"


def test_every_file_says_what_it_is_for():
    for path, tree in FILES.items():
        assert ast.get_docstring(tree), f"{path} has no first line"


def test_pyproject_is_the_only_configuration_of_the_tools():
    strays = {"setup.py", "setup.cfg", "tox.ini", "pytest.ini", "mypy.ini", ".ruff.toml", "ruff.toml", ".flake8"}
    assert not [p.name for p in ROOT.iterdir() if p.name in strays]
