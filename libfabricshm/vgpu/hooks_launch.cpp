// Launches of kernels.

#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/hooks.hpp"
#include "libfabricshm/vgpu/throttle.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

namespace {

// A launch that is captured into a graph is charged with each launch of that. The function itself
// is not examined: what its threads cost is found by measuring.
template <typename Call>
Status shaped(const unsigned int (&grid)[3], const unsigned int (&block)[3], Handle stream,
              Call call) {
    const auto work = [&] { return is_captured(stream) ? 0 : work_of(grid, block); };
    return launched(current_vgpu(), work, call);
}

// Two forms differ only in what comes behind the stream.
template <typename Own, typename... Rest>
Status launch(Own own, Handle function, unsigned int grid_x, unsigned int grid_y,
              unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,
              unsigned int shared_bytes, Handle stream, Rest... rest) {
    return shaped({grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, stream, [&] {
        return own(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                   stream, rest...);
    });
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
    if (config == nullptr) return own(config, function, parameters, extra);
    return shaped(config->grid, config->block, config->stream,
                  [&] { return own(config, function, parameters, extra); });
}

Status launch_multi_device(Status (*own)(LaunchParams*, unsigned int, unsigned int),
                           LaunchParams* list, unsigned int count, unsigned int flags) {
    // All parts are of the same shape, and each device has its own stream; the current one waits.
    if (list == nullptr || count == 0) return own(list, count, flags);
    return shaped(list->grid, list->block, list->stream, [&] { return own(list, count, flags); });
}

// Before CUDA 4 the shape of the blocks was set apart (cuFuncSetBlockShape): a usual one is
// assumed. When the guess is wrong the rate is found that makes up for it.
constexpr unsigned int kUsualBlock = 256;

Status launch_old(Status (*own)(Handle), Handle function) {
    return shaped({1, 1, 1}, {kUsualBlock, 1, 1}, nullptr, [&] { return own(function); });
}

// What is no length is refused by the driver; here it must only not become a huge one.
unsigned int side(int length) noexcept {
    return length > 0 ? static_cast<unsigned int>(length) : 1;
}

Status launch_grid(Status (*own)(Handle, int, int), Handle function, int width, int height) {
    return shaped({side(width), side(height), 1}, {kUsualBlock, 1, 1}, nullptr,
                  [&] { return own(function, width, height); });
}

Status launch_grid_async(Status (*own)(Handle, int, int, Handle), Handle function, int width,
                         int height, Handle stream) {
    return shaped({side(width), side(height), 1}, {kUsualBlock, 1, 1}, stream,
                  [&] { return own(function, width, height, stream); });
}

}  // namespace

FABRIC_LAUNCH_ENTRIES(FABRIC_DEFINE)

}  // namespace fabricshm::cuda
