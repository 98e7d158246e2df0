// Survivors: which ranks of a group over several hosts go on without the others, once for all.
//
// Two sides of a cut network may each hold their leases, and each find the connections of the other
// ended. So a side that leaves out ranks which may be alive has the cluster's store write down
// which ranks are left; another side then finds that it is not among them. A later survivor set has
// to be a part of the one before. docs/hosts.md, "Deaths, cuts and fences".

#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "fabricd/net/boot_clock.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// Bit rank % 64 of word rank / 64.
using RankSet = std::array<std::uint64_t, 4>;

struct Survivors {
    std::array<std::uint8_t, 16> group{};  // random: of one epoch of one group
    RankSet ranks{};

    auto operator<=>(const Survivors&) const = default;
};

bool is_part_of(const RankSet& part, const RankSet& whole) noexcept;

/// As the store keeps it: 64 hexadecimal digits.
std::string encode(const RankSet& ranks);
std::optional<RankSet> decode_ranks(std::string_view text);
std::string name_of_group(const Survivors& survivors);

enum class Verdict : std::uint8_t {
    kPending,     // ask again
    kTheseGoOn,   // written down
    kOthersGoOn,  // others were before
    kNoStore,     // nothing is written down: no cluster, or a static list
    kTooMany,     // this daemon has asked for so many in the last hour
};

/// Questions of sessions, and what the store said. Thread-safe; nothing waits.
class SurvivorsDesk {
  public:
    /// What a session asks again and again until it is not kPending any more.
    Verdict ask(const Survivors& survivors, BootTime now);

    /// The next one that the store has to be asked, in turn; those that no session has asked for
    /// kForgotten are left out.
    std::optional<Survivors> next(BootTime now);
    void answer(const Survivors& survivors, bool these);

    /// A session could fill the store otherwise.
    static constexpr std::size_t kMost = 256;
    static constexpr fabricshm::Duration kKept = std::chrono::hours(1);
    static constexpr fabricshm::Duration kForgotten = std::chrono::seconds(10);

  private:
    struct Question {
        Verdict verdict = Verdict::kPending;
        BootTime begun{};
        BootTime asked{};
        std::uint64_t turn = 0;
    };

    std::mutex mutex_;
    std::map<Survivors, Question> questions_;
    std::uint64_t turns_ = 0;
};

}  // namespace fabricd
