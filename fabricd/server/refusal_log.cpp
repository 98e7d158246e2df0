#include "fabricd/server/refusal_log.hpp"

#include <algorithm>

#include "libfabricshm/base/log.hpp"

namespace fabricd {

// A token bucket in whole seconds. The caller brings the time, so that tests need not sleep.
void RefusalLog::refill(TimePoint now) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - refilled_).count();
    if (seconds <= 0) return;
    const auto refill = std::min<std::int64_t>(seconds, kBurst) * kPerSecond;
    budget_ = std::min<int>(kBurst, budget_ + static_cast<int>(refill));
    refilled_ = now;
}

bool RefusalLog::admits(TimePoint now) {
    refill(now);
    if (budget_ == 0) {
        // Counted, so that the log says that it is silent and for how much.
        ++left_out_;
        return false;
    }
    --budget_;
    return true;
}

bool RefusalLog::begins_line(TimePoint now) {
    tell_left_out(now);
    return admits(now);
}

void RefusalLog::tell_left_out(TimePoint now) {
    if (left_out_ == 0) return;
    refill(now);
    if (budget_ == 0) return;
    fabricshm::log(fabricshm::LogLevel::kWarning, "%ld %s were not logged", left_out_, things_);
    left_out_ = 0;
}

void RefusalLog::refused(const char* what, int pid, unsigned uid, const Error& error,
                         TimePoint now) {
    if (!begins_line(now)) return;
    fabricshm::log(fabricshm::LogLevel::kWarning, "refused %s of pid %d, uid %u: %s", what, pid,
                   uid, describe(error).c_str());
}

void ClientLog::tell_left_out(TimePoint now) {
    for (RefusalLog* lines : {&refusals, &stalls, &endings, &traces}) lines->tell_left_out(now);
}

}  // namespace fabricd
