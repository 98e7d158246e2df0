#include "fabricd/service/signals.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>

namespace fabricd {

using fabricshm::error_from_errno;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

void watch(int signals, int stop, const SignalThread::Actions& actions) {
    for (;;) {
        pollfd waits[] = {{signals, POLLIN, 0}, {stop, POLLIN, 0}};
        // A signal's default action cannot interrupt it: they are blocked in this thread, too.
        if (::poll(waits, 2, -1) < 0 && errno != EINTR) return;
        // First: after the destructor has asked for the end, no action may begin.
        if (waits[1].revents != 0) return;
        signalfd_siginfo info{};
        if (waits[0].revents == 0 || ::read(signals, &info, sizeof info) != sizeof info) continue;
        if (info.ssi_signo == SIGHUP) {
            actions.reload();
        } else {
            actions.terminate(static_cast<int>(info.ssi_signo),
                              {static_cast<int>(info.ssi_pid), info.ssi_uid});
        }
    }
}

}  // namespace

Result<SignalThread> SignalThread::block() {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&set, number);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    // A peer that is gone is an error code of the call that met it, and no reason to die.
    ::signal(SIGPIPE, SIG_IGN);
    SignalThread result;
    result.signals_ = Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    result.stop_ = Fd(::eventfd(0, EFD_CLOEXEC));
    if (!result.signals_ || !result.stop_) return error_from_errno(errno, "watch signals");
    return result;
}

void SignalThread::start(Actions actions) {
    // The numbers, not `this`: the object may have been moved.
    thread_ = std::thread([signals = signals_.get(), stop = stop_.get(),
                           actions = std::move(actions)] { watch(signals, stop, actions); });
}

SignalThread::~SignalThread() {
    if (!thread_.joinable()) return;
    const std::uint64_t one = 1;
    // An eventfd takes this write unless its counter is full, and then the thread is awake anyway.
    [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof one);
    thread_.join();
}

}  // namespace fabricd
