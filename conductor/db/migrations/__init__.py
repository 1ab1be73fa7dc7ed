"""The migrations; conductor.db.migration runs them."""
