"""Lets torchvision be imported beside a CPU build of torch.

The torchvision on the package index is a CUDA build: its native library does not load beside a CPU torch, so the
operator `torchvision::nms` is never defined and `import torchvision` raises. Declare the operators' schemas, without
kernels, just before torchvision is imported. setup.sh loads this file through a .pth file.
"""

import importlib.abc
import sys


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    library = None

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _BeforeTorchvision.library = library  # the definitions live as long as this object


sys.meta_path.insert(0, _BeforeTorchvision())
