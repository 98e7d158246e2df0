#!/usr/bin/python3
"""Makes the picture of the dashboard in the README, with FABRIC_BUILD and PYTHONPATH as in CMakeLists.txt:

    readme_picture.py docs/dashboard.png

A fabricd with four devices and three jobs of two ranks, stand-ins that sleep where a training computes.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image  # python3-pil

from browser import Browser
from programs import Daemon, Dashboard, die_with_parent, wait_for

DEVICES = (("gpu0", "gpu", 60000, "256MiB", 50), ("gpu1", "gpu", 60000, "256MiB", 50), ("cpu0", "cpu", 500, "128MiB", 20),
           ("fpga0", "fpga", 900, "64MiB", 12))
# Label, samples of a step, and of each rank its device and the seconds that it computes.
JOBS = (("resnet50", 64, (("gpu0", 0.045), ("gpu1", 0.060))), ("bert-small", 64, (("gpu0", 0.080), ("cpu0", 0.105))),
        ("ctr-cnn", 64, (("fpga0", 0.030), ("cpu0", 0.038))))
SECONDS = 40  # of curve


def member(label, samples, rank, seconds):
    """One rank, until it is ended."""
    import fabricshm
    session = fabricshm.Session(label=label)
    arena = session.arena(label, bytes=96 << 20)
    group = arena.join("world", rank, 2)
    tensor = arena.zeros(1_000_000, "float32")
    step = 0
    while True:
        step += 1
        time.sleep(seconds)
        group.all_reduce(tensor)
        session.step(samples=samples, loss=2.3 / step ** 0.3, compute=seconds, group=group)


def main():
    daemon = Daemon("--pool-capacity", "512MiB", "--devices-file", "@/devices.toml")
    Path(daemon.folder, "devices.toml").write_text("".join(
        f'[[device]]\nname = "{name}"\nkind = "{kind}"\ngflops = {gflops}\nmemory = "{memory}"\nlink_gbytes_per_s = {link}\n'
        for name, kind, gflops, memory, link in DEVICES))
    with daemon, Dashboard(daemon) as dashboard, Browser() as browser:
        ranks = [subprocess.Popen([sys.executable, __file__, "--member", label, str(samples), str(rank), str(seconds)],
                                  env={**os.environ, "FABRIC_SOCKET": daemon.socket, "FABRIC_DEVICE": device}, preexec_fn=die_with_parent)
                 for label, samples, of in JOBS for rank, (device, seconds) in enumerate(of)]
        try:
            browser.size(1280, 1600)
            browser.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
            browser.driver.get(dashboard.address)
            wait_for(lambda: len(browser.table("training")) == 6, "six ranks")
            wait_for(lambda: browser.run("return document.querySelector('#jobs-curve polyline')?.points.length ?? 0") >= SECONDS, "a curve")
            wait_for(lambda: len(browser.table("paths")) == 6, "paths")
            browser.driver.save_screenshot(sys.argv[1])
            # Few colours: a third of the bytes.
            Image.open(sys.argv[1]).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(sys.argv[1], optimize=True)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


if __name__ == "__main__":
    if sys.argv[1] == "--member":
        member(sys.argv[2], *map(int, sys.argv[3:5]), float(sys.argv[5]))
    else:
        main()
