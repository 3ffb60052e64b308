"""What MLflow and SQLAlchemy refuse for good, as one line each; what may pass by itself goes through as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from mlflow.exceptions import MlflowException

from gradwatch.errors import AccessError, RunError
from gradwatch.sanitize import cut, public_text

# What waiting does not cure; everything else (server down, database locked) is worth another try.
PERMANENT = {
    "RESOURCE_DOES_NOT_EXIST",
    "INVALID_PARAMETER_VALUE",
    "INVALID_STATE",
    "BAD_REQUEST",
    "ENDPOINT_NOT_FOUND",
    "FEATURE_DISABLED",
}
REFUSED = {"PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"}  # it may be cured, but not by waiting alone
UNUSABLE = {"ArgumentError", "NoSuchModuleError"}  # SQLAlchemy's names, which is not imported for them
NO_MLFLOW = "API request to endpoint"  # how an answer that is not MLflow's own begins: a gateway's, a login page's

T = TypeVar("T")


def if_allowed(ask: Callable[[], T]) -> T | None:
    """What MLflow answers; None where there is no such thing, or not for this user."""
    try:
        return ask()
    except MlflowException as error:
        if error.error_code not in {"RESOURCE_DOES_NOT_EXIST", *REFUSED}:
            raise
        return None


@contextlib.contextmanager
def clear_errors(what: str) -> Iterator[None]:
    """Turn MLflow's lasting refusals into a RunError of one line; what may pass by itself goes through."""
    try:
        yield
    except MlflowException as error:
        said = cut(public_text(str(error).splitlines()[0]))
        if error.error_code in REFUSED:
            raise AccessError(
                f"{what}: MLflow refuses the credentials ({said}); renew MLFLOW_TRACKING_USERNAME and _PASSWORD, or "
                "MLFLOW_TRACKING_TOKEN"
            ) from error
        if error.error_code not in PERMANENT or said.startswith(NO_MLFLOW):
            raise
        cure = ""
        if "Current state is deleted" in said:
            cure = "; `mlflow runs restore` brings it back, without cursor.json it is delivered anew"
            if said.startswith("The experiment"):
                cure = "; `mlflow experiments restore` brings it back"
        raise RunError(f"{what}: MLflow refuses ({said}){cure}") from error


@contextlib.contextmanager
def clear_addresses(what: str) -> Iterator[None]:
    """Turn what SQLAlchemy says of a database that it cannot even ask into a RunError of one line."""
    try:
        yield
    except ImportError as error:
        raise RunError(f"{what}: {error}: pip install this database's driver into the Python that asks it") from error
    except Exception as error:
        if not isinstance(error, ValueError) and type(error).__name__ not in UNUSABLE:
            raise
        raise RunError(  # not its words: of a port that is no number they hold what stands there
            f"{what} is no address of a database: wanted such as postgresql://user:password@host:5432/database, and a "
            "/ ? # @ [ in a password as %2F %3F %23 %40 %5B"
        ) from None
