"""The page archive in a local folder, as WARC files (segments), and files made from it: CDXJ indexes and exports."""
