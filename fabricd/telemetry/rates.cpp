#include "fabricd/telemetry/rates.hpp"

#include <algorithm>

namespace fabricd {

namespace {

// 0 for a counter that fell: pages are written by their sessions.
template <typename Number>
double risen(Number before, Number now) noexcept {
    return now > before ? static_cast<double>(now - before) : 0;
}

// A share of a whole, also where the session that counted the parts lies.
double share(double part, double whole) noexcept {
    return whole > 0 ? std::min(part / whole, 1.0) : 0;
}

}  // namespace

void update_rates(SessionSample& session) noexcept {
    const fabricshm::TelemetryImage& now = session.image;
    RatesBase& before = session.before;
    if (now.steps == before.steps || now.written_ns <= before.written_ns) return;
    const double steps = risen(before.steps, now.steps);
    const double step_ns = risen(before.step_ns, now.step_ns);
    // From end of step to end of step, by the session's own clock: the moments of our samples would
    // add or lose a step. The first sample has no such beginning.
    const bool first = before.written_ns == 0;
    const double seconds = (first ? step_ns : risen(before.written_ns, now.written_ns)) * 1e-9;
    SessionRates& rates = session.rates;
    rates = {};
    if (seconds > 0) {
        rates.steps_per_s = steps / seconds;
        rates.samples_per_s = risen(before.samples, now.samples) / seconds;
    }
    if (steps > 0) rates.step_s = step_ns * 1e-9 / steps;
    rates.compute_share = share(risen(before.compute_ns, now.compute_ns), step_ns);
    rates.wait_share = share(risen(before.wait_ns, now.wait_ns), step_ns);
    rates.comm_share = share(risen(before.comm_ns, now.comm_ns), step_ns);
    before = {now.written_ns, now.steps,   now.samples, now.step_ns,
              now.compute_ns, now.wait_ns, now.comm_ns};
}

}  // namespace fabricd
