// Makes one shared library of the shim; all of it is in the archive.

#include "libfabricshm/vgpu/hooks.hpp"
