"""Transactions of the API on declared crawls, keys, the audit log and stored rows, and reads of one crawl.

`catalog.SqlCatalog` implements the port `Catalog`. Each of its methods is one transaction of another module here.
`crawl_reader.CrawlReader` reads one crawl for the command line and for exports.
"""
