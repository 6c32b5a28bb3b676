"""One file a step of the schema, numbered, applied in order, each inside one transaction.

To change the schema, add `migrations/<next number>_<what>.sql`; never edit a step that was released. The number is
the version the database has afterwards (`PRAGMA user_version`). A step has no BEGIN or COMMIT of its own.
"""
