"""Which workers there are: kept by the workers, followed by the routers."""
