// What tests of silos fetch into, and how.

#pragma once

#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "fabricd/data/silo/silo.hpp"
#include "fabricd/data/silo/web_silo.hpp"

namespace test_support {

inline fabricd::TimePoint soon() {
    return fabricshm::Clock::now() + std::chrono::seconds(60);
}

/// Memory whose bytes are '.' until a fetch writes them.
class FetchMemory {
  public:
    explicit FetchMemory(std::size_t bytes) : bytes_(bytes, std::byte{'.'}) {}

    std::byte* at(std::size_t place) { return bytes_.data() + place; }
    std::string text(std::size_t place, std::size_t bytes) const {
        return {reinterpret_cast<const char*>(bytes_.data()) + place, bytes};
    }

  private:
    std::vector<std::byte> bytes_;
};

struct FetchedText {
    fabricd::Fetched ended;
    std::string text;    // of the bytes that were asked for
    std::string around;  // of the 64 bytes before and behind them
};

/// One part of a file.
inline FetchedText fetch_text(fabricd::Silo& silo, const std::string& path,
                              const fabricd::FileFacts& facts, std::size_t offset,
                              std::size_t bytes) {
    constexpr std::size_t kEdge = 64;
    FetchMemory memory(bytes + 2 * kEdge);
    silo.start({path, facts, offset, bytes, memory.at(kEdge), bytes, 7});
    const auto ended = silo.wait(soon());
    if (ended.size() != 1) return {};
    return {ended[0], memory.text(kEdge, bytes),
            memory.text(0, kEdge) + memory.text(kEdge + bytes, kEdge)};
}

inline FetchedText fetch_all(fabricd::Silo& silo, const std::string& path,
                             const fabricd::FileFacts& facts) {
    return fetch_text(silo, path, facts, 0, facts.bytes);
}

/// Attempts without pauses, limits that end soon.
inline fabricd::WebSiloOptions quick_options() {
    fabricd::WebSiloOptions options;
    options.transfers.connections = 4;
    options.transfers.stalled_seconds = 1;
    options.retry.first_pause = std::chrono::milliseconds(1);
    options.retry.longest_pause = std::chrono::milliseconds(4);
    options.fetch_timeout = std::chrono::milliseconds(60'000);
    return options;
}

/// All pages of a folder; `left_out` is their sum.
inline fabricd::SiloPage list_all(fabricd::Silo& silo, const std::string& folder,
                                  std::size_t most) {
    fabricd::SiloPage all;
    std::string after;
    for (bool is_last = false; !is_last;) {
        auto page = silo.list(folder, after, most, soon()).value();
        is_last = page.is_last;
        if (all.left_out == 0) all.first_left_out = page.first_left_out;
        all.left_out += page.left_out;
        if (page.entries.empty() && !is_last) return {};  // it would not end
        for (auto& entry : page.entries) all.entries.push_back(std::move(entry));
        if (!all.entries.empty()) after = all.entries.back().name;
    }
    return all;
}

}  // namespace test_support
