"""KServe's Open Inference Protocol v2, and Triton's generate extension, over HTTP and gRPC."""
