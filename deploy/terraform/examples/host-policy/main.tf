terraform {
  required_providers {
    orb = { source = "orbweaver/orb" }
  }
}

resource "orb_host_policy" "slow" {
  host    = "slow.example.org"
  delay_s = 2.1
  slots   = 1
}

resource "orb_host_policy" "maintained" {
  host  = "www.example.net"
  block = { reason = "maintenance of the site", until = "2130-01-01T00:00:00Z" }
}

# Runs until this says `paused`, whatever an operator does in between.
resource "orb_crawl" "standing" {
  name                = "standing"
  spec                = jsonencode({ seeds = ["https://slow.example.org/"], budget = { max_pages = 1000 } })
  desired             = "running"
  deletion_protection = false
}
