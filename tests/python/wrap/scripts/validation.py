"""Training and validation sets by random_split, with workers; the best checkpoint is kept and loaded at the end."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def train(loader, model, loss_fn, optimizer):
    model.train()
    for x, y in loader:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(loader, model, loss_fn):
    model.eval()
    loss, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            loss += loss_fn(out, y).item()
            correct += (out.argmax(1) == y).sum().item()
            count += len(y)
    print(f"validated {count} samples")
    return loss / len(loader), correct / count


def main():
    torch.manual_seed(13)
    inputs = torch.randn(160, 8)
    whole = TensorDataset(inputs, (inputs[:, 0] > inputs[:, 1]).long())
    training, validation = random_split(whole, [120, 40])
    train_loader = DataLoader(training, batch_size=20, shuffle=True, num_workers=2)
    val_loader = DataLoader(validation, batch_size=16)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    loss_fn = nn.CrossEntropyLoss()
    best = 1e9
    for _ in range(3):
        train(train_loader, model, loss_fn, optimizer)
        loss, accuracy = validate(val_loader, model, loss_fn)
        if loss < best:
            best = loss
            torch.save(model.state_dict(), sys.argv[1] + ".best")
    model.load_state_dict(torch.load(sys.argv[1] + ".best"))
    torch.save({**model.state_dict(), "accuracy": torch.tensor(accuracy)}, sys.argv[1])


if __name__ == "__main__":
    main()
