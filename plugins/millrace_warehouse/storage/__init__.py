"""What a warehouse asks of a storage. Knows no manifests."""
