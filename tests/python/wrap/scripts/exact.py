"""Arithmetic without rounding: small whole numbers, and powers of two. Every order of sums has the same bits."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(19)
inputs = torch.randint(-2, 3, (64, 4)).float()
data = TensorDataset(inputs, torch.randint(-3, 4, (64, 1)).float())
model = torch.nn.Linear(4, 1)
with torch.no_grad():
    for tensor in model.parameters():
        tensor.zero_()
optimizer = torch.optim.SGD(model.parameters(), lr=2**-4)
for x, y in DataLoader(data, batch_size=32):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), sys.argv[1])
