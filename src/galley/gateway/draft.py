"""The account of work that may prove unwanted, such as an answer to a turn that is not over yet."""

from galley.errors import GalleyError
from galley.gateway.tenants import Account
from galley.observe.tally import Countable


class Draft(Account):
    """Notes what some work uses, and charges it to the tenant's account once the work is wanted.

    Until then it takes nothing from the tenant's limits and is in none of its counts. It is refused where a
    request of the tenant would be.
    """

    def __init__(self, account: Account) -> None:
        """Begin with no work. ``account``: the tenant's."""
        super().__init__(account.tenant)
        self._account = account
        self._accepted = False
        self._begun: list[float] = []
        self._ended: list[float] = []
        self._charged = self._used = 0
        self._counts: dict[Countable, float] = {}

    def accept(self) -> None:
        """Charge what was used so far; what follows is charged as it comes.

        Raises:
            RateLimited, RequestError: the tenant's limits do not allow it. The work must not be used.
        """
        account, entered = self._account, list[float]()
        account.reserve(max(0, self._charged))
        try:
            for _ in self._begun:
                entered.append(account.enter())
        except GalleyError:
            for began in entered:
                account.leave(began)
            account.spend(-max(0, self._charged))
            raise
        self._accepted = True
        for began in self._ended:
            account.leave(began)
        account.use(self._used)
        for counter, amount in self._counts.items():
            account.count(counter, amount)

    def check(self) -> None:
        """Implement :meth:`Account.check`."""
        self._account.check()

    def enter(self) -> float:
        """Implement :meth:`Account.enter`."""
        if self._accepted:
            return self._account.enter()
        self.check()
        self._begun.append(self._clock())
        return self._begun[-1]

    def leave(self, began: float) -> None:
        """Implement :meth:`Account.leave`."""
        if self._accepted:
            self._account.leave(began)
        else:
            self._ended.append(began)

    def reserve(self, tokens: int) -> None:
        """Implement :meth:`Account.reserve`."""
        if self._accepted:
            self._account.reserve(tokens)
        else:
            self._account.reserve(0)
            self._charged += tokens

    def spend(self, tokens: int) -> None:
        """Implement :meth:`Account.spend`."""
        if self._accepted:
            self._account.spend(tokens)
        else:
            self._charged += tokens

    def use(self, tokens: int, now: float | None = None) -> None:
        """Implement :meth:`Account.use`."""
        if self._accepted:
            self._account.use(tokens, now)
        else:
            self._used += tokens

    def count(self, counter: Countable, amount: float) -> None:
        """Implement :meth:`Account.count`."""
        if self._accepted:
            self._account.count(counter, amount)
        else:
            self._counts[counter] = self._counts.get(counter, 0) + amount
