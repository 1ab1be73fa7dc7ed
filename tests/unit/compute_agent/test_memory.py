import pathlib

from compute_agent.inventory import memory
from tests.unit.compute_agent import trees

GIB = 1024**3
STATUS = "Mems_allowed_list:\t{}\n"


def test_two_cells(tmp_path: pathlib.Path) -> None:
    root = trees.plant(tmp_path, trees.SERVER)
    assert memory.cells(root) == [
        memory.Cell(0, frozenset({0, 1, 4, 5}), 8 * GIB, True),
        memory.Cell(1, frozenset({2, 3, 6, 7}), 8 * GIB, True),
    ]
    assert memory.usable(16 * GIB, memory.cells(root)) == 16 * GIB


def test_a_cell_that_may_not_be_used_is_not_counted(tmp_path: pathlib.Path) -> None:
    root = trees.plant(tmp_path, trees.SERVER, {"proc/self/status": STATUS.format("1")})
    assert memory.usable(16 * GIB, memory.cells(root)) == 8 * GIB


def test_a_cell_with_cpus_but_no_memory_restricts_nothing(
    tmp_path: pathlib.Path,
) -> None:
    root = trees.plant(
        tmp_path,
        trees.SERVER,
        {
            "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:  0 kB\n",
            "proc/self/status": STATUS.format("0"),
        },
    )
    assert memory.usable(16 * GIB, memory.cells(root)) == 16 * GIB


def test_the_only_cell_has_all_the_memory(tmp_path: pathlib.Path) -> None:
    root = trees.plant(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:       24684092 kB\n",
            "sys/devices/system/node/node0/cpulist": "0-1\n",
            "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 5728468 kB\n",
        },
    )
    assert [cell.memory for cell in memory.cells(root)] == [24684092 * 1024]


def test_without_any_file(tmp_path: pathlib.Path) -> None:
    assert memory.total(tmp_path) is None
    assert memory.cells(tmp_path) == []
    assert memory.usable(GIB, []) == GIB
