"""Alerts: each error among a run's findings is sent once, to a command or to a webhook."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import queue
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gradwatch.analysis.rules.finding import Finding
from gradwatch.errors import GradwatchError, RunError
from gradwatch.sanitize import MAX_JSON, plain, printable, read_json
from gradwatch.storage.folder import FINDINGS
from gradwatch.tracking.artifact_places import UnfitError, require_known_place
from gradwatch.tracking.backoff import Backoff
from gradwatch.tracking.tags import Tag
from gradwatch.tracking.views import REPORT, UI, run_url

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from gradwatch.tracking.health import Health

log = logging.getLogger("gradwatch")

SECRET = "GRADWATCH_NOTIFY_SECRET"  # the environment variable, not its value
SIGNATURE = "X-Gradwatch-Signature"
NEWS_SECONDS = 86_400.0  # what ended longer ago is no news to a monitor that is started today
CLAIM_SECONDS = 60.0  # a claim that is older is that of a monitor that died
SETTLE_SECONDS = 1.0  # how long two monitors that claim one run at once take to see it
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 900.0  # seconds between two attempts to send
SEND_SECONDS = 15.0
MOST_ALERTS = 50  # of one run
MOST_LAYERS = 20  # that an alert names
KEPT_LAYERS = 6  # of a finding, by which it is known again as it spreads: 50 alerts fit in the 8,000 bytes of a tag
_ERROR = re.compile(r"(?:^|; )error ")
SLACK = """{"text": {{ (":rotating_light: *" ~ rule|mrkdwn ~ "* in <" ~ url ~ "|" ~ run|mrkdwn ~ ">: " ~ summary|mrkdwn
~ "\\n" ~ cause|mrkdwn ~ "\\n*What to do:* " ~ cure|mrkdwn)|tojson }} }"""

Message = Mapping[str, Any]


class AlertError(GradwatchError):
    """An alert that did not arrive. Its text holds no address: that of a webhook is a secret."""


class Alerts:
    """Sends alerts of new errors, once for each run, rule, optimizer and layers: a tag on the run remembers it.

    `send` delivers one message or raises `AlertError`; then the run's turn comes again after growing pauses.
    """

    def __init__(self, send: Callable[[Message], None], tracking_uri: str, ui: str | None = None) -> None:
        self.send, self.uri, self.ui = send, ui or tracking_uri, ui
        self.name = uuid.uuid4().hex[:12]
        self._sent: dict[str, str] = {}  # run id -> the findings tag whose errors were sent
        self._retries: dict[str, tuple[float, Backoff]] = {}  # run id -> (when to try again, the pause after that)
        self._failing = False

    def send_new(self, client: MlflowClient, run: Any, health: Health) -> None:
        """Send an alert for each error of one run that none was sent for yet."""
        from gradwatch.tracking import client as store

        run_id, text = run.info.run_id, run.data.tags.get(Tag.FINDINGS, "")
        due, backoff = self._retries.get(run_id) or (0.0, Backoff(FIRST_PAUSE, LONGEST_PAUSE))
        if not _ERROR.search(text) or self._sent.get(run_id) == text or _is_old(run) or time.monotonic() < due:
            return
        errors = [f for f in _read_findings(client, run_id) if f.severity == "error"][:MOST_ALERTS]
        if any(_is_new(_key(f), _keys(run)) for f in errors) and not self._claim(client, run_id):
            return
        sent = _keys(client.get_run(run_id))
        for finding in errors:
            key = _key(finding)
            if not _is_new(key, sent) or len(sent) >= MOST_ALERTS:
                continue
            try:
                self.send(message(finding, run, self.uri))
            except AlertError as error:
                health.not_notified += 1
                if not self._failing:
                    log.warning("an alert was not delivered: %s; a later pass tries again", error)
                self._failing = True
                self._retries[run_id] = time.monotonic() + backoff.pause, backoff
                backoff.after(success=False)
                store.set_tags(client, run_id, {Tag.NOTIFYING: ""})  # another monitor may fare better
                return
            sent.add(key)
            store.set_tags(client, run_id, {Tag.NOTIFIED: " ".join(sorted(sent))})
            health.notified += 1
            if self._failing:
                log.info("alerts are delivered again")
            self._failing = False
            self._retries.pop(run_id, None)
        self._sent[run_id] = text

    def _claim(self, client: MlflowClient, run_id: str) -> bool:
        """Whether this monitor is the one to send. Of several that ask within a second, the last one is."""
        from gradwatch.tracking import client as store

        owner, _, since = client.get_run(run_id).data.tags.get(Tag.NOTIFYING, "").partition(" ")
        fresh = since.isdigit() and time.time() - int(since) < CLAIM_SECONDS
        if owner != self.name and fresh:
            return False
        store.set_tags(client, run_id, {Tag.NOTIFYING: f"{self.name} {time.time():.0f}"})
        time.sleep(SETTLE_SECONDS)
        return str(client.get_run(run_id).data.tags.get(Tag.NOTIFYING, "")).startswith(self.name)


def _is_old(run: Any) -> bool:
    ended = run.info.end_time
    return bool(ended) and time.time() - ended / 1000 > NEWS_SECONDS


def _key(finding: Finding) -> str:
    """The rule, the optimizer, and behind a # the layers: the least few of their hashes, as a tag has not much room."""
    what = re.sub(r"[^\w./-]", "_", f"{finding.rule}/{finding.optimizer}".rstrip("/"))[:80]
    hashes = sorted(f"{zlib.crc32(layer.encode()):08x}" for layer in finding.layers)
    return f"{what}#{','.join(hashes[:KEPT_LAYERS])}" if hashes else what


def _is_new(key: str, sent: set[str]) -> bool:
    """Whether no alert was sent for this finding: of its rule and optimizer, with one of its layers or of all."""
    what, _, own = key.partition("#")

    def is_same(other: str) -> bool:
        rule, _, layers = other.partition("#")
        apart = own and layers and set(own.split(",")).isdisjoint(layers.split(","))
        return rule == what and not apart

    return not any(map(is_same, sent))


def _keys(run: Any) -> set[str]:
    return set(run.data.tags.get(Tag.NOTIFIED, "").split())


def _read_findings(client: MlflowClient, run_id: str) -> list[Finding]:
    """The findings among the run's artifacts; none where they cannot be read."""
    from gradwatch.tracking import reader
    from gradwatch.tracking.client import ARTIFACTS

    name = f"{ARTIFACTS}/{FINDINGS}"
    try:
        require_known_place(client, run_id)
    except UnfitError:  # it is marked as corrupt
        return []
    sizes = {item.path: item.file_size for item in client.list_artifacts(run_id, ARTIFACTS)}
    if not 0 < (sizes.get(name) or 0) <= MAX_JSON:
        return []
    with tempfile.TemporaryDirectory(prefix="gradwatch-") as temporary:
        path = Path(temporary) / FINDINGS
        reader.download(reader.artifact_store(client, run_id), name, path)
        try:
            return [Finding.from_json(finding) for finding in read_json(path)["findings"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.warning("run %s: its %s cannot be read: %s", run_id, FINDINGS, printable(str(error)[:200]))
            return []


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


# -------------------------------------------------------------------------------------------------------- destinations


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
