"""The gRPC front end, `baton.v1.Inference`."""
