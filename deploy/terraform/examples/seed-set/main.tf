terraform {
  required_providers {
    orb = { source = "orbweaver/orb" }
  }
}

resource "orb_crawl" "partners" {
  name                = "partners"
  spec                = jsonencode({ seeds = ["https://example.org/"], budget = { max_pages = 1000 } })
  deletion_protection = false
}

# A URL that is taken out of a set is not fetched any more, unless a page links to it.
resource "orb_seed_set" "north" {
  crawl = orb_crawl.partners.name
  name  = "north"
  seeds = [
    "https://www.example.net/",
    jsonencode({ url = "https://www.example.com/", priority = 5, labels = { region = "north" } }),
  ]
}
