"""Transactions of the API, and reads of one crawl: declared crawls, keys, the audit log, and pages of stored rows.

`catalog.SqlCatalog` implements the port `Catalog`. Each of its methods is one transaction of another module here.
`crawl_reader.CrawlReader` reads one crawl for the command line and for exports.
"""
