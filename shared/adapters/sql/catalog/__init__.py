"""Transactions of the API and of readers: declared crawls, keys, audit log, and bounded pages of the frontier.

`catalog.SqlCatalog` implements the port `Catalog`; each of its methods is one transaction of another module here.
`crawl_reader.CrawlReader` reads one crawl for the command line and for exports.
"""
