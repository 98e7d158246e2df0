"""Two schedules of the learning rate: one by steps, one by the training loss, which all ranks have to see alike."""

import sys

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
data = TensorDataset(torch.randn(96, 6), torch.randn(96, 2))
loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
by_step = StepLR(optimizer, step_size=9, gamma=0.5)
by_loss = ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.02)

for epoch in range(5):
    running = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        by_step.step()
        running += loss.item() * len(x)
    by_loss.step(running)
    print(f"epoch {epoch}: learning rate {optimizer.param_groups[0]['lr']:.3g}")

torch.save({"model": model.state_dict(), "lr": torch.tensor(optimizer.param_groups[0]["lr"])}, sys.argv[1])
