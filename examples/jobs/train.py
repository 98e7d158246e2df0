#!/usr/bin/env python3
"""A script for one process: trains the CNN on images of Fashion-MNIST, and goes on from its checkpoint when it is started again.

Nothing in it knows of ranks; the job file next to it says that its model is to train on all of them (wrap = true).
"""

import argparse
import os
import sys
import time

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fashion_mnist"))
import fashion_mnist  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=4000, help="of the 60,000")
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    images, labels = fashion_mnist.load("train")
    loader = DataLoader(TensorDataset(images[:options.images], labels[:options.images]), batch_size=100, shuffle=True)
    model = fashion_mnist.Cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = 0
    if os.path.exists(options.checkpoint):
        state = torch.load(options.checkpoint)
        model.load_state_dict(state["model"])
        first = state["epoch"]
        print(f"goes on after epoch {first}")
    for epoch in range(first, options.epochs):
        model.train()
        started, samples = time.perf_counter(), 0
        for chosen, wanted in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(chosen), wanted)
            loss.backward()
            optimizer.step()
            samples += len(chosen)
        torch.save({"model": model.state_dict(), "epoch": epoch + 1}, options.checkpoint)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {samples} images in {time.perf_counter() - started:.1f} s")
    model.eval()
    images, labels = (each[:1000] for each in fashion_mnist.load("t10k"))
    print(f"{fashion_mnist.count_correct(model, images, labels) / len(images):.1%} of 1,000 test images right")


if __name__ == "__main__":
    main()
