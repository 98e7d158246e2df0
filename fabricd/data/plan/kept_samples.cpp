#include "fabricd/data/plan/kept_samples.hpp"

#include "libfabricshm/base/check.hpp"

namespace fabricd {

void KeptSamples::enter(std::uint32_t sample, Bytes bytes, bool is_exchanged) {
    kept_[sample] = {bytes, is_exchanged, false, {}};
    used_ += bytes;
}

bool KeptSamples::keep(std::uint32_t sample, Bytes bytes) {
    if (has(sample)) return true;
    if (bytes > budget_ || used_ > budget_ - bytes) return false;
    enter(sample, bytes, false);
    return true;
}

void KeptSamples::set_spare(std::uint32_t sample) {
    const auto found = kept_.find(sample);
    if (found == kept_.end() || found->second.is_spare) return;
    Sample& one = found->second;
    one.is_spare = true;
    one.order = {!one.is_exchanged, ++last_read_};
    spare_[one.order] = sample;
    spare_bytes_ += one.bytes;
}

void KeptSamples::unspare(Sample& sample) {
    if (!sample.is_spare) return;
    sample.is_spare = false;
    spare_.erase(sample.order);
    spare_bytes_ -= sample.bytes;
}

void KeptSamples::set_needed(std::uint32_t sample) {
    const auto found = kept_.find(sample);
    if (found == kept_.end()) return;
    unspare(found->second);
    found->second.is_exchanged = false;
}

bool KeptSamples::exchange(std::uint32_t sample, Bytes bytes, std::vector<std::uint32_t>& gone) {
    if (has(sample)) return true;
    FABRIC_DCHECK(spare_bytes_ <= used_);
    if (bytes > budget_ || used_ - spare_bytes_ > budget_ - bytes) return false;
    while (used_ > budget_ - bytes) {
        const std::uint32_t next = spare_.begin()->second;
        gone.push_back(next);
        drop(next);
    }
    enter(sample, bytes, true);
    return true;
}

void KeptSamples::drop(std::uint32_t sample) {
    const auto found = kept_.find(sample);
    if (found == kept_.end()) return;
    unspare(found->second);
    used_ -= found->second.bytes;
    kept_.erase(found);
}

// Any of them: each is read once more in the epoch, or in the next one.
bool KeptSamples::next_to_go(std::uint32_t& sample) const {
    if (used_ <= budget_) return false;
    sample = spare_.empty() ? kept_.begin()->first : spare_.begin()->second;
    return true;
}

}  // namespace fabricd
