"""Updates its weights without an optimizer."""

import torch

w = torch.zeros(3, requires_grad=True)
for _ in range(7):
    (w - 1).square().sum().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad = None
print(w.tolist())
