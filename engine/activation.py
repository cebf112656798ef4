"""Names of the activations of MLPs."""

from typing import Literal

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu"]  # of a gated MLP
MLPActivation = Activation | Literal["relu2"]  # relu2, the square of ReLU, is that of an MLP without a gate
