// Launches of kernels.

#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/hooks.hpp"
#include "libfabricshm/vgpu/throttle.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

namespace {

void hold_back(const unsigned int (&grid)[3], const unsigned int (&block)[3]) {
    Vgpu* vgpu = current_vgpu();
    if (vgpu != nullptr && is_throttled(*vgpu)) throttle(*vgpu, work_of(grid, block));
}

template <typename Own, typename... Rest>
Status launch(Own own, Handle function, unsigned int grid_x, unsigned int grid_y,
              unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,
              Rest... rest) {
    hold_back({grid_x, grid_y, grid_z}, {block_x, block_y, block_z});
    return own(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, rest...);
}

template <typename Own, typename... Arguments>
Status launch_kernel(Own own, Arguments... arguments) {
    return launch(own, arguments...);
}

template <typename Own, typename... Arguments>
Status launch_cooperative(Own own, Arguments... arguments) {
    return launch(own, arguments...);
}

Status launch_kernel_ex(Status (*own)(const LaunchConfig*, Handle, void**, void**),
                        const LaunchConfig* config, Handle function, void** parameters,
                        void** extra) {
    if (config != nullptr) hold_back(config->grid, config->block);
    return own(config, function, parameters, extra);
}

Status launch_multi_device(Status (*own)(LaunchParams*, unsigned int, unsigned int),
                           LaunchParams* list, unsigned int count, unsigned int flags) {
    // All parts are of the same shape, and each device has its own stream; the current one waits.
    if (list != nullptr && count > 0) hold_back(list->grid, list->block);
    return own(list, count, flags);
}

// Before CUDA 4 the shape of the blocks was set apart: a usual one is assumed.
constexpr unsigned int kUsualBlock = 256;

Status launch_old(Status (*own)(Handle), Handle function) {
    hold_back({1, 1, 1}, {kUsualBlock, 1, 1});
    return own(function);
}

unsigned int side(int length) noexcept {
    return length > 0 ? static_cast<unsigned int>(length) : 1;
}

Status launch_grid(Status (*own)(Handle, int, int), Handle function, int width, int height) {
    hold_back({side(width), side(height), 1}, {kUsualBlock, 1, 1});
    return own(function, width, height);
}

Status launch_grid_async(Status (*own)(Handle, int, int, Handle), Handle function, int width,
                         int height, Handle stream) {
    hold_back({side(width), side(height), 1}, {kUsualBlock, 1, 1});
    return own(function, width, height, stream);
}

}  // namespace

FABRIC_LAUNCH_ENTRIES(FABRIC_DEFINE)

}  // namespace fabricshm::cuda
