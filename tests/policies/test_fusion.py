from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core.graph import OperandGraph
from dask_marsched.policies import fusion
from dask_marsched.policies.fusion import (
    ALONE,
    FREE,
    VISIBLE,
    GroupBounds,
    group_bounds,
    group_heads,
)
from dask_marsched.policies.planning.forecast import durations
from tests.graphs import graph, operand_graphs, pairwise, tree

MIB = 2.0**20
LOOSE = GroupBounds(nbytes=1e12, groups=1)


def joined(
    g: OperandGraph,
    limits: GroupBounds | None = None,
    roles: Mapping[str, int] | None = None,
    kinds: Mapping[str, int] | None = None,
) -> dict[object, set[object]]:
    """Return the groups of more than one operand, by head. Operands nobody reads are visible."""
    given_roles = [
        (roles or {}).get(str(g.keys[i]), FREE if g.dependents[i] else VISIBLE) for i in g
    ]
    heads = group_heads(g, given_roles, [(kinds or {}).get(str(k), 0) for k in g.keys], limits)
    found: dict[object, set[object]] = {}
    for i, head in enumerate(heads):
        found.setdefault(g.keys[head], set()).add(g.keys[i])
    return {head: members for head, members in found.items() if len(members) > 1}


# ---- Single lines ------------------------------------------------------------------------------


def test_the_published_example() -> None:
    """ADD and SUM become one, the two RANDs stay."""
    g = graph({"rand a": [], "rand b": [], "add": ["rand a", "rand b"], "sum": ["add"]})
    assert joined(g) == {"sum": {"add", "sum"}}


def test_a_line_becomes_one_from_end_to_end() -> None:
    g = graph({"a": [], "b": ["a"], "c": ["b"], "d": ["c"]})
    assert joined(g) == {"d": {"a", "b", "c", "d"}}


@pytest.mark.parametrize("limits", [None, LOOSE])
def test_very_long_lines_are_cut(limits: GroupBounds | None) -> None:
    n = 2 * fusion._MOST_OPERANDS + 100
    g = graph({f"x{i}": [f"x{i - 1}"] if i else [] for i in range(n)})
    sizes = [len(members) for members in joined(g, limits).values()]
    assert sum(sizes) == n
    assert len(sizes) == 3
    assert max(sizes) == fusion._MOST_OPERANDS + 1


def test_a_line_ends_where_others_read_or_join() -> None:
    g = graph({"a": [], "b": ["a"], "c": ["b"], "d": ["b"], "e": ["c", "d"], "f": ["e"]})
    assert joined(g) == {"b": {"a", "b"}, "f": {"e", "f"}}


def test_visible_operands_end_a_chain() -> None:
    g = graph({"a": [], "b": ["a"], "c": ["b"]})
    assert joined(g, roles={"b": VISIBLE, "c": VISIBLE}) == {"b": {"a", "b"}}


@pytest.mark.parametrize("limits", [None, LOOSE])
def test_alone_operands_are_not_joined(limits: GroupBounds | None) -> None:
    g = graph({"a": [], "b": ["a"], "c": ["b"], "d": ["c"]})
    assert joined(g, limits, roles={"b": ALONE, "d": VISIBLE}) == {"d": {"c", "d"}}


@pytest.mark.parametrize("limits", [None, LOOSE])
def test_different_kinds_are_not_joined(limits: GroupBounds | None) -> None:
    g = graph({"a": [], "b": ["a"], "c": ["b"], "d": ["c"]})
    assert joined(g, limits, kinds={"a": 1, "b": 1}) == {"b": {"a", "b"}, "d": {"c", "d"}}


# ---- Sub-graphs --------------------------------------------------------------------------------


def test_sources_join_where_they_meet() -> None:
    assert joined(pairwise(64), GroupBounds(100.0, 64)) == {
        f"s{i}": {f"a{i}", f"b{i}", f"s{i}"} for i in range(64)
    }


def test_a_diamond_becomes_one() -> None:
    g = graph({"x": [], "sin": ["x"], "cos": ["x"], "sum": ["sin", "cos"]})
    assert joined(g, LOOSE) == {"sum": {"x", "sin", "cos", "sum"}}


def test_operands_with_other_readers_are_not_joined() -> None:
    g = graph({"x": [], "y": [], "a": ["x", "y"], "b": ["x"]})
    assert joined(g, LOOSE) == {"a": {"y", "a"}}


def test_memory_is_bounded() -> None:
    g = tree(16, 4, partial=MIB)
    g = g.with_nbytes([MIB] * len(g), b"\1" * len(g))
    # Four sources and what is made of them: five results at a time.
    assert len(joined(g, GroupBounds(5 * MIB, 1))) == 4
    assert joined(g, GroupBounds(4.9 * MIB, 1)) == {}
    # The first group leaves one result, the next needs five more, ...
    assert len(joined(g, GroupBounds(8 * MIB, 1))["r0.0"]) == len(g)


def test_parallelism_is_kept() -> None:
    g = tree(256, 4)
    for groups in (1, 4, 16, 64):
        sizes = [len(members) for members in joined(g, GroupBounds(1e9, groups)).values()]
        # No group takes longer than the path through the tree and its share of all operands.
        assert max(sizes, default=1) <= 5 + len(g) / groups
    assert joined(g, GroupBounds(1e9, 1000)) == {}


def test_a_chain_does_not_join_operands_that_could_run_in_parallel() -> None:
    inputs: dict[str, list[str]] = {"c0": []}
    for i in range(1, 40):
        inputs |= {f"x{i}": [], f"c{i}": [f"c{i - 1}", f"x{i}"]}
    g = graph(inputs, {name: 100 * MIB if name[0] == "x" else 8.0 for name in inputs})
    found = joined(
        g, GroupBounds(1e12, 16), roles={name: VISIBLE for name in inputs if name[0] == "c"}
    )
    # Each x takes 0.5 s, the chain next to nothing. It waits for the first x anyway, and grows by a
    # sixteenth of all at most.
    assert sum(len(members) - 1 for members in found.values()) <= 1 + 40 / 16


def test_inputs_that_are_alike_are_drawn_in_all_or_none() -> None:
    inputs: dict[str, list[str]] = {f"x{i}": [] for i in range(100)} | {"last": []}
    inputs["last"] = [f"x{i}" for i in range(100)]
    assert joined(graph(inputs), GroupBounds(1e9, 4)) == {}


def test_no_large_input_comes_in_for_a_small_one() -> None:
    """A slice is made where the chunk is, not where the slice is needed."""
    inputs = {"x": [], "y": [], "slice": ["x"], "other": ["x"], "sum": ["slice", "y"]}
    sizes = {"x": 8 * MIB, "slice": 1 * MIB, "y": 8 * MIB, "other": 1 * MIB, "sum": 1.0}
    assert joined(graph(inputs, sizes), LOOSE) == {"sum": {"y", "sum", "slice"}}
    assert joined(graph(inputs, sizes), LOOSE, roles={"y": VISIBLE, "sum": VISIBLE}) == {}


def test_a_source_takes_as_long_as_what_it_makes_on_the_way() -> None:
    """Small results of large chunks are not all made within the task that adds them up."""
    inputs: dict[str, list[str]] = {}
    for i in range(4):
        inputs |= {f"a{i}": [], f"b{i}": [], f"s{i}": [f"a{i}", f"b{i}"], f"r{i}": []}
    inputs["total"] = [f"{name}{i}" for name in "sr" for i in range(4)]
    g = graph(inputs, {name: 16 * MIB if name[0] in "ab" else 1.0 for name in inputs})
    limits = GroupBounds(1e12, 64)
    assert joined(g, limits)["total"] > {f"r{i}" for i in range(4)}
    made = [16 * MIB if str(key)[0] == "r" else 0.0 for key in g.keys]
    assert "total" not in joined(g, replace(limits, made=made))


def test_small_hubs_do_not_prevent_joining() -> None:
    inputs: dict[str, list[str]] = {"mean": []}
    for i in range(32):
        inputs |= {f"x{i}": [], f"d{i}": ["mean", f"x{i}"], f"e{i}": [f"x{i}"]}
    inputs |= {f"s{i}": [f"d{i}", f"d{i + 1}"] for i in range(0, 32, 2)}
    found = joined(graph(inputs, MIB), GroupBounds(8 * MIB, 16))
    assert found == {f"s{i}": {f"s{i}", f"d{i}", f"d{i + 1}"} for i in range(0, 32, 2)}


def test_pieces_are_cut_off_where_the_whole_is() -> None:
    inputs: dict[str, list[str]] = {"x": [], "y": []}
    for i in range(32):
        inputs |= {f"p{i}": ["x"], f"q{i}": ["y"], f"s{i}": [f"p{i}", f"q{i}"]}
    sizes = {name: 32 * MIB if name in "xy" else MIB for name in inputs}
    assert joined(graph(inputs, sizes), LOOSE) == {}
    # A small one may as well be on every worker.
    found = joined(graph(inputs, sizes), GroupBounds(1e12, 1, small=32 * MIB))
    assert found == {f"s{i}": {f"p{i}", f"q{i}", f"s{i}"} for i in range(32)}


def test_pieces_of_a_frame_of_unknown_size_are_cut_off_where_it_is() -> None:
    """As when frames of different divisions are aligned: most pieces are empty."""
    inputs: dict[str, list[str]] = {"frame": []}
    for i in range(32):
        inputs |= {f"x{i}": [], f"p{i}": ["frame"], f"s{i}": [f"p{i}", f"x{i}"]}
    g = graph(inputs, 1.0)
    found = joined(g.with_nbytes(g.nbytes, bytes(len(g))), LOOSE)
    assert found == {f"s{i}": {f"x{i}", f"s{i}"} for i in range(32)}


def test_bounds_follow_the_cluster() -> None:
    g = graph({"a": [], "b": [], "s": ["a", "b"]}, MIB)
    limits = group_bounds(g, threads=16, thread_memory=0)
    assert limits == GroupBounds(8 * MIB, 128, small=MIB / 4)
    assert group_bounds(g, threads=0, thread_memory=0).groups == 64
    assert group_bounds(g, threads=4, thread_memory=16 * MIB).nbytes == 2 * MIB
    tiny = graph({"a": [], "b": [], "s": ["a", "b"]})
    assert group_bounds(tiny, threads=4, thread_memory=0).nbytes == MIB


# ---- Whatever the graph ------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[OperandGraph, list[int], list[int], GroupBounds | None]:
    g = draw(operand_graphs())
    roles = draw(
        st.lists(st.sampled_from([FREE] * 6 + [VISIBLE, ALONE]), min_size=len(g), max_size=len(g))
    )
    for i in g:
        if not g.dependents[i] and not roles[i]:
            roles[i] = VISIBLE
    kinds = draw(st.lists(st.sampled_from([0, 0, 0, 1]), min_size=len(g), max_size=len(g)))
    limits = st.builds(GroupBounds, st.floats(0, 1e8), st.integers(1, 1000))
    return g, roles, kinds, draw(st.none() | limits)


def finishes(g: OperandGraph, heads: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """When each group is done, if there is a thread for each; raises on a cycle."""
    members: dict[int, list[int]] = {}
    for i, head in enumerate(heads):
        members.setdefault(head, []).append(i)
    done: dict[int, float] = {}
    under_way: set[int] = set()

    def finish(head: int) -> float:
        if head not in done:
            assert head not in under_way, "a cycle"
            under_way.add(head)
            reads = {heads[j] for i in members[head] for j in g.inputs[i]} - {head}
            latest = max((finish(j) for j in reads), default=0.0)
            done[head] = latest + sum(seconds[i] for i in members[head])
        return done[head]

    return [finish(head) for head in heads]


@given(cases())
def test_groups_are_convex_and_nothing_is_lost(
    case: tuple[OperandGraph, list[int], list[int], GroupBounds | None],
) -> None:
    g, roles, kinds, limits = case
    heads = group_heads(g, roles, kinds, limits)
    for i, head in enumerate(heads):
        assert kinds[i] == kinds[head]
        if heads[i] != i:
            # Whoever reads it is in its group; so only the head is read from outside.
            assert roles[i] == FREE
            assert roles[head] != ALONE
            assert {heads[d] for d in g.dependents[i]} == {head}
    seconds = durations(g)
    after = finishes(g, heads, seconds)
    if limits is not None:
        before = finishes(g, list(g), seconds)
        slack = sum(seconds) / limits.groups
        for i in set(heads):
            assert after[i] <= before[i] + slack + 1e-9


@given(cases())
def test_more_is_joined_with_bounds_than_in_lines(
    case: tuple[OperandGraph, list[int], list[int], GroupBounds | None],
) -> None:
    g, roles, kinds, _ = case
    lines = group_heads(g, roles, kinds)
    # Even where nothing else may be joined.
    for limits in (GroupBounds(0.0, 10**6), LOOSE):
        assert len(set(group_heads(g, roles, kinds, limits))) <= len(set(lines))
    for i, head in enumerate(lines):
        if head != i:
            assert len(g.dependents[i]) == 1


@pytest.mark.extended
@given(cases())
def test_a_group_that_waits_holds_no_more_than_its_parts_would(
    case: tuple[OperandGraph, list[int], list[int], GroupBounds | None],
) -> None:
    g, roles, kinds, limits = case
    g = g.with_nbytes([size * 1000 for size in g.nbytes], g.known)  # far above what is a crumb
    heads = group_heads(g, roles, kinds, limits)
    for head in set(heads):
        members = {i for i, h in enumerate(heads) if h == head}
        outside = {j for i in members for j in g.inputs[i]} - members
        # Wherever one stops reading within the group, as much is left to be read from there.
        direct = set(g.inputs[head])
        inner = sum(g.nbytes[j] for j in direct & members)
        brought = sum(g.nbytes[j] for j in outside - direct)
        if len(outside) > 1 and len(direct) > 1:
            assert brought <= inner + len(members) * fusion.CRUMB


def test_large_or_unknown_hubs_prevent_joining() -> None:
    inputs: dict[str, list[str]] = {"model": []}
    for i in range(40):
        inputs |= {f"x{i}": [], f"y{i}": [f"x{i}", "model"]}
    for model, known, joined in ((1e6, True, True), (1e9, True, False), (1e6, False, False)):
        found = graph(inputs, {"model": model} | dict.fromkeys(list(inputs)[1:], 1e6))
        found = found.with_nbytes(found.nbytes, bytes([known]) + b"\1" * 80)
        limits = LOOSE
        heads = group_heads(found, bytearray(81), [0] * 81, limits)
        assert (len(set(heads)) < 81) is joined, (model, known)
