"""Virtual devices: layers of a network on devices of their own speed. docs/devices.md.

model: what placement knows of layers and devices; cost, placement, schedule: pure functions on it.
graph, torchscript, onnx_graph: networks from files. pipeline, stage: running a plan over the pool.
"""
