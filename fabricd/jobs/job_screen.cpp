#include "fabricd/jobs/job_screen.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace fabricd {

namespace {

constexpr int kHurriedMs = 1000;
constexpr std::size_t kLastLines = 20;

}  // namespace

void JobScreen::say(const std::string& text, int timeout_ms) {
    write(STDERR_FILENO, "fabricctl: " + text + "\n", timeout_ms);
}

void JobScreen::write(int fd, std::string_view text, int timeout_ms) {
    constexpr std::size_t kAtomic = 4096;  // what a pipe that is ready takes without blocking
    if (is_hurried_) {
        timeout_ms = timeout_ms < 0 ? kHurriedMs : std::min(timeout_ms, kHurriedMs);
        if (is_stuck_) timeout_ms = 0;
    }
    while (is_shown_ && !text.empty()) {
        pollfd waits[] = {{fd, POLLOUT, 0}, {signals_, POLLIN, 0}};
        const int ready = ::poll(waits, 2, timeout_ms);
        if (ready < 0 && errno == EINTR) continue;
        if (ready == 0) is_stuck_ = true;
        if (ready <= 0 || waits[0].revents == 0) return;
        const ssize_t count = ::write(fd, text.data(), std::min(text.size(), kAtomic));
        if (count < 0 && errno != EINTR && errno != EAGAIN) return;
        if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
    }
}

void JobScreen::set_ranks(std::size_t count) {
    while (ranks_.size() > count) ranks_.pop_back();
    while (ranks_.size() < count) {
        const LinePrefixer lines(prefix(ranks_.size()));
        ranks_.push_back({LastLines(kLastLines), {lines, lines}});
    }
}

void JobScreen::forget(unsigned rank) {
    ranks_[rank].last = LastLines(kLastLines);
}

void JobScreen::add(unsigned rank, bool is_error, std::string_view text, int timeout_ms) {
    if (rank >= ranks_.size()) return;
    ranks_[rank].last.add(text);
    write(is_error ? STDERR_FILENO : STDOUT_FILENO, ranks_[rank].lines[is_error ? 1 : 0].add(text),
          timeout_ms);
}

void JobScreen::finish(unsigned rank, int timeout_ms) {
    write(STDOUT_FILENO, ranks_[rank].lines[0].finish(), timeout_ms);
    write(STDERR_FILENO, ranks_[rank].lines[1].finish(), timeout_ms);
}

void JobScreen::show_last(unsigned rank, const std::string& log, int timeout_ms) {
    const auto lines = ranks_[rank].last.lines();
    if (lines.empty()) return;
    say("the last lines of rank " + std::to_string(rank) + " (" + log + "):", timeout_ms);
    for (const std::string& line : lines) {
        write(STDERR_FILENO, "    " + line + "\n", timeout_ms);
    }
}

std::string JobScreen::prefix(std::size_t rank) const {
    const std::string plain = "[" + std::to_string(rank) + "] ";
    if (!is_shown_ || ::isatty(STDOUT_FILENO) != 1) return plain;
    // Six colours that are read on light and dark.
    return "\033[3" + std::to_string(1 + rank % 6) + "m" + plain + "\033[0m";
}

}  // namespace fabricd
