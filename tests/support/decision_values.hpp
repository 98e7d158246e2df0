// What a decision changes, of any kind, as numbers: for tests that look at the values.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fabricd/control/journal/decision.hpp"

namespace fabricd {

inline std::vector<double> before_of(const Decision& decision) {
    return frame_of(decision.action).before;
}

inline std::vector<double> after_of(const Decision& decision) {
    return frame_of(decision.action).after;
}

inline std::vector<std::string> names_of(const Decision& decision) {
    return frame_of(decision.action).names;
}

inline std::int32_t rank_of(const Decision& decision) {
    return frame_of(decision.action).rank;
}

}  // namespace fabricd
