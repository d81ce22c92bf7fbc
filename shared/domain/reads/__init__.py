"""Values read from the database for display and export: crawls, pages, URLs, hosts and items."""
