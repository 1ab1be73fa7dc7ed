"""What the leader reads is what is stored, on each database."""

from tests.unit.conductor import test_grounds


def test_any_changes_in_any_order(database_url: str) -> None:
    table = test_grounds.Table(database_url)
    first = table.check()
    assert table.check() is first
    test_grounds.change_at_random(table, 60)
    table.engine.dispose()
