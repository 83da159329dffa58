"""Who is sent when, and who is blamed: any order of events, against the rules of ``quarantine.py``."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from galley.service.quarantine import MAX_KILLED_TRIALS, Quarantine


class TrialsMachine(RuleBasedStateMachine):
    """``held`` is what the engine has; ``poison`` kills any engine that holds it alone on trial."""

    def __init__(self) -> None:
        super().__init__()
        self.trials = Quarantine()
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
        self.sent(self.trials.add(names))

    @precondition(lambda self: not self.ready and not self.dying)
    @rule()
    def engine_ready(self) -> None:
        self.ready = True
        self.sent(self.trials.engine_ready())

    @precondition(lambda self: self.ready and self.held)
    @rule(data=st.data(), last=st.booleans())
    def output(self, data: st.DataObject, last: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        if last:
            self.held.remove(name)
            self.live.remove(name)
            self.sent(self.trials.finished(name))
        else:
            self.sent(self.trials.passed(name))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        assert self.trials.cancelled(name) == (name in self.held)
        self.live.discard(name)
        self.held.discard(name)

    @precondition(lambda self: self.ready and self.trials.settling)
    @rule()
    def settled(self) -> None:
        self.sent(self.trials.settled())

    @precondition(lambda self: self.ready)
    @rule()
    def hang_up(self) -> None:
        """The socket has closed; how the process ended is not known yet."""
        self.trials.engine_away()
        self.ready, self.dying = False, True

    @precondition(lambda self: self.dying)
    @rule(killed=st.booleans())
    def die(self, killed: bool) -> None:
        suspect = self.trials.on_trial
        guilty = self.trials.engine_died(killed=killed)
        assert guilty is None or guilty == suspect
        if suspect is not None and not killed:
            assert guilty == suspect
        if guilty is not None:
            self.live.remove(guilty)
        self.held.clear()
        self.dying = False

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """With an engine there and no trial under way, it has everything that lives."""
        assert self.held <= self.live
        if self.ready and self.trials.on_trial is None and not self.trials.settling:
            assert self.held == self.live


TestTrialsMachine = TrialsMachine.TestCase
TestTrialsMachine.settings = settings(max_examples=200, stateful_step_count=40)


def test_suspects_come_back_one_at_a_time() -> None:
    trials = Quarantine()
    trials.engine_ready()
    assert trials.add(["a", "b", "c"]) == ["a", "b", "c"]
    assert trials.engine_died(killed=False) is None
    assert trials.add(["new"]) == []
    assert trials.engine_ready() == ["a"]
    assert trials.passed("a") == ["b"]
    assert trials.passed("a") == []
    assert trials.engine_died(killed=False) == "b"
    assert trials.engine_ready() == ["a"]
    assert trials.passed("a") == ["c"]
    assert trials.finished("c") == ["new"]


def test_a_kill_convicts_only_who_is_always_there() -> None:
    trials = Quarantine()
    trials.engine_ready()
    trials.add(["a"])
    trials.engine_died(killed=True)
    for _ in range(MAX_KILLED_TRIALS - 1):
        assert trials.engine_ready() == ["a"]
        assert trials.engine_died(killed=True) is None
    assert trials.engine_ready() == ["a"]
    assert trials.engine_died(killed=True) == "a"
