"""An operator's word about a freeze, on each database."""

import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import migration
from tests import util


def test_the_word_is_kept_until_the_freeze_ends(database_url: str) -> None:
    engine = db_engine.make_engine(database_url)
    migration.sync(engine)
    store = liveness.LivenessStore(engine)
    assert store.release_freeze(None, "me") == ([], [])
    assert store.frozen_for() is None
    term = store.acquire("liveness", "one", 60)
    assert term is not None
    frozen = {
        "": ("group-unreachable", "no answer"),
        "a": ("mass-loss", "5 of 5"),
        "b": ("mass-loss", "6 of 6"),
    }
    assert store.write("liveness", "one", term, [], frozen)
    assert store.release_freeze("b", "me") == (["b"], [])
    assert store.released() == ["b"]
    assert store.release_freeze(None, "me") == (["a", "b"], [""])
    assert sorted(store.released()) == ["a", "b"]
    assert store.release_freeze(None, "me") == (["a", "b"], [""])  # again
    age = store.frozen_for()
    assert age is not None
    util.wait_until(lambda: (store.frozen_for() or 0) > age)
    del frozen["a"]
    assert store.write("liveness", "one", term, [], frozen)
    assert "a" not in store.released()
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM freezes")) == 2
    engine.dispose()
