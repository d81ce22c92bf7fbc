terraform {
  required_providers {
    orb = { source = "orbweaver/orb" }
  }
}

variable "sites" {
  type    = map(string)
  default = { handbook = "https://example.com/", blog = "https://blog.example.org/" }
}

resource "orb_crawl" "site" {
  for_each            = var.sites
  name                = each.key
  labels              = { team = "content" }
  spec                = jsonencode({ seeds = [each.value], budget = { max_pages = 1000 } })
  start               = false
  deletion_protection = false
}

# Starts all crawls of the team at night, whatever their number.
resource "orb_schedule" "nightly" {
  name     = "nightly"
  selector = { team = "content" }
  verb     = "start"
  cron     = "30 2 * * *"
  zone     = "Europe/Berlin"
  catch_up = "last"
}

data "orb_crawls" "team" {
  labels     = { team = "content" }
  depends_on = [orb_crawl.site]
}

output "crawls" {
  value = data.orb_crawls.team.names
}
