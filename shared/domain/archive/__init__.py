"""Stored pages: WARC records, their locations and their index lines.

`warc` builds records from an `Exchange` (`model`). `stored_body` reads them back. `cdxj` builds the lines and keys of
the CDXJ index, which replay tools read.
"""
