"""Alembic's entry: runs on the connection that conductor.db.migration passes."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=context.config.attributes.get("metadata"),
    version_table=context.config.attributes["version_table"],
    # SQLite's DDL is transactional once the driver's own commits are off.
    transactional_ddl=connection.dialect.name != "mysql",
)
with context.begin_transaction():
    context.run_migrations()
