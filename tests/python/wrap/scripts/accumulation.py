"""Gradient accumulation over four batches, clipped to a norm; batches in the order of the data."""

import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(10, 24)
        self.out = torch.nn.Linear(24, 1)

    def forward(self, inputs):
        return self.out(torch.tanh(self.hidden(inputs)))


torch.manual_seed(11)
inputs = torch.randn(160, 10)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
loader = DataLoader(data, batch_size=8)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
accumulate = 4

for epoch in range(2):
    model.train()
    for index, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y) / accumulate
        loss.backward()
        if (index + 1) % accumulate == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch}: loss {accumulate * loss.item():.4f}")

torch.save(model.state_dict(), sys.argv[1])
