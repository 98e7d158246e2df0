#include "fabricd/jobs/job_device_watch.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "libfabricshm/os/fd.hpp"

namespace fabricd {

using fabricshm::Fd;

struct JobDeviceWatch::Impl {
    DeviceLook look;
    fabricshm::Duration interval{};
    Fd wakeup{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    mutable std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t asked = 0;   // looks that were asked for, or begun by themselves
    std::uint64_t looked = 0;  // looks that are over
    std::optional<std::vector<DeviceState>> seen;
    bool is_over = false;
    std::thread looking;  // last: it uses the others

    void run() {
        std::unique_lock lock(mutex);
        while (!is_over) {
            changed.wait_for(lock, interval, [&] { return is_over || asked > looked; });
            if (is_over) return;
            // A look that is asked for while this one runs is another one: what is asked about may
            // have happened after it began.
            const std::uint64_t number = asked = std::max(asked, looked + 1);
            lock.unlock();
            auto found = look();
            lock.lock();
            looked = number;
            if (found) seen = std::move(found);
            const std::uint64_t one = 1;
            (void)!::write(wakeup.get(), &one, sizeof one);
        }
    }
};

JobDeviceWatch::JobDeviceWatch(DeviceLook look, fabricshm::Duration interval)
    : impl_(std::make_unique<Impl>()) {
    impl_->look = std::move(look);
    impl_->interval = interval;
    impl_->looking = std::thread([this] { impl_->run(); });
}

JobDeviceWatch::~JobDeviceWatch() {
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->is_over = true;
        impl_->changed.notify_one();
    }
    impl_->looking.join();
}

std::uint64_t JobDeviceWatch::ask() {
    const std::lock_guard lock(impl_->mutex);
    impl_->changed.notify_one();
    return ++impl_->asked;
}

std::uint64_t JobDeviceWatch::looked() const {
    const std::lock_guard lock(impl_->mutex);
    return impl_->looked;
}

int JobDeviceWatch::wakeup() const noexcept {
    return impl_->wakeup.get();
}

std::optional<std::vector<DeviceState>> JobDeviceWatch::take() {
    std::uint64_t count = 0;
    (void)!::read(impl_->wakeup.get(), &count, sizeof count);
    const std::lock_guard lock(impl_->mutex);
    return std::exchange(impl_->seen, {});
}

}  // namespace fabricd
