"""Archives and crawl folders for tests, and independent readers of them."""
