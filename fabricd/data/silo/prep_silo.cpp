#include "fabricd/data/silo/prep_silo.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;

namespace {

// Some fetches wait behind those that each thread works on.
constexpr std::size_t kFetchesEach = 4;
// Sizes that are remembered, of some 100 bytes; with more of them a listing prepares again.
constexpr std::size_t kKnownMax = 1 << 20;
// What is listed of a file that can't be prepared: not 0, or no fetch would say why.
constexpr Bytes kBadBytes = 1;

Fetched result_of(const Fetch& fetch, const Prepared& prepared) {
    const Error none{Errc::kOk, 0, ""};
    if (prepared.is_gone) return {fetch.tag, FetchOutcome::kChanged, none, "it is gone"};
    const bool is_asked = prepared.version == fetch.facts.version;
    if (!is_asked && (prepared.bytes != nullptr || prepared.is_bad)) {
        return {fetch.tag, FetchOutcome::kChanged, none, "it is another version"};
    }
    if (prepared.bytes == nullptr) {
        return {fetch.tag, FetchOutcome::kFailed, prepared.error, prepared.reason,
                false,     prepared.is_bad};
    }
    // A range outside of what there is comes from facts that were not ours.
    const Bytes bytes = prepared.bytes->size();
    if (fetch.offset > bytes || fetch.bytes > bytes - fetch.offset) {
        return {fetch.tag, FetchOutcome::kChanged, none, "it has another size"};
    }
    if (fetch.bytes != 0) {
        std::memcpy(fetch.into, prepared.bytes->data() + fetch.offset, fetch.bytes);
    }
    return {fetch.tag, FetchOutcome::kWhole, none, ""};
}

}  // namespace

PrepSilo::Known PrepSilo::known_as(const Prepared& prepared) {
    const Bytes bytes = prepared.bytes != nullptr ? prepared.bytes->size() : 0;
    return {prepared.version, bytes,          prepared.is_bad,
            prepared.is_gone, prepared.error, prepared.reason};
}

PrepSilo::PrepSilo(PrepOptions options, std::unique_ptr<Silo> source,
                   std::shared_ptr<const PrepRules> rules)
    : options_(std::move(options)),
      source_(std::move(source)),
      rules_(std::move(rules)),
      fixed_bytes_(rules_->fixed_bytes()),
      is_measured_(fixed_bytes_ == 0 || options_.skips_bad),
      listing_(*source_, options_.below),
      workers_(std::make_unique<PrepWorkers>(options_.threads, options_.source, rules_)) {}

PrepSilo::~PrepSilo() = default;

Result<std::unique_ptr<PrepSilo>> PrepSilo::open(PrepOptions options) {
    FABRIC_TRY(auto rules, PrepRules::open(options.steps, options.most_pixels));
    FABRIC_TRY(auto source, options.source());
    return std::unique_ptr<PrepSilo>(
        new PrepSilo(std::move(options), std::move(source), std::move(rules)));
}

// "a/b.jpeg.npy" is made of "a/b.jpeg"; "" of nothing.
std::string PrepSilo::source_of(const std::string& path) const {
    if (!is_silo_path(path) || !path.ends_with(kPreparedEnd)) return "";
    const std::string name = path.substr(0, path.size() - kPreparedEnd.size());
    if (name.empty() || !is_silo_path(name)) return "";
    const std::string whole = joined_path(options_.below, name);
    return is_silo_path(whole) ? whole : "";
}

// With the lock held.
void PrepSilo::remember(const Prepared& prepared) {
    if (known_.size() >= kKnownMax) known_.clear();
    if (prepared.bytes != nullptr || prepared.is_bad) known_[prepared.version] = known_as(prepared);
    if (prepared.bytes == nullptr) return;
    kept_.push_front({prepared.version, prepared.bytes});
    kept_bytes_ += prepared.bytes->size();
    while (kept_.size() > 1 && kept_bytes_ > kKeptBytes) {
        kept_bytes_ -= kept_.back().bytes->size();
        kept_.pop_back();
    }
}

PreparedBytes PrepSilo::kept(const FileVersion& version) {
    const auto found = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const Kept& one) { return one.version == version; });
    if (found == kept_.end()) return nullptr;
    kept_.splice(kept_.begin(), kept_, found);
    return found->bytes;
}

// On a worker's thread. From here on a fetch of this version finds it kept, or has it prepared
// again.
void PrepSilo::finish(const Sample& sample, const Prepared& prepared) {
    std::vector<Fetch> fetches;
    {
        const std::lock_guard lock(mutex_);
        remember(prepared);
        const auto waiting = under_way_.find(sample);
        FABRIC_CHECK(waiting != under_way_.end());
        fetches = std::move(waiting->second);
        under_way_.erase(waiting);
    }
    answer(fetches, prepared);
}

// Outside of the lock: it copies. The memory is ours until wait() gives the tag.
void PrepSilo::answer(const std::vector<Fetch>& fetches, const Prepared& prepared) {
    std::vector<Fetched> results;
    for (const Fetch& fetch : fetches) results.push_back(result_of(fetch, prepared));
    const std::lock_guard lock(mutex_);
    for (Fetched& result : results) ended_.push_back(std::move(result));
    ended_or_measured_.notify_all();
}

bool PrepSilo::has_room() const noexcept {
    const std::lock_guard lock(mutex_);
    return in_flight_ < options_.threads * kFetchesEach;
}

void PrepSilo::start(const Fetch& fetch) {
    FABRIC_CHECK(fetch.bytes <= fetch.room && fetch.offset + fetch.bytes <= fetch.facts.bytes);
    const std::string path = source_of(fetch.path);
    Prepared ready;
    bool is_new = false;
    {
        const std::lock_guard lock(mutex_);
        ++in_flight_;
        ready.version = fetch.facts.version;
        ready.bytes = kept(fetch.facts.version);
        ready.is_gone = path.empty();
        if (ready.bytes == nullptr && !ready.is_gone) {
            // One that is being prepared already serves fetches that come meanwhile.
            auto& waiting = under_way_[{path, fetch.facts.version}];
            is_new = waiting.empty();
            waiting.push_back(fetch);
        }
    }
    if (ready.bytes != nullptr || ready.is_gone) return answer({fetch}, ready);
    if (!is_new) return;
    workers_->ask(path, true,
                  [this, sample = Sample{path, fetch.facts.version}](const Prepared& prepared) {
                      finish(sample, prepared);
                  });
}

std::vector<Fetched> PrepSilo::wait(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    ended_or_measured_.wait_until(lock, deadline,
                                  [this] { return !ended_.empty() || in_flight_ == 0; });
    auto ended = std::exchange(ended_, {});
    in_flight_ -= ended.size();
    return ended;
}

// Has files prepared for their sizes, behind all fetches; what is not ready at the deadline goes on
// and is known to the next listing.
void PrepSilo::measure(const std::vector<std::string>& paths, TimePoint deadline,
                       Measure& measured) {
    if (paths.empty()) return;
    const auto shared = std::make_shared<Measure>();
    shared->left = paths.size();
    for (const std::string& path : paths) {
        workers_->ask(path, false, [this, shared, path](const Prepared& prepared) {
            const std::lock_guard lock(mutex_);
            remember(prepared);
            shared->found[path] = known_as(prepared);
            if (--shared->left == 0) ended_or_measured_.notify_all();
        });
    }
    std::unique_lock lock(mutex_);
    ended_or_measured_.wait_until(lock, deadline, [&] { return shared->left == 0; });
    measured = *shared;
}

// The source's paths of the next entries that have to be prepared first.
std::vector<std::string> PrepSilo::unknown_of(const std::string& folder, std::size_t most) const {
    std::vector<std::string> paths;
    if (!is_measured_) return paths;
    const std::lock_guard lock(mutex_);
    std::size_t looked = 0;
    for (const SiloEntry& entry : listing_.entries()) {
        if (looked++ == most) break;
        if (entry.is_folder) continue;
        if (known_.count(version_of_prepared(entry.facts, *rules_)) != 0) continue;
        paths.push_back(source_of(joined_path(folder, entry.name)));
    }
    return paths;
}

// nullopt: it is still being prepared.
std::optional<PrepSilo::Known> PrepSilo::known_of(const std::string& path, const FileFacts& source,
                                                  const Measure& measured) const {
    const FileVersion version = version_of_prepared(source, *rules_);
    if (!is_measured_) {
        Known fixed;
        fixed.version = version;
        fixed.bytes = fixed_bytes_;
        return fixed;
    }
    const std::lock_guard lock(mutex_);
    if (const auto known = known_.find(version); known != known_.end()) return known->second;
    // Another version by now, or one that could not be read.
    const auto found = measured.found.find(path);
    return found != measured.found.end() ? std::optional(found->second) : std::nullopt;
}

// As many of the next entries as are known, in order. An error is of the first that is not.
Result<void> PrepSilo::give(const std::string& folder, std::size_t most, const Measure& measured,
                            SiloPage& page) {
    // No more than have been measured, whatever part of them is left out.
    for (std::size_t looked = 0; looked < most && !listing_.entries().empty(); ++looked) {
        SiloEntry entry = listing_.entries().front();
        if (entry.is_folder) {
            page.entries.push_back(std::move(entry));
            listing_.take(true);
            continue;
        }
        const std::string path = source_of(joined_path(folder, entry.name));
        const auto known = known_of(path, entry.facts, measured);
        if (!known) return Error{Errc::kTimeout, 0, "list prepared"};
        const bool is_left_out = known->is_gone || (known->is_bad && options_.skips_bad);
        if (!is_left_out && !known->is_bad && known->error.code != Errc::kOk) {
            return explain(known->error, "%s", known->reason.c_str());
        }
        if (known->is_bad && is_left_out && page.left_out++ == 0) {
            page.first_left_out = known->reason;
        }
        entry.facts = {known->is_bad ? kBadBytes : known->bytes, known->version};
        if (!is_left_out) page.entries.push_back(std::move(entry));
        listing_.take(!is_left_out);
    }
    return {};
}

Result<SiloPage> PrepSilo::list(const std::string& folder, const std::string& after,
                                std::size_t most, TimePoint deadline) {
    FABRIC_TRY_VOID(listing_.go_to(folder, after, deadline));
    SiloPage page;
    // A page that lacks all its entries is no page: the next would begin where it began.
    while (page.entries.empty()) {
        FABRIC_TRY_VOID(listing_.fill(most, deadline));
        Measure measured;
        measure(unknown_of(folder, most), deadline, measured);
        const auto given = give(folder, most, measured, page);
        if (page.entries.empty() && !given.ok()) return given.error();
        if (listing_.entries().empty() && listing_.is_whole()) break;
    }
    listing_.report(page);
    page.is_last = listing_.entries().empty() && listing_.is_whole();
    return page;
}

Result<FileFacts> PrepSilo::look(const std::string& path, TimePoint deadline) {
    const std::string from = source_of(path);
    if (from.empty()) {
        return explain({Errc::kNotFound, 0, "look at file"}, "%s is not there",
                       printable(path).c_str());
    }
    FABRIC_TRY(const FileFacts source, source_->look(from, deadline));
    auto known = known_of(from, source, Measure{});
    if (!known) {
        Measure measured;
        measure({from}, deadline, measured);
        known = known_of(from, source, measured);
    }
    if (!known) return Error{Errc::kTimeout, 0, "look at file"};
    // As a listing has it: a read says why.
    if (known->is_bad && !options_.skips_bad) return FileFacts{kBadBytes, known->version};
    if (known->error.code == Errc::kOk) return FileFacts{known->bytes, known->version};
    const Errc code = known->is_gone || (known->is_bad && options_.skips_bad) ? Errc::kNotFound
                                                                              : known->error.code;
    return explain({code, 0, "look at file"}, "%s", known->reason.c_str());
}

}  // namespace fabricd
