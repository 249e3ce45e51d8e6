"""Keys that clients want: what is journaled makes the same again."""

from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core.wanted_keys import CHUNK, WantedKeys

CLIENTS = ("a", "b")
KEYS = st.sets(st.integers(0, 6), max_size=4).map(sorted)
STEPS = st.lists(
    st.tuples(st.sampled_from(["graph", "desires", "releases"]), st.sampled_from(CLIENTS), KEYS)
)


class Journaled:
    """The rows that a recorder would write."""

    def __init__(self):
        self.graphs, self.chunks, self.singles = {}, {}, set()

    def write(self, wanted):
        for number, chunk, bits in wanted.changed_chunks():
            self.chunks.setdefault(number, {})[chunk] = bits
        for single, wants in wanted.changed_singles().items():
            (self.singles.add if wants else self.singles.discard)(single)

    def read(self):
        again = WantedKeys()
        for number, (client, keys) in self.graphs.items():
            again.graph_came(number, client, keys, self.chunks.get(number, {}))
        for client, key in self.singles:
            again.desires(client, [key])
        return again


@given(STEPS)
def test_what_is_journaled_makes_the_same_again(steps):
    wanted, journal = WantedKeys(), Journaled()
    expected = {client: set() for client in CLIENTS}
    for number, (kind, client, keys) in enumerate(steps):
        if kind == "graph":
            wanted.graph_came(number, client, keys)
            journal.graphs[number] = client, keys
        else:
            getattr(wanted, kind)(client, keys)
        expected[client] = (
            expected[client] - set(keys) if kind == "releases" else expected[client] | set(keys)
        )
        journal.write(wanted)
    for found in (wanted, journal.read()):
        assert {client: set(found.of(client)) for client in CLIENTS} == expected


@given(STEPS)
def test_a_key_is_wanted_of_the_last_graph_that_brought_it(steps):
    wanted, of = WantedKeys(), {}
    for number, (kind, client, keys) in enumerate(steps):
        if kind == "graph":
            wanted.graph_came(number, client, keys)
            of |= {(client, key): number for key in keys}
        else:
            getattr(wanted, kind)(client, keys)
            if kind == "releases":
                of = {one: n for one, n in of.items() if one[0] != client or one[1] not in keys}
            else:
                of = {(client, key): None for key in keys} | of
    for number in range(len(steps)):
        assert wanted.wants_of(number) == list(of.values()).count(number)


def test_keys_for_which_other_graphs_stand():
    wanted = WantedKeys()
    wanted.graph_came(1, "a", ["first", "both"])
    wanted.graph_came(2, "a", ["both", "second"])
    wanted.desires("a", ["single"])
    assert wanted.of("a", but_of={2}) == ["first", "single"]


def test_one_release_writes_one_chunk():
    wanted = WantedKeys()
    wanted.graph_came(1, "a", range(3 * CHUNK))
    wanted.releases("a", [CHUNK])
    ((number, chunk, bits),) = wanted.changed_chunks()
    assert (number, chunk, bits[0], len(bits)) == (1, 1, 1, CHUNK // 8)
    assert wanted.graph_gone(1) == 3
    assert not wanted.of("a")


def test_graphs_are_named_once_when_nothing_of_them_is_wanted_any_more():
    wanted = WantedKeys()
    wanted.graph_came(1, "client", ["a", "b"])
    wanted.graph_came(2, "client", ["b", "c"])
    assert list(wanted.unwanted()) == []
    wanted.releases("client", ["a", "b"])  # the second graph stands for "b"
    assert list(wanted.unwanted()) == [1]
    wanted.releases("client", ["c"])
    assert list(wanted.unwanted()) == [2]
    assert list(wanted.unwanted()) == []
