#include "libfabricshm/os/pinned_memory.hpp"

#include <liburing.h>

#include <algorithm>
#include <vector>

namespace fabricshm {

bool pin_memory(io_uring& ring, std::span<std::byte> memory) {
    std::vector<iovec> pieces;
    for (Bytes at = 0; at < memory.size(); at += kPinBytes) {
        pieces.push_back({memory.data() + at, std::min(kPinBytes, memory.size() - at)});
    }
    if (pieces.empty()) return false;
    return ::io_uring_register_buffers(&ring, pieces.data(),
                                       static_cast<unsigned>(pieces.size())) == 0;
}

}  // namespace fabricshm
