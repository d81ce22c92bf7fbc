terraform {
  required_providers {
    orb = { source = "orbweaver/orb" }
  }
}

# An admin's key is in ORB_API_KEY.
resource "orb_api_key" "dashboard" {
  name       = "dashboard"
  role       = "viewer"
  expires_at = "2130-06-01T00:00:00Z"
  networks   = ["10.1.0.0/16", "127.0.0.0/8"]
}

# The client certificate alone proves this identity, so there is no secret.
resource "orb_api_key" "deployment" {
  name        = "deployment"
  role        = "operator"
  kind        = "certificate"
  certificate = "dns:deploy.example.org"
}

# Only the state has the secret: `terraform output -raw dashboard_key` shows it.
output "dashboard_key" {
  value     = orb_api_key.dashboard.secret
  sensitive = true
}
