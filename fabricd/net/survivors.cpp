#include "fabricd/net/survivors.hpp"

#include <charconv>
#include <cstdio>

namespace fabricd {

namespace {

constexpr std::size_t kDigits = 16;  // of a word

}  // namespace

bool is_part_of(const RankSet& part, const RankSet& whole) noexcept {
    for (std::size_t word = 0; word < part.size(); ++word) {
        if ((part[word] & ~whole[word]) != 0) return false;
    }
    return true;
}

std::string encode(const RankSet& ranks) {
    std::string text;
    for (const std::uint64_t word : ranks) {
        char digits[kDigits + 1];
        std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(word));
        text += digits;
    }
    return text;
}

std::optional<RankSet> decode_ranks(std::string_view text) {
    RankSet ranks{};
    if (text.size() != kDigits * ranks.size()) return std::nullopt;
    for (std::size_t word = 0; word < ranks.size(); ++word) {
        const char* begin = text.data() + word * kDigits;
        const auto [end, error] = std::from_chars(begin, begin + kDigits, ranks[word], 16);
        if (error != std::errc{} || end != begin + kDigits) return std::nullopt;
    }
    return ranks;
}

std::string name_of_group(const Survivors& survivors) {
    std::string text;
    for (const std::uint8_t byte : survivors.group) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", byte);
        text += digits;
    }
    return text;
}

Verdict SurvivorsDesk::ask(const Survivors& survivors, BootTime now) {
    const std::lock_guard lock(mutex_);
    std::erase_if(questions_, [&](const auto& item) { return now - item.second.begun > kKept; });
    auto found = questions_.find(survivors);
    if (found == questions_.end()) {
        if (questions_.size() >= kMost) return Verdict::kTooMany;
        Question question;
        question.begun = now;
        question.turn = ++turns_;
        found = questions_.emplace(survivors, question).first;
    }
    found->second.asked = now;
    return found->second.verdict;
}

std::optional<Survivors> SurvivorsDesk::next(BootTime now) {
    const std::lock_guard lock(mutex_);
    auto first = questions_.end();
    for (auto it = questions_.begin(); it != questions_.end(); ++it) {
        const Question& question = it->second;
        if (question.verdict != Verdict::kPending || now - question.asked > kForgotten) continue;
        if (first == questions_.end() || question.turn < first->second.turn) first = it;
    }
    if (first == questions_.end()) return std::nullopt;
    first->second.turn = ++turns_;
    return first->first;
}

void SurvivorsDesk::answer(const Survivors& survivors, bool these) {
    const std::lock_guard lock(mutex_);
    const auto found = questions_.find(survivors);
    if (found == questions_.end()) return;
    found->second.verdict = these ? Verdict::kTheseGoOn : Verdict::kOthersGoOn;
}

}  // namespace fabricd
