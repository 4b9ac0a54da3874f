"""Certificates, the names in them, and how a client proves who it is. Rights are the broker's business."""
