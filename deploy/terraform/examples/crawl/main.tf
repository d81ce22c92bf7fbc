terraform {
  required_providers {
    orb = { source = "orbweaver/orb" }
  }
}

provider "orb" {
  url = ["http://127.0.0.1:8081"] # the key is in ORB_API_KEY
}

resource "orb_crawl" "docs" {
  name   = "docs"
  labels = { team = "search" }
  spec = jsonencode({
    seeds  = ["https://example.org/"]
    scope  = { max_depth = 5 }
    budget = { max_pages = 10000 }
  })
}
