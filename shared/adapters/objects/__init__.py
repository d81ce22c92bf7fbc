"""The page archive as WARC files (segments) in a local folder, and files made from it: CDXJ indexes and exports."""
