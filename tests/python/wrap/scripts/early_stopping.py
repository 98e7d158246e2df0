"""Early stopping by the validation loss, with a model of two parts and a loss that calls their methods."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset


class EarlyStopping:
    def __init__(self, patience, delta):
        self.patience, self.delta = patience, delta
        self.best, self.waited = float("inf"), 0

    def stops(self, loss):
        if loss < self.best - self.delta:
            self.best, self.waited = loss, 0
        else:
            self.waited += 1
        return self.waited >= self.patience


class AutoEncoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = torch.nn.Linear(9, 4)
        self.outward = torch.nn.Linear(4, 9)

    def encode(self, x):
        return torch.relu(self.inward(x))

    def loss(self, x):
        return (self.outward(self.encode(x)) - x).square().mean()


torch.manual_seed(17)
training = DataLoader(TensorDataset(torch.randn(90, 9)), batch_size=18, shuffle=True)
held_out = torch.randn(30, 9)
model = AutoEncoder()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
stopping = EarlyStopping(patience=2, delta=0.01)

for epoch in range(40):
    for (x,) in training:
        optimizer.zero_grad()
        model.loss(x).backward()
        optimizer.step()
    with torch.no_grad():
        loss = model.loss(held_out).item()
    if stopping.stops(loss):
        print(f"stopped after epoch {epoch}")
        break

torch.save({**model.state_dict(), "epoch": torch.tensor(float(epoch))}, sys.argv[1])
