"""Which softmax blocks to keep, by the score of a trained head with several of them replaced."""

from typing import Any, Callable, Dict, FrozenSet, List, Mapping, MutableMapping, Optional

from .hybrids import (
    Plan,
    check_keep,
    check_reachable,
    meets_already,
    saved_times,
    time_without,
    useful_places,
)

Linear = FrozenSet[str]  # the attentions that are linear


class TaskSearch:
    """Attentions become linear one after another, those first whose task suffers least.

    Each step tries every attention beside those that are linear already, and keeps the ``beam``
    best sets. With a number of blocks to keep, the best set has the highest score. Under a budget
    it has the smallest loss of score per time saved. Sets of one score are told apart by the sum of
    their harms. So blocks are judged together, where :func:`choose` adds up harms of single ones.

    Of L blocks, a beam of 1 scores at most :math:`L (L + 1) / 2` sets.

    Args:
        score: Gives the score of the model with these attentions linear. Higher is better.
        beam: Number of sets that are kept at each step. Default: 1, greedy.
        scores: What ``score`` gave before, by the names of the attentions, sorted and with spaces
            between. New ones are added. Default: none.
        scored: Called after each new score. Default: nothing.

    Examples:
        >>> from mmlaplace.linearizing import TaskSearch
        >>> apart = dict(a=1, b=2, c=3)  # and b harms only beside a
        >>> def score(linear):
        ...     return 90 - sum(apart[place] for place in linear if place != 'b' or 'a' in linear)
        >>> harms = dict(a=1, b=2, c=3)
        >>> TaskSearch(score)(harms, dict(
        ...     whole=dict(softmax=6, linear=3),
        ...     softmax=dict.fromkeys('abc', 2), linear=dict.fromkeys('abc', 1)), keep=1).linear
        ['b', 'a']
    """

    def __init__(
        self,
        score: Callable[[Linear], float],
        beam: int = 1,
        scores: Optional[MutableMapping[str, float]] = None,
        scored: Optional[Callable[[], Any]] = None,
    ) -> None:
        self._score, self.beam, self._scored = score, beam, scored
        self.scores = {} if scores is None else scores

    def score(self, linear: Linear) -> float:
        """The score of a set, which is measured once."""
        name = ' '.join(sorted(linear))
        if name not in self.scores:
            self.scores[name] = self._score(linear)
            if self._scored is not None:
                self._scored()
        return self.scores[name]

    def loss(self, linear: Linear) -> float:
        """By how much the score falls if these attentions become linear, or 0 if it rises.

        On some hundred images a score may rise by chance, which must not count as a gain.
        """
        return max(0.0, self.score(frozenset()) - self.score(linear))

    def __call__(
        self,
        harms: Mapping[str, float],
        costs: Mapping[str, Any],
        keep: Optional[int] = None,
        budget: Optional[float] = None,
    ) -> Plan:
        """The plan, whose harm is the loss of the score.

        Args:
            harms, costs, keep, budget: As in :func:`choose`.

        Raises:
            ValueError: As there.
        """
        if (keep is None) == (budget is None):
            raise ValueError(f'give either keep or budget, got keep={keep} and budget={budget}')
        saved = saved_times(costs)
        if keep is not None:
            check_keep(keep, len(harms))
            places, limit = list(harms), 0.0
        else:
            limit = check_reachable(costs, budget)
            places = useful_places(saved)
            if time_without(saved, ()) <= limit:
                raise ValueError(meets_already(limit))

        def worth(linear: Linear) -> tuple:
            """Smaller is better."""
            unit = 1.0 if keep is not None else sum(saved[place] for place in linear)
            return self.loss(linear) / unit, sum(harms[place] for place in linear) / unit

        def is_enough(linear: Linear) -> bool:
            if keep is not None:
                return len(linear) == len(harms) - keep
            return time_without(saved, linear) <= limit

        path: List[List[str]] = [[]]  # the best order, set by set
        orders: Dict[Linear, List[str]] = {frozenset(): []}
        enough: List[Linear] = []
        while not enough:
            grown: Dict[Linear, List[str]] = {}
            for linear, order in orders.items():
                for place in places:
                    if place not in linear:
                        grown.setdefault(linear | {place}, [*order, place])
            best = sorted(grown, key=worth)[: self.beam]
            orders = {linear: grown[linear] for linear in best}
            path.append(orders[best[0]])
            enough = [linear for linear in best if is_enough(linear)]
        chosen = min(enough, key=lambda linear: (self.loss(linear), *worth(linear)))
        order = self._without_spare(orders[chosen], harms, is_enough)
        return Plan(
            order,
            [place for place in harms if place not in order],
            time_without(saved, order),
            self.loss(frozenset(order)),
            [(time_without(saved, one), self.loss(frozenset(one))) for one in path],
        )

    def _without_spare(
        self,
        order: List[str],
        harms: Mapping[str, float],
        is_enough: Callable[[Linear], bool],
    ) -> List[str]:
        """Those of the attentions that are needed: an early one may save less than was asked."""
        for place in sorted(order, key=lambda one: harms[one], reverse=True):
            others = [one for one in order if one != place]
            spare = is_enough(frozenset(others))
            if spare and self.loss(frozenset(others)) <= self.loss(frozenset(order)):
                order = others
        return order
