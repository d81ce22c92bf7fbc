"""Commands that read a crawl's folder: show, export, warc; and the summary at the end of a run."""
