#include "libfabricshm/client/telemetry.hpp"

#include <fcntl.h>

#include <algorithm>
#include <utility>

namespace fabricshm {

namespace {

// The daemon made the file, but a daemon is checked like anybody else: a file that could shrink
// would be a SIGBUS in the middle of training.
Result<Mapping> map_page(const Fd& file, bool writable) {
    const int seals = ::fcntl(file.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return Error{Errc::kCorrupt, 0, "page file"};
    MapOptions options;
    options.writable = writable;
    return Mapping::map(file, 0, kPageFileBytes, options);
}

}  // namespace

void Telemetry::step(const StepInfo& info, std::int64_t now_ns) {
    const std::lock_guard lock(mutex_);
    if (info.group_id != 0) {
        image_.arena_id = info.arena_id;
        image_.group_id = info.group_id;
        image_.rank = info.rank;
        image_.world = info.world;
    }
    ++image_.steps;
    image_.samples += info.samples;
    image_.batch = static_cast<std::uint32_t>(std::min<std::uint64_t>(info.samples, UINT32_MAX));
    image_.queue = info.queue;
    image_.loss = info.loss;
    image_.gradient_norm = info.gradient_norm;
    image_.mean_gradient_norm = info.mean_gradient_norm;
    if (last_step_ns_ != 0) {
        // What came before the first call (loading, compiling) is no step.
        const std::int64_t length = std::max<std::int64_t>(now_ns - last_step_ns_, 0);
        image_.step_ns += length;
        image_.compute_ns += info.compute_ns < 0 ? length : std::min(info.compute_ns, length);
    }
    last_step_ns_ = now_ns;
    image_.written_ns = now_ns;
    publish();
}

// Under the lock.
void Telemetry::publish() noexcept {
    if (!telemetry_) return;
    image_.directive_serial = in_force_.serial;
    image_.sync_interval = in_force_.sync_interval;
    write_telemetry_head(telemetry_.data(), image_);
    write_telemetry_peers(telemetry_.data(), image_);
}

DirectiveImage Telemetry::directives() {
    const std::lock_guard lock(mutex_);
    if (!directives_) return in_force_;
    DirectiveImage fresh;
    const PageRead read = read_directives(directives_.data(), fresh, directives_seen_);
    // A daemon that was just started has decided nothing yet: its predecessor's word holds.
    if (read == PageRead::kFresh && fresh.serial != 0) in_force_ = fresh;
    return in_force_;
}

Result<void> Telemetry::take_telemetry(const Fd& file) {
    FABRIC_TRY(Mapping page, map_page(file, true));
    FABRIC_TRY_VOID(check_telemetry(page.data()));
    const std::lock_guard lock(mutex_);
    telemetry_ = std::move(page);
    // What was counted before there was a page, or in the page of the last daemon.
    if (last_step_ns_ != 0) publish();
    return {};
}

Result<void> Telemetry::take_directives(const Fd& file) {
    FABRIC_TRY(Mapping page, map_page(file, false));
    FABRIC_TRY_VOID(check_directive_page(page.data()));
    const std::lock_guard lock(mutex_);
    directives_ = std::move(page);
    directives_seen_ = 0;
    return {};
}

}  // namespace fabricshm
