#include "libfabricshm/collective/packed_buffer.hpp"

#include <new>

namespace fabricshm {

bool PackedBuffer::reserve(Bytes bytes) {
    if (bytes <= bytes_) return true;
    drop();
    data_ = arena_.allocate ? arena_.allocate(bytes) : nullptr;
    if (data_ == nullptr) {
        own_.reset(new (std::nothrow) std::byte[bytes]);
        data_ = own_.get();
    }
    bytes_ = data_ != nullptr ? bytes : 0;
    return data_ != nullptr;
}

void PackedBuffer::drop() noexcept {
    // Peers have no access to memory of the process.
    if (in_arena() && !exposed_) arena_.release(data_);
    own_.reset();
    data_ = nullptr;
    bytes_ = 0;
}

}  // namespace fabricshm
