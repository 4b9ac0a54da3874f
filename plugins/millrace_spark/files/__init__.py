"""What a warehouse asks of a file system, local or Hadoop's. Knows no manifests."""
