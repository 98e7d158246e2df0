// How a process asks the daemon for its vGPU, and what it does when no daemon answers.

#include <doctest/doctest.h>

#include <atomic>
#include <span>
#include <thread>

#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/vgpu_messages.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using fabricshm::cuda::Vgpu;
using test_support::TemporaryDirectory;

namespace {

// Takes one request; false when none comes.
bool answer_one(const UnixSocket& listener, Errc code) {
    const TimePoint until = Clock::now() + 30s;
    const auto caller = listener.accept(until);
    if (!caller.ok()) return false;
    proto::VgpuRequest request{};
    if (!caller->receive(std::as_writable_bytes(std::span(&request, 1)), {}, until).ok())
        return false;
    proto::VgpuReply reply{};
    reply.magic = proto::kVgpuMagic;
    reply.version = proto::kVgpuVersion;
    reply.status = static_cast<std::int32_t>(code);
    return caller->send(std::as_bytes(std::span(&reply, 1)), {}, until).ok();
}

}  // namespace

TEST_SUITE("vgpu.attach") {
    TEST_CASE("a process that is cut off before it was heard asks again") {
        const TemporaryDirectory folder;
        const auto listener = UnixSocket::listen(folder.file("vgpu"), 0600, 8).value();
        bool heard = false;
        std::thread daemon([&] {
            for (int i = 0; i < 2; ++i) {
                if (!listener.accept(Clock::now() + 30s).ok()) return;
            }
            heard = answer_one(listener, Errc::kNotFound);
        });
        const auto attached = Vgpu::attach("half", folder.file("vgpu"));
        CHECK(attached.error().code == Errc::kNotFound);
        // One more caller, should none have asked again: the other thread waits for none then.
        if (attached.error().code != Errc::kNotFound) {
            for (int i = 0; i < 3; ++i) (void)UnixSocket::connect(folder.file("vgpu"), {});
        }
        daemon.join();
        CHECK(heard);
    }

    TEST_CASE("a process that is cut off each time, or finds no daemon, does not ask for ever") {
        const TemporaryDirectory folder;
        CHECK(Vgpu::attach("half", folder.file("vgpu")).error().code == Errc::kDaemon);
        const auto listener = UnixSocket::listen(folder.file("vgpu"), 0600, 8).value();
        std::atomic<bool> over{false};
        std::thread daemon([&] {
            while (!over && listener.accept(Clock::now() + 30s).ok()) {
            }
        });
        CHECK(Vgpu::attach("half", folder.file("vgpu")).error().code == Errc::kClosed);
        over = true;
        (void)UnixSocket::connect(folder.file("vgpu"), Clock::now() + 30s);  // its last caller
        daemon.join();
    }
}
