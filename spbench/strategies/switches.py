"""A strategy's transfers sublayer by sublayer, with the switches between their shardings."""

from functools import cache
from typing import TYPE_CHECKING

from spbench.workload import traffic
from spbench.workload.mesh import Mesh
from spbench.workload.traffic import Move, Traffic, Transfer
from spbench.workload.workload import Workload

if TYPE_CHECKING:
    from spbench.strategies.base import Strategy


def switch_traffic(
    strategy: "Strategy", workload: Workload, before: str, after: str, ranks: int
) -> Traffic:
    """What moves the activation's sharding from one axis to another, and its gradient back."""
    hops = strategy.hops(workload, before, after, ranks)
    assert hops is not None, f"there is no way from {before} to {after}"
    mesh = Mesh.of(strategy.mesh(workload, ranks))
    there, back = hops, [hop.undone for hop in reversed(hops)]
    forward, backward = (
        [hop.transfer(workload.activation_bytes, mesh) for hop in way] for way in (there, back)
    )
    return forward, backward


def transfers_of(
    strategy: "Strategy", workload: Workload, ranks: int, move: Move
) -> list[Transfer]:
    """Transfers of a sublayer in a step, with those of the switch to its axis."""
    place, before, axis = move.place, move.before, move.axis
    own = strategy.sublayer_traffic(place.sublayer, workload, axis, ranks)
    switches = switch_traffic(strategy, workload, before, axis, ranks)
    return traffic.in_a_step(workload, place, own, switches, strategy.ends_in_transfer)


def transfers_of_step(strategy: "Strategy", workload: Workload, ranks: int) -> list[Transfer]:
    """Every transfer of one step, predicted without running."""
    known = cache(lambda move: transfers_of(strategy, workload, ranks, move))
    layout = strategy.layout(workload, ranks)
    moves = map(Move, workload.places, (layout[0], *layout), layout)  # the first is no switch
    sent = (each for move in moves for each in known(move))
    how = Mesh.of(strategy.mesh(workload, ranks)), strategy.cuts_weights, strategy.holds_whole
    return [*sent, *traffic.gradient_sums(workload, *how)]
