"""A PyTorch training run whose DataLoader cannot keep up for part of the time: the workload of the recording.

usage: python3 train_slow_loader.py SECONDS [WORKERS]

Every ten seconds the input "shard" changes: for seven seconds a sample costs little and the GPU is busy;
then, for three, each sample is decoded by a slow pure-Python routine, and the GPU waits.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLE_SHAPE = (3, 96, 96)
CYCLE_S = 10.0
FAST_S = 7.0


def slow_decode(raw: np.ndarray) -> np.ndarray:
    """Run-length decoding one byte at a time, as a careless loader would do it."""
    table = [0] * 256
    checksum = 0
    for _ in range(4):
        for value in raw.ravel().tolist():
            table[value] += 1
            checksum = (checksum * 31 + value) & 0xFFFFFFFF
    return raw.astype(np.float32) / 255.0


def fast_decode(raw: np.ndarray) -> np.ndarray:
    return raw.astype(np.float32) / 255.0


def augment(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if rng.random() < 0.5:
        image = image[:, :, ::-1]
    return np.ascontiguousarray(image) + rng.normal(0, 0.01, size=(3, 1, 1)).astype(np.float32)


class Images(Dataset):
    def __init__(self, started: float) -> None:
        self.started = started
        self.raw = np.random.default_rng(0).integers(0, 256, size=(64, *SAMPLE_SHAPE), dtype=np.uint8)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        raw = self.raw[index % len(self.raw)]
        slow = (time.monotonic() - self.started) % CYCLE_S > FAST_S
        image = slow_decode(raw) if slow else fast_decode(raw)
        return torch.from_numpy(augment(image, np.random.default_rng(index))), index % 10


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 256, 3, padding=1), *[Block(256) for _ in range(6)],
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss


def main(seconds: float, workers: int) -> None:
    started = time.monotonic()
    model = build_model().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Images(started), batch_size=128, num_workers=workers, pin_memory=True)
    steps = 0
    for images, labels in loader:
        loss = train_step(model, optimizer, images.cuda(non_blocking=True), labels.cuda(non_blocking=True))
        steps += 1
        if steps % 20 == 0:
            print(f"step {steps} loss {loss.item():.3f}", flush=True)
        if time.monotonic() - started > seconds:
            break
    print(f"{steps} steps", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4)
