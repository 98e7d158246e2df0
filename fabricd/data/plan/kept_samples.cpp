#include "fabricd/data/plan/kept_samples.hpp"

namespace fabricd {

bool KeptSamples::keep(std::uint32_t sample, Bytes bytes) {
    if (has(sample)) return true;
    if (bytes > budget_ || used_ > budget_ - bytes) return false;
    kept_.emplace(sample, bytes);
    used_ += bytes;
    return true;
}

void KeptSamples::drop(std::uint32_t sample) {
    const auto found = kept_.find(sample);
    if (found == kept_.end()) return;
    used_ -= found->second;
    kept_.erase(found);
}

// Any of them: each is read once more in the epoch, or in the next one.
bool KeptSamples::next_to_go(std::uint32_t& sample) const {
    if (used_ <= budget_) return false;
    sample = kept_.begin()->first;
    return true;
}

}  // namespace fabricd
