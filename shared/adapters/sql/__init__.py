"""The frontier and the catalog on SQL: SQLite and PostgreSQL.

`engine` runs transactions. It has SQLite threads, PostgreSQL pools, bulk statements, fences and migrations. `frontier`
has the transactions of owners and the leader (`store.SqlStore`). `catalog` has those of the API (`catalog.SqlCatalog`)
and of tools that read a crawl. `admin` copies, checks and cleans whole databases.

Every owner's transaction begins with the fence, which fails if another master owns the partition. Statements take whole
batches, never one URL. SQLAlchemy rows stay inside this package.
"""
