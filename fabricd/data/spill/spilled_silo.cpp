#include "fabricd/data/spill/spilled_silo.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;

namespace {

// While both the disk and the silo have something under way: the disk's part ends in this time, and
// then the silo is asked, too.
constexpr auto kTurn = 1ms;

std::size_t sum_of(const SiloPage& page) {
    std::size_t sum = page.is_last ? 1 : 2;
    const auto mix = [&sum](std::size_t word) { sum = (sum ^ word) * 0x9e3779b97f4a7c15U; };
    for (const SiloEntry& entry : page.entries) {
        mix(std::hash<std::string>()(entry.name));
        mix(entry.is_folder ? 1 : entry.facts.bytes + 2);
        for (const std::uint64_t word : entry.facts.version.words) mix(word);
    }
    return sum;
}

bool is_whole_chunk(const Fetch& fetch) {
    return !fetch.from_source && fetch.offset % kSlotBytes == 0 && fetch.bytes != 0 &&
           fetch.bytes == std::min(kSlotBytes, fetch.facts.bytes - fetch.offset);
}

}  // namespace

SpilledSilo::SpilledSilo(Parts parts) : parts_(std::move(parts)) {
    if (parts_.spill != nullptr) {
        reader_ = std::make_unique<SpillReader>(*parts_.spill, parts_.memory);
    }
}

Result<std::unique_ptr<SpilledSilo>> SpilledSilo::open(Parts parts) {
    std::unique_ptr<SpilledSilo> silo(new SpilledSilo(std::move(parts)));
    const auto behind = silo->behind();
    if (behind.ok()) return silo;
    const Error error = behind.error();
    const std::string reason = fabricshm::explanation_of(error);
    const auto known = silo->parts_.catalogue->read_page(silo->parts_.at, "", 1, Clock::now() + 5s);
    if (!known.ok()) return fabricshm::explain(error, "%s", reason.c_str());
    silo->note_away(error, reason);
    return silo;
}

std::string SpilledSilo::place_of(const std::string& path) const {
    return path.empty() ? parts_.at : parts_.at + "/" + path;
}

Result<Silo*> SpilledSilo::behind() {
    if (!behind_) {
        FABRIC_TRY(behind_, parts_.open());
    }
    return behind_.get();
}

void SpilledSilo::note_away(const Error& error, const std::string& reason) {
    const bool is_new = !away_;
    away_ = SiloAway{error, reason};
    if (!is_new) return;
    fabricshm::log(fabricshm::LogLevel::kWarning,
                   "%s: %s; names are those of before until it answers again", parts_.at.c_str(),
                   reason.c_str());
}

Result<SiloPage> SpilledSilo::list_behind(const std::string& folder, const std::string& after,
                                          std::size_t most, TimePoint deadline) {
    FABRIC_TRY(Silo* const silo, behind());
    return silo->list(folder, after, most, deadline);
}

// A silo that has its root is there; what it does not have is no more.
bool SpilledSilo::answers(TimePoint deadline) {
    return list_behind("", "", 1, deadline).ok();
}

// Folders are listed again and again: a page that is as it was is not written again.
void SpilledSilo::note_page(const std::string& folder, const std::string& after,
                            const SiloPage& page) {
    const std::size_t sum = sum_of(page);
    const auto noted = noted_.find({folder, after});
    if (noted != noted_.end() && noted->second == sum) return;
    const bool is_added = parts_.catalogue->add(CataloguedPage{place_of(folder), after, page});
    // The pages behind it may begin elsewhere now.
    noted_.erase(noted_.lower_bound({folder, after}), noted_.lower_bound({folder + '\0', ""}));
    if (is_added) noted_[{folder, after}] = sum;
}

void SpilledSilo::note_gone(const std::string& folder) {
    parts_.catalogue->add(DropFolder{place_of(folder)});
    noted_.erase(noted_.lower_bound({folder, ""}), noted_.lower_bound({folder + '\0', ""}));
}

Result<SiloPage> SpilledSilo::list(const std::string& folder, const std::string& after,
                                   std::size_t most, TimePoint deadline) {
    auto page = list_behind(folder, after, most, deadline);
    if (page.ok()) {
        away_ = {};
        note_page(folder, after, *page);
        return page;
    }
    const Error error = page.error();
    const std::string reason = fabricshm::explanation_of(error);
    if (error.code == Errc::kNotFound && !folder.empty() && answers(deadline)) {
        note_gone(folder);
        return fabricshm::explain(error, "%s", reason.c_str());
    }
    auto known = parts_.catalogue->read_page(place_of(folder), after, most,
                                             std::max(deadline, Clock::now() + 1s));
    fabricshm::explain(error, "%s", reason.c_str());
    if (!known.ok()) return error;
    note_away(error, reason);
    return known;
}

Result<FileFacts> SpilledSilo::look(const std::string& path, TimePoint deadline) {
    const auto ask = [&]() -> Result<FileFacts> {
        FABRIC_TRY(Silo* const silo, behind());
        return silo->look(path, deadline);
    };
    auto facts = ask();
    if (facts.ok()) away_ = {};
    if (facts.ok() || path.empty()) return facts;
    const Error error = facts.error();
    const std::string reason = fabricshm::explanation_of(error);
    const bool is_gone = error.code == Errc::kNotFound && answers(deadline);
    auto known =
        is_gone ? Result<FileFacts>(error)
                : parts_.catalogue->look(place_of(path), std::max(deadline, Clock::now() + 1s));
    fabricshm::explain(error, "%s", reason.c_str());
    if (!known.ok()) return error;
    note_away(error, reason);
    return known;
}

bool SpilledSilo::has_room() const noexcept {
    return missed_.empty() && (!behind_ || behind_->has_room()) &&
           (!reader_ || reader_->has_room());
}

bool SpilledSilo::start_here(const Fetch& fetch) {
    if (!reader_ || !is_whole_chunk(fetch)) return false;
    const auto number = static_cast<std::uint32_t>(fetch.offset / kSlotBytes);
    return reader_->start({{place_of(fetch.path), fetch.facts.version, number},
                           fetch.bytes,
                           fetch.into,
                           fetch.room,
                           fetch.tag});
}

void SpilledSilo::start_behind(const Fetch& fetch) {
    const auto silo = behind();
    if (!silo.ok()) {
        ended_.push_back({fetch.tag, FetchOutcome::kFailed, silo.error(),
                          fabricshm::explanation_of(silo.error())});
        return;
    }
    (*silo)->start(fetch);
    ++from_behind_;
}

void SpilledSilo::start(const Fetch& fetch) {
    if (start_here(fetch)) {
        from_here_[fetch.tag] = fetch;
    } else {
        start_behind(fetch);
    }
}

void SpilledSilo::take_ended(TimePoint deadline, std::vector<Fetched>& ended) {
    const bool is_first = !from_here_.empty();
    if (is_first) {
        const bool is_alone = from_behind_ == 0;
        const TimePoint until = is_alone ? deadline : std::min(deadline, Clock::now() + kTurn);
        for (const ChunkTaken& taken : reader_->wait(until)) {
            const auto found = from_here_.find(taken.tag);
            FABRIC_CHECK(found != from_here_.end());
            if (taken.whole) {
                ended.push_back({taken.tag, FetchOutcome::kWhole, {Errc::kOk, 0, ""}, "", true});
            } else {
                missed_.push_back(found->second);
            }
            from_here_.erase(found);
        }
    }
    // Those that are not here after all, as far as the silo takes them.
    while (!missed_.empty() && (!behind_ || behind_->has_room())) {
        const Fetch fetch = std::move(missed_.back());
        missed_.pop_back();
        start_behind(fetch);
    }
    if (from_behind_ != 0) {
        const bool may_wait = ended.empty() && ended_.empty() && from_here_.empty();
        auto fetched = behind_->wait(may_wait ? deadline : fabricshm::kNoWait);
        from_behind_ -= fetched.size();
        std::move(fetched.begin(), fetched.end(), std::back_inserter(ended));
    }
    std::move(ended_.begin(), ended_.end(), std::back_inserter(ended));
    ended_.clear();
}

std::vector<Fetched> SpilledSilo::wait(TimePoint deadline) {
    std::vector<Fetched> ended;
    do {
        take_ended(ended_.empty() ? deadline : fabricshm::kNoWait, ended);
        const bool is_idle = from_here_.empty() && from_behind_ == 0 && missed_.empty();
        if (is_idle) break;
    } while (ended.empty() && Clock::now() < deadline);
    return ended;
}

}  // namespace fabricd
