"""What a drill consists of."""

from collections.abc import Callable
from dataclasses import dataclass

from fedpart.drill.runs import Place

# What happened, in a few words, and whether it is what should happen.
Happened = tuple[str, bool]
Action = Callable[[Place], Happened]


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        done: what is done.
        expected: what should happen.
        action: does it.
    """

    done: str
    expected: str
    action: Action


class Impossible(Exception):
    """The machine lacks what a case needs; says what."""


CASES: list[Case] = []


def case(done: str, expected: str) -> Callable[[Action], Action]:
    """Put an action on the list."""

    def add(action: Action) -> Action:
        CASES.append(Case(done, expected, action))
        return action

    return add
