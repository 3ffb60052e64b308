"""What an alert says, and how it reaches its reader: a command's standard input, or a signed POST to a webhook."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import queue
import re
import shlex
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gradwatch.analysis.rules.finding import Finding
from gradwatch.errors import GradwatchError, RunError
from gradwatch.sanitize import plain
from gradwatch.tracking.views import REPORT, UI, run_url

SECRET = "GRADWATCH_NOTIFY_SECRET"  # the environment variable, not its value
SIGNATURE = "X-Gradwatch-Signature"
SEND_SECONDS = 15.0
MOST_LAYERS = 20  # that an alert names
SLACK = """{"text": {{ (":rotating_light: *" ~ rule|mrkdwn ~ "* in <" ~ url ~ "|" ~ run|mrkdwn ~ ">: " ~ summary|mrkdwn
~ "\\n" ~ cause|mrkdwn ~ "\\n*What to do:* " ~ cure|mrkdwn)|tojson }} }"""

Message = Mapping[str, Any]


class AlertError(GradwatchError):
    """An alert that did not arrive. Its text holds no address: that of a webhook is a secret."""


def message(finding: Finding, run: Any, uri: str) -> dict[str, Any]:
    """What is sent of one finding, as `docs/service.md` describes it; the run is on the server `uri`."""
    data = finding.to_json()
    data["layers"] = data["layers"][:MOST_LAYERS]
    del data["consequences"]
    nonce = uuid.uuid4().hex  # another each time that an alert is sent: what comes twice is a replay
    info = run.info
    where = {
        "docs": run_url(uri, info.experiment_id, info.run_id, REPORT),  # it holds the finding's page
        "url": run_url(uri, info.experiment_id, info.run_id),
        "experiment_id": info.experiment_id,
    }
    who = {"id": nonce, "run": info.run_name or info.run_id, "run_id": info.run_id, "time": int(time.time())}
    return dict(plain({**data, **who, **where}))


def notifier(target: str, template: str | None = None, secret: str | None = None) -> Callable[[Message], None]:
    """What delivers a message to `target`: the address of a webhook, or a command that reads it from standard input.

    `template` makes another text of it: `slack`, or a file with a jinja2 template. `secret` signs what is posted.

    Raises:
        RunError: no such template, or what it makes is no JSON; a command that cannot be split into words, or is not
            there; an address of no host, or of another kind than http.
    """
    render = _renderer(template)
    if re.match(r"[\w+.-]*:/", target):
        if not _is_webhook(target):
            raise RunError(f"--notify {target.partition(':')[0]}:... is no webhook; wanted such as https://host/path")
        webhook = _Webhook(target, secret)
        return lambda alert: webhook.post(render(alert))
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise RunError(f"--notify cannot be split into words ({error}); wanted a command or a URL") from None
    if not words:
        raise RunError("--notify is empty; wanted a command or a URL")
    if shutil.which(words[0]) is None:
        raise RunError(f"--notify: there is no command {os.path.basename(words[0])!r}; wanted a command or a URL")
    return lambda alert: _run(words, render(alert))


def _is_webhook(target: str) -> bool:
    try:
        parts = urlsplit(target)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def sign(body: bytes, secret: str) -> str:
    """The signature header's value: HMAC-SHA256 over the body."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


class _Webhook:
    """Posts to one address. Of the answer it reads the status alone, and waits for that at most `SEND_SECONDS` in all,
    however slowly it comes: a thread of its own waits, and nothing is posted while it does.
    """

    def __init__(self, url: str, secret: str | None) -> None:
        self.url, self.secret = url, secret
        self.host = urlsplit(url).hostname
        self._thread: threading.Thread | None = None

    def post(self, body: bytes) -> None:
        """Deliver one message, or raise `AlertError`."""
        if self._thread is not None and self._thread.is_alive():
            raise AlertError(f"{self.host} is still answering an earlier alert")
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=lambda: answers.put(self._post(body)), name="gradwatch-post", daemon=True
        )
        self._thread.start()
        try:
            problem = answers.get(timeout=SEND_SECONDS)
        except queue.Empty:
            raise AlertError(f"{self.host} took longer than {SEND_SECONDS:.0f} s") from None
        if problem:
            raise AlertError(f"{self.host}{problem}")

    def _post(self, body: bytes) -> str:
        """What went wrong, if anything; without the text of an error, which holds the address."""
        import requests

        headers = {"Content-Type": "application/json"}
        if self.secret:
            headers[SIGNATURE] = sign(body, self.secret)
        try:
            with requests.post(
                self.url, data=body, headers=headers, timeout=SEND_SECONDS, allow_redirects=False, stream=True
            ) as answer:
                return "" if 200 <= answer.status_code < 300 else f" answers {answer.status_code}"
        except Exception as error:
            return f": {type(error).__name__}"


def _run(words: Sequence[str], body: bytes) -> None:
    name = os.path.basename(words[0])
    try:
        done = subprocess.run(words, input=body, timeout=SEND_SECONDS, stdout=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise AlertError(f"{name}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise AlertError(f"{name} took longer than {SEND_SECONDS:.0f} s") from None
    if done.returncode:
        raise AlertError(f"{name} ended with exit code {done.returncode}")


def _renderer(template: str | None) -> Callable[[Message], bytes]:
    if template is None:
        return lambda alert: json.dumps(alert).encode()
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
    environment.filters["mrkdwn"] = _mrkdwn
    try:
        text = SLACK if template == "slack" else Path(template).read_text(encoding="utf-8")
        page = environment.from_string(text)
        json.loads(page.render(sample()))
    except OSError as error:
        raise RunError(f"cannot read {template}: {error.strerror}; wanted slack or a file") from None
    except (TemplateError, ValueError, TypeError) as error:
        raise RunError(f"{template} makes no JSON of a message: {error}") from None

    def render(alert: Message) -> bytes:
        try:
            text = page.render(alert)
            json.loads(text)
        except (TemplateError, ValueError, TypeError) as error:
            raise AlertError(f"the template makes no JSON of this message: {error}") from None
        return text.encode()

    return render


def _mrkdwn(text: object) -> str:
    """Text that Slack shows as it is: no mention, no link."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def sample(uri: str = UI) -> Message:
    """The message of an alert that nothing is behind: a template and a receiver are tried with it."""
    from types import SimpleNamespace

    info = SimpleNamespace(run_id="0" * 32, run_name="a-test-of-alerts", experiment_id="0")
    said = "A test of the monitor's alerts.", 'There is no such run, and "nothing" to do.'
    finding = Finding("nonfinite", "error", ("a.weight",), 50, 60, {"steps": 3.0}, *said)
    return message(finding, SimpleNamespace(info=info), uri)
