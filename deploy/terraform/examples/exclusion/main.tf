terraform {
  required_providers {
    orb = { source = "orbweaver/orb" }
  }
}

resource "orb_exclusion" "asked_by_mail" {
  target       = "private.example.net"
  reason       = "the owner asked by mail"
  requested_by = "webmaster@example.net"
  until        = "2130-01-01T00:00:00Z"
}

resource "orb_config" "cluster" {
  config = jsonencode({
    log_level = "info"
    worker    = { max_visits = 512 }
  })
}

data "orb_cluster" "this" {}

output "workers" {
  value = data.orb_cluster.this.workers
}
