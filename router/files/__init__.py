"""Files of clients in a folder that routers may share: inputs and outputs of batches, bounded in bytes."""
