"""Alerts: each error among a run's findings is sent once, to a command or to a webhook."""

from __future__ import annotations

import logging
import re
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwatch.analysis.rules.finding import Finding
from gradwatch.sanitize import MAX_JSON, printable, read_json
from gradwatch.storage.folder import FINDINGS
from gradwatch.tracking.artifact_places import UnfitError, require_known_place
from gradwatch.tracking.backoff import Backoff
from gradwatch.tracking.notifiers import AlertError, Message, message
from gradwatch.tracking.tags import Tag

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from gradwatch.tracking.health import Health

log = logging.getLogger("gradwatch")

NEWS_SECONDS = 86_400.0  # what ended longer ago is no news to a monitor that is started today
CLAIM_SECONDS = 60.0  # a claim that is older is that of a monitor that died
SETTLE_SECONDS = 1.0  # how long two monitors that claim one run at once take to see it
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 900.0  # seconds between two attempts to send
MOST_ALERTS = 50  # of one run
KEPT_LAYERS = 6  # of a finding, by which it is known again as it spreads: 50 alerts fit in the 8,000 bytes of a tag
_ERROR = re.compile(r"(?:^|; )error ")


class Alerts:
    """Sends alerts of new errors, once for each run, rule, optimizer and layers: a tag on the run remembers it.

    `send` delivers one message or raises `AlertError`; then the run's turn comes again after growing pauses. With
    `lost_after` also of runs that failed, were killed, or have sent nothing for so many seconds (`_lost`).
    """

    def __init__(
        self,
        send: Callable[[Message], None],
        tracking_uri: str,
        ui: str | None = None,
        lost_after: float | None = None,
    ) -> None:
        self.send, self.uri, self.lost_after = send, ui or tracking_uri, lost_after
        self.name = uuid.uuid4().hex[:12]
        self._sent: dict[str, str] = {}  # run id -> the findings tag whose errors were sent
        self._retries: dict[str, tuple[float, Backoff]] = {}  # run id -> (when to try again, the pause after that)
        self._failing = False
        self._pulses: dict[str, tuple[str, float]] = {}  # run id -> what it last sent, and when that was seen to be new

    def send_new(self, client: MlflowClient, run: Any, health: Health) -> None:
        """Send an alert for each error of one run that none was sent for yet."""
        from gradwatch.tracking import client as store

        run_id, said, lost = run.info.run_id, run.data.tags.get(Tag.FINDINGS, ""), self._lost(run)
        due, backoff = self._retries.get(run_id) or (0.0, Backoff(FIRST_PAUSE, LONGEST_PAUSE))
        text = "; ".join([said, *(finding.rule for finding in lost)])
        is_sent = self._sent.get(run_id) == text or _is_old(run)
        if not (lost or _ERROR.search(said)) or is_sent or time.monotonic() < due:
            return
        found = _read_findings(client, run_id) if _ERROR.search(said) else []
        errors = [*lost, *(f for f in found if f.severity == "error")][:MOST_ALERTS]
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

    def _lost(self, run: Any) -> list[Finding]:
        """That the run failed or was killed, or that nothing has come of it for long, as far as this monitor saw."""
        from gradwatch.tracking.reader import pulse

        run_id, status, now = run.info.run_id, run.info.status, time.monotonic()
        if self.lost_after is None or status not in ("FAILED", "KILLED", "RUNNING"):
            return []
        if status == "RUNNING":
            latest = pulse(run)
            last, since = self._pulses.get(run_id, ("", now))
            if last != latest:
                self._pulses[run_id] = latest, now
                return []
            if now - since < self.lost_after:
                return []
            rule, cause = "run-silent", f"Nothing has come of it for {(now - since) / 60:.0f} minutes: "
            cause += "its process or its machine may be gone, or its courier."
        else:
            rule, cause = f"run-{status.lower()}", f"It ended as {status}."
        judged = run.data.tags.get(Tag.JUDGED, "")
        step = int(judged) if judged.isdigit() else 0
        cure = "Look at what it printed last; its folder holds the record up to seconds before that."
        return [Finding(rule, "error", (), step, step, cause=cause, cure=cure)]

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
