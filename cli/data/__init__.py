"""Commands that read the folder of a crawl: show, export, replay and warc. Also the summary of a crawl."""
