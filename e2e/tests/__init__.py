"""What Tartlet promises on Kubernetes, seen on a real cluster."""
