"""Sitemaps for tests."""


def urlset(*urls: str) -> bytes:
    """Return a sitemap that lists `urls`, which are escaped for XML."""
    entries = "".join(f"<url><loc>{url}</loc><lastmod>2024-01-02</lastmod></url>\n" for url in urls)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{entries}</urlset>'
    ).encode()
