"""The database room: tables, queries and migrations; nobody else loads SQLAlchemy.

Entered by engine.from_conf, migration.sync, store.DatabaseStore and
liveness.LivenessStore.
"""
