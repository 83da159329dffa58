"""Which requests are sent and which are blamed: any order of events, against ``quarantine.py``'s rules."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from galley.service.quarantine import MAX_KILLED_RETRIES, Quarantine
from tests.thorough import examples


class QuarantineMachine(RuleBasedStateMachine):
    """A model of the engine with the requests ``held``; ``poison`` kills any engine that retries it."""

    def __init__(self) -> None:
        super().__init__()
        self.quarantine = Quarantine()
        self.live: set[str] = set()
        self.held: set[str] = set()
        self.ready = False
        self.dying = False
        self.count = 0

    def sent(self, request_ids: list[str]) -> None:
        assert self.ready or not request_ids
        for request_id in request_ids:
            assert request_id in self.live
            assert request_id not in self.held, "sent twice"
            self.held.add(request_id)

    @rule(number=st.integers(1, 3))
    def add(self, number: int) -> None:
        names = [f"r{self.count + i}" for i in range(number)]
        self.count += number
        self.live.update(names)
        self.sent(self.quarantine.add(names))

    @precondition(lambda self: not self.ready and not self.dying)
    @rule()
    def engine_ready(self) -> None:
        self.ready = True
        self.sent(self.quarantine.engine_ready())

    @precondition(lambda self: self.ready and self.held)
    @rule(data=st.data(), last=st.booleans())
    def output(self, data: st.DataObject, last: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        if last:
            self.held.remove(name)
            self.live.remove(name)
            self.sent(self.quarantine.finished(name))
        else:
            self.sent(self.quarantine.progressed(name))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        assert self.quarantine.cancelled(name) == (name in self.held)
        self.live.discard(name)
        self.held.discard(name)

    @precondition(lambda self: self.ready and self.quarantine.settling)
    @rule()
    def settled(self) -> None:
        self.sent(self.quarantine.settled())

    @precondition(lambda self: self.ready)
    @rule()
    def hang_up(self) -> None:
        """The socket has closed; the exit status of the process is not known yet."""
        self.quarantine.engine_away()
        self.ready, self.dying = False, True

    @precondition(lambda self: self.dying)
    @rule(killed=st.booleans())
    def die(self, killed: bool) -> None:
        retried = self.quarantine.retried
        given_up = self.quarantine.engine_died(killed=killed)
        assert given_up is None or given_up == retried
        if retried is not None and not killed:
            assert given_up == retried
        if given_up is not None:
            self.live.remove(given_up)
        self.held.clear()
        self.dying = False

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """With an engine available and no retry under way, all live requests are sent."""
        assert self.held <= self.live
        if self.ready and self.quarantine.retried is None and not self.quarantine.settling:
            assert self.held == self.live


TestQuarantineMachine = QuarantineMachine.TestCase
TestQuarantineMachine.settings = settings(max_examples=examples(200), stateful_step_count=40)


def test_quarantined_requests_come_back_one_at_a_time() -> None:
    quarantine = Quarantine()
    quarantine.engine_ready()
    assert quarantine.add(["a", "b", "c"]) == ["a", "b", "c"]
    assert quarantine.engine_died(killed=False) is None
    assert quarantine.add(["new"]) == []
    assert quarantine.engine_ready() == ["a"]
    assert quarantine.progressed("a") == ["b"]
    assert quarantine.progressed("a") == []
    assert quarantine.engine_died(killed=False) == "b"
    assert quarantine.engine_ready() == ["a"]
    assert quarantine.progressed("a") == ["c"]
    assert quarantine.finished("c") == ["new"]


def test_a_kill_blames_only_requests_that_always_ran() -> None:
    quarantine = Quarantine()
    quarantine.engine_ready()
    quarantine.add(["a"])
    quarantine.engine_died(killed=True)
    for _ in range(MAX_KILLED_RETRIES - 1):
        assert quarantine.engine_ready() == ["a"]
        assert quarantine.engine_died(killed=True) is None
    assert quarantine.engine_ready() == ["a"]
    assert quarantine.engine_died(killed=True) == "a"
