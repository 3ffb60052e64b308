"""`gradwatch monitor`: keep a tracking server's findings and reports up to date."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from gradwatch.cli.options import Number, log_to_stdout
from gradwatch.errors import RunError, require
from gradwatch.sanitize import public_uri, terminal

if TYPE_CHECKING:
    from gradwatch.tracking.alerts import Alerts

log = logging.getLogger("gradwatch")


@click.command()
@click.option("--tracking-uri", metavar="URI", help="The store to watch. [default: MLflow's own setting]")
@click.option("--experiment", "experiments", metavar="NAME", multiple=True,
              help="Watch only this experiment; may be given again.")  # fmt: skip
@click.option("--once", is_flag=True, help="One pass, then end; for cron.")
@click.option("--every", metavar="SECONDS", default=30.0, show_default=True, type=Number(1, 86_400),
              help="The pause between two passes.")  # fmt: skip
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:9464", show_default=True,
              help="Where /metrics and /healthz are answered; none for nowhere.")  # fmt: skip
@click.option("--notify", metavar="COMMAND|URL", envvar="GRADWATCH_NOTIFY", show_envvar=True,
              help="Tell this command, or post to this webhook, of each new error.")  # fmt: skip
@click.option("--notify-template", metavar="slack|FILE", help="The form of what is told: a jinja2 template.")
@click.option("--notify-lost", metavar="MINUTES", type=Number(1, 100_000), help="Tell, too, of runs that failed, were "
              "killed, or have sent nothing for so long.")  # fmt: skip
@click.option("--test-notify", is_flag=True, help="Tell of a made-up error, say whether that arrived, and end.")
@click.option("--ui-url", metavar="URL", help="MLflow's address in alerts, if people reach it by another.")
def monitor(
    tracking_uri: str | None,
    experiments: tuple[str, ...],
    once: bool,
    every: float,
    listen: str,
    notify: str | None,
    notify_template: str | None,
    notify_lost: float | None,
    test_notify: bool,
    ui_url: str | None,
) -> None:
    """Watch a tracking server, and keep findings, report and description of each watched run up to date.

    It reads what was delivered, works on what changed, and runs until Ctrl-C. With --once the exit code is 1 if in
    this pass a run could not be brought up to date, an alert did not arrive, or an --experiment was not there.

    Example: gradwatch monitor --tracking-uri http://127.0.0.1:5000 --once
    """
    require("mlflow", "service")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    log_to_stdout()
    from gradwatch.tracking.client import connect, existing_store
    from gradwatch.tracking.health import serve
    from gradwatch.tracking.monitor import Monitor

    address = None if once or listen == "none" else _address(listen)
    uri = existing_store(tracking_uri)
    alerts = _alerts(notify, notify_template, uri, ui_url, notify_lost)
    if test_notify:
        _try(alerts)
        return
    watcher = Monitor(uri, experiments, every, alerts)
    try:
        watcher.client = connect(uri)
    except RunError:  # no address of a store
        raise
    except Exception as error:  # it may be there later
        log.debug("%s", error)
    if once:
        if not watcher.run_once():
            raise SystemExit(1)
        health, where = watcher.health, f" in {' and '.join(map(repr, experiments))}" if experiments else ""
        click.echo(terminal(f"{health.seen} watched runs{where}, {health.updated} brought up to date"))
        raise SystemExit(1 if health.errors or health.corrupt or health.not_notified or watcher.missing else 0)
    served = f", its health at http://{address[0]}:{address[1]}/healthz" if address else ""
    if address:
        serve(watcher.health, *address)
    click.echo(terminal(f"watching {public_uri(uri)} every {every:g} s{served}; Ctrl-C ends it"))
    watcher.follow()


def _alerts(notify: str | None, template: str | None, uri: str, ui: str | None, lost: float | None) -> Alerts | None:
    if notify is None:
        return None
    from gradwatch.tracking.alerts import Alerts
    from gradwatch.tracking.notifiers import SECRET, notifier

    return Alerts(notifier(notify, template, os.environ.get(SECRET)), uri, ui, None if lost is None else 60 * lost)


def _try(alerts: Alerts | None) -> None:
    from gradwatch.tracking.notifiers import AlertError, sample

    if alerts is None:
        raise RunError("--test-notify has nobody to tell; wanted --notify as well")
    try:
        alerts.send(sample(alerts.uri))
    except AlertError as error:
        raise RunError(f"not delivered: {error}") from None
    click.echo("delivered: a test, of no run")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise RunError(f"--listen {text} is no address; wanted HOST:PORT, such as 127.0.0.1:9464, or none")
    return host.strip("[]"), int(port)
