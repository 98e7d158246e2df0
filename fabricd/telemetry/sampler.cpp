#include "fabricd/telemetry/sampler.hpp"

#include <pthread.h>

#include <utility>

#include "fabricd/telemetry/rates.hpp"

namespace fabricd {

using fabricshm::Clock;

namespace {

// Devices change slowly and their drivers are slow to ask.
constexpr auto kDevicePeriod = std::chrono::seconds(1);
constexpr std::int64_t kDeviceStaleNs = 5'000'000'000;

// What it reports of the shards that it really has open.
void take_shards(SessionSample& session, std::uint32_t open) {
    session.shards.clear();
    for (std::size_t i = 0; i < fabricshm::kShardsTold && open >> i != 0; ++i) {
        if ((open >> i & 1) != 0) session.shards.push_back(session.image.shards[i]);
    }
}

// Those of the device file that something is wrong with. By NVML's number or the UUID.
std::vector<FaultyDevice> faulty_of(const std::vector<DeviceSample>& devices,
                                    const SamplerOptions& options) {
    std::vector<FaultyDevice> faulty;
    for (const DeviceSample& device : devices) {
        if (device.faults == 0) continue;
        for (const auto& [name, gpu] : options.gpus) {
            const bool is_it = gpu == device.uuid || "gpu" + gpu == device.name;
            if (is_it) faulty.push_back({name, device.faults});
        }
    }
    return faulty;
}

}  // namespace

Sampler::Sampler(const SessionPages& pages, DeviceWatch& devices, const SamplerOptions& options,
                 Books books)
    : pages_(pages), devices_(devices), options_(options), books_(std::move(books)) {}

Sampler::~Sampler() {
    stop();
}

void Sampler::start() {
    devices_.start(kDevicePeriod);
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "fabric-sampler");
}

void Sampler::stop() noexcept {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    // After the thread that asks for them.
    devices_.stop();
}

void Sampler::run() {
    auto next = Clock::now();
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        lock.unlock();
        take(fabricshm::monotonic_ns());
        lock.lock();
        // Samples that came late are left out and not made up for.
        next = std::max(next + options_.period, Clock::now());
        changed_.wait_until(lock, next, [this] { return stopping_; });
    }
}

void Sampler::take(std::int64_t now_ns) {
    const std::int64_t stale_ns =
        std::chrono::duration_cast<std::chrono::nanoseconds>(options_.stale_after).count();
    const std::int64_t began = fabricshm::monotonic_ns();
    // Before our lock: theirs is never taken inside it.
    auto devices = devices_.latest(now_ns, kDeviceStaleNs);

    std::unique_lock lock(mutex_);
    const auto turn = static_cast<unsigned>(sample_.number % options_.details_every);
    pages_.sample(sample_.sessions, now_ns, stale_ns, turn, options_.details_every);
    read_claims(turn);
    // Not under the lock: the records are the control thread's, which may be waiting to read a
    // sample.
    lock.unlock();
    if (books_ && !claims_.empty()) books_(claims_);
    lock.lock();
    look_closer(turn);
    sample_.faulty = faulty_of(devices, options_);
    sample_.devices = std::move(devices);
    sample_.latencies = pages_.latencies();
    ++sample_.number;
    sample_.taken_ns = now_ns;
    sample_.cost_ns = fabricshm::monotonic_ns() - began;
}

// What is checked once in a while: the sessions whose turn it is.
void Sampler::read_claims(unsigned turn) {
    claims_.clear();
    // Spread over the samples, so that none of them costs much more than the others.
    const auto first = (options_.details_every - turn) % options_.details_every;
    for (std::size_t i = first; i < sample_.sessions.size(); i += options_.details_every) {
        const SessionSample& session = sample_.sessions[i];
        const auto& image = session.image;
        claims_.push_back({i, session.session_id, image.arena_id, image.group_id, image.rank,
                           session.member, session.memory_used, session.memory_denied, image.shards,
                           0});
    }
}

void Sampler::look_closer(unsigned turn) {
    for (const SessionClaim& claim : claims_) {
        // Only this thread adds and removes sessions, so that the place is still the session's.
        SessionSample& session = sample_.sessions[claim.index];
        session.member = claim.member;
        session.confirmed = {claim.arena_id, claim.group_id, claim.rank};
        session.image.memory_used = session.memory_used = claim.memory_used;
        session.image.memory_denied = session.memory_denied = claim.memory_denied;
        take_shards(session, claim.shards_open);
        update_rates(session);
        paths_.look(session);
    }
    // Paths are for people and for decisions, which are slower still.
    if (turn != 0) return;
    paths_.keep(sample_.sessions);
    sample_.paths = paths_.paths();
}

void Sampler::look(const std::function<void(const Sample&)>& reader) const {
    const std::lock_guard lock(mutex_);
    reader(sample_);
}

Sample Sampler::latest() const {
    const std::lock_guard lock(mutex_);
    return sample_;
}

}  // namespace fabricd
