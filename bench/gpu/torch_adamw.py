"""The fused AdamW of PyTorch over as many parameters as fabric_gpu_measure has."""

import sys

PARAMETERS = 25_600_000


def main():
    try:
        import torch
    except ImportError:
        print("skipped: no torch")
        return 77
    if not torch.cuda.is_available():
        print("skipped: this torch has no CUDA device")
        return 77
    parameter = torch.nn.Parameter(torch.zeros(PARAMETERS, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    optimiser = torch.optim.AdamW([parameter], fused=True)
    times = []
    for _ in range(21):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        optimiser.step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    print("| what | bytes | us | GB/s |\n|---|---|---|---|")
    median = sorted(times[1:])[10]
    moved = 7 * 4 * PARAMETERS  # four arrays read, three written
    print(f"| torch {torch.__version__}, fused AdamW, 25.6 M parameters | {moved} | {median:.1f} | "
          f"{moved / median / 1000:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
