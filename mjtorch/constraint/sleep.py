"""Sleeping islands: what wakes kinematic trees, when they fall asleep (programming/simulation.rst, "Sleeping islands").

`tree_asleep` says it all. An awake tree has -11, and one more for each step at rest, up to -1: then it may fall asleep.
Those that sleep have the number of the next tree of their island, in a cycle: what wakes one wakes all.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.collision import collision
from mjtorch.constraint.island import components
from mjtorch.constraint.limit import tendon_limit
from mjtorch.constraint.order import c_order
from mjtorch.control_flow import cond, if_any, scan
from mjtorch.model import Contact, Data, DisableBit, Model
from mjtorch.model.make_data import empty_contact
from mjtorch.model.sleeping import awake, with_sleep
from mjtorch.model.touching import colliders

# -(1 + mjMINAWAKE), and what a tree has that may fall asleep.
FULLY_AWAKE, READY = -11, -1


class Trip(NamedTuple):
    """Contacts as found so far, and whether to look again, since something woke."""

    again: Tensor
    contact: Contact
    ncon: Tensor
    warning: Tensor
    tree_asleep: Tensor


def wake(m: Model, d: Data) -> Data:
    """Wake what was changed from outside while it slept (mj_wake).

    That is a tree whose `qpos` is not the one that it fell asleep with, or whose `qvel`, `qfrc_applied` or
    `xfrc_applied` is not zero.
    """
    (p,) = m.plan.sleep
    touched = torch.cat([(d.qvel != 0) | (d.qfrc_applied != 0), d.qpos != d.qpos_asleep, (d.xfrc_applied != 0).any(-1)])
    sleeper = torch.cat([p.dof, p.qpos, p.body])
    there = touched & (sleeper < m.ntree) & ~awake(m, d, sleeper)
    value = torch.full_like(sleeper, FULLY_AWAKE)
    return with_sleep(m, d, woken(d.tree_asleep, sleeper.clamp(max=m.ntree - 1), value, there))


def wake_tendon(m: Model, d: Data) -> Data:
    """Wake what a tendon at its limit joins to what is awake (mj_wakeTendon)."""
    (p,) = m.plan.sleep
    if not p.tendon.shape[0]:
        return d
    active = tendon_limit(m, d)[0].active[p.tendon]
    (one, two), (first, second) = p.tendon_tree, awake(m, d, p.tendon_tree)
    value = d.tree_asleep[torch.where(first, one, two)]
    return with_sleep(m, d, woken(d.tree_asleep, torch.where(first, two, one), value, active & (first != second)))


def wake_equality(m: Model, d: Data) -> Data:
    """Wake what an equality joins to what is awake, or to what sleeps in another island (mj_wakeEquality)."""
    (p,) = m.plan.sleep
    d = wake_flexes(m, d) if p.flex_equality.shape[0] else d
    if not p.equality.shape[0]:
        return d
    active, ends = d.eq_active[p.equality], p.equality_sleeper
    one, two = ~awake(m, d, ends)
    trees = torch.arange(m.ntree, device=ends.device)
    cycle = if_any(active & one & two, lambda: cycles(d.tree_asleep), trees)
    # The second may be a mocap body, which is no tree, but awake.
    tree = ends.clamp(max=m.ntree - 1)
    apart = active & ~(one & two & (cycle[tree[0]] == cycle[tree[1]]))
    there = torch.cat([apart & one, apart & two])
    return with_sleep(m, d, woken(d.tree_asleep, tree.flatten(), torch.full_like(tree.flatten(), FULLY_AWAKE), there))


def wake_flexes(m: Model, d: Data) -> Data:
    """Wake the first tree of a flex that sleeps, if an equality joins it to one that is awake."""
    (p,) = m.plan.sleep
    there = p.flex_tree < m.ntree
    stirs = awake(m, d, p.flex_tree)
    first, rests = (p.flex_tree.gather(1, x.long().argmax(1, keepdim=True))[:, 0] for x in (stirs, there & ~stirs))
    active = d.eq_active[p.flex_equality] & stirs.any(1) & (there & ~stirs).any(1)
    last = m.ntree - 1
    value = d.tree_asleep[first.clamp(max=last)]
    return with_sleep(m, d, woken(d.tree_asleep, rests.clamp(max=last), value, active))


def collision_and_wake(m: Model, d: Data) -> Data:
    """`collision`, and once more where contacts woke something: then there are those of what has slept, too."""
    if not m.plan.collision.ncandidate:
        return collision(m, d)

    def trip(now: Trip, first: Tensor) -> tuple[Trip, None]:
        def look() -> Trip:
            new = collision(m, with_sleep(m, d, now.tree_asleep))
            tree_asleep = torch.where(first, wake_contact(m, new), new.tree_asleep)
            again = ~torch.eq(tree_asleep, now.tree_asleep).all()
            return Trip(again, new.contact, new.ncon, new.warning, tree_asleep)

        return cond(now.again, look, lambda: now), None

    first = torch.tensor([True, False], device=d.qpos.device)
    start = Trip(first[0], empty_contact(m), torch.zeros_like(d.ncon), d.warning, d.tree_asleep)
    last, _ = scan(trip, start, first, unroll=False)
    return with_sleep(m, d.replace(contact=last.contact, ncon=last.ncon, warning=last.warning), last.tree_asleep)


def wake_contact(m: Model, d: Data) -> Tensor:
    """`tree_asleep` (ntree,) once what touches what is awake has woken (mj_wakeCollision).

    They are then as awake as what touched them, in the order of C's list of contacts.
    """
    (p,), order = m.plan.sleep, c_order(m, d)
    touching, detected = colliders(m, d)[order], d.contact.detected[order]
    one, two = p.carrier[touching].unbind(1)
    first, second = awake(m, d, one), awake(m, d, two)
    rests = (one < m.ntree) & ~first & second
    tree, other = torch.where(rests, one, two), torch.where(rests, two, one)
    there = detected & (rests | (first & ~second & (two < m.ntree)))
    fully = torch.full_like(d.tree_asleep[:1], FULLY_AWAKE)
    value = torch.cat([d.tree_asleep, fully])[other.clamp(max=m.ntree)]
    return woken(d.tree_asleep, tree.clamp(max=m.ntree - 1), value, there)


def woken(tree_asleep: Tensor, tree: Tensor, value: Tensor, there: Tensor) -> Tensor:
    """`tree_asleep` (ntree,) after n events, one after the other; those that are not `there` (n,) do not happen.

    Each wakes the sleeping tree `tree` (n,) and all that sleep with it: they get `value` (n,), or less if an event
    wakes the very tree with less.
    """
    n = len(tree)

    def wake() -> Tensor:
        cycle = cycles(tree_asleep)
        number = torch.where(there, torch.arange(n, device=tree.device), n)
        event = torch.full_like(tree_asleep, n).scatter_reduce(0, cycle[tree], number, "amin")[cycle]
        least = torch.zeros_like(tree_asleep).scatter_reduce(0, tree, torch.where(there, value, 0), "amin")
        first = torch.cat([value, value.new_zeros(1)])[event]
        return torch.where(event < n, torch.minimum(first, least), tree_asleep)

    return if_any(there, wake, tree_asleep)


def cycles(tree_asleep: Tensor) -> Tensor:
    """The first tree (ntree,) of the cycle that each tree sleeps in; itself if it is awake."""
    least = number = torch.arange(len(tree_asleep), device=tree_asleep.device)
    after = torch.where(tree_asleep < 0, number, tree_asleep)
    for _ in range((len(number) - 1).bit_length()):
        least, after = torch.minimum(least, least[after]), after[after]
    return least


def fall_asleep(m: Model, d: Data) -> Data:
    """Count the steps that trees are at rest, and let islands fall asleep all of whose trees are ready (mj_sleep).

    Sets tree_asleep, tree_awake, body_awake; qvel and qacc of what sleeps are zero.
    """
    (p,), before = m.plan.sleep, d.tree_asleep
    restless = ~p.allowed | touched(m, d)
    counted = torch.where(before < 0, torch.where(restless, FULLY_AWAKE, (before + 1).clamp(max=READY)), before)
    if m.opt.disabled(DisableBit.ISLAND):
        counted = torch.where(d.nefc > 0, before, counted)
    ready = (counted == READY) & (before < 0)
    if m.opt.disabled(DisableBit.ISLAND):
        ready = ready & (d.nefc == 0)
    after = if_any(ready, lambda: put_to_sleep(components(m, d), ready, counted), counted)
    stirs = (after < 0)[p.dof]
    d = with_sleep(m, d, after)
    return d.replace(qvel=torch.where(stirs, d.qvel, 0.0), qacc=torch.where(stirs, d.qacc, 0.0))


def touched(m: Model, d: Data) -> Tensor:
    """(ntree,) bool: whether a tree moves faster than `sleep_tolerance`, or a force is applied to it.

    Speeds of turning are counted at the length `dof_length`.
    """
    (p,), tolerance = m.plan.sleep, m.opt.sleep_tolerance
    moves = torch.where(tolerance == 0, d.qvel != 0, ~(m.dof_length * d.qvel.abs() < tolerance))
    flag = torch.cat([moves | (d.qfrc_applied != 0), (d.xfrc_applied != 0).any(-1)]).long()
    count = torch.zeros(m.ntree + 2, dtype=flag.dtype, device=flag.device)
    return count.scatter_reduce(0, torch.cat([p.dof, p.body]), flag, "amax")[: m.ntree] > 0


def put_to_sleep(island: Tensor, ready: Tensor, tree_asleep: Tensor) -> Tensor:
    """`tree_asleep` (ntree,) with a cycle for each island that is `ready` (ntree,) as a whole.

    island: (ntree,) the first tree of each one's island; -1: it is alone
    """
    number = torch.arange(len(island), device=island.device)
    island = torch.where(island < 0, number, island)
    stays = torch.zeros_like(number).scatter_reduce(0, island, (~ready).long(), "amax")[island] > 0
    falls = ready & ~stays
    key = torch.where(falls, island, len(number))
    order = key.sort(stable=True).indices
    follower = order.roll(-1)
    # The last of an island is followed by the first, which the island is called by.
    follower = torch.where(key[follower] == key[order], follower, key[order])
    return torch.where(falls, torch.zeros_like(number).scatter(0, order, follower), tree_asleep)
