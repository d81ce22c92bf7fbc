"""Commands that read a crawl's folder: show, export and warc. Also the summary at the end of a run of `orb crawl`."""
