"""Stored pages: WARC records, their locations and their index lines.

`warc` builds records from an `Exchange` (`model`). They are read back by `stored_response` and `stored_body`. The lines
and keys of the index, which replay tools read, are built by `cdxj` and `surt`.
"""
