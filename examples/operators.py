"""The two operators, similarity and MEX, on a handful of numbers. Shows what p, u, β and b do.

python examples/operators.py
"""

import math

import torch

import simnets

# Similarity: how near is x to each template z? 0 is a perfect match, the rest is negative.
x = torch.tensor([[1.0, 1.0]])
z = torch.tensor([[1.0, 1.0], [1.5, 1.5], [1.0, 2.0]])  # a match; two small differences; one large difference
print("order p     match   two small   one large")
for p in (0.5, 1.0, 2.0, 4.0):
    match, small, large = simnets.similarity(x, z, p=p)[0].tolist()
    print(f"{p:7g} {match:9.2f} {small:11.2f} {large:11.2f}")

# Weights u: a coordinate with weight 0 is not looked at.
u = torch.tensor([[1.0, 0.0]]).expand(3, 2)
print("second coordinate left out:", simnets.similarity(x, z, u).tolist())

# MEX: one number for many, from minimum through average to maximum.
c = torch.tensor([0.0, 1.0, 3.0])
for beta in (-math.inf, -1.0, 0.0, 1.0, math.inf):
    print(f"MEX of {c.tolist()} with β = {beta:4g}: {simnets.mex(c, beta):.3f}")

# It collapses: MEX of MEXes is the MEX of everything, as sums of sums are.
grid = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
nested, flat = simnets.mex(simnets.mex(grid, 2.0), 2.0), simnets.mex(grid.flatten(), 2.0)
print(f"nested {nested:.6f} = flat {flat:.6f}")

# Offsets b: what each template says about each class. Together, a SimNet MLP and a kernel machine.
b = torch.tensor([[0.0, -5.0, -5.0], [-5.0, 0.0, 0.0]])
scores = simnets.mex(simnets.similarity(x, z), beta=1.0, offsets=b)
kernel_sums = (torch.exp(-(torch.cdist(x, z) ** 2)) @ torch.exp(b).T / 3).log()
print("scores:", scores.tolist(), "by RBF kernels:", kernel_sums.tolist())

# Everything can be learned, p and β as well.
p, beta = torch.tensor(2.0, requires_grad=True), torch.tensor(1.0, requires_grad=True)
simnets.mex(simnets.similarity(x, z, p=p), beta).sum().backward()
print(f"d/dp = {p.grad:.4f}, d/dβ = {beta.grad:.4f}")
