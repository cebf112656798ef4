"""Running the model for one step: batch, devices, memory, CUDA graphs."""
