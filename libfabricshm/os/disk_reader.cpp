#include "libfabricshm/os/disk_reader.hpp"

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/os/pinned_memory.hpp"

namespace fabricshm {

namespace {

bool is_direct(int fd) {
    const int flags = ::fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0;
}

// A direct read that came back short within a block stopped at the end of the file; the rest of it
// would be refused. Other reads are short wherever a network's file system likes it.
bool is_at_end(bool direct, Bytes done) {
    return direct && done % kDiskBlock != 0;
}

DiskReadDone read_now(const DiskRead& read, bool direct) {
    DiskReadDone done{read.tag, 0, 0};
    while (done.bytes < read.bytes) {
        const ssize_t got = ::pread(read.fd, read.into + done.bytes, read.bytes - done.bytes,
                                    static_cast<off_t>(read.offset + done.bytes));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) done.error = errno;
        if (got <= 0) break;
        done.bytes += static_cast<Bytes>(got);
        if (is_at_end(direct, done.bytes)) break;
    }
    return done;
}

}  // namespace

struct DiskReader::Ring {
    struct Slot {
        DiskRead read;
        bool direct = false;
        Bytes done = 0;
    };
    io_uring ring{};
    std::vector<Slot> slots;
    std::vector<unsigned> idle;  // indices of `slots`
    unsigned submitted = 0;
};

DiskReader::DiskReader(std::span<std::byte> memory, unsigned depth, bool uring)
    : memory_(memory), depth_(std::max(1U, depth)) {
    if (!uring) return;
    auto ring = std::make_unique<Ring>();
    // Forbidden by a seccomp filter or by kernel.io_uring_disabled, or not in this kernel.
    if (::io_uring_queue_init(depth_, &ring->ring, 0) != 0) return;
    ring->slots.resize(depth_);
    for (unsigned i = 0; i < depth_; ++i) ring->idle.push_back(i);
    ring_ = std::move(ring);
    path_.registered = pin_memory(ring_->ring, memory);
}

DiskReader::~DiskReader() {
    if (!ring_) return;
    while (ring_->submitted > 0) {
        io_uring_cqe* cqe = nullptr;
        const int waited = ::io_uring_wait_cqe(&ring_->ring, &cqe);
        // Nothing else can come of a ring that was set up: the arguments are its own.
        FABRIC_CHECK(waited == 0 || waited == -EINTR);
        if (waited != 0) continue;
        ::io_uring_cqe_seen(&ring_->ring, cqe);
        --ring_->submitted;
    }
    ::io_uring_queue_exit(&ring_->ring);
}

int DiskReader::descriptor() const noexcept {
    return ring_ ? ring_->ring.ring_fd : -1;
}

void DiskReader::start(const DiskRead& read) {
    FABRIC_CHECK(has_room());
    ++under_way_;
    const bool direct = is_direct(read.fd);
    path_.direct = path_.direct || direct;
    if (!ring_) {
        done_.push_back(read_now(read, direct));
        return;
    }
    const unsigned index = ring_->idle.back();
    ring_->idle.pop_back();
    ring_->slots[index] = {read, direct, 0};
    submit(index);
}

// What is left of the slot's read.
void DiskReader::submit(unsigned index) {
    const Ring::Slot& slot = ring_->slots[index];
    std::byte* const into = slot.read.into + slot.done;
    const Bytes left = slot.read.bytes - slot.done;
    const Bytes offset = slot.read.offset + slot.done;
    const bool is_inside = into >= memory_.data() && into + left <= memory_.data() + memory_.size();
    const auto place = is_inside ? static_cast<Bytes>(into - memory_.data()) : 0;
    // A fixed buffer is one piece of what is pinned.
    const bool is_fixed =
        path_.registered && is_inside && place / kPinBytes == (place + left - 1) / kPinBytes;
    io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_->ring);
    // As many entries as there are slots, and each is submitted at once.
    FABRIC_CHECK(sqe != nullptr);
    const auto length = static_cast<unsigned>(std::min<Bytes>(left, kPinBytes));
    if (is_fixed) {
        ::io_uring_prep_read_fixed(sqe, slot.read.fd, into, length, offset,
                                   static_cast<int>(place / kPinBytes));
    } else {
        ::io_uring_prep_read(sqe, slot.read.fd, into, length, offset);
    }
    sqe->user_data = index;
    int sent = ::io_uring_submit(&ring_->ring);
    while (sent == -EINTR || sent == -EAGAIN || sent == -EBUSY) {
        sent = ::io_uring_submit(&ring_->ring);
    }
    // The entry was taken by the kernel or by none: then the ring would hand it over later, with a
    // slot that is used for something else.
    FABRIC_CHECK(sent == 1);
    ++ring_->submitted;
    path_.uring = true;
}

void DiskReader::finish(unsigned index, int error) {
    const Ring::Slot& slot = ring_->slots[index];
    done_.push_back({slot.read.tag, slot.done, error});
    ring_->idle.push_back(index);
}

// All that the kernel has ended; what came back short goes on.
void DiskReader::reap() {
    io_uring_cqe* cqe = nullptr;
    while (::io_uring_peek_cqe(&ring_->ring, &cqe) == 0) {
        const auto index = static_cast<unsigned>(cqe->user_data);
        const int result = cqe->res;
        ::io_uring_cqe_seen(&ring_->ring, cqe);
        --ring_->submitted;
        Ring::Slot& slot = ring_->slots[index];
        const bool again = result == -EINTR || result == -EAGAIN;
        if (result > 0) slot.done += static_cast<Bytes>(result);
        const bool whole = slot.done == slot.read.bytes;
        if (!again && (result <= 0 || whole || is_at_end(slot.direct, slot.done))) {
            finish(index, result < 0 ? -result : 0);
        } else {
            submit(index);
        }
    }
}

std::vector<DiskReadDone> DiskReader::wait(TimePoint deadline) {
    if (ring_) reap();
    while (ring_ && done_.empty() && ring_->submitted > 0) {
        const auto left = std::max(Duration::zero(), deadline - Clock::now());
        __kernel_timespec time{};
        time.tv_sec = left / std::chrono::seconds(1);
        time.tv_nsec = left % std::chrono::seconds(1) / std::chrono::nanoseconds(1);
        io_uring_cqe* cqe = nullptr;
        const int waited = ::io_uring_wait_cqe_timeout(&ring_->ring, &cqe, &time);
        if (waited == 0) reap();
        if (waited == -ETIME || Clock::now() >= deadline) break;
    }
    under_way_ -= static_cast<unsigned>(done_.size());
    return std::exchange(done_, {});
}

}  // namespace fabricshm
