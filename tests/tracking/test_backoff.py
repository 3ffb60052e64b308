"""The pause between two attempts."""

from gradwatch.tracking.backoff import Backoff


def test_a_pause_doubles_to_its_longest_and_begins_anew_after_a_success():
    backoff, pauses = Backoff(5, 30), []
    for _ in range(5):
        pauses.append(backoff.pause)
        backoff.after(success=False)
    assert pauses == [5, 10, 20, 30, 30]
    assert backoff.after(success=True) == 5
