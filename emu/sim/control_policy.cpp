#include "emu/sim/control_policy.hpp"

#include <cmath>
#include <limits>

namespace emu {

namespace {

// One loop and the ranks around it: telemetry pages without memory, windows without a thread,
// directives without a daemon. What is not in here is what a simulated job does not have: quotas,
// shards, noise in the gradients.
fabricd::ControlConfig without_pages(fabricd::ControlConfig config) {
    config.max_directed = 0;
    return config;
}

class LoopInTheLoop {
  public:
    // `batch` in samples per step of all ranks together.
    LoopInTheLoop(double batch, const fabricd::ControlConfig& config, ControlLog* log)
        : batch_(batch),
          window_s_(std::chrono::duration<double>(config.window).count()),
          loop_(without_pages(config)),
          log_(log) {}

    Decision step(const Snapshot& seen) {
        if (seen.alive != alive_) begin_group(seen);
        count(seen);
        Decision decision{seen.shares, interval_};
        // By simulated time: slow steps make few steps in a window, as on a host.
        if (now_s_ < next_s_) return decision;
        next_s_ = now_s_ + window_s_;
        return look(std::move(decision));
    }

  private:
    // As after a shrink: other name, other ranks, new pages, the same sessions.
    void begin_group(const Snapshot& seen) {
        // Sessions keep their numbers over a shrink, ranks do not: the loop has to find the same
        // devices under other ranks.
        alive_ = seen.alive;
        samples_.resize(alive_.size(), 0);
        ++group_;
        sample_.sessions.clear();
        std::int32_t rank = 0;
        for (std::size_t i = 0; i < alive_.size(); ++i) {
            if (alive_[i] == 0) continue;
            fabricd::SessionSample session{};
            session.session_id = i + 1;
            session.page_number = group_;
            session.member = true;
            session.stale = false;
            session.image.arena_id = 1;
            session.image.group_id = group_;
            session.image.rank = rank++;
            // The simulator trains no network, so that its ranks know no loss and no norms.
            session.image.loss = std::numeric_limits<double>::quiet_NaN();
            session.image.gradient_norm = session.image.loss;
            session.image.mean_gradient_norm = session.image.loss;
            session.image.directive_serial = serial_;
            session.image.sync_interval = static_cast<std::uint32_t>(interval_);
            sample_.sessions.push_back(session);
        }
        for (auto& session : sample_.sessions) session.image.world = rank;
    }

    // The counters of a rank's telemetry page after this step.
    void count(const Snapshot& seen) {
        Seconds step_s = 0;
        for (auto& session : sample_.sessions) {
            const std::size_t device = session.session_id - 1;
            auto& image = session.image;
            const Seconds compute = seen.compute[device];
            const Seconds wait = seen.wait[device];
            // As a rank without other work: what is left of a step besides computing and
            // communication is waiting.
            step_s = compute + wait + seen.communication;
            // Whole samples are counted, so that fractions of shares do not get lost.
            samples_[device] += batch_ * seen.shares[device];
            image.samples = static_cast<std::uint64_t>(samples_[device]);
            image.steps += 1;
            image.compute_ns += std::llround(compute * 1e9);
            image.wait_ns += std::llround(wait * 1e9);
            image.comm_ns += std::llround(seen.communication * 1e9);
            image.step_ns += std::llround(step_s * 1e9);
        }
        now_s_ += step_s;
        // Not 0, which stands for "never sampled".
        sample_.taken_ns = std::llround(now_s_ * 1e9) + 1;
    }

    Decision look(Decision decision) {
        const fabricd::TickResult result = loop_.tick(maker_.next(sample_));
        if (log_ != nullptr) {
            ++log_->windows;
            log_->decisions.insert(log_->decisions.end(), result.decisions.begin(),
                                   result.decisions.end());
            log_->outcomes.insert(log_->outcomes.end(), result.outcomes.begin(),
                                  result.outcomes.end());
        }
        for (const fabricd::Directive& directive : result.directives) follow(directive, decision);
        return decision;
    }

    // In one step, where a real job needs one broadcast: directives are late by a step at most,
    // there as here.
    void follow(const fabricd::Directive& directive, Decision& decision) {
        // Taken over by all ranks between two steps, as rank 0's broadcast does it.
        serial_ = directive.serial;
        for (std::size_t rank = 0; rank < directive.sessions.size(); ++rank) {
            auto& image = sample_.sessions[rank].image;
            image.directive_serial = serial_;
            if (directive.sync_interval != 0) image.sync_interval = directive.sync_interval;
            // A directive without shares changes only the interval.
            if (directive.shares.empty()) continue;
            decision.shares[directive.sessions[rank] - 1] = directive.shares[rank];
        }
        if (directive.sync_interval != 0) interval_ = static_cast<int>(directive.sync_interval);
        decision.sync_interval = interval_;
    }

    double batch_;
    Seconds window_s_;
    fabricd::Loop loop_;
    fabricd::WindowMaker maker_;
    ControlLog* log_;
    fabricd::Sample sample_;
    std::vector<char> alive_;
    std::vector<double> samples_;
    std::uint64_t group_ = 0;
    std::uint64_t serial_ = 0;
    int interval_ = 1;
    Seconds now_s_ = 0;
    Seconds next_s_ = 0;
};

}  // namespace

Policy control_policy(const Workload& workload, const fabricd::ControlConfig& config,
                      ControlLog* log) {
    // A policy is copied; the loop is one.
    auto loop = std::make_shared<LoopInTheLoop>(workload.batch, config, log);
    return [loop](const Snapshot& seen) { return loop->step(seen); };
}

}  // namespace emu
