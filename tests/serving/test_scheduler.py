"""Which rows run, as a state machine: no memory is lost, short rows go first, none waits for ever, none has more than there is."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from transept.serving.engine.memory import BLOCK, Memory, digests_of
from transept.serving.engine.scheduler import AT_ONCE, Row, Scheduler

BLOCKS, MAX_ROWS, BUDGET = 12, 4, 48


class Machine(RuleBasedStateMachine):
    """Rows come, read, write and leave at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.caches = set[int]()
        self.memory = Memory(BLOCKS * BLOCK, forget=self.caches.remove)
        self.scheduler = Scheduler(self.memory, max_rows=MAX_ROWS, budget=BUDGET)
        self.rows: dict[int, Row] = {}
        self.now, self.count = 0.0, 0
        self.preempted = set[int]()  # rows that gave up their memory and wait for some

    @rule(length=st.integers(1, 200), new=st.integers(1, 80), kind=st.integers(0, 2))
    def comes(self, length: int, new: int, kind: int) -> None:
        if self.memory.fits(length + new):
            row = Row(self.count, [kind] * length, length + new, arrived=self.now)
            self.count += 1
            self.rows[row.number] = row
            self.scheduler.add(row)

    @rule(times=st.integers(1, 20))
    def passes(self, times: int) -> None:
        for _ in range(times):
            self._pass()

    def _pass(self) -> None:
        self.now += 0.1
        admitted = self.scheduler.admit()
        self._check_order(admitted)
        for row in admitted:
            prefix = self.memory.match(row.digests)
            assert row.number not in self.caches
            self.caches.add(row.number)
            row.read = 0
            if prefix is not None:
                assert prefix[0] in self.caches
                assert prefix[1] < len(row.ids)
                row.read = prefix[1]
        ran = set(self.scheduler.running)
        shares = self.scheduler.plan()
        self.preempted |= ran - set(self.scheduler.running)
        reading = [share for share in shares if share.row.rest > 1]
        assert len({share.row.number for share in shares}) == len(shares)
        assert len(reading) <= AT_ONCE
        assert sum(share.new for share in reading) <= BUDGET
        for row, count in shares:
            assert 0 < count <= row.rest
            assert row.read + count <= self.memory.room(row.number)
            row.read += count
            if not row.rest:
                row.ids.append(7)
                if len(row.ids) >= row.limit:
                    self._leaves(row)

    def _check_order(self, admitted: list[Row]) -> None:
        """No row was admitted while one waits that is shorter, with what it has waited, or that had run before."""
        again = [row.number in self.preempted for row in admitted]
        assert again == sorted(again, reverse=True)
        self.preempted -= {row.number for row in admitted}
        shown = [self._weight(row) for row, before in zip(admitted, again, strict=True) if not before]
        assert shown == sorted(shown)
        if shown:
            assert not self.preempted
            assert all(self._weight(row) >= shown[-1] for row in self.scheduler.waiting)

    def _weight(self, row: Row) -> float:
        """The length of a waiting row, halved for each second; rounded, since it is computed in another way."""
        return round(row.rest / 2 ** (self.now - row.arrived), 6)

    def _leaves(self, row: Row) -> None:
        self.preempted.discard(row.number)
        del self.rows[row.number]
        self.scheduler.remove(row)
        self.memory.keep(row.number, row.ids[: row.read], row.salt)

    @rule(data=st.data())
    def is_cancelled(self, data: st.DataObject) -> None:
        if self.rows:
            self._leaves(self.rows[data.draw(st.sampled_from(sorted(self.rows)))])

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.memory.row_blocks + self.memory.kept_blocks <= BLOCKS
        assert set(self.memory.rows) == set(self.scheduler.running)
        assert self.caches == {*self.memory.rows, *self.memory.kept}
        assert len(self.scheduler) == len(self.rows)
        assert len(self.scheduler.running) <= MAX_ROWS

    def teardown(self) -> None:
        """Every row ends, since in each pass the oldest goes on."""
        left = sum(row.limit - row.read for row in self.rows.values())
        for _ in range(left * 4):
            if self.rows:
                self._pass()
        assert not self.rows
        assert not self.memory.rows


TestScheduler = Machine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_shortest_rest_is_read_first_and_waiting_counts() -> None:
    scheduler = Scheduler(Memory(2**16), budget=10)
    long, short = Row(0, [1] * 100, 200, arrived=0.0), Row(1, [1] * 8, 20, arrived=5.0)
    scheduler.add(long)
    scheduler.add(short)
    scheduler.admit()
    assert [(share.row.number, share.new) for share in scheduler.plan()] == [(0, 10)]  # 100 / 2 ** 5 is less than 8
    long.arrived = 5.0
    assert [(share.row.number, share.new) for share in scheduler.plan()] == [(1, 8), (0, 2)]


def test_the_shortest_is_admitted_first_and_waiting_counts() -> None:
    scheduler = Scheduler(Memory(2**16), max_rows=1)
    rows = [
        Row(number, [1] * length, 200, arrived=now) for number, (length, now) in enumerate([(90, 0), (100, 0), (8, 2), (8, 9)])
    ]
    for row in rows:
        scheduler.add(row)
    admitted = []
    while scheduler.waiting:
        admitted += scheduler.admit()
        scheduler.remove(admitted[-1])
    assert [row.number for row in admitted] == [2, 0, 1, 3]  # 100 / 2 ** 9 is less than 8


def test_short_rows_do_not_keep_a_long_one_waiting() -> None:
    """It needs all the memory, of which short ones have some at all times: in a tenth of a second two of them come and end."""
    scheduler = Scheduler(Memory(8 * BLOCK, keeps=False))
    long = Row(0, [1] * 8 * (BLOCK - 1), 8 * BLOCK)
    scheduler.add(long)
    for now in range(200):
        for number in (1, 2):
            scheduler.add(Row(2 * now + number, [1] * BLOCK, 2 * BLOCK, arrived=now / 10))
        if long in scheduler.admit():
            break
        for row in [*scheduler.running.values()][:2]:
            scheduler.remove(row)
            scheduler.memory.release(row.number)
    assert 25 < now < 60  # its 248 ids are as few as 32 after three seconds, and the last ones before it have to end


def test_prefixes_stay_where_their_memory_would_not_be_enough() -> None:
    memory = Memory(8 * BLOCK)
    for number in range(2):
        assert memory.reserve(number, 3 * BLOCK)
    memory.keep(0, [1] * 3 * BLOCK, b"")
    assert not memory.reserve(2, 6 * BLOCK)
    assert memory.kept_blocks == 3
    assert memory.reserve(2, 5 * BLOCK)
    assert memory.kept_blocks == 0


def test_rows_that_gave_up_their_memory_keep_their_place() -> None:
    scheduler = Scheduler(Memory(2**16))
    rows = [Row(number, [1] * 100, 200, arrived=float(number)) for number in range(3)]
    for row in rows:
        scheduler.add(row)
    scheduler.admit()
    for row in reversed(rows):
        scheduler.preempt(row)
    scheduler.add(Row(3, [1], 2))
    assert [row.number for row in scheduler.admit()] == [0, 1, 2, 3]


def test_cuts_stand_at_multiples() -> None:
    scheduler = Scheduler(Memory(2**16), budget=70, cut=32)
    rows = [Row(number, [1] * 100, 200) for number in range(2)]
    for row in rows:
        scheduler.add(row)
    scheduler.admit()
    assert [share.new for share in scheduler.plan()] == [64]
    rows[0].read = 64
    assert [share.new for share in scheduler.plan()] == [36, 32]


def test_prefixes_are_told_apart_by_all_that_comes_before() -> None:
    one = digests_of([1] * 32 + [2] * 32, b"")
    assert len(one) == 2
    assert one[1] != digests_of([3] * 32 + [2] * 32, b"")[1]
    assert not {*one} & {*digests_of([1] * 32 + [2] * 32, b"other")}


def test_prefixes_that_share_blocks_go_one_by_one() -> None:
    memory, gone = Memory(2**16), list[int]()
    memory.forget = gone.append
    begin = [1] * 64
    for number, end in enumerate(([2] * 32, [3] * 32)):
        assert memory.reserve(number, 96)
        memory.keep(number, begin + end, b"")
    memory.drop(1)
    assert memory.match(digests_of(begin + [2] * 32, b"")) == (0, 96)
    assert memory.match(digests_of(begin + [3] * 32, b"")) == (0, 64)
    memory.drop(0)
    assert memory.match(digests_of(begin, b"")) is None
    assert gone == [1, 0]
