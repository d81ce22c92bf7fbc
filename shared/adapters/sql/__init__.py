"""SQL: the frontier's truth, on SQLite and PostgreSQL.

Every owner transaction begins with the fence. Statements work on whole batches, never per URL; rows never leave here.
"""
