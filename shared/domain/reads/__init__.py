"""Values that reads return: crawls, pages, URLs, hosts and items as they are shown and exported."""
