"""The replicas of a simulation: those that serve, start and drain, and what they cost."""

from galley.plan.cluster.engine import Engine
from galley.plan.cluster.replica import Clock, Replica
from galley.plan.cluster.scalers import Load
from galley.plan.cluster.traffic import Traffic


class Fleet:
    """The replicas of a simulation.

    Args:
        engine: of each replica.
        traffic: the requests.
        clock: of the simulation.
        replicas: that serve from the beginning.

    Attributes:
        serving: replicas that get requests.
        timeline: (seconds, how many serve) at the start and after each change.
    """

    def __init__(self, engine: Engine, traffic: Traffic, clock: Clock, replicas: int) -> None:
        self._engine, self._traffic, self._clock = engine, traffic, clock
        self._made = 0
        self.serving = [self._make() for _ in range(replicas)]
        self._draining: set[Replica] = set()
        self._starting: list[float] = []
        self.timeline = [(0.0, replicas)]
        self._paid, self._paid_until = 0.0, 0.0

    @property
    def current(self) -> int:
        """Replicas that serve or start."""
        return len(self.serving) + len(self._starting)

    @property
    def mean(self) -> float:
        """How many replicas had to be paid until now, on average."""
        self._pay()
        return self._paid / self._clock.now if self._clock.now else float(len(self.serving))

    def load(self) -> Load:
        """Return what an autoscaler sees."""
        seats = self._engine.seats
        counts = [one.requests for one in self.serving]
        running = sum(min(count, seats) for count in counts)
        predicted = min(map(self._first_token, self.serving))
        return Load(len(counts), running, sum(counts) - running, len(counts) * seats, predicted)

    def begin(self, due: float) -> None:
        """Start a replica; :meth:`started` has it serve when it is due."""
        self._pay()
        self._starting.append(due)

    def started(self, due: float) -> None:
        """Have a replica serve whose start is over, unless it is not wanted any more."""
        if due not in self._starting:
            return
        self._pay()
        self._starting.remove(due)
        self.serving.append(self._make())
        self._note()

    def shrink(self, count: int) -> list[Replica]:
        """Remove replicas: those that started last, then those with the fewest requests, which end them.

        Returns:
            Those that served.
        """
        self._pay()
        cancelled = min(count, len(self._starting))
        del self._starting[len(self._starting) - cancelled :]
        removed = sorted(self.serving, key=lambda one: one.requests)[: count - cancelled]
        for replica in removed:
            self.serving.remove(replica)
            if replica.requests:
                self._draining.add(replica)
        if removed:
            self._note()
        return removed

    def idle(self, replica: Replica) -> None:
        """End a replica that has no requests left, if it drains."""
        if replica in self._draining:
            self._pay()
            self._draining.remove(replica)

    def lose(self, count: int) -> list[Replica]:
        """End the first replicas at once, and return them."""
        self._pay()
        lost = self.serving[:count]
        del self.serving[:count]
        self._note()
        return lost

    def _make(self) -> Replica:
        self._made += 1
        mean = self._traffic.mean_output
        return Replica(f"r{self._made - 1}", self._engine, mean, self._clock)

    def _first_token(self, replica: Replica) -> float:
        """Return the predicted seconds until a newcomer has its first token, as replicas predict them.

        That is the wait as by :meth:`galley.service.admission.Admission.backlog`, and the usual prefill.
        """
        engine, traffic = self._engine, self._traffic
        prompt, output = traffic.mean_prompt, traffic.mean_output
        decoding = min(replica.requests, engine.seats - 1)
        prefill = engine.seconds_of_prompt(prompt, decoding, prompt + output / 2)
        if replica.requests < engine.seats:
            return prefill
        cost = prompt + output
        pace = cost / engine.seconds_of_request(prompt, output)
        return max(0.0, replica.owed - (engine.seats - 1) * cost / 2) / pace + prefill

    def _pay(self) -> None:
        count = len(self.serving) + len(self._starting) + len(self._draining)
        self._paid += count * (self._clock.now - self._paid_until)
        self._paid_until = self._clock.now

    def _note(self) -> None:
        self.timeline.append((self._clock.now, len(self.serving)))
