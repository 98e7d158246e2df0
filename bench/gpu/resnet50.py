"""ResNet-50 in its usual form, for machines without torchvision: 25,557,032 parameters."""

import torch
from torch import nn

LAYERS = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, channels, stride of the first block
EXPANSION = 4


class Block(nn.Module):
    """1x1, 3x3 and 1x1 convolutions next to a way around them."""

    def __init__(self, before, channels, stride):
        super().__init__()
        after = EXPANSION * channels
        self.body = nn.Sequential(
            nn.Conv2d(before, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            nn.Conv2d(channels, after, 1, bias=False), nn.BatchNorm2d(after))
        self.around = nn.Identity()
        if stride != 1 or before != after:
            self.around = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, images):
        return torch.relu(self.body(images) + self.around(images))


class ResNet50(nn.Sequential):
    """Images of any size to `classes` scores."""

    def __init__(self, classes=1000):
        parts = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        before = 64
        for blocks, channels, stride in LAYERS:
            for number in range(blocks):
                parts.append(Block(before, channels, stride if number == 0 else 1))
                before = EXPANSION * channels
        super().__init__(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
