#include "fabricd/data/serve/listings.hpp"

#include <algorithm>
#include <chrono>
#include <set>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/shm/data_listing.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::ListedFile;

namespace {

constexpr std::size_t kRecent = 64;

RequestOutcome no_such(const std::string& path) {
    return {Errc::kNotFound, 0, printable(path) + " is not there"};
}

// "/a/b" of "/a/b/" and "//a/b".
std::string normal(const std::string& path) {
    std::string text = "/";
    for (const char letter : path) {
        if (letter != '/' || text.back() != '/') text += letter;
    }
    if (text.size() > 1 && text.back() == '/') text.pop_back();
    return text;
}

std::string wrong_text(const SiloSpec& spec, const ListDone& done) {
    return spec.at + ": " + std::to_string(done.wrong) +
           " left out for a wrong answer, the first " + done.first_wrong;
}

// What a silo's answer says of the silo.
RequestOutcome word_of_silo(const ListDone& done, bool is_root) {
    if (done.away) return outcome_of(*done.away);
    // A root that is gone is a silo that does not answer: a disk that is not mounted.
    if (is_root) return outcome_of(SiloAway{done.error, done.reason});
    return {done.error.code, done.error.detail, done.reason};
}

}  // namespace

Duration default_refresh(const SiloSpec& spec) {
    // Of what is prepared: as of what it is made of.
    if (spec.prep != nullptr) {
        const SiloSpec& source = spec.prep->source;
        return source.refresh > Duration::zero() ? source.refresh : default_refresh(source);
    }
    return spec.from.starts_with("/") ? Duration(1s) : Duration(60s);
}

Listings::Listings(Parts parts)
    : parts_(std::move(parts)),
      // Of all services that were ever at this arena no two have one id for two listings.
      last_id_(
          static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch() / 1us)),
      maker_({parts_.files, parts_.generation, parts_.post}) {}

std::optional<Listings::Place> Listings::place_of(const std::string& path) const {
    const std::string wanted = normal(path);
    for (std::uint32_t silo = 0; silo < parts_.specs.size(); ++silo) {
        const std::string& at = parts_.specs[silo].at;
        if (wanted == at) return Place{silo, ""};
        const bool is_below = wanted.size() > at.size() && wanted.rfind(at, 0) == 0 &&
                              wanted[at.size()] == '/' &&
                              is_silo_path(std::string_view(wanted).substr(at.size() + 1));
        if (is_below) return Place{silo, wanted.substr(at.size() + 1)};
    }
    return std::nullopt;
}

bool Listings::is_above_silos(const std::string& path) const {
    const std::string folder = normal(path) == "/" ? "/" : normal(path) + "/";
    return std::any_of(parts_.specs.begin(), parts_.specs.end(),
                       [&](const SiloSpec& spec) { return spec.at.rfind(folder, 0) == 0; });
}

Duration Listings::refresh_of(std::uint32_t silo) const {
    const SiloSpec& spec = parts_.specs[silo];
    return spec.refresh > Duration::zero() ? spec.refresh : default_refresh(spec);
}

Result<std::shared_ptr<Listing>> Listings::list_above(const std::string& path, TimePoint now) {
    const std::string folder = normal(path) == "/" ? "/" : normal(path) + "/";
    std::set<std::string> names;
    for (const SiloSpec& spec : parts_.specs) {
        if (spec.at.rfind(folder, 0) != 0) continue;
        const std::string rest = spec.at.substr(folder.size());
        names.insert(rest.substr(0, rest.find('/')));
    }
    std::vector<ListedFile> listed;
    for (const auto& name : names) {
        ListedFile one;
        one.name = name;
        one.is_folder = true;
        listed.push_back(one);
    }
    auto listing = std::make_shared<Listing>();
    listing->id = ++last_id_;
    listing->is_virtual = true;
    listing->made = now;
    FABRIC_TRY_VOID(seal_listing(*listing, parts_.generation, std::move(listed)));
    return listing;
}

void Listings::list(const std::string& path, bool is_recursive, bool is_new, ListAnswer answer,
                    TimePoint now) {
    const auto place = place_of(path);
    if (!place) {
        if (!is_above_silos(path)) return answer(no_such(path), nullptr);
        if (is_recursive) {
            return answer(
                {Errc::kUnsupported, 0, printable(path) + " has several silos below it: list each"},
                nullptr);
        }
        const auto listing = list_above(path, now);
        if (!listing.ok()) return answer(outcome_of(listing.error()), nullptr);
        remember(*listing);
        return answer({}, *listing);
    }
    const Key key{place->silo, place->path, is_recursive};
    Entry& entry = entries_[key];
    const bool is_fresh = entry.last && !entry.is_expired && !is_new &&
                          now - entry.last->made < refresh_of(place->silo);
    if (is_fresh) return answer({}, entry.last);
    entry.waiting.push_back({std::move(answer), now + parts_.silo_timeout, is_new});
    if (entry.is_asked) return;
    entry.is_asked = true;
    parts_.silos[place->silo]->list(place->path, is_recursive, [this, key](ListDone done) {
        parts_.post([this, key, done = std::move(done)]() mutable { took(key, std::move(done)); });
    });
}

// What was written and is not in the silo yet, as if it were.
void Listings::add_unwritten(const Key& key, ListDone& done) const {
    if (!unwritten) return;
    std::map<std::string, ListedPath> more;
    const std::string prefix = key.path.empty() ? "" : key.path + "/";
    for (const auto& [path, facts] : unwritten(key.silo)) {
        if (path == key.path) more[path] = {path, false, facts};
        if (!path.starts_with(prefix)) continue;
        const std::size_t slash = path.find('/', prefix.size());
        const bool is_deeper = slash != path.npos && !key.is_recursive;
        const std::string shown = is_deeper ? path.substr(0, slash) : path;
        more[shown] = {shown, is_deeper, is_deeper ? FileFacts{} : facts};
    }
    if (more.empty()) return;
    // A folder of such files alone is not gone.
    if (done.error.code == Errc::kNotFound && !key.path.empty()) done.error.code = Errc::kOk;
    if (done.error.code != Errc::kOk) return;
    std::erase_if(done.entries, [&](const ListedPath& entry) { return more.contains(entry.path); });
    for (auto& [path, entry] : more) done.entries.push_back(std::move(entry));
}

void Listings::took(const Key& key, ListDone done) {
    const TimePoint now = Clock::now();
    add_unwritten(key, done);
    // Nothing right in it: no listing, and above all not an empty one.
    if (done.error.code == Errc::kOk && done.entries.empty() && done.wrong != 0) {
        done.error = {Errc::kCorrupt, 0, "list folder"};
        done.reason = wrong_text(parts_.specs[key.silo], done) + ", and nothing else is there";
    }
    const RequestOutcome word = word_of_silo(done, key.path.empty());
    parts_.fills.note_silo(key.silo, word, now);
    if (done.error.code == Errc::kOk && done.wrong != 0) {
        parts_.fills.note_wrong(key.silo, done.wrong, wrong_text(parts_.specs[key.silo], done));
    }
    if (done.error.code != Errc::kOk) return failed(key, word);
    Entry& entry = entries_[key];
    entry.is_made = true;
    auto listing = std::make_shared<Listing>();
    listing->id = ++last_id_;
    listing->silo = key.silo;
    listing->path = key.path;
    listing->is_recursive = key.is_recursive;
    listing->left_out = done.left_out;
    listing->first_left_out = done.first_left_out;
    listing->made = now;
    maker_.make(std::move(listing), std::move(done.entries), entry.last,
                [this, key, word](const RequestOutcome& made, const std::shared_ptr<Listing>& one) {
                    finish(key, word, made, one);
                });
}

// A reader gets what was known, where there is something; a request for the silo's own word gets
// its error.
void Listings::answer_all(const std::vector<Waiter<ListAnswer>>& waiting,
                          const RequestOutcome& word, const RequestOutcome& outcome,
                          const std::shared_ptr<const Listing>& listing) {
    for (const auto& waiter : waiting) {
        const bool lacks_word = waiter.is_new && word.code != Errc::kOk;
        lacks_word ? waiter.answer(word, nullptr) : waiter.answer(outcome, listing);
    }
}

void Listings::failed(const Key& key, const RequestOutcome& word) {
    Entry& entry = entries_[key];
    entry.is_asked = false;
    const auto waiting = std::exchange(entry.waiting, {});
    if (word.code == Errc::kNotFound && entry.last) {
        maker_.forget(*entry.last);
        entry.last = nullptr;
    }
    if (const auto last = entry.last) return answer_all(waiting, word, {}, last);
    entries_.erase(key);  // `entry` is no more
    answer_all(waiting, word, word, nullptr);
}

void Listings::finish(const Key& key, const RequestOutcome& word, const RequestOutcome& made,
                      const std::shared_ptr<Listing>& listing) {
    Entry& entry = entries_[key];
    entry.is_asked = entry.is_made = false;
    const auto waiting = std::exchange(entry.waiting, {});
    if (made.code != Errc::kOk) return answer_all(waiting, word, made, nullptr);
    entry.last = listing;
    entry.is_expired = entry.is_late;
    entry.is_late = false;
    remember(listing);
    answer_all(waiting, word, {}, listing);
}

void Listings::remember(const std::shared_ptr<const Listing>& listing) {
    recent_.push_back(listing);
    if (recent_.size() > kRecent) recent_.pop_front();
}

std::shared_ptr<const Listing> Listings::find(std::uint64_t id) const {
    for (const auto& listing : recent_) {
        if (listing->id == id) return listing;
    }
    return nullptr;
}

void Listings::expire(std::uint32_t silo) {
    for (auto& [key, entry] : entries_) {
        if (key.silo != silo) continue;
        entry.is_expired = true;
        entry.is_late = entry.is_asked;
    }
}

void Listings::stat(const std::string& path, bool is_new, StatAnswer answer, TimePoint now) {
    const auto place = place_of(path);
    if (!place || place->path.empty()) {
        const bool is_there = place || is_above_silos(path);
        return answer(is_there ? RequestOutcome{} : no_such(path), {true, 0});
    }
    const KnownFile* known = parts_.files.find(place->silo, place->path);
    if (known != nullptr && !is_new && now - known->seen < refresh_of(place->silo)) {
        return answer({}, {false, known->id});
    }
    const LookKey key{place->silo, place->path};
    const auto [look, is_first] = looks_.try_emplace(key);
    look->second.waiting.push_back({std::move(answer), now + parts_.silo_timeout, is_new});
    if (!is_first) return;
    look->second.before = known != nullptr ? known->id : 0;
    parts_.silos[place->silo]->look(place->path, [this, key](ListDone done) {
        parts_.post([this, key, done = std::move(done)] { took_look(key, done); });
    });
}

void Listings::took_look(const LookKey& key, const ListDone& asked) {
    const TimePoint now = Clock::now();
    ListDone done = asked;
    if (unwritten) {
        const auto& files = unwritten(key.first);
        const auto file = files.find(key.second);
        if (file != files.end()) {
            done = {};
            done.entries.push_back({file->first, false, file->second});
        }
    }
    const auto found = looks_.find(key);
    const Look look = std::move(found->second);
    looks_.erase(found);
    const auto& [silo, path] = key;
    const RequestOutcome word = word_of_silo(done, false);
    const RequestOutcome outcome{done.error.code, done.error.detail, done.reason};
    parts_.fills.note_silo(silo, word, now);
    const auto answer_all = [&](const RequestOutcome& answered, PathFacts facts) {
        for (const auto& waiter : look.waiting) {
            const bool is_late =
                waiter.is_new && word.code != Errc::kOk && word.code != Errc::kNotFound;
            is_late ? waiter.answer(word, {}) : waiter.answer(answered, facts);
        }
    };
    if (outcome.code == Errc::kOk) {
        const auto file = parts_.files.see(silo, path, done.entries[0].facts, now);
        parts_.files.flush();
        if (!file.ok()) return answer_all(outcome_of(file.error()), {});
        return answer_all({}, {false, (*file)->id});
    }
    const bool is_here = look.before != 0 && parts_.files.find(look.before) != nullptr;
    if (outcome.code != Errc::kNotFound) {
        // As listings: what was known goes on while the silo does not answer.
        return is_here ? answer_all({}, {false, look.before}) : answer_all(outcome, {});
    }
    if (is_here) parts_.files.forget(look.before);
    // No file when the silo looked; a folder perhaps, or a file that came after that.
    list(
        parts_.specs[silo].at + "/" + path, false, false,
        [this, path, waiting = look.waiting](const RequestOutcome& listed,
                                             const std::shared_ptr<const Listing>& listing) {
            const bool is_file = listing && listing->is_file;
            const std::uint64_t file = is_file ? listing->files[0] : 0;
            // An older listing of a file that has gone.
            const bool is_gone = is_file && parts_.files.find(file) == nullptr;
            for (const auto& waiter : waiting) {
                is_gone ? waiter.answer(no_such(path), {})
                        : waiter.answer(listed, {!is_file, file});
            }
        },
        now);
}

RequestOutcome Listings::late_outcome(std::uint32_t silo) const {
    return {Errc::kTimeout, 0, parts_.specs[silo].at + ": the silo has not answered in time"};
}

void Listings::tick(TimePoint now) {
    std::vector<std::function<void()>> late;
    const auto take_late = [now](auto& waiting, const auto& take) {
        for (const auto& waiter : waiting) {
            if (waiter.deadline <= now) take(waiter);
        }
        std::erase_if(waiting, [now](const auto& waiter) { return waiter.deadline <= now; });
    };
    for (auto& [key, entry] : entries_) {
        if (entry.is_made) continue;
        const RequestOutcome outcome = late_outcome(key.silo);
        take_late(entry.waiting, [&, last = entry.last](const Waiter<ListAnswer>& waiter) {
            parts_.fills.note_silo(key.silo, outcome, now);
            const bool has_last = last && !waiter.is_new;
            late.push_back([=, answer = waiter.answer] {
                has_last ? answer({}, last) : answer(outcome, nullptr);
            });
        });
    }
    for (auto& [key, look] : looks_) {
        const RequestOutcome outcome = late_outcome(key.first);
        const bool is_here = look.before != 0 && parts_.files.find(look.before) != nullptr;
        const PathFacts facts{false, look.before};
        take_late(look.waiting, [&](const Waiter<StatAnswer>& waiter) {
            parts_.fills.note_silo(key.first, outcome, now);
            const bool has_last = is_here && !waiter.is_new;
            late.push_back([=, answer = waiter.answer] {
                has_last ? answer({}, facts) : answer(outcome, {});
            });
        });
    }
    for (const auto& answer : late) answer();
}

}  // namespace fabricd
