"""The database room on SQLite, MariaDB and PostgreSQL."""
