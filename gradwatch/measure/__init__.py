"""From tensors to norms and back: the only package that reads or scales gradients and weights."""
