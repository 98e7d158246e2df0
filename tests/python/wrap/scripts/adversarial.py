"""Two models and two optimisers: one is computed twice before a backward(), and each learns from the other's output."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(23)
data = TensorDataset(torch.randn(72, 4) * 0.5 + 1, torch.randn(72, 3))  # samples, and the noise that goes with them
loader = DataLoader(data, batch_size=12, shuffle=True)
generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
critic = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
for parameter in critic[0].parameters():
    parameter.requires_grad_(False)  # a frozen layer
by_generator = torch.optim.Adam(generator.parameters(), lr=5e-3)
by_critic = torch.optim.SGD([p for p in critic.parameters() if p.requires_grad], lr=5e-2)
loss_fn = nn.BCEWithLogitsLoss()

for epoch in range(3):
    for real, noise in loader:
        made = generator(noise)
        by_critic.zero_grad()
        loss = loss_fn(critic(real), torch.ones(len(real), 1)) + loss_fn(critic(made.detach()), torch.zeros(len(real), 1))
        loss.backward()
        by_critic.step()

        by_generator.zero_grad()
        loss_fn(critic(made), torch.ones(len(real), 1)).backward()
        by_generator.step()

torch.save({"generator": generator.state_dict(), "critic": critic.state_dict()}, sys.argv[1])
