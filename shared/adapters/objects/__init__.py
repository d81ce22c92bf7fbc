"""The page archive: WARC segments in a local folder or an object store."""
