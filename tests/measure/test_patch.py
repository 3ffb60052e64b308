"""Wrapped functions of somebody else's: who listens may end where another has only begun to."""

import threading

from gradwatch.measure import eager
from gradwatch.measure.patch import Patch, Wrapped


class Holder:
    """Whose function is wrapped."""

    def function(self):
        return 1


def ends_within(seconds, act):
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def test_a_listener_may_end_in_the_middle_of_anothers_beginning():
    def patches():
        wrapped.leave("old")  # as a signal or a garbage collection does, at any line
        return [Patch([(Holder, "function")], lambda original: lambda self: 2)]

    wrapped: Wrapped[str] = Wrapped(patches)
    assert ends_within(20, lambda: wrapped.listen("new"))
    assert (wrapped.listeners, Holder().function()) == (("new",), 2)
    wrapped.leave("new")
    assert Holder().function() == 1


def test_who_wants_eager_code_may_end_in_the_middle_of_anothers_beginning(monkeypatch):
    want_stance = eager.torch.compiler.set_stance

    def set_stance(stance):
        eager.leave("old")
        return want_stance(stance)

    monkeypatch.setattr(eager.torch.compiler, "set_stance", set_stance)
    assert ends_within(20, lambda: eager.want("new"))
    eager.leave("new")
    assert eager._eager.stance is None
