#include "fabricd/net/trouble_log.hpp"

namespace fabricd {

bool TroubleLog::is_due(const std::string& text, BootTime now) {
    std::erase_if(logged_, [&](const auto& item) { return now - item.second >= kAgain; });
    return logged_.emplace(text, now).second;
}

}  // namespace fabricd
