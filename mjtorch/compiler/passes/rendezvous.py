"""Rendezvous: the warps of a block stay close, so that they fetch the same instructions.

A step has tens of thousands of instructions, most of which a world executes once: more than a multiprocessor's caches
of instructions hold. Warps that are each at another place wait for instructions most of the time; of those that stay
close the first fetches them for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mjtorch.compiler.ir.nodes import Body, For, Function, Program, Rendezvous, Statement
from mjtorch.compiler.ir.walk import bodies, expressions, walk, with_bodies

# Lanes of worlds that have more instructions than caches hold, at least.
FEWEST = 16
# Statements and expressions from one to the next, about: a few hundred instructions.
SIZE = 100


def keep_together(p: Program, size: int = SIZE) -> Program:
    """Let the warps of a block wait for each other wherever `size` expressions have passed.

    In loops they do where all worlds run through equally often, and it is as long each time. The smallest worlds, of
    few lanes, have few instructions: these are left as they are.
    """
    if p.layout is None or p.layout.lanes < FEWEST:
        return p
    return dataclasses.replace(p, body=_Meetings(size).body(p.body))


class _Meetings:
    """Walks what all worlds come to once, in order; `since`: how much there was since the last rendezvous."""

    def __init__(self, size: int) -> None:
        self.size, self.since = size, 0

    def body(self, statements: Sequence[Statement]) -> Body:
        """Statements, with rendezvous between them."""
        out: list[Statement] = []
        for s in statements:
            if isinstance(s, Function) or self.is_long(s):
                out.append(with_bodies(s, [self.body(b) for b in bodies(s)]))
                continue
            out.append(s)
            self.since += length([s])
            if self.since >= self.size:
                out.append(Rendezvous(origin=s.origin))
                self.since = 0
        return tuple(out)

    def is_long(self, s: Statement) -> bool:
        """Whether it is a loop of many instructions that all worlds run through equally often, such as RK4's stages."""
        return isinstance(s, For) and s.is_counted and length(s.body) >= self.size


def length(statements: Sequence[Statement]) -> int:
    """Statements and expressions, which become several instructions each."""
    return sum(1 + sum(1 for _ in expressions(x)) for x in walk(statements))
